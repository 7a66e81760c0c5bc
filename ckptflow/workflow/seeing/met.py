"""What a task of a run has met, as a policy is tuned with it. Pure.

``tests/unit/test_plan_met.py``.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence

from ckptflow.errors import NotFoundError
from ckptflow.plan.met import Met
from ckptflow.workflow.seeing.model import Attempt, Checkpoint, RunStory, Task

_SAVES_MIN = 2
_NODE_IS_GONE = "ManagerLost"  # Parsl's word for a node from which nothing is heard any more.


def met_by(story: RunStory, task: str | None = None) -> Met:
    """Return what a task of a run has met.

    Args:
        story: of the run.
        task: its name; the one with the most saves if not given.

    Raises:
        NotFoundError: there is no such task, or none that has told of two saves.
    """
    named = [one for one in story.tasks if task is None or one.name == task]
    if not named:
        known = ", ".join(one.name for one in story.tasks) or "none"
        raise NotFoundError(f"Run {story.run!r} has no task {task!r}; it has {known}.")
    told = max(named, key=lambda one: len(_told(one)))
    saves = _told(told)
    sized = [one.state_bytes for one in saves if one.state_bytes]
    if len(saves) < _SAVES_MIN or not sized:
        raise NotFoundError(
            f"Run {story.run!r} has told of {len(saves)} saves of "
            f"{'a task' if task is None else f'task {task!r}'}, and it takes {_SAVES_MIN} "
            f"to tune with: tasks tell of them where their workers see the folder of the run."
        )
    ended = [
        one for one in told.attempts if one.began_s is not None and one.ended_s is not None
    ]
    began_s = min((one.began_s or 0.0 for one in ended), default=0.0)
    ended_s = max((one.ended_s or 0.0 for one in ended), default=0.0)
    blocked = [one.blocked_s for one in saves if one.blocked_s is not None]
    return Met(
        task=told.name,
        saves=len(saves),
        state_bytes=sized[-1],
        changed=_changed(saves),
        blocked_s=statistics.median(blocked) if blocked else 0.0,
        interval_s=_interval_s(saves),
        latency_s=_latencies_s(saves),
        copies={tier: len(found) for tier, found in _copies(saves).items()},
        failures=_failures(told.attempts),
        recovery_s=_recovery_s(told.attempts),
        observed_s=told.worked_s,
        elapsed_s=ended_s - began_s,
        lost_s=told.lost_s,
        blocked_total_s=told.blocked_s,
    )


def _told(task: Task) -> list[Checkpoint]:
    """Return the checkpoints whose cost is known, in the order in which they were taken."""
    found = [
        one for one in task.checkpoints if one.taken_s is not None and one.blocked_s is not None
    ]
    return sorted(found, key=lambda one: one.taken_s or 0.0)


def _changed(saves: Sequence[Checkpoint]) -> float:
    """Return the part of the state that a save stores; the first of an attempt stores all."""
    firsts = {one.attempt: one for one in reversed(saves)}
    later = [one for one in saves if firsts[one.attempt] is not one] or list(saves)
    parts = [
        one.stored_bytes / one.state_bytes
        for one in later
        if one.stored_bytes is not None and one.state_bytes
    ]
    return min(1.0, max(1e-6, statistics.fmean(parts))) if parts else 1.0


def _interval_s(saves: Sequence[Checkpoint]) -> float | None:
    """Return the computing time between two saves of one attempt; the median."""
    between = [
        (after.taken_s or 0.0) - (before.taken_s or 0.0) - (after.blocked_s or 0.0)
        for before, after in itertools.pairwise(saves)
        if before.attempt == after.attempt
    ]
    return statistics.median(between) if between else None


def _copies(saves: Sequence[Checkpoint]) -> dict[str, list[float]]:
    """Return, by tier, how long each copy took to be there."""
    found: dict[str, list[float]] = {}
    for one in saves:
        for copy in one.copies:
            if copy.stored_s is not None and one.taken_s is not None:
                found.setdefault(copy.tier, []).append(max(0.0, copy.stored_s - one.taken_s))
    return found


def _latencies_s(saves: Sequence[Checkpoint]) -> dict[str, float]:
    return {tier: statistics.median(found) for tier, found in _copies(saves).items()}


def _failures(attempts: Sequence[Attempt]) -> tuple[int, int, int, int, int]:
    """Count the failures by class: what has to be there still for the task to go on."""
    counts = [0, 0, 0, 0, 0]
    for one in attempts:
        if one.ending in ("failed", "lost", "died", "fenced") and one.number is not None:
            counts[_class_of(one)] += 1
    a, b, c, d, e = counts
    return a, b, c, d, e


def _class_of(one: Attempt) -> int:
    if one.ending == "died":
        return 3  # The script has gone, and mostly the allocation with it.
    if one.ending == "fenced" or _NODE_IS_GONE in (one.reason or ""):
        return 2
    return 0


def _recovery_s(attempts: Sequence[Attempt]) -> float | None:
    gaps = list(_gaps_s(attempts))
    return statistics.median(gaps) if gaps else None


def _gaps_s(attempts: Sequence[Attempt]) -> Iterator[float]:
    """Yield how long it took from a failure to the next attempt, within one life."""
    for before, after in itertools.pairwise(attempts):
        same = before.life == after.life and before.ending in ("failed", "lost", "fenced")
        if same and before.ended_s is not None and after.began_s is not None:
            yield max(0.0, after.began_s - before.ended_s)
