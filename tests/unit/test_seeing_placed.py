"""Why a checkpoint is where it is, from what was told, found and would be kept."""

from __future__ import annotations

from typing import Any

import pytest

from ckptflow.errors import NotFoundError
from ckptflow.workflow.seeing.model import Checkpoint, Copy, Task
from ckptflow.workflow.seeing.placed import explained, plans_told

CLOCK = "2026-03-01T10:00:{:02d}.000+00:00"


def taken(second: int, step: int, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "event": "checkpoint-taken", "time": CLOCK.format(second), "task": "work",
        "attempt": attempt, "step": step, **more,
    }  # fmt: skip


def planned(second: int, step: int, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "event": "policy-planned", "time": CLOCK.format(second), "task": "work",
        "attempt": attempt, "step": step, "interval_s": 5.0, "counts": {"a": 1, "b": 4},
        "before_interval_s": None, "before_counts": None, "efficiency": 0.9,
        "reasons": ["because"], **more,
    }  # fmt: skip


def verdict(tier: str, level: int, *, goes: bool, reason: str) -> dict[str, Any]:
    return {"tier": tier, "level": level, "goes": goes, "reason": reason}


def task(*checkpoints: Checkpoint) -> Task:
    return Task(name="work", state="running", attempts=(), checkpoints=checkpoints)


def checkpoint(step: int, *copies: Copy, attempt: int = 1) -> Checkpoint:
    return Checkpoint(
        step=step, attempt=attempt, taken_s=1.0, blocked_s=None, state_bytes=None,
        stored_bytes=None, copies=copies, status="ok", problem=None,
    )  # fmt: skip


PLACED = [
    verdict("b", 3, goes=True, reason="4 since the last there"),
    verdict("a", 1, goes=True, reason="innermost tier"),
    verdict("c", 4, goes=False, reason="the plan does not use this tier"),
]


def test_each_tier_has_its_reason_and_what_is_there_now() -> None:
    one = checkpoint(
        8,
        Copy(tier="a", level=1, stored_s=2.0, present=False),
        Copy(tier="b", level=3, stored_s=3.0, present=True),
    )
    events = [taken(5, 8, why="5 s since the last", placements=PLACED)]
    (found,) = explained(events, task(one), 8, {("b", 8, 1): "kept: among the newest 2"})
    assert found.why == "5 s since the last"
    told = [(tier.tier, tier.level, tier.goes, tier.now, tier.stays) for tier in found.tiers]
    assert told == [
        ("a", 1, True, "gone", ""),
        ("b", 3, True, "there", "kept: among the newest 2"),
        ("c", 4, False, "never", ""),
    ]
    assert found.tiers[2].reason == "the plan does not use this tier"


def test_the_plan_is_the_one_that_held_when_it_was_saved() -> None:
    events = [
        planned(1, 1), taken(5, 8), planned(9, 9, interval_s=2.0), planned(2, 3, attempt=2)
    ]  # fmt: skip
    (found,) = explained(events, task(checkpoint(8)), 8)
    assert found.plan is not None
    assert (found.plan.step, found.plan.interval_s) == (1, 5.0)


def test_of_two_attempts_each_has_its_own_story() -> None:
    events = [taken(5, 8, why="first"), taken(9, 8, attempt=2, why="second")]
    found = explained(events, task(checkpoint(8), checkpoint(8, attempt=2)), 8)
    assert [(one.attempt, one.why) for one in found] == [(2, "second"), (1, "first")]


def test_what_nobody_told_is_not_made_up() -> None:
    one = checkpoint(8, Copy(tier="a", level=1, stored_s=None, present=None))
    (found,) = explained([], task(one), 8)
    assert (found.why, found.plan) == ("", None)
    assert [(tier.goes, tier.reason, tier.now) for tier in found.tiers] == [
        (None, "", "unknown")
    ]


def test_a_step_that_nobody_saved_names_those_that_there_are() -> None:
    with pytest.raises(
        NotFoundError, match="no checkpoint of step 9; the newest known steps are 8"
    ):
        explained([], task(checkpoint(8)), 9)


@pytest.mark.parametrize(
    "more",
    [
        {"placements": "everywhere"},
        {"placements": [1, {"level": 3}]},
        {"why": None, "placements": [{"tier": "a", "goes": "yes", "level": "one"}]},
    ],
)
def test_events_of_other_versions_do_no_harm(more: dict[str, Any]) -> None:
    (found,) = explained([taken(5, 8, **more)], task(checkpoint(8)), 8)
    assert found.step == 8


def test_plans_are_told_in_order_with_what_was_before() -> None:
    events = [
        planned(1, 1),
        planned(2, 5, before_interval_s=5.0, before_counts={"a": 1}, counts={"a": "x", "b": 2}),
        {**planned(3, 6), "task": "other"},
    ]
    plans = plans_told(events, "work")
    assert [(one.step, one.before_interval_s) for one in plans] == [(1, None), (5, 5.0)]
    assert plans[1].counts == {"b": 2}
    assert plans[0].reasons == ("because",)
