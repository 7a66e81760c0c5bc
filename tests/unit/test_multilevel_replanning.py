"""The plan of a running task, made again with what it meets."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.exact import efficiency
from ckptflow.policy.multilevel.replanning import (
    ASSUMED_S,
    Knowledge,
    Plan,
    believed_rates,
    bounded,
    current_system,
    first_plan,
    is_due,
    make_plan,
)
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.multilevel.search import best_pattern, thorough
from ckptflow.policy.multilevel.system import Level, Pattern, System
from ckptflow.policy.multilevel.tier_costs import TierCosts

HOUR = 3600.0
RULE = MultiLevel(rates=Rates((1 / HOUR, 0.0, 1 / (24 * HOUR), 1 / (240 * HOUR), 0.0)))
KNOWN = Knowledge(
    tiers=(("shm", 0), ("disk", 1), ("pfs", 3), ("s3", 4)),
    state_bytes=10**9,
    stored_bytes=3 * 10**8,
    blocked_s=0.2,
    slowdown=0.02,
    copies_s={"shm": 0.3, "disk": 0.5, "pfs": 2.0, "s3": 20.0},
)


def test_a_plan_is_the_best_for_what_is_known() -> None:
    made = make_plan(RULE, KNOWN)
    system = current_system(RULE, KNOWN, believed_rates(RULE, KNOWN)[0])
    best = thorough(system)
    assert made.efficiency == pytest.approx(efficiency(system, made.pattern))
    assert made.efficiency > best.efficiency - 1e-3
    assert made.counts["shm"] == 1
    assert made.counts["s3"] > made.counts["pfs"] > 0
    assert any(reason.startswith("s3 gets one save in") for reason in made.reasons)


def test_without_any_save_there_is_no_plan() -> None:
    with pytest.raises(ConfigError, match="nothing was saved yet"):
        make_plan(RULE, replace(KNOWN, state_bytes=0))
    assert not is_due(None, None, replace(KNOWN, state_bytes=0))
    assert is_due(None, None, KNOWN)


def test_a_pattern_of_the_site_is_the_first_plan() -> None:
    rule = replace(RULE, interval_s=9.0, counts=(("shm", 1), ("disk", 0), ("pfs", 4)))
    plan = first_plan(rule)
    assert plan is not None
    assert (plan.interval_s, plan.counts) == (9.0, {"shm": 1, "disk": 0, "pfs": 4})
    assert first_plan(RULE) is None


def test_measured_times_replace_what_calibration_says() -> None:
    slow = TierCosts(name="pfs", level=3, write_bytes_per_s=1e6, read_bytes_per_s=1e6)
    rule = replace(RULE, tiers=(slow,))
    rates = believed_rates(rule, KNOWN)[0]
    believed = current_system(rule, replace(KNOWN, copies_s={}), rates)
    measured = current_system(rule, KNOWN, rates)
    at = [level.name for level in believed.levels].index("pfs")
    assert believed.levels[at].latency_s > 300
    assert measured.levels[at].latency_s == 2.0
    assert measured.blocked_s == 0.2


# --- failures ---


def test_what_nobody_gave_a_rate_is_rare_until_it_happens() -> None:
    silent = MultiLevel()
    rates, said = believed_rates(silent, KNOWN)
    assert rates.per_s == pytest.approx([1 / one for one in ASSUMED_S])
    assert said == ()
    met = replace(KNOWN, failures=(0.0, 0.0, 1.0, 0.0, 0.0), observed_s=HOUR)
    after, _ = believed_rates(silent, met)
    assert after.per_s[2] > 50 * rates.per_s[2]
    assert after.per_s[2] < 1 / HOUR


def test_believed_rates_count_as_two_failures() -> None:
    met = replace(KNOWN, failures=(2.0, 0.0, 0.0, 0.0, 0.0), observed_s=2 * HOUR)
    rates, said = believed_rates(RULE, met)
    assert said == ()  # Two in two hours are what was believed.
    assert rates.per_s[0] == pytest.approx((2 + 2) / (2 * HOUR + 2 * HOUR))


def test_a_belief_that_is_far_off_loses_most_of_its_weight() -> None:
    met = replace(KNOWN, failures=(6.0, 0.0, 0.0, 0.0, 0.0), observed_s=120.0)
    rates, said = believed_rates(RULE, met)
    # Two failures in two hours, a tenth of that, and six in two minutes.
    assert rates.per_s[0] == pytest.approx((0.2 + 6) / (0.2 * HOUR + 120))
    assert said == ("a process dies: 6 failures in 2min00s, where 0.033 were expected",)


def test_a_single_failure_is_an_accident() -> None:
    met = replace(KNOWN, failures=(1.0, 0.0, 0.0, 0.0, 0.0), observed_s=1.0)
    rates, said = believed_rates(RULE, met)
    assert said == ()
    assert rates.per_s[0] == pytest.approx(3 / (2 * HOUR + 1))


def test_no_failures_for_very_long_are_a_surprise_too() -> None:
    quiet = replace(KNOWN, observed_s=500 * HOUR)
    rates, said = believed_rates(RULE, quiet)
    assert said[0].startswith("a process dies: 0 failures in 500h00min")
    assert rates.per_s[0] < 1 / (400 * HOUR)


def test_more_failures_make_the_task_save_more_often_step_by_step() -> None:
    few = replace(KNOWN, tiers=KNOWN.tiers[:3])
    plans = [make_plan(RULE, few)]
    met = replace(few, failures=(6.0, 0.0, 0.0, 0.0, 0.0), observed_s=120.0)
    for _ in range(8):
        plans.append(make_plan(RULE, met, plans[-1]))
    for before, after in itertools.pairwise(plans):
        assert before.interval_s / 2 - 1e-9 <= after.interval_s <= before.interval_s
    best = best_pattern(current_system(RULE, met, believed_rates(RULE, met)[0]))
    assert plans[-1].efficiency > best.efficiency - 2e-3
    assert plans[-1] is plans[-2]  # It has settled: the same plan is no change.
    text = "; ".join(plans[1].reasons)
    assert "6 failures in 2min00s" in text
    assert "a process dies every" in text
    assert "a step towards" in text


def test_nothing_new_is_no_new_plan() -> None:
    made = make_plan(RULE, KNOWN)
    assert make_plan(RULE, KNOWN, made) is made
    assert not is_due(made, KNOWN, KNOWN)
    assert not is_due(made, KNOWN, replace(KNOWN, blocked_s=0.22))
    assert is_due(made, KNOWN, replace(KNOWN, blocked_s=0.4))
    assert is_due(made, KNOWN, replace(KNOWN, failures=(1.0, 0.0, 0.0, 0.0, 0.0)))
    assert is_due(made, KNOWN, replace(KNOWN, copies_s={**KNOWN.copies_s, "s3": 90.0}))


def test_a_slower_tier_gets_fewer_and_the_reason_says_so() -> None:
    rule = replace(RULE, rates=Rates((1 / HOUR, 0.0, 0.0, 1 / HOUR, 1 / (10 * HOUR))))
    before = make_plan(rule, KNOWN)
    slow = replace(KNOWN, copies_s={**KNOWN.copies_s, "s3": 2000.0})
    after = make_plan(rule, slow, before)
    assert after.interval_s * after.counts["s3"] > before.interval_s * before.counts["s3"]
    assert any("a copy to s3 takes" in reason for reason in after.reasons)


# --- limits ---


def test_no_room_anywhere_is_told() -> None:
    full = {name: 10**6 for name, _ in KNOWN.tiers}
    with pytest.raises(ConfigError, match="No tier has room for one checkpoint"):
        make_plan(RULE, replace(KNOWN, copies_s={}, free_bytes=full))


def test_a_tier_without_room_is_left_out() -> None:
    made = make_plan(RULE, replace(KNOWN, copies_s={}, free_bytes={"shm": 10**6}))
    assert made.counts["shm"] == 0
    assert made.counts["disk"] == 1


def test_a_hopeless_task_goes_on_with_the_first_order_optimum() -> None:
    rule = replace(RULE, rates=Rates((0.1, 0.0, 0.1, 0.0, 0.0)), queue_s=1000.0)
    made = make_plan(rule, KNOWN)
    assert made.interval_s > 0
    assert "No configuration makes progress" in made.reasons[0]
    assert "first-order optimum" in made.reasons[0]


def test_of_two_tiers_of_a_level_both_get_what_the_level_gets() -> None:
    twice = replace(KNOWN, tiers=(*KNOWN.tiers[:3], ("pfs2", 3), KNOWN.tiers[3]))
    made = make_plan(RULE, twice)
    assert made.counts["pfs2"] == made.counts["pfs"]


@pytest.mark.parametrize("preset", ["safe", "spot"])
def test_a_preset_bounds_the_time_between_far_checkpoints(preset: str) -> None:
    rare = replace(RULE, preset=preset, rates=Rates((1 / HOUR, 0.0, 0.0, 1e-9, 1e-9)))
    heavy = replace(
        KNOWN, blocked_s=20.0, copies_s={**KNOWN.copies_s, "pfs": 200.0, "s3": 300.0}
    )
    made = make_plan(rare, heavy)
    limit_s = 900.0 if preset == "safe" else 600.0
    far = min(count for name, count in made.counts.items() if name in {"pfs", "s3"} and count)
    assert made.interval_s * far <= limit_s * (1 + 1e-6)


def test_a_bounded_step_stays_a_pattern() -> None:
    levels = tuple(
        Level(name=name, number=number, rate_per_s=1e-6, latency_s=float(number))
        for number, name in enumerate("abc")
    )
    system = System(levels, blocked_s=1.0)
    before = Pattern(100.0, (1, 4, 12))
    step = bounded(system, before, Pattern(1000.0, (1, 30, 900)))
    assert step.interval_s == 200.0
    assert step.every == (1, 8, 24)
    gone = bounded(system, before, Pattern(10.0, (0, 1, 3)))
    assert (gone.interval_s, gone.every) == (50.0, (0, 1, 6))


def test_a_plan_tells_its_interval() -> None:
    plan = make_plan(RULE, KNOWN)
    assert isinstance(plan, Plan)
    assert plan.interval_s == plan.pattern.interval_s
