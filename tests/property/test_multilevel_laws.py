"""Laws of the multi-level policy: what is worse never helps, and units do not matter.

Best efficiencies are found by a search, which may be wrong by a little; so laws about them
allow it what its own tests do.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptflow.policy.multilevel import renewal
from ckptflow.policy.multilevel.exact import HAS_CORE, efficiency, level_rows
from ckptflow.policy.multilevel.search import best_pattern
from ckptflow.policy.multilevel.system import Level, Pattern, System

needs_core = pytest.mark.skipif(not HAS_CORE, reason="the compiled core is not here")
SEARCH = 1e-3  # What a search may miss.


def scaled_floats(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@st.composite
def systems(draw: st.DrawFn, levels_max: int = 3) -> System:
    count = draw(st.integers(1, levels_max))
    latencies = sorted(
        draw(st.lists(st.just(0.0) | scaled_floats(0.1, 300), min_size=count, max_size=count))
    )
    return System(
        tuple(
            Level(
                name=f"l{at}", number=at, rate_per_s=draw(scaled_floats(1e-7, 1e-3)),
                blocked_s=draw(st.just(0.0) | scaled_floats(0.1, 10)),
                latency_s=latencies[at],
                interference=draw(st.sampled_from([0.0, 0.05, 0.3])),
                recovery_s=draw(scaled_floats(1, 200)),
                escalation=draw(st.sampled_from([0.0, 0.1])),
                second_loss=draw(st.sampled_from([0.0, 0.5])),
                in_flight=draw(st.integers(1, 3)),
            )
            for at in range(count)
        ),
        blocked_s=draw(scaled_floats(0.5, 10)),
    )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> tuple[System, Pattern]:
    """A system of up to four levels, and a pattern that uses all of them and may be."""
    system = draw(systems(levels_max=4))
    interval_s = draw(scaled_floats(10, 1000))
    every = [1]
    for level in system.levels[1:]:
        least = math.ceil(level.latency_s / (level.in_flight * interval_s * every[-1]))
        every.append(every[-1] * max(least, draw(st.integers(1, 4))))
    first = system.levels[0]
    interval_s = max(interval_s, first.latency_s / first.in_flight)
    return system, Pattern(interval_s, tuple(every))


@needs_core
@given(case=cases())
def test_both_evaluations_are_the_same_and_an_efficiency(case: tuple[System, Pattern]) -> None:
    system, pattern = case
    found = efficiency(system, pattern)
    assert 0 < found < 1
    rows = level_rows(system)
    by_numpy = renewal.efficiency(rows, pattern.interval_s, np.array(pattern.every))
    assert by_numpy == pytest.approx(found, rel=1e-9)


@needs_core
@given(case=cases(), factor=st.sampled_from([0.001, 7.0, 3600.0]))
def test_units_do_not_matter(case: tuple[System, Pattern], factor: float) -> None:
    """All times longer, and failures as much rarer: the same efficiency."""
    system, pattern = case
    other = in_units(system, factor)
    scaled = Pattern(pattern.interval_s * factor, pattern.every)
    assert efficiency(other, scaled) == pytest.approx(efficiency(system, pattern), rel=1e-9)


def in_units(system: System, factor: float) -> System:
    levels = tuple(
        replace(
            level,
            rate_per_s=level.rate_per_s / factor,
            blocked_s=level.blocked_s * factor,
            latency_s=level.latency_s * factor,
            recovery_s=level.recovery_s * factor,
        )
        for level in system.levels
    )
    return replace(system, levels=levels, blocked_s=system.blocked_s * factor)


@needs_core
@settings(max_examples=8)
@given(system=systems(), factor=st.sampled_from([0.01, 60.0]))
def test_the_best_interval_is_in_the_units_that_one_has(system: System, factor: float) -> None:
    one, other = best_pattern(system), best_pattern(in_units(system, factor))
    assert other.efficiency == pytest.approx(one.efficiency, abs=1e-6)
    again = efficiency(system, Pattern(other.pattern.interval_s / factor, other.pattern.every))
    assert again == pytest.approx(one.efficiency, abs=1e-6)


@needs_core
@given(case=cases(), place=st.integers(0, 3), factor=st.floats(1, 10))
def test_more_failures_and_slower_restores_never_make_a_pattern_better(
    case: tuple[System, Pattern], place: int, factor: float
) -> None:
    system, pattern = case
    place = min(place, len(system.levels) - 1)
    level = system.levels[place]
    for worse in (
        replace(level, rate_per_s=level.rate_per_s * factor),
        replace(level, recovery_s=level.recovery_s * factor),
        replace(level, blocked_s=level.blocked_s * factor),
        replace(level, interference=level.interference * factor),
        replace(level, escalation=min(1.0, level.escalation * factor)),
    ):
        levels = list(system.levels)
        levels[place] = worse
        other = replace(system, levels=tuple(levels))
        assert efficiency(other, pattern) <= efficiency(system, pattern) * (1 + 1e-9)


@needs_core
@settings(max_examples=10)
@given(system=systems(), factor=st.floats(1.2, 5))
def test_more_failures_or_slower_restores_never_raise_the_best_efficiency(
    system: System, factor: float
) -> None:
    best = best_pattern(system).efficiency
    more = [replace(level, rate_per_s=level.rate_per_s * factor) for level in system.levels]
    slower = [replace(level, recovery_s=level.recovery_s * factor) for level in system.levels]
    for levels in (more, slower):
        worse = replace(system, levels=tuple(levels))
        assert best_pattern(worse).efficiency <= best + SEARCH


@needs_core
@settings(max_examples=10)
@given(system=systems(), factor=st.floats(0.1, 0.9))
def test_faster_copies_never_lower_the_best_efficiency(system: System, factor: float) -> None:
    faster = replace(
        system,
        levels=tuple(
            replace(level, latency_s=level.latency_s * factor) for level in system.levels
        ),
    )
    assert best_pattern(faster).efficiency >= best_pattern(system).efficiency - SEARCH
