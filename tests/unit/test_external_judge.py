"""When a restart file is complete."""

from __future__ import annotations

import pytest

from ckptflow.workflow.external.judge import Ending, Finding, Observed, judge

COMPLETE, WAIT, TORN = Finding.COMPLETE, Finding.WAIT, Finding.TORN
RUNNING, WELL, BADLY, UNKNOWN = Ending.RUNNING, Ending.WELL, Ending.BADLY, Ending.UNKNOWN


@pytest.mark.parametrize(
    ("seen", "ending", "is_checked", "finding"),
    [
        (Observed(10, 0.2), RUNNING, True, WAIT),
        (Observed(10, 1.0), RUNNING, False, COMPLETE),
        (Observed(10, 9.0, held_open=True), RUNNING, True, WAIT),
        (Observed(10, 0.0, closed=True), RUNNING, True, COMPLETE),
        (Observed(10, 0.0, closed=True), RUNNING, False, WAIT),
        (Observed(10, 0.0, held_open=True, closed=True), RUNNING, True, WAIT),
        (Observed(10, 9.0, closed=True), BADLY, False, TORN),
        (Observed(0, 9.0), RUNNING, False, WAIT),
        (Observed(10, 0.0, renamed=True), RUNNING, False, COMPLETE),
        (Observed(10, 0.0, held_open=True, renamed=True), RUNNING, False, WAIT),
        (Observed(10, 0.0), WELL, False, COMPLETE),
        (Observed(0, 9.0), WELL, True, TORN),
        # Dead within the write, or just after it: only the file itself can tell.
        (Observed(10, 9.0), BADLY, False, TORN),
        (Observed(10, 9.0), BADLY, True, COMPLETE),
        (Observed(10, 0.0, renamed=True), BADLY, False, COMPLETE),
        (Observed(10, 0.0, followed=True), BADLY, False, COMPLETE),
        (Observed(0, 9.0, followed=True), BADLY, False, TORN),
        (Observed(10, 0.0, followed=True), RUNNING, False, WAIT),
        (Observed(10, 9.0), UNKNOWN, False, TORN),
        (Observed(10, 9.0), UNKNOWN, True, COMPLETE),
        (Observed(0, 9.0, renamed=True), UNKNOWN, True, TORN),
    ],
)
def test_what_was_seen_decides(
    seen: Observed, ending: Ending, is_checked: bool, finding: Finding
) -> None:
    verdict = judge(seen, ending, stable_s=1.0, is_checked=is_checked)
    assert verdict.finding is finding
    assert verdict.reason


def test_the_reason_says_what_would_help() -> None:
    verdict = judge(Observed(10, 9.0), BADLY, stable_s=1.0, is_checked=False)
    assert "ends_with= or valid=" in verdict.reason
