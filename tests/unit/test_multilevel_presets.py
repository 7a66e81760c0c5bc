"""What each preset is for, as somebody would miss it who asked for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.exact import HAS_CORE, efficiency
from ckptflow.policy.multilevel.presets import (
    PRESETS,
    Aim,
    cheapest,
    longest_far_s,
    preset,
    price_per_s,
    score_of,
)
from ckptflow.policy.multilevel.search import Found, best_pattern
from ckptflow.policy.multilevel.system import Level, Pattern, System

pytestmark = pytest.mark.skipif(not HAS_CORE, reason="the compiled core is not here")

NVME = Level(name="nvme", number=1, rate_per_s=2e-5, latency_s=10.0, recovery_s=60.0)
PFS = Level(
    name="pfs", number=3, rate_per_s=1e-7, latency_s=100.0, recovery_s=400.0, interference=0.03,
    size_bytes=5e11,
)  # fmt: skip
USUAL = System((NVME, PFS), blocked_s=5.0)


def best(system: System, name: str) -> Found:
    aim = PRESETS[name]
    return cheapest(system, aim, best_pattern(system, score=score_of(system, aim)))


def bytes_per_s(system: System, one: Found) -> float:
    """Shared bytes over elapsed time: each save that goes to level 3 moves its size."""
    return PFS.size_bytes / one.pattern.period_s(1) * one.efficiency


def test_a_preset_is_known_by_its_name() -> None:
    assert [preset(name).name for name in PRESETS] == list(PRESETS) == [
        "fast", "safe", "cheap", "spot",
    ]  # fmt: skip
    with pytest.raises(
        ConfigError, match="no preset 'swift'; there are fast, safe, cheap, spot"
    ):
        preset("swift")


def test_fast_is_the_best_efficiency() -> None:
    assert best(USUAL, "fast") == best_pattern(USUAL)
    assert longest_far_s(USUAL, best(USUAL, "fast").pattern) > 900  # Others ask for less.


@pytest.mark.parametrize(("name", "limit_s"), [("safe", 900), ("spot", 600)])
def test_safe_and_spot_reach_the_file_system_often(name: str, limit_s: float) -> None:
    found = best(USUAL, name)
    assert longest_far_s(USUAL, found.pattern) <= limit_s * (1 + 1e-6)
    # It costs no more than needed: no pattern on a grid of those allowed is better.
    for interval_s in np.geomspace(20, limit_s, 40):
        for count in range(1, int(limit_s / interval_s) + 1):
            other = efficiency(USUAL, Pattern(float(interval_s), (1, count)))
            assert other <= found.efficiency + 1e-4


def test_safe_uses_a_level_that_no_failure_needs_yet() -> None:
    quiet = replace(USUAL, levels=(NVME, replace(PFS, rate_per_s=0.0)))
    assert best(quiet, "fast").pattern.used == (True, False)
    assert longest_far_s(quiet, best(quiet, "safe").pattern) <= 900 * (1 + 1e-6)


def test_what_copies_are_too_slow_for_is_done_as_often_as_they_arrive() -> None:
    """A copy takes 50 min, one at a time; 15 min cannot be had, and progress goes on."""
    slow = replace(USUAL, levels=(NVME, replace(PFS, latency_s=3000.0)))
    found = best(slow, "safe")
    assert 900 < longest_far_s(slow, found.pattern) <= 3000
    assert found.efficiency > 0.9


def test_safe_without_a_file_system_is_the_best_there_is() -> None:
    alone = System((NVME,), blocked_s=5.0)
    assert best(alone, "safe").efficiency == pytest.approx(best_pattern(alone).efficiency)
    assert longest_far_s(alone, best(alone, "safe").pattern) == math.inf


def test_cheap_moves_fewer_bytes_and_gives_up_at_most_a_hundredth() -> None:
    fast, cheap = best(USUAL, "fast"), best(USUAL, "cheap")
    assert fast.efficiency - 0.01 <= cheap.efficiency <= fast.efficiency
    assert bytes_per_s(USUAL, cheap) < bytes_per_s(USUAL, fast) / 2


@pytest.mark.parametrize("price", [1e-9, 1.0, 1e9])
def test_cheap_is_as_cheap_in_any_currency(price: float) -> None:
    """Prices are compared with each other and never with efficiencies."""
    unpriced = best(USUAL, "cheap")
    priced = replace(USUAL, levels=(NVME, replace(PFS, price=price)))
    found = best(priced, "cheap")
    assert found.pattern.every == unpriced.pattern.every
    assert found.pattern.interval_s == pytest.approx(unpriced.pattern.interval_s, rel=1e-6)


def test_cheap_where_nothing_costs_anything_is_fast() -> None:
    free = System((replace(NVME, rate_per_s=3e-5),), blocked_s=5.0)
    assert best(free, "cheap") == best(free, "fast")


def test_prices_come_before_bytes() -> None:
    """Where a level has a price, bytes to others are not counted."""
    levels = (replace(NVME, price=1.0), replace(PFS, price=3.0))
    prices = price_per_s(
        System(levels), (True, True), np.array([10.0]), np.array([[1, 2]]), np.array([0.5])
    )
    assert prices[0] == pytest.approx((1.0 + 3.0 / 2) * 0.5 / 10)
    # A restore for each failure that needs the level, and what is kept there all the time.
    dear = (*levels[:1], replace(levels[1], restore_price=7.0, keep_price_per_s=0.1))
    more = price_per_s(
        System(dear), (False, True), np.array([10.0]), np.array([[1]]), np.array([0.5])
    )
    rate = levels[0].rate_per_s + levels[1].rate_per_s
    assert more[0] == pytest.approx(3.0 * 0.5 / 10 + 7.0 * rate + 0.1)
    shared = price_per_s(
        USUAL, (True, True), np.array([10.0]), np.array([[1, 2]]), np.array([0.5])
    )
    assert shared[0] == pytest.approx(500 / 2 * 0.5 / 10)  # In GB; none to the nodes' own.


def test_safe_reckons_with_more_failures_and_spot_with_preemptions() -> None:
    rates = Rates((1e-5, 0.0, 2e-6, 1e-6, 0.0))
    assert PRESETS["fast"].expected(rates) == rates
    assert PRESETS["safe"].expected(rates).per_s == pytest.approx((3e-5, 0, 6e-6, 3e-6, 0))
    taken = 1e-6 + 1 / 7200
    assert PRESETS["spot"].expected(rates).per_s == pytest.approx((1e-5, 0, 2e-6, taken, 0))
    assert PRESETS["spot"].cautious(rates) == rates  # What was met needs nothing added.


def test_an_aim_of_one_s_own() -> None:
    aim = Aim(name="nightly", about="once in 8 h is enough", give_up=0.05)
    first = best_pattern(USUAL)
    found = cheapest(USUAL, aim, first)
    assert first.efficiency - 0.05 <= found.efficiency < best(USUAL, "cheap").efficiency
    assert bytes_per_s(USUAL, found) < bytes_per_s(USUAL, best(USUAL, "cheap"))
