"""What matters besides efficiency: presets, and how they choose among patterns.

``tests/unit/test_multilevel_presets.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.model import SHARED_LEVEL
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.closed_form import spread
from ckptflow.policy.multilevel.search import Found, Score, best_pattern
from ckptflow.policy.multilevel.system import Pattern, System

F64s = NDArray[np.float64]
I64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a pattern is chosen for.

    Attributes:
        name: of the preset.
        about: what it does, for people.
        pessimism: rates are multiplied by this before anything is computed.
        far_every_s: at most so much computing time lies between two checkpoints that are to go
            to level 3 or beyond, or as much as a copy takes, if that is more; ``None``: as is
            best.
        give_up: so much efficiency may be given up for what is cheaper: fewer bytes to what is
            shared, lower prices.
        preemption_s: mean time after which an allocation is taken away, besides other failures.
    """

    name: str
    about: str
    pessimism: float = 1.0
    far_every_s: float | None = None
    give_up: float = 0.0
    preemption_s: float | None = None

    def believed(self, rates: Rates) -> Rates:
        """Return rates with those of what this aim believes in besides."""
        if self.preemption_s is None:
            return rates
        return rates + Rates((0.0, 0.0, 0.0, 1 / self.preemption_s, 0.0))

    def cautious(self, rates: Rates) -> Rates:
        """Return the rates that this aim reckons with, where these are believed."""
        return rates.scaled(self.pessimism) if self.pessimism != 1 else rates

    def expected(self, rates: Rates) -> Rates:
        """Return the rates that this aim reckons with, where nothing was met yet."""
        return self.cautious(self.believed(rates))


PRESETS = {
    aim.name: aim
    for aim in (
        Aim(name="fast", about="the most computing, whatever it moves"),
        Aim(
            name="safe",
            about="as if failures were three times as frequent, and at most 15 min between "
            "checkpoints on a file system or beyond",
            pessimism=3.0,
            far_every_s=900.0,
        ),
        Aim(
            name="cheap",
            about="as few bytes to shared storage, and as low prices, as 1 % of the computing "
            "time can buy",
            give_up=0.01,
        ),
        Aim(
            name="spot",
            about="allocations that are taken away every 2 h, besides what else fails, until "
            "more is known; at most 10 min between checkpoints on a file system or beyond",
            far_every_s=600.0,
            preemption_s=7200.0,
        ),
    )
}


def preset(name: str) -> Aim:
    """Return a preset by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in PRESETS:
        raise ConfigError(f"There is no preset {name!r}; there are {', '.join(PRESETS)}.")
    return PRESETS[name]


def score_of(system: System, aim: Aim) -> Score:
    """Return what patterns are compared by: efficiency, if the aim allows the pattern."""
    allowed_s = _far_allowed_s(system, aim)

    def score(used: tuple[bool, ...], interval_s: F64s, every: I64s, found: F64s) -> F64s:
        far = _far(system, used)
        if allowed_s is None:
            return found
        if far is None:
            return found - 1.0
        beyond = np.maximum(1.0, interval_s * every[:, far] / allowed_s)
        # A little more than is allowed is a little worse, so that a search finds its way; no
        # progress is worse than any.
        allowed = np.where(beyond <= 1 + 1e-9, found, found - 1.0 - np.log(beyond))
        return np.where(found > 0, allowed, -np.inf)

    return score


def _far_allowed_s(system: System, aim: Aim) -> float | None:
    """Return what may lie between checkpoints on level 3 or beyond: at least a copy."""
    if aim.far_every_s is None:
        return None
    takes = [
        level.latency_s / level.in_flight
        for level in system.levels
        if level.number >= SHARED_LEVEL and (level.capacity is None or level.capacity >= 2)
    ]
    return max(aim.far_every_s, min(takes, default=0.0))


def score_by_price(system: System, aim: Aim, best: Found, price: float) -> Score:
    """Return what the cheapest pattern is found by, among those that are good enough.

    Args:
        system: the levels.
        aim: says how much efficiency may be given up.
        best: the pattern with the best score.
        price: of that, above 0; others are compared with it, so that units do not matter.
    """
    allowed = score_of(system, aim)

    def score(used: tuple[bool, ...], interval_s: F64s, every: I64s, found: F64s) -> F64s:
        values = allowed(used, interval_s, every, found)
        prices = price_per_s(system, used, interval_s, every, found) / price
        good = values >= best.score - aim.give_up
        # A millionth of the efficiency breaks ties between prices.
        return np.where(good, 1 / (1 + prices) + values * 1e-6, values - 10)

    return score


def price_per_s(
    system: System, used: tuple[bool, ...], interval_s: F64s, every: I64s, found: F64s
) -> F64s:
    """Return what patterns cost for each second of elapsed time: prices, or else shared bytes.

    Prices are of what is brought to levels, of what is kept there, and of restores, one for
    each failure that needs the level. Where no level has a price, bytes that go to level 3 or
    beyond are counted, in GB.
    """
    levels = system.using(used).levels
    standing = 0.0
    if any(one.price or one.restore_price or one.keep_price_per_s for one in system.levels):
        moved = [one.price for one in levels]
        standing = sum(
            one.keep_price_per_s + one.rate_per_s * one.restore_price for one in levels
        )
    else:
        moved = [one.size_bytes / 1e9 if one.number >= SHARED_LEVEL else 0.0 for one in levels]
    spent: F64s = (np.array(moved) / every).sum(axis=1) * found / interval_s + standing
    return spent


def cheapest(system: System, aim: Aim, best: Found) -> Found:
    """Return the cheapest pattern that gives up no more efficiency than the aim allows."""
    price = _price(system, best)
    if aim.give_up <= 0 or price <= 0:
        return best
    starts = [best.pattern, *_longer(best.pattern)]
    found = best_pattern(system, starts, score=score_by_price(system, aim, best, price))
    return Found(found.pattern, found.efficiency, found.efficiency)


def _price(system: System, one: Found) -> float:
    pattern = one.pattern
    every = np.array([[count for count in pattern.every if count]], dtype=np.int64)
    intervals, efficiencies = np.array([pattern.interval_s]), np.array([one.efficiency])
    return float(price_per_s(system, pattern.used, intervals, every, efficiencies)[0])


def _longer(pattern: Pattern) -> list[Pattern]:
    """Return patterns with fewer checkpoints on the outermost level, which is the dearest."""
    *inner, outermost = (count for count in pattern.every if count)
    if not inner:
        return []
    return [
        Pattern(pattern.interval_s, spread(pattern.used, [*inner, outermost * factor]))
        for factor in (2, 4)
    ]


def _far(system: System, used: tuple[bool, ...]) -> int | None:
    """Return the place, among the levels used, of the first that outlives the allocation."""
    numbers = [
        level.number for level, is_used in zip(system.levels, used, strict=True) if is_used
    ]
    return next((at for at, number in enumerate(numbers) if number >= SHARED_LEVEL), None)


def longest_far_s(system: System, pattern: Pattern) -> float:
    """Return the computing time between checkpoints that go to level 3 or beyond."""
    far = _far(system, pattern.used)
    if far is None:
        return math.inf
    counts = [count for count in pattern.every if count]
    return pattern.interval_s * counts[far]
