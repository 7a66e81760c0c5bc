"""Why a checkpoint is where it is: why it was made, where it went, and what keeps it there.

From what attempts told (`checkpoint-taken`, `policy-planned`), from what was found in the
store, and from what the policy would keep there. Pure. ``tests/unit/test_seeing_placed.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ckptflow.errors import NotFoundError
from ckptflow.workflow.seeing.events import Event, number, seconds_of, whole
from ckptflow.workflow.seeing.model import Checkpoint, Task

Now = Literal["there", "gone", "never", "unknown"]
"""Of a copy: ``gone`` was there and is no more; ``never`` was not sent, or did not arrive."""


@dataclass(frozen=True, slots=True)
class OnTier:
    """A checkpoint and one tier.

    Attributes:
        tier: its name.
        level: its level, if that is known.
        goes: whether it was to go there; ``None`` if nobody has told.
        reason: why, or why not.
        now: whether it is there.
        stored_s: since when, if that is known.
        stays: why it is kept there, or why it may go; empty if that was not asked.
    """

    tier: str
    level: int | None
    goes: bool | None
    reason: str
    now: Now
    stored_s: float | None = None
    stays: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """One checkpoint, and why it is where it is.

    Attributes:
        task: whose it is.
        step: of the checkpoint.
        attempt: who made it.
        why: it was made then; empty if nobody has told.
        taken_s: when.
        tiers: inner ones first.
        plan: what the plan was at that time; ``None`` without a multi-level policy.
    """

    task: str
    step: int
    attempt: int
    why: str
    taken_s: float | None
    tiers: tuple[OnTier, ...]
    plan: PlanTold | None


@dataclass(frozen=True, slots=True)
class PlanTold:
    """A plan of a multi-level policy, as an attempt told of it.

    Attributes:
        at_s: when it was made.
        attempt: for whom.
        step: at which step.
        interval_s: computing time between two saves.
        counts: per tier, every how many saves one goes there.
        before_interval_s: of the plan before; ``None`` for the first.
        before_counts: likewise.
        efficiency: expected.
        reasons: why.
    """

    at_s: float | None
    attempt: int
    step: int
    interval_s: float
    counts: Mapping[str, int]
    before_interval_s: float | None
    before_counts: Mapping[str, int]
    efficiency: float | None
    reasons: tuple[str, ...]


def plans_told(events: Iterable[Event], task: str) -> list[PlanTold]:
    """Return the plans of a task, the oldest first."""
    return [
        _plan(event)
        for event in events
        if event.get("event") == "policy-planned" and event.get("task") == task
    ]


def explained(
    events: Iterable[Event],
    task: Task,
    step: int,
    stays: Mapping[tuple[str, int, int], str] | None = None,
) -> list[Explained]:
    """Return why each checkpoint of a step is where it is, the newest attempt first.

    Args:
        events: of the run.
        task: whose checkpoints.
        step: which.
        stays: by tier, step and attempt, why a checkpoint is kept or may go.

    Raises:
        NotFoundError: nobody knows of a checkpoint of that step.
    """
    found = [one for one in task.checkpoints if one.step == step]
    if not found:
        steps = sorted({one.step for one in task.checkpoints})
        shown = ", ".join(map(str, steps[-8:])) or "none"
        raise NotFoundError(
            f"Task {task.name!r} has no checkpoint of step {step}; the newest known steps are "
            f"{shown}."
        )
    events = list(events)
    plans = plans_told(events, task.name)
    return [
        _explained(events, task.name, one, plans, stays or {})
        for one in sorted(found, key=lambda one: -one.attempt)
    ]


def _explained(
    events: list[Event],
    task: str,
    checkpoint: Checkpoint,
    plans: list[PlanTold],
    stays: Mapping[tuple[str, int, int], str],
) -> Explained:
    taken = next((event for event in events if _is_save(event, task, checkpoint)), {})
    told = {
        str(one.get("tier")): one for one in _items(taken.get("placements")) if one.get("tier")
    }
    copies = {one.tier: one for one in checkpoint.copies}
    names = [*told, *(name for name in copies if name not in told)]
    tiers = [
        _on_tier(
            name, told.get(name, {}), copies, (name, checkpoint.step, checkpoint.attempt), stays
        )
        for name in names
    ]
    taken_s = seconds_of(taken.get("time")) or checkpoint.taken_s
    ours = [
        one
        for one in plans
        if one.attempt == checkpoint.attempt and (one.at_s or 0.0) <= (taken_s or 0.0)
    ]
    return Explained(
        task=task,
        step=checkpoint.step,
        attempt=checkpoint.attempt,
        why=str(taken.get("why") or ""),
        taken_s=taken_s,
        tiers=tuple(sorted(tiers, key=lambda one: 9 if one.level is None else one.level)),
        plan=ours[-1] if ours else None,
    )


def _on_tier(
    name: str,
    told: Mapping[str, Any],
    copies: Mapping[str, Any],
    key: tuple[str, int, int],
    stays: Mapping[tuple[str, int, int], str],
) -> OnTier:
    copy = copies.get(name)
    if copy is None:
        now: Now = "never"
    elif copy.present is None:
        now = "unknown"
    else:
        now = "there" if copy.present else "gone"
    goes = told.get("goes")
    return OnTier(
        tier=name,
        level=whole(told.get("level")) if told else copy and copy.level,
        goes=goes if isinstance(goes, bool) else None,
        reason=str(told.get("reason") or ""),
        now=now,
        stored_s=copy.stored_s if copy else None,
        stays=stays.get(key, "") if now == "there" else "",
    )


def _is_save(event: Event, task: str, checkpoint: Checkpoint) -> bool:
    return (
        event.get("event") == "checkpoint-taken"
        and event.get("task") == task
        and event.get("step") == checkpoint.step
        and event.get("attempt") == checkpoint.attempt
    )


def _plan(event: Event) -> PlanTold:
    return PlanTold(
        at_s=seconds_of(event.get("time")),
        attempt=whole(event.get("attempt")) or 0,
        step=whole(event.get("step")) or 0,
        interval_s=number(event.get("interval_s")) or 0.0,
        counts=_counts(event.get("counts")),
        before_interval_s=number(event.get("before_interval_s")),
        before_counts=_counts(event.get("before_counts")),
        efficiency=number(event.get("efficiency")),
        reasons=tuple(str(one) for one in _list(event.get("reasons"))),
    )


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, Mapping):
        return {}
    return {
        str(name): count for name, one in value.items() if (count := whole(one)) is not None
    }


def _items(value: object) -> list[Mapping[str, Any]]:
    return [one for one in _list(value) if isinstance(one, Mapping)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
