"""Runs without Parsl's kernel, on an executor that the test itself answers for."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import ckptflow as cf
from ckptflow.errors import ConfigError, Preempted, TaskLost, WorkflowError
from ckptflow.workflow import journal

ENDPOINT = "6c54cade-bde5-45c1-bdea-f4bd71dba2cc"


class ByHand:
    """An executor whose tries the test ends, one after the other.

    Attributes:
        tries: futures of what was submitted.
        shut: what it was told at its end.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers, self.tries, self.shut = list(answers), [], None

    def submit(self, fn: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, WorkflowError) and type(answer) is WorkflowError:
            raise answer
        future: Future[Any] = Future()
        self.tries.append(future)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        return future

    def shutdown(self, **how: Any) -> None:
        self.shut = how


@cf.python_app
def work(number: int) -> int:
    return number


def run(store: Path, executor: ByHand, **options: Any) -> Any:
    return cf.globus_compute.run("exp", store=store, executor=executor, **options)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_stop_with_progress_is_free_and_a_loss_costs_little(store: Path) -> None:
    stops = [Preempted("s", step=step, resumed_step=step - 1) for step in (1, 2, 3)]
    executor = ByHand(*stops, TaskLost("l"), TaskLost("l"), 5)
    with run(store, executor, retries=1) as active:
        assert active.submit(work, 1).result() == 5
    task = active.summary().as_json()["tasks"][0]
    assert (task["tries"], task["preempted"], task["lost"]) == (6, 3, 2)


def test_calling_an_app_submits_it_and_it_is_remembered(store: Path) -> None:
    with run(store, ByHand(5)):
        assert work(1).result() == 5
    again = ByHand()
    with run(store, again) as active:
        assert work(1).result() == 5
    assert again.tries == []
    assert active.summary().as_json()["tasks"][0]["status"] == "reused"


def test_a_budget_that_is_spent_gives_the_last_error(store: Path) -> None:
    executor = ByHand(ValueError("first"), ValueError("second"))
    with run(store, executor, retries=1) as active, pytest.raises(ValueError, match="second"):
        active.submit(work, 1).result()
    assert active.exit_code == 1


def test_a_handler_that_fails_ends_the_task_with_its_own_error(store: Path) -> None:
    def handler(error: Exception, task: Any) -> float:
        raise KeyError("handler")

    executor = ByHand(ValueError("x"))
    with (
        run(store, executor, retry_handler=handler) as active,
        pytest.raises(KeyError, match="h"),
    ):
        active.submit(work, 1).result()


def test_an_executor_that_has_ended_fails_tasks_and_does_not_hang(store: Path) -> None:
    executor = ByHand(*[WorkflowError("Nothing more can be sent")] * 5)
    with run(store, executor, retries=2) as active:
        error = active.submit(work, 1).exception()
    assert str(error) == "Nothing more can be sent"
    assert executor.tries == []


def test_leaving_waits_for_what_is_open(store: Path) -> None:
    executor = ByHand()
    with run(store, executor) as active:
        future = active.submit(work, 1)
        threading.Timer(0.2, lambda: executor.tries[0].set_result(7)).start()
    assert future.result(timeout=0) == 7
    assert executor.shut == {"wait": True, "cancel_futures": True}


def test_an_error_in_the_workflow_gives_open_tasks_up(store: Path) -> None:
    executor = ByHand()
    futures = []

    def workflow() -> None:
        with run(store, executor) as active:
            futures.append(active.submit(work, 1))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        workflow()
    with pytest.raises(WorkflowError, match="ended before this task"):
        futures[0].result(timeout=0)
    assert executor.shut == {"wait": False, "cancel_futures": True}
    executor.tries[0].set_result(7)  # It may still arrive, and disturbs nobody.


def test_a_run_that_is_over_takes_no_tasks(store: Path) -> None:
    with run(store, ByHand()) as active:
        pass
    with pytest.raises(ConfigError, match="is not active"):
        active.submit(work, 1)


def test_its_journal_and_its_lock_are_those_of_any_run(store: Path) -> None:
    with run(store, ByHand(5)) as active:
        active.submit(work, 1).result()
        with (
            pytest.raises(ConfigError, match="is active in this process"),
            run(store, ByHand()),
        ):
            pass
    events = [event["event"] for event in journal.read(active.folder / "journal.jsonl")]
    assert events == [
        *("run-started", "app-defined", "task-launched", "task-finished", "run-ended"),
    ]
