"""Tasks that wait for nodes wait, and nothing goes round in circles meanwhile."""

from __future__ import annotations

import pickle
import queue
from typing import Any

import pytest
from parsl.executors.high_throughput import mpi_resource_management
from parsl.executors.high_throughput.mpi_resource_management import MPITaskScheduler

from ckptflow.workflow.blocks import mpi_pool


def task(number: int, nodes: int) -> dict[str, Any]:
    return {"task_id": number, "context": {"resource_spec": {"num_nodes": nodes}}}


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> MPITaskScheduler:
    """Of an allocation of three nodes, with our way to look at what waits."""
    monkeypatch.setattr(
        mpi_resource_management, "get_nodes_in_batchjob", lambda _: ["n1", "n2", "n3"]
    )
    found = MPITaskScheduler(queue.Queue(), queue.Queue())
    monkeypatch.setattr(MPITaskScheduler, "_schedule_backlog_tasks", mpi_pool.schedule_backlog)
    return found


def started(scheduler: MPITaskScheduler) -> list[int]:
    found = []
    while not scheduler.pending_task_q.empty():
        found.append(scheduler.pending_task_q.get()["task_id"])
    return found


def end(scheduler: MPITaskScheduler, number: int) -> None:
    scheduler.pending_result_q.put(pickle.dumps({"type": "result", "task_id": number}))
    scheduler.get_result()


def test_a_task_that_does_not_fit_waits_for_the_next_that_ends(
    scheduler: MPITaskScheduler,
) -> None:
    for number, nodes in enumerate([1, 1, 1, 3, 2]):
        scheduler.put_task(task(number, nodes))
    assert started(scheduler) == [0, 1, 2]
    end(scheduler, 0)  # One node is free: neither of the two fits.
    assert started(scheduler) == []
    end(scheduler, 1)
    assert started(scheduler) == [4]
    end(scheduler, 4)
    end(scheduler, 2)
    assert started(scheduler) == [3]


def test_parsl_alone_still_does_not_end(
    scheduler: MPITaskScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When this fails, Parsl has mended it, and `mpi_pool` can go."""
    monkeypatch.undo()
    scheduler.put_task(task(0, 2))
    scheduler.put_task(task(1, 1))
    scheduler.put_task(task(2, 2))
    with pytest.raises(RecursionError):
        end(scheduler, 1)
