"""What became of a run: numbers from the run and from the store, and the exit code."""

from __future__ import annotations

import json

import pytest

from ckptflow.store.catalog import AttemptRecord
from ckptflow.workflow.summary import (
    FAILED,
    FINISHED,
    OPEN,
    REUSED,
    STOPPED,
    RunSummary,
    TaskReport,
    summarise,
)


def attempt(
    number: int, *, resumed: int | None = None, session: str | None = "now", **end: object
) -> AttemptRecord:
    return AttemptRecord(
        number,
        claim={"attempt": number},
        resume={"step": resumed} if "resumed_step" not in end else None,
        end={"session": session, **end} if session else None,
    )


@pytest.mark.parametrize(
    ("statuses", "failures", "code"),
    [
        ([], [], 0),
        ([FINISHED, REUSED], [], 0),
        ([FINISHED, FAILED], [], 1),
        ([FINISHED, OPEN], [], 1),
        ([FINISHED, STOPPED], [], 7),
        ([FAILED, STOPPED], [], 1),
        ([FINISHED], ["disk full"], 5),
        ([FAILED], ["disk full"], 1),
    ],
)
def test_exit_codes(statuses: list[str], failures: list[str], code: int) -> None:
    reports = tuple(TaskReport(f"t{n}", status) for n, status in enumerate(statuses))
    for report in reports:
        report.failures = list(failures)
    assert RunSummary("exp", reports).exit_code == code


def test_problems_beside_the_tasks_count() -> None:
    assert RunSummary("exp", (TaskReport("t", FINISHED),), ("memo full",)).exit_code == 5


def test_attempts_of_this_life_are_added_up() -> None:
    report = TaskReport("t", FINISHED, tries=3, lost=1, preempted=1)
    attempts = [
        attempt(1, session="before", failures=["old trouble"]),
        attempt(2, resumed=5, session=None),  # Killed.
        attempt(3, resumed=8, step=20, state_bytes=100, stored_bytes=10, failures=["full"]),
        attempt(4, resumed_step=20, step=30, state_bytes=50, stored_bytes=5),
    ]
    summary = summarise("exp", [report], {"t": attempts}, "now")
    found = summary.tasks[0]
    assert found.resumed_steps == [5, 8, 20]
    assert (found.step, found.state_bytes, found.stored_bytes) == (30, 150, 15)
    assert summary.failures == ("t: full",)
    assert report.failures == []


def test_what_an_earlier_life_did_is_not_this_one_s() -> None:
    report = TaskReport("t", FINISHED, tries=3)
    attempts = [attempt(1, session=None), attempt(2, session="before"), attempt(3, resumed=7)]
    assert summarise("exp", [report], {"t": attempts}, "now").tasks[0].resumed_steps == [7]


def test_a_task_that_finished_without_a_record_could_not_write() -> None:
    report = TaskReport("t", FINISHED, tries=1)
    summary = summarise("exp", [report], {"t": [attempt(1, session=None)]}, "now")
    assert summary.failures == ("t: attempt 1 finished, but could not write to the store",)
    assert summary.exit_code == 5


def test_a_reused_result_has_no_attempts_in_this_life() -> None:
    report = TaskReport("t", REUSED)
    summary = summarise("exp", [report], {"t": [attempt(1, session=None)]}, "now")
    assert summary.failures == ()


def test_the_text_tells_what_is_news() -> None:
    tasks = (
        TaskReport("quiet", FINISHED, tries=1),
        TaskReport(
            "train-seed=1", FINISHED, tries=3, lost=2, resumed_steps=[None, 40, 90],
            state_bytes=2048, stored_bytes=1024,
        ),
        TaskReport("plot", FAILED, tries=1, error="ValueError: no data"),
    )  # fmt: skip
    assert str(RunSummary("exp", tasks, ("memo full",))) == (
        "run exp: 2 finished, 1 failed\n"
        "  train-seed=1: finished; 3 tries; lost 2; resumed at 40, 90; "
        "stored 1.00 KiB for 2.00 KiB\n"
        "  plot: failed; ValueError: no data\n"
        "  problem: memo full"
    )


def test_it_is_json() -> None:
    summary = RunSummary("exp", (TaskReport("t", FINISHED, resumed_steps=[None, 3]),))
    read = json.loads(json.dumps(summary.as_json()))
    assert read["tasks"][0]["resumed_steps"] == [None, 3]
    assert read["exit_code"] == 0


def test_a_tier_in_trouble_is_in_the_report_and_in_the_exit_code() -> None:
    """Once, with how many checkpoints missed it, although all of them were saved elsewhere."""
    trouble = {
        "tier": "nvme", "level": 1, "condition": "full", "error": "No room.",
        "since": "2025-01-01T00:00:00+00:00", "back": None, "missed": 12,
    }  # fmt: skip
    end = {"outcome": "finished", "step": 12, "failures": ["No room."], "tiers": [trouble]}
    report = TaskReport("t", status=FINISHED, tries=1)
    summary = summarise("r", [report], {"t": [attempt(1, **end)]}, "now")
    assert summary.exit_code == 5
    assert summary.as_json()["tasks"][0]["tiers"] == [trouble]
    assert (
        "No room.; tier 'nvme' (level 1) was found full at 2025-01-01T00:00:00+00:00, "
        "missed 12 checkpoints, is not back yet"
    ) in str(summary)
    assert report.tiers == []


def test_an_end_without_tiers_is_one_of_an_older_version() -> None:
    report = TaskReport("t", status=FINISHED, tries=1)
    summary = summarise("r", [report], {"t": [attempt(1, outcome="finished", step=1)]}, "now")
    assert summary.tasks[0].tiers == []
    assert summary.exit_code == 0
