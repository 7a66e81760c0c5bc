"""What a run has met, from stories made by hand, and what that changes of a system."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckptflow.errors import NotFoundError
from ckptflow.plan.met import Met, compared
from ckptflow.plan.tune import Answer, Request, reaction_of, tune_site, workload_of
from ckptflow.policy.multilevel.exact import efficiency
from ckptflow.policy.multilevel.surrogate import shipped
from ckptflow.policy.multilevel.system import Level, Pattern, System
from ckptflow.site import Site
from ckptflow.workflow.seeing.met import met_by
from ckptflow.workflow.seeing.model import Attempt, Checkpoint, Copy, RunStory, Task

STATE = 10**9


def saved(
    at_s: float, attempt: int, *stored: tuple[str, float], first: bool = False
) -> Checkpoint:
    return Checkpoint(
        step=int(at_s),
        attempt=attempt,
        taken_s=at_s,
        blocked_s=0.5,
        state_bytes=STATE,
        stored_bytes=STATE if first else STATE // 4,
        copies=tuple(Copy(tier=tier, level=1, stored_s=at_s + after_s, present=True)
                     for tier, after_s in stored),
        status="ok",
    )  # fmt: skip


def attempt(number: int, began_s: float, ended_s: float, ending: Any, **more: Any) -> Attempt:
    return Attempt(
        number=number, life=0, began_s=began_s, ended_s=ended_s, ending=ending, **more
    )


def story(*attempts: Attempt, checkpoints: tuple[Checkpoint, ...] | None = None) -> RunStory:
    saves = [
        saved(10, 1, ("nvme", 2), ("pfs", 8), first=True),
        saved(20, 1, ("nvme", 1)),
        saved(30, 1, ("nvme", 2), ("pfs", 9)),
        saved(110, 2, ("nvme", 3), first=True),
        saved(120, 2, ("nvme", 2), ("pfs", 10)),
        saved(130, 2, ("nvme", 2)),
    ]
    task = Task(
        name="work",
        state="finished",
        attempts=attempts
        or (
            attempt(1, 0, 35, "lost", reason="ManagerLost: gone", lost_s=5.0, blocked_s=1.5),
            attempt(2, 100, 140, "finished", blocked_s=1.5),
        ),
        checkpoints=tuple(saves) if checkpoints is None else checkpoints,
    )
    return RunStory(
        run="exp", state="ended", now_s=200, tasks=(Task(name="other", state="failed"), task)
    )


def test_a_run_tells_what_its_saves_cost_and_where_they_went() -> None:
    met = met_by(story())
    assert (met.task, met.saves, met.state_bytes) == ("work", 6, STATE)
    assert met.changed == 0.25  # The first save of an attempt is a full one.
    assert (met.blocked_s, met.interval_s) == (0.5, 9.5)
    assert met.latency_s == {"nvme": 2, "pfs": 9}
    assert met.copies == {"nvme": 6, "pfs": 3}
    assert met.failures == (0, 0, 1, 0, 0)
    assert met.recovery_s == 65
    assert (met.observed_s, met.elapsed_s, met.lost_s) == (75, 140, 5)
    assert met.useful == pytest.approx((75 - 5 - 3) / 140)
    assert met.failures_text == "1 failure in 1min15s of the run"


@pytest.mark.parametrize(
    ("ending", "reason", "place"),
    [
        ("failed", "OSError: x", 0), ("lost", "WorkerLost: gone", 0), ("fenced", None, 2),
        ("lost", "ManagerLost: gone", 2), ("died", None, 3), ("stopped", None, None),
        ("finished", None, None),
    ],
)  # fmt: skip
def test_failures_are_of_the_class_that_says_what_is_left(
    ending: str, reason: str | None, place: int | None
) -> None:
    met = met_by(story(attempt(1, 0, 40, ending, reason=reason)))
    assert met.failures == tuple(int(at == place) for at in range(5))
    assert met.recovery_s is None


def test_a_run_that_tells_too_little_is_refused() -> None:
    with pytest.raises(NotFoundError, match="told of 0 saves of task 'other', and it takes 2"):
        met_by(story(), "other")
    with pytest.raises(NotFoundError, match="has no task 'none'; it has other, work"):
        met_by(story(), "none")
    only = (saved(10, 1, ("nvme", 1)),)
    with pytest.raises(NotFoundError, match="told of 1 saves of a task"):
        met_by(story(checkpoints=only))


def system() -> System:
    return System(
        tuple(
            Level(name=name, number=at, rate_per_s=1e-5, latency_s=latency_s, recovery_s=30.0)
            for at, (name, latency_s) in enumerate((("nvme", 1.0), ("pfs", 4.0), ("s3", 50.0)))
        ),
        blocked_s=0.1,
    )


def test_what_was_measured_replaces_what_was_believed() -> None:
    made = met_by(story()).corrected(system())
    assert made.blocked_s == 0.5
    # What was not measured takes as much longer than the level before as was believed.
    assert [level.latency_s for level in made.levels] == [2, 9, 55]
    assert [level.recovery_s for level in made.levels] == [65, 65, 65]
    late = replace(met_by(story()), latency_s={"nvme": 20.0})
    assert [level.latency_s for level in late.corrected(system()).levels] == [20, 23, 69]


def test_what_it_did_is_a_pattern() -> None:
    met = met_by(story())
    assert met.pattern(system()) == Pattern(9.5, (1, 2, 0))
    other = replace(met, copies={"pfs": 6, "s3": 1}, saves=6)
    assert other.pattern(system()) == Pattern(9.5, (0, 1, 6))
    uneven = replace(met, copies={"nvme": 6, "pfs": 2, "s3": 1}, saves=7)
    assert uneven.pattern(system()) == Pattern(9.5, (1, 4, 8))
    assert replace(met, interval_s=None).pattern(system()) is None
    assert replace(met, copies={}).pattern(system()) is None


def tuned(met: Met) -> Answer:
    tiers = [
        {"kind": "posix", "name": "nvme", "path": "/nvme", "level": 1},
        {"kind": "posix", "name": "pfs", "path": "/pfs", "level": 3},
    ]
    failures = {"node_mtbf": "10d", "system_mtbf": "10d", "source": "made up"}
    site = Site.model_validate({"name": "there", "tiers": tiers, "failures": failures})
    load = workload_of(site, state_bytes=met.state_bytes, changed=met.changed)
    request = Request(workload=load, reaction=reaction_of(site))
    return tune_site(site, request, met=met, surrogate=shipped(), refine=False)


def test_a_run_is_compared_with_what_would_have_been_best() -> None:
    met = met_by(story())
    answer = tuned(met)
    found = compared(met, answer.tuning)
    assert found.pattern == Pattern(9.5, (1, 2))
    assert found.expected is not None
    assert found.expected < found.best == answer.tuning.efficiency
    assert found.saved == pytest.approx(1 - found.expected / found.best)
    assert answer.failures == "1 failure in 1min15s of the run; made up"
    # One failure of a node, beside the two that a rate which is believed is worth.
    believed = 1 / (10 * 86400)
    assert answer.way.rates.per_s[2] == pytest.approx(3 / (2 / believed + 75))
    assert answer.way.tiers[0].detail.startswith("copies as the run met them")


def test_a_pattern_whose_copies_were_late_is_still_judged() -> None:
    met = replace(met_by(story()), interval_s=1.0, copies={"nvme": 6, "pfs": 6})
    answer = tuned(met)
    pattern = met.pattern(answer.tuning.system)
    assert pattern is not None
    assert efficiency(answer.tuning.system, pattern) == 0
    found = compared(met, answer.tuning)
    assert found.expected is not None
    assert 0 < found.expected < found.best
    nothing = compared(replace(met, interval_s=None), answer.tuning)
    assert (nothing.pattern, nothing.expected, nothing.saved) == (None, None, None)
