"""Parsl's worker pool for tasks on several nodes, in which a task may wait for nodes.

    python -m ckptflow.workflow.blocks.mpi_pool …

Parsl 2026.10.26 takes a waiting task from its queue whenever another one ends, and puts it
back if there are still too few nodes; then it begins again at once, until Python's limit of
recursion ends the thread that hands on results, and with it everything. Here each waiting task
is looked at once; one that does not fit waits for the next that ends.
``tests/unit/test_mpi_pool.py``.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from ckptflow.workflow.blocks.lean import become, leave_out

if TYPE_CHECKING:
    from parsl.executors.high_throughput.mpi_resource_management import MPITaskScheduler


def schedule_backlog(scheduler: MPITaskScheduler) -> None:
    """Start the tasks that were waiting and fit now, each once; keep the others."""
    waiting = []
    while True:
        try:
            waiting.append(scheduler._backlog_queue.get(block=False))  # noqa: SLF001
        except queue.Empty:
            break
    for one in waiting:
        scheduler.put_task(one.task)  # Puts it back if it does not fit.


def _patch() -> None:
    from parsl.executors.high_throughput.mpi_resource_management import MPITaskScheduler

    MPITaskScheduler._schedule_backlog_tasks = schedule_backlog  # noqa: SLF001


if __name__ in {"__main__", "__mp_main__"}:
    leave_out()
    _patch()
    become("process_worker_pool", globals())
