"""A real loop under a tuned interval, while a process comes to compete, and after ``kill -9``.

Nothing here depends on how fast the machine is, or on who else uses it: a phase lasts for a
number of saves, and the loop's own times are compared with each other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

FOLDER = Path(__file__).parent
BOUND, EVERY = 0.1, "auto,overhead<=10%"
SAVES = 8  # In each phase.

pytestmark = pytest.mark.slow


class Saved(NamedTuple):
    """A line of the loop."""

    step: int
    blocked_s: float
    computed_s: float
    reason: str


@contextmanager
def started(program: str, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(FOLDER / program), str(folder), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def saves_of(loop: subprocess.Popen[str], count: int = SAVES) -> list[Saved]:
    assert loop.stdout is not None
    return [Saved(*json.loads(loop.stdout.readline())) for _ in range(count)]


def test_it_holds_its_bound_while_another_process_competes(tmp_path: Path) -> None:
    """Each save waited until two of the three before it were paid for, at the times of then."""
    with started("tuned_loop.py", tmp_path / "store", EVERY) as loop:
        saves = saves_of(loop)
        with started("competitor.py", tmp_path):
            saves += saves_of(loop, 2 * SAVES)
        saves += saves_of(loop)  # It never stops,
    steps = [one.step for one in saves]
    assert steps == sorted(set(steps))
    first, *others = saves
    assert "measures what a save takes" in first.reason
    assert all("at least" in one.reason for one in others)
    for number in range(3, len(saves)):
        cost_s = median(one.blocked_s for one in saves[number - 3 : number])
        # Half of it, since the loop's own times include more than those of the rule.
        assert saves[number].computed_s >= 0.5 * cost_s / BOUND, number


def test_after_a_kill_it_goes_on_with_what_it_had_learnt(tmp_path: Path) -> None:
    with started("tuned_loop.py", tmp_path, EVERY) as loop:
        before = saves_of(loop)
    with started("tuned_loop.py", tmp_path, EVERY) as loop:
        after = saves_of(loop, 3)
    assert after[0].step > before[-2].step
    assert not any("measures" in one.reason for one in after)
