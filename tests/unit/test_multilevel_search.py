"""The best pattern against brute force over a dense grid, which is written here."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.exact import HAS_CORE, efficiencies, efficiency
from ckptflow.policy.multilevel.search import (
    best_pattern,
    climb,
    level_sets,
    on_levels,
    thorough,
)
from ckptflow.policy.multilevel.system import Level, Pattern, System

pytestmark = pytest.mark.skipif(not HAS_CORE, reason="the compiled core is not here")


def small_system(seed: int) -> System:
    """Two or three levels whose best pattern has a dozen saves or so."""
    rng = np.random.default_rng(seed)
    count = 2 + seed % 2
    latency_s = np.sort(10 ** rng.uniform(0, 2.3, count)) * (rng.random() < 0.8)
    rates = np.sort(10 ** rng.uniform(-4.5, -2.7, count))[::-1]
    levels = [
        Level(
            name=f"l{at}", number=at, rate_per_s=float(rates[at]),
            blocked_s=float(at * 10 ** rng.uniform(-1, 1)), latency_s=float(latency_s[at]),
            interference=float(rng.choice([0.0, 0.1])),
            recovery_s=float(10 ** rng.uniform(0, 2)),
            escalation=float(rng.choice([0.0, 0.05])), in_flight=int(rng.integers(1, 3)),
        )
        for at in range(count)
    ]  # fmt: skip
    return System(tuple(levels), blocked_s=float(10 ** rng.uniform(-0.5, 1)))


def brute_force(system: System) -> float:
    """The best efficiency over 120 intervals and many counts, on each set of levels."""
    best = 0.0
    intervals = np.geomspace(1, 3000, 120)
    ratios = [1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 24]
    for used in itertools.product((False, True), repeat=len(system.levels)):
        if not used[-1]:
            continue
        for some in itertools.product(ratios, repeat=sum(used) - 1):
            every = np.cumprod([1, *some])
            if every[-1] > 100:
                continue
            grid = np.tile(every, (len(intervals), 1))
            best = max(best, efficiencies(system, used, intervals, grid).max())
    return best


def test_the_best_pattern_is_that_of_brute_force() -> None:
    """Within 1 % of it at the worst, and on average far less; the grid itself is coarser."""
    regrets = []
    for seed in range(15):
        system = small_system(seed)
        found, truth = best_pattern(system), brute_force(system)
        assert found.efficiency == efficiency(system, found.pattern)
        assert found.efficiency >= 0.99 * truth
        regrets.append(truth - found.efficiency)
    assert max(regrets) <= 0.01
    assert np.mean(regrets) <= 0.001


def test_a_thorough_search_is_no_worse_than_brute_force() -> None:
    for seed in range(4):
        system = small_system(seed)
        assert thorough(system).efficiency >= brute_force(system) - 1e-4


NVME = Level(name="nvme", number=1, rate_per_s=1e-4, latency_s=2.0, recovery_s=20.0)
PFS = Level(name="pfs", number=3, rate_per_s=2e-5, latency_s=60.0, recovery_s=120.0)
TWO = System((NVME, PFS), blocked_s=5.0)


def test_a_level_with_room_for_one_checkpoint_is_never_used() -> None:
    """Two stay until the new one is whole."""
    assert best_pattern(TWO).pattern.used == (True, True)
    for search in (best_pattern, thorough):
        cramped = replace(TWO, levels=(replace(NVME, capacity=1), PFS))
        assert search(cramped).pattern.used == (False, True)
        roomy = replace(TWO, levels=(replace(NVME, capacity=2), PFS))
        assert search(roomy).pattern.used == (True, True)
    only = replace(TWO, levels=(NVME, replace(PFS, capacity=1)))
    with pytest.raises(ConfigError, match=r"progress: .*no room for two checkpoints on pfs"):
        best_pattern(only)


@pytest.mark.parametrize("search", [best_pattern, thorough])
def test_where_nothing_makes_progress_it_says_why(search) -> None:
    """Failures come thirty times while one recovers."""
    hopeless = System((replace(PFS, rate_per_s=0.1, recovery_s=300.0),), blocked_s=5.0)
    with pytest.raises(
        ConfigError,
        match=r"No configuration makes progress: failures come every 10 s on average, and a "
        r"recovery takes 300 s \(level 'pfs'\)",
    ):
        search(hopeless)


def test_a_level_that_no_failure_needs_is_not_used() -> None:
    idle = Level(name="s3", number=4, rate_per_s=0.0, latency_s=600.0, interference=0.05)
    found = best_pattern(System((NVME, PFS, idle), blocked_s=5.0))
    assert found.pattern.used == (True, True, False)


def test_levels_may_be_given_up_where_beginning_again_is_cheaper() -> None:
    """A task of 1,000 s and a failure that needs level 3 in 10 years."""
    rare = replace(PFS, rate_per_s=3e-9, interference=0.5)
    short = System((NVME, rare), blocked_s=5.0, work_s=1000.0)
    assert best_pattern(short).pattern.used == (True, False)
    assert list(level_sets(short)) == [(False, True), (True, False), (True, True)]
    endless = replace(short, work_s=None)
    assert best_pattern(endless).pattern.used[1]
    assert list(level_sets(endless)) == [(False, True), (True, True)]


def test_a_copy_to_the_innermost_level_that_takes_long_is_waited_for() -> None:
    """The first-order interval would have dozens of copies on their way."""
    slow = replace(NVME, latency_s=1500.0)
    system = System((slow, replace(PFS, latency_s=1500.0)), blocked_s=5.0)
    found = best_pattern(system)
    assert found.pattern.interval_s >= 1495
    assert found.efficiency > 0.5


def test_a_search_goes_on_from_where_it_is_told_to_begin() -> None:
    start = Pattern(20.0, (1, 40))
    assert climb(TWO, start).efficiency > efficiency(TWO, start)
    assert climb(TWO, start).pattern.used == start.used
    known = best_pattern(TWO)
    assert best_pattern(TWO, [known.pattern]).efficiency >= known.efficiency


def test_what_is_to_be_great_may_be_something_else() -> None:
    """As few copies to the outermost level as patterns of at least 90 % have."""

    def score(_used, interval_s, every, found):
        return np.where(found > 0.9, 1 - 1 / (interval_s * every[:, -1]), found - 1)

    found = best_pattern(TWO, score=score)
    assert found.efficiency > 0.9
    assert found.pattern.period_s(1) > 2 * best_pattern(TWO).pattern.period_s(1)


def test_a_pattern_on_other_levels_is_as_like_as_may_be() -> None:
    system = System(tuple(Level(name=f"l{at}", number=at, rate_per_s=1e-5) for at in range(4)))
    pattern = Pattern(60.0, (1, 2, 0, 12))
    assert on_levels(system, pattern, (True, True, True, True)) == Pattern(60.0, (1, 2, 2, 12))
    assert on_levels(system, pattern, (False, True, False, True)) == Pattern(
        120.0, (0, 1, 0, 6)
    )
    assert on_levels(system, pattern, (True, False, False, False)) == Pattern(
        60.0, (1, 0, 0, 0)
    )
