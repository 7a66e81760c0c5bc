"""Laws of the tuned rule: what costs more is not done more often, and the bound holds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simulated_loop import Conditions, Loop

from ckptflow.policy.profile import Profile, StepTimes, expected
from ckptflow.policy.progress import Progress
from ckptflow.policy.tuned import Tuned

times = st.floats(0, 1e5)
parts = st.floats(0.001, 0.999)
rules = st.builds(Tuned, fraction=parts, mtbf_s=st.none() | st.floats(1e-3, 1e9))
profiles = st.builds(
    Profile,
    blocked_s=st.none() | times,
    busy_s=times,
    busy_now_s=times,
    slowdown=st.floats(0, 100),
    durable_s=st.none() | times,
    idle_wanted=st.integers(0, 3),
    mtbf_s=st.none() | st.floats(1e-3, 1e9),
)
progresses = st.builds(
    Progress,
    step=st.integers(0, 1000),
    last_saved_step=st.none() | st.integers(0, 1000),
    seconds_since_save=times,
    step_time_s=st.none() | times,
    in_flight=st.integers(0, 3),
    in_flight_limit=st.integers(1, 4),
    profile=profiles,
)
measurements = st.lists(st.floats(0, 1e6), min_size=1, max_size=32)


def due(rule: Tuned, progress: Progress, **changed: float) -> bool:
    profile = replace(progress.profile, **changed)
    return rule.decide(replace(progress, profile=profile)).due


@given(rule=rules, progress=progresses, more=times)
def test_what_costs_more_is_not_done_more_often(
    rule: Tuned, progress: Progress, more: float
) -> None:
    profile = progress.profile
    assume(profile.blocked_s is not None)
    for name in ("blocked_s", "busy_s", "busy_now_s", "slowdown", "durable_s"):
        now = getattr(profile, name)
        if now is not None and due(rule, progress, **{name: now + more}):
            assert due(rule, progress, **{name: now}), name


@given(rule=rules, progress=progresses, other=parts)
def test_a_larger_bound_is_not_done_less_often(
    rule: Tuned, progress: Progress, other: float
) -> None:
    less, more = sorted((rule.fraction, other))
    if replace(rule, fraction=less).decide(progress).due:
        assert replace(rule, fraction=more).decide(progress).due


@given(rule=rules, progress=progresses, other=st.floats(1e-3, 1e9))
def test_rarer_failures_are_not_guarded_against_more_often(
    rule: Tuned, progress: Progress, other: float
) -> None:
    assume(rule.mtbf_s is not None)
    less, more = sorted((rule.mtbf_s, other))
    if replace(rule, mtbf_s=more).decide(progress).due:
        assert replace(rule, mtbf_s=less).decide(progress).due


@given(rule=rules, progress=progresses, more=st.integers(0, 4))
def test_more_in_flight_may_be_more_often(rule: Tuned, progress: Progress, more: int) -> None:
    wider = replace(progress, in_flight_limit=progress.in_flight_limit + more)
    assert rule.decide(wider).due or not rule.decide(progress).due


@given(rule=rules, progress=progresses)
def test_each_bound_holds_by_itself(rule: Tuned, progress: Progress) -> None:
    assume(progress.profile.blocked_s is not None)
    if rule.decide(progress).due:
        bounds = rule.bounds(progress)
        assert all(progress.seconds_since_save >= bound.seconds for bound in bounds)


@given(values=measurements, data=st.data())
def test_what_is_expected_never_falls_when_a_measurement_rises(
    values: list[float], data: st.DataObject
) -> None:
    which = data.draw(st.integers(0, len(values) - 1))
    risen = [*values]
    risen[which] += data.draw(times)
    assert expected(risen) >= expected(values) * (1 - 1e-12)
    assert min(values) <= expected(values) * (1 + 1e-12)
    assert expected(values) <= max(values) * (1 + 1e-12)


@given(steps=st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=300))
def test_no_loop_breaks_the_comparison(steps: list[tuple[float, bool]]) -> None:
    compared = StepTimes()
    for duration_s, busy in steps:
        compared.add(duration_s, busy=busy)
        assert compared.slowdown >= 0
        assert 0 <= compared.idle_wanted <= 3


@given(factor=st.integers(-20, 20), steps=st.lists(st.booleans(), max_size=90))
def test_the_unit_of_time_does_not_matter(factor: int, steps: list[bool]) -> None:
    """Of powers of two, which change no rounding."""
    one, other = StepTimes(), StepTimes()
    for number, busy in enumerate(steps):
        duration_s = (1.0 + number % 3 / 10) * (1.2 if busy else 1.0)
        one.add(duration_s, busy=busy)
        other.add(duration_s * 2.0**factor, busy=busy)
    assert one.slowdown == other.slowdown


@settings(max_examples=20)
@given(
    fraction=st.sampled_from([0.01, 0.035, 0.1]),
    step_s=st.floats(0.05, 5.0),
    blocked_s=st.floats(0.001, 1.0),
    persist_s=st.floats(0.01, 10.0),
    slowdown=st.floats(0, 0.5),
    seed=st.integers(0, 99),
)
def test_the_bound_is_kept(
    fraction: float,
    step_s: float,
    blocked_s: float,
    persist_s: float,
    slowdown: float,
    seed: int,
) -> None:
    """Whatever the loop is like, from the fourth save on, over the next sixteen or so."""
    conditions = Conditions(step_s, blocked_s, persist_s, slowdown)
    cost_s = blocked_s + persist_s * slowdown / (1 + slowdown)
    cycle_s = max(cost_s / fraction, persist_s) + 2 * step_s
    loop = Loop(Tuned(fraction), lambda _s: conditions, seed=seed, noise=0.02)
    result = loop.run(20 * cycle_s + 60 * step_s)
    settled_s = result.saves[3]
    one_more = cost_s / (loop.now_s - settled_s)  # One save does not fit evenly into the end.
    assert result.overhead(settled_s) <= 1.1 * fraction + one_more
