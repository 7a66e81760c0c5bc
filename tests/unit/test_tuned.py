"""The tuned rule: which bound decides, and the sentence that says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.profile import Profile
from ckptflow.policy.progress import Decision, Progress
from ckptflow.policy.tuned import Tuned

HOUR = 3600.0
PROFILE = Profile(blocked_s=0.3, busy_s=6.0, slowdown=0.2, durable_s=5.0)  # 1.3 s a save.
PROGRESS = Progress(step=70, last_saved_step=10, step_time_s=1.0, profile=PROFILE)


def after(since_s: float, rule: Tuned, profile: Profile = PROFILE) -> Decision:
    return rule.decide(replace(PROGRESS, seconds_since_save=since_s, profile=profile))


def test_the_overhead_bound_decides_where_saves_are_dear() -> None:
    rule = Tuned(fraction=0.05)
    assert after(25.9, rule) == Decision(
        due=False,
        reason="25.9 s since the last save, less than 26.0 s (5 % for saves that cost 1.3 s)",
    )
    assert after(26.1, rule) == Decision(
        due=True,
        reason="26.1 s since the last save, at least 26.0 s (5 % for saves that cost 1.3 s)",
    )


def test_what_the_last_save_cost_in_the_background_pays_for_nothing() -> None:
    """26 s of computing pay for a save; the last one made the steps since then 1 s later."""
    profile = replace(PROFILE, busy_now_s=6.0)
    assert not after(26.9, Tuned(fraction=0.05), profile).due
    assert after(27.1, Tuned(fraction=0.05), profile).due


def test_the_durability_bound_decides_where_storage_is_slow() -> None:
    profile = Profile(blocked_s=0.001, durable_s=40.0)
    assert after(39.0, Tuned(), profile).reason == (
        "39.0 s since the last save, less than 40.0 s "
        "(saves are durable after 40.0 s, 1 may be in flight)"
    )
    several = replace(
        PROGRESS, profile=profile, in_flight=1, in_flight_limit=4, seconds_since_save=10.0
    )
    assert Tuned().decide(several).due
    assert not Tuned().decide(replace(several, seconds_since_save=9.0)).due


def test_the_optimum_decides_where_failures_are_rare() -> None:
    profile = Profile(blocked_s=1.0)
    decision = after(60.0, Tuned(mtbf_s=10 * HOUR), profile)
    assert decision == Decision(
        due=False,
        reason="1min00s since the last save, less than 4min27s "
        "(best for saves that cost 1.0 s and an MTBF of 10h00min)",
    )
    assert after(267.5, Tuned(mtbf_s=10 * HOUR), profile).due


def test_the_optimum_takes_the_nearest_step_end() -> None:
    progress = replace(PROGRESS, profile=Profile(blocked_s=1.0), step_time_s=200.0)
    rule = Tuned(mtbf_s=10 * HOUR)
    assert rule.decide(replace(progress, seconds_since_save=200.0)).due
    assert not rule.decide(replace(progress, seconds_since_save=160.0)).due


def test_an_estimated_mtbf_is_used_and_a_given_one_before_it() -> None:
    profile = Profile(blocked_s=1.0, mtbf_s=10 * HOUR)
    assert not after(60.0, Tuned(), profile).due
    assert after(60.0, Tuned(mtbf_s=900.0), profile).due


def test_frequent_failures_do_not_break_the_bound() -> None:
    assert not after(25.0, Tuned(fraction=0.05, mtbf_s=30.0)).due


def test_the_first_save_measures() -> None:
    assert Tuned().decide(Progress(step=1)) == Decision(
        due=True, reason="the first save, which measures what a save takes"
    )


def test_no_more_in_flight_than_may_be() -> None:
    late = replace(PROGRESS, seconds_since_save=HOUR, in_flight=1)
    assert Tuned().decide(late) == Decision(
        due=False, reason="the save before is still being written"
    )
    assert Tuned().decide(replace(late, in_flight_limit=2)).due
    three = replace(late, in_flight=3, in_flight_limit=3)
    assert Tuned().decide(three).reason == "the 3 saves before are still being written"


def test_idle_steps_are_left_when_they_are_wanted() -> None:
    late = replace(PROGRESS, seconds_since_save=HOUR, profile=replace(PROFILE, idle_wanted=3))
    assert Tuned().decide(late) == Decision(
        due=False,
        reason="3 steps without a save in flight are wanted, to see how long they take",
    )
    one = replace(late, profile=replace(PROFILE, idle_wanted=1))
    assert Tuned().decide(one).reason.startswith("1 step without")


def test_no_long_step_is_left_for_a_save_that_is_soon_durable() -> None:
    """Five seconds of writing cannot make a step of ten minutes longer by 3.5 %."""
    late = replace(
        PROGRESS,
        seconds_since_save=HOUR,
        step_time_s=600.0,
        profile=replace(PROFILE, idle_wanted=3),
    )
    assert Tuned().decide(late).due


def test_free_saves_are_due_at_each_step() -> None:
    assert after(0.001, Tuned(), Profile(blocked_s=0.0, durable_s=0.0)).due


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_a_bound_lies_between_nothing_and_all(fraction: float) -> None:
    with pytest.raises(ConfigError, match="must lie between 0 and 1"):
        Tuned(fraction=fraction)


@pytest.mark.parametrize("mtbf_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_between_failures_is_positive(mtbf_s: float) -> None:
    with pytest.raises(ConfigError, match="must be more than 0 s"):
        Tuned(mtbf_s=mtbf_s)
