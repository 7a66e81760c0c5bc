"""What failures cost, how fast a task goes, and when it will be done. Pure.

Work is lost when an attempt ends later than the checkpoint was taken from which the next one
goes on. ``tests/unit/test_seeing_story.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ckptflow.workflow.seeing.model import Attempt, Checkpoint
from ckptflow.workflow.seeing.told import Told

_DEPTH_MAX = 1000  # Attempts that one loss may reach back over.


def with_losses(
    attempts: Sequence[Attempt], checkpoints: Sequence[Checkpoint]
) -> list[Attempt]:
    """Return the attempts, each with what of its work was lost.

    What an attempt lost is settled when the next one says where it goes on from. Until then it
    is what would be lost if that were the newest checkpoint that counts.
    """
    numbered = {one.number: one for one in attempts if one.number is not None}
    made = []
    for index, one in enumerate(attempts):
        if one.ending in ("finished", "running", "open", "went back"):
            made.append(one)
            continue
        after = next((other for other in attempts[index + 1 :] if other.resumed), None)
        if one.number is None:  # Whether it ever began to work is not known.
            made.append(one)
            continue
        start = after.resumed_step if after else _newest_step(checkpoints, one.number)
        lost_s = _lost_s(one, start, numbered, checkpoints)
        reached = one.reached_step
        if one.ending == "stopped" and (reached or 0) <= (start or 0):
            lost_s = 0.0  # After its last save it only waited until that was safe.
        lost_steps = None if reached is None else max(0, reached - (start or 0))
        made.append(replace(one, lost_s=lost_s, lost_steps=lost_steps))
    return made


def _span(one: Attempt) -> float | None:
    if one.began_s is None or one.ended_s is None:
        return None
    return max(0.0, one.ended_s - one.began_s)


def _newest_step(checkpoints: Sequence[Checkpoint], attempt: int) -> int | None:
    counting = [
        one.step
        for one in checkpoints
        if one.attempt <= attempt and one.status not in ("void", "unreadable", "quarantined")
        and (one.is_present or one.status == "told")
    ]  # fmt: skip
    return max(counting, default=None)


def _lost_s(
    one: Attempt,
    start: int | None,
    numbered: Mapping[int, Attempt],
    checkpoints: Sequence[Checkpoint],
) -> float | None:
    """Return how much work was done after the checkpoint of step ``start`` until one's end."""
    if one.ended_s is None or one.began_s is None or one.number is None:
        return None
    saved = _checkpoint(checkpoints, start, one.number)
    if start is not None and saved is None:
        return None if start != one.resumed_step else _span(one)
    lost_s, here, until_s = 0.0, one, one.ended_s
    for _ in range(_DEPTH_MAX):
        if saved is not None and saved.attempt == here.number:
            taken_s = saved.taken_s
            return None if taken_s is None else lost_s + max(0.0, until_s - taken_s)
        if here.began_s is None:
            return None
        lost_s += max(0.0, until_s - here.began_s)
        if here.resumed_step == start:
            return lost_s
        # What an earlier attempt had done between the two was lost as well.
        before = _checkpoint(checkpoints, here.resumed_step, (here.number or 1) - 1)
        if before is None or before.taken_s is None or before.attempt not in numbered:
            return lost_s
        here, until_s = numbered[before.attempt], before.taken_s
    return lost_s


def _checkpoint(
    checkpoints: Sequence[Checkpoint], step: int | None, attempt: int
) -> Checkpoint | None:
    """Return the newest checkpoint of a step by an attempt up to ``attempt``."""
    matching = [one for one in checkpoints if one.step == step and one.attempt <= attempt]
    return max(matching, key=lambda one: one.attempt, default=None)


def steps_per_s(
    told: Mapping[int, Told], checkpoints: Sequence[Checkpoint], newest: int | None
) -> float | None:
    """Return how fast a task goes: in its newest attempt that lets it be known."""
    for number in sorted({*told, *(one.attempt for one in checkpoints)}, reverse=True):
        if newest is not None and number > newest:
            continue
        points = [
            (one.taken_s, one.step)
            for one in checkpoints
            if one.attempt == number and one.taken_s is not None
        ]
        if number in told:
            points += told[number].steps
        rate = _rate(points)
        if rate is not None:
            return rate
    return None


def _rate(points: Sequence[tuple[float, int]]) -> float | None:
    if not points:
        return None
    (first_s, first), (last_s, last) = min(points), max(points)
    return (last - first) / (last_s - first_s) if last > first and last_s > first_s else None


def eta_s(
    total: int | None, point: tuple[float, int] | None, rate: float | None, *, now_s: float
) -> float | None:
    """Return when a task will be done, from now on; ``None`` if that is not known.

    Args:
        total: where it will be done.
        point: when it was at which step.
        rate: steps a second.
        now_s: the time.
    """
    if total is None or point is None or rate is None:
        return None
    at_s, step = point
    return max(0.0, (total - step) / rate - max(0.0, now_s - at_s))
