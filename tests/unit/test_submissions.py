"""Asking for blocks: pauses that grow, and reasons to give up. Time is a number here."""

from __future__ import annotations

from typing import Any

import pytest
from parsl.executors.status_handling import BlockProviderExecutor
from parsl.jobs.states import JobState, JobStatus

from ckptflow.errors import WorkflowError
from ckptflow.workflow.blocks.submissions import LONGEST_PAUSE_S, Patient, Submissions

BUSY = "sbatch: error: Batch job submission failed: Unable to contact slurm controller"
LIMIT = "sbatch: error: Job violates accounting/QOS policy (job submit limit)"
WRONG = "sbatch: error: Batch job submission failed: Invalid account or account/partition"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Provider:
    """Refuses as long as it is told to."""

    init_blocks, min_blocks, max_blocks, nodes_per_block, parallelism = 1, 0, 4, 1, 1.0
    status_polling_interval = 1
    label = "provider"

    def __init__(self) -> None:
        self.refuses_with: str | None = None
        self.asked = 0
        self.jobs: list[str] = []

    def submit(self, *_: Any) -> str:
        self.asked += 1
        if self.refuses_with is not None:
            raise WorkflowError(self.refuses_with)
        self.jobs.append(str(len(self.jobs)))
        return self.jobs[-1]

    def status(self, jobs: list[str]) -> list[JobStatus]:
        return [JobStatus(JobState.RUNNING) for _ in jobs]


class Executor(Patient, BlockProviderExecutor):  # type: ignore[misc]
    """Parsl's own bookkeeping of blocks, without workers."""

    monitoring_messages = None
    workers_per_node = 1

    def __init__(self, provider: Provider, submissions: Submissions) -> None:
        super().__init__(provider=provider, block_error_handler=False)
        self.label, self.submissions = "htex", submissions

    def _get_launch_command(self, block_id: str) -> str:
        return f"work {block_id}"

    def outstanding(self) -> int:
        return 1

    def start(self) -> None: ...
    def submit(self, *_: Any) -> None: ...
    def shutdown(self) -> None: ...


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def executor(clock: Clock, told: list[str]) -> Executor:
    submissions = Submissions(patience_s=600, refusals_max=3, notice=told.append, clock=clock)
    return Executor(Provider(), submissions)


def strategy_for(executor: Executor, clock: Clock, seconds: int, wanted: int = 2) -> None:
    """Ask for blocks as Parsl does, every five seconds."""
    for _ in range(seconds // 5):
        executor.scale_out_facade(wanted)
        clock.now_s += 5


def test_a_scheduler_in_trouble_is_asked_ever_more_seldom(
    executor: Executor, clock: Clock, told: list[str]
) -> None:
    executor.provider.refuses_with = BUSY
    strategy_for(executor, clock, 300)
    assert executor.provider.asked <= 7, "Parsl alone asks 120 times"
    assert executor.status() == {}, "what was refused is no block"
    assert not executor.bad_state_is_set
    executor.provider.refuses_with = None
    strategy_for(executor, clock, int(LONGEST_PAUSE_S) + 5, wanted=1)
    assert executor.provider.jobs
    assert len(executor.status()) == len(executor.provider.jobs)
    assert BUSY in told[0]
    assert told[-1].startswith("blocks are accepted again, after")


def test_after_an_outage_the_next_one_begins_with_a_short_pause(
    executor: Executor, clock: Clock
) -> None:
    for _ in range(2):
        executor.provider.refuses_with = BUSY
        strategy_for(executor, clock, 200)
        executor.provider.refuses_with = None
        strategy_for(executor, clock, 200, wanted=1)
        before = executor.provider.asked
    executor.provider.refuses_with = LIMIT
    strategy_for(executor, clock, 15)
    assert executor.provider.asked - before == 2


def test_patience_ends(executor: Executor, clock: Clock) -> None:
    executor.provider.refuses_with = LIMIT
    strategy_for(executor, clock, 900)
    assert executor.bad_state_is_set
    assert isinstance(executor.executor_exception, WorkflowError)
    said = str(executor.executor_exception)
    assert said.startswith("No block was accepted for 1")
    assert LIMIT in said
    asked = executor.provider.asked
    strategy_for(executor, clock, 900)
    assert executor.provider.asked == asked


@pytest.mark.parametrize(
    "text",
    [
        WRONG,
        "sbatch: error: invalid partition specified: nope",
        "qsub: Unknown queue",
        "/bin/sh: 1: sbatch: command not found",
        "sbatch: unrecognized option '--nope'",
        "Batch job submission failed: Requested node configuration is not available",
    ],
)
def test_what_waiting_cannot_mend_ends_soon(
    executor: Executor, clock: Clock, text: str
) -> None:
    executor.provider.refuses_with = text
    strategy_for(executor, clock, 60)
    assert executor.provider.asked == 3
    assert "refused 3 times" in str(executor.executor_exception)
    assert text in str(executor.executor_exception)


def test_one_lasting_refusal_among_others_ends_nothing(
    executor: Executor, clock: Clock
) -> None:
    for text in (WRONG, BUSY, WRONG, BUSY, WRONG):
        executor.provider.refuses_with = text
        executor.scale_out_facade(1)
        clock.now_s += LONGEST_PAUSE_S
    assert not executor.bad_state_is_set


def test_blocks_that_are_accepted_are_parsl_s(executor: Executor) -> None:
    assert executor.scale_out_facade(3) == ["0", "1", "2"]
    assert {block: one.state for block, one in executor.status().items()} == dict.fromkeys(
        "012", JobState.RUNNING
    )
