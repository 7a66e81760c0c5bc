"""When an executor is given up: blocks that fail to start, not those that worked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from parsl.jobs.states import JobState

from ckptflow.errors import WorkflowError
from ckptflow.workflow.blocks.ends import EARLY_S, BlockStatus, give_up_after


class Executor:
    """What an error handler sees of an executor."""

    def __init__(self) -> None:
        self.failed_with: list[Exception] = []
        self.run_dir = "runs/000"

    @property
    def bad_state_is_set(self) -> bool:
        return bool(self.failed_with)

    def set_bad_state_and_fail_all(self, error: Exception) -> None:
        self.failed_with.append(error)


def blocks(*states: str) -> dict[str, Any]:
    return {
        str(number): SimpleNamespace(
            state=SimpleNamespace(name=state), message=None, stderr_summary=f"log of {number}"
        )
        for number, state in enumerate(states)
    }


@pytest.mark.parametrize(
    ("states", "gives_up"),
    [
        ([], False),
        (["FAILED"], False),
        (["FAILED", "FAILED"], False),
        (["FAILED", "MISSING", "FAILED"], True),
        (["COMPLETED"] * 9 + ["FAILED"] * 3, True),
        (["FAILED"] * 5 + ["RUNNING"], False),
        (["FAILED", "FAILED", "COMPLETED", "FAILED"], False),
    ],
)
def test_an_executor_is_given_up_after_failures_in_a_row(
    states: list[str], gives_up: bool
) -> None:
    executor = Executor()
    give_up_after(3)(executor, blocks(*states))
    assert executor.bad_state_is_set == gives_up


def test_the_reason_holds_what_the_blocks_printed() -> None:
    executor = Executor()
    handler = give_up_after(2)
    handler(executor, blocks("FAILED", "FAILED"))
    handler(executor, blocks("FAILED", "FAILED", "FAILED"))
    (error,) = executor.failed_with
    assert isinstance(error, WorkflowError)
    assert "The last 2 blocks" in str(error)
    assert "log of 0; log of 1" in str(error)


def test_blocks_that_worked_or_were_lost_have_not_failed_to_start() -> None:
    def ended(**how: Any) -> BlockStatus:
        return BlockStatus(JobState.FAILED, **how)

    early, late = ended(lasted_s=3.0), ended(lasted_s=EARLY_S)
    executor = Executor()
    handle = give_up_after(2)
    for newest in (late, ended(lost=True), ended(lasted_s=1.0, lost=True)):
        handle(executor, {"0": early, "1": newest})
        assert not executor.bad_state_is_set
    handle(executor, {"0": early, "1": ended()})
    assert executor.bad_state_is_set
