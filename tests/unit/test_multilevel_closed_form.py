"""First-order optima: published arithmetic; enumeration as the truth of which levels to use."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.single_level import young_interval_s
from ckptflow.policy.multilevel.closed_form import (
    SEARCHED_MAX,
    best_levels,
    cost_s,
    first_order_efficiencies,
    first_order_pattern,
    spread,
)
from ckptflow.policy.multilevel.exact import HAS_CORE, efficiency
from ckptflow.policy.multilevel.system import Level, Pattern, System


def blocking(rates: list[float], costs_s: list[float]) -> System:
    """Levels each of which holds the application up for its cost."""
    return System(
        tuple(
            Level(name=f"l{at}", number=at, rate_per_s=rate, blocked_s=cost_s)
            for at, (rate, cost_s) in enumerate(zip(rates, costs_s, strict=True))
        )
    )


# Rates and costs of two levels, in memory and on disk, on platforms that patterns are compared
# on; H*, the sum of sqrt(2 * rate * cost), and each level's own period.
PLATFORMS = {
    "Hera": ((3.38e-6, 9.46e-7), (15.4, 300.0), 0.03403, (3019, 25184)),
    "Atlas": ((7.78e-6, 5.19e-7), (9.1, 439.0), 0.03325, (1529, 41130)),
    "Coastal": ((2.01e-6, 4.02e-7), (4.5, 1051.0), 0.03332, (2116, 72311)),
    "Coastal SSD": ((2.01e-6, 4.02e-7), (180.0, 2500.0), 0.07173, (13383, 111525)),
}


@pytest.mark.parametrize("name", PLATFORMS)
def test_the_least_overhead_is_that_of_benoit_and_others(name: str) -> None:
    rates, costs_s, overhead, periods_s = PLATFORMS[name]
    system = blocking(list(rates), list(costs_s))
    found = best_levels(system)
    assert found.used == (True, True)
    assert found.overhead == pytest.approx(overhead, abs=1e-5)
    pattern = first_order_pattern(system, found.used)
    assert pattern.interval_s == pytest.approx(periods_s[0], abs=1)
    assert pattern.every == (1, round(periods_s[1] / periods_s[0]))


def test_one_level_is_young_s() -> None:
    system = blocking([1e-5], [40.0])
    interval_s = first_order_pattern(system, [True]).interval_s
    assert interval_s == pytest.approx(young_interval_s(40.0, 1e5))
    assert best_levels(system).overhead == pytest.approx(math.sqrt(2 * 1e-5 * 40.0))


def test_levels_of_which_an_outer_one_is_needed_more_often_share_a_period() -> None:
    """What goes outward goes to those before, too: Young's of costs and rates together."""
    system = blocking([1e-9, 1e-5, 1e-7], [10.0, 1.0, 200.0])
    pattern = first_order_pattern(system, [True] * 3)
    shared_s = math.sqrt(2 * 11 / (1e-9 + 1e-5))
    assert pattern.interval_s == pytest.approx(shared_s)
    assert pattern.every == (1, 1, round(math.sqrt(2 * 200 / 1e-7) / shared_s))


def overhead_of(system: System, used: tuple[bool, ...]) -> float:
    """Benoit's sum for one choice of levels; infinite if failures are not covered."""
    total, pending = 0.0, 0.0
    first = True
    for level, is_used in zip(system.levels, used, strict=True):
        pending += level.rate_per_s
        if is_used:
            total += math.sqrt(2 * pending * (level.blocked_s + first * system.blocked_s))
            pending, first = 0.0, False
    return math.inf if pending else total


@pytest.mark.parametrize("seed", range(30))
def test_the_chosen_levels_are_the_best_of_all_subsets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    rates = 10 ** rng.uniform(-8, -4, count) * rng.choice([0, 1, 1], count)
    system = blocking(rates.tolist(), np.sort(10 ** rng.uniform(-1, 3, count)).tolist())
    system = System(system.levels, blocked_s=float(rng.random() * 10))
    subsets = [used for used in itertools.product((False, True), repeat=count) if any(used)]
    found = best_levels(system)
    assert found.overhead == pytest.approx(overhead_of(system, found.used), abs=1e-15)
    assert found.overhead <= min(overhead_of(system, used) for used in subsets) * (1 + 1e-12)


@pytest.mark.parametrize("place", range(4))
def test_a_level_without_failures_of_its_own_is_never_chosen(place: int) -> None:
    """While levels cost more outwards; a cheaper one would save for those further in, too."""
    rates, costs_s = [1e-4, 1e-5, 1e-6], [1.0, 10.0, 100.0]
    rates.insert(place, 0.0)
    costs_s.insert(place, [1.0, 10.0, 100.0, 1000.0][place])
    assert not best_levels(blocking(rates, costs_s)).used[place]


def test_the_cost_of_a_copy_in_the_background_is_what_it_slows() -> None:
    """20 s at 10 %, then another 30 s at 20 %, besides the 3 s of every save."""
    near = Level(name="nvme", number=1, rate_per_s=1e-4, latency_s=20.0, interference=0.1)
    far = Level(name="pfs", number=3, rate_per_s=1e-5, latency_s=50.0, interference=0.2)
    assert cost_s(System((near, far), blocked_s=3.0)) == pytest.approx((5.0, 6.0))


def test_first_order_patterns_may_be() -> None:
    """Copies that take long, cost nothing or are never needed: the search can begin there."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        count = int(rng.integers(1, 6))
        latency_s = np.sort(10 ** rng.uniform(-1, 4, count) * rng.choice([0, 1, 1]))
        system = System(
            tuple(
                Level(
                    name=f"l{at}", number=at, latency_s=float(latency_s[at]),
                    rate_per_s=float(10 ** rng.uniform(-9, -5) * rng.choice([0, 1, 1, 1])),
                    interference=float(rng.choice([0, 0.1])), in_flight=int(rng.integers(1, 4)),
                )
                for at in range(count)
            ),
            blocked_s=float(rng.choice([0.0, 1.0])),
        )  # fmt: skip
        pattern = first_order_pattern(system, [True] * count)
        assert pattern.every[-1] <= SEARCHED_MAX
        if HAS_CORE and latency_s[-1] <= SEARCHED_MAX * pattern.interval_s:
            assert efficiency(system, pattern) > 0.4


def test_first_order_efficiencies_are_near_the_exact_ones_while_little_is_wasted() -> None:
    rng = np.random.default_rng(2)
    near = Level(name="nvme", number=1, rate_per_s=2e-6, latency_s=15.0, recovery_s=30.0,
                 interference=0.05)  # fmt: skip
    far = Level(name="pfs", number=3, rate_per_s=5e-7, latency_s=200.0, recovery_s=300.0)
    system = System((near, far), blocked_s=5.0)
    intervals = rng.uniform(300, 3000, 20)
    every = np.stack([np.ones(20, np.int64), rng.integers(1, 20, 20)], axis=1)
    found = first_order_efficiencies(system, intervals, every)
    exact = [
        efficiency(system, Pattern(float(interval_s), tuple(counts.tolist())))
        for interval_s, counts in zip(intervals, every, strict=True)
    ]
    assert min(exact) > 0.87
    assert np.abs(found - exact).max() < 0.003


def test_counts_are_spread_over_the_levels_used() -> None:
    assert spread([True, False, True, False], [1, 6]) == (1, 0, 6, 0)
    with pytest.raises(ConfigError, match="are not the counts of the levels"):
        spread([True, False], [1, 6])
