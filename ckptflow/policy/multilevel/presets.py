"""What matters besides efficiency: presets, and how they choose among patterns.

``tests/unit/test_multilevel_presets.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.closed_form import spread
from ckptflow.policy.multilevel.search import Found, Score, best_pattern
from ckptflow.policy.multilevel.system import Pattern, System

F64s = NDArray[np.float64]
I64s = NDArray[np.int64]

_FAR_LEVEL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a pattern is chosen for.

    Attributes:
        name: of the preset.
        about: what it does, for people.
        pessimism: rates are multiplied by this before anything is computed.
        far_every_s: at most so much computing time lies between two checkpoints that are to go
            to level 3 or beyond; ``None``: as is best.
        give_up: so much efficiency may be given up for what is cheaper: fewer bytes to what is
            shared, lower prices.
        preemption_s: mean time after which an allocation is taken away, unless that is known.
    """

    name: str
    about: str
    pessimism: float = 1.0
    far_every_s: float | None = None
    give_up: float = 0.0
    preemption_s: float | None = None

    def expected(self, rates: Rates) -> Rates:
        """Return the rates that this aim reckons with."""
        rates = rates.scaled(self.pessimism) if self.pessimism != 1 else rates
        if self.preemption_s is None:
            return rates
        per_s = list(rates.per_s)
        per_s[_FAR_LEVEL] = max(per_s[_FAR_LEVEL], 1 / self.preemption_s)
        return Rates(tuple(per_s))  # type: ignore[arg-type]


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
            about="allocations that are taken away, every 2 h unless a rate is known; at most "
            "10 min between checkpoints on a file system or beyond",
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

    def score(used: tuple[bool, ...], interval_s: F64s, every: I64s, found: F64s) -> F64s:
        far = _far(system, used)
        if aim.far_every_s is None:
            return found
        if far is None:
            return found - 1.0
        beyond = np.maximum(1.0, interval_s * every[:, far] / aim.far_every_s)
        # A little more than is allowed is a little worse, so that a search finds its way.
        allowed: F64s = np.where(beyond <= 1 + 1e-9, found, found - 1.0 - np.log(beyond))
        return allowed

    return score


def score_by_price(system: System, aim: Aim, best: float) -> Score:
    """Return what the cheapest pattern is found by, among those that are good enough."""
    allowed = score_of(system, aim)

    def score(used: tuple[bool, ...], interval_s: F64s, every: I64s, found: F64s) -> F64s:
        values = allowed(used, interval_s, every, found)
        price = price_per_s(system, used, interval_s, every, found)
        # Some efficiency breaks ties; a thousandth of the price is worth less than the price.
        return np.where(
            values >= best - aim.give_up, 1 / (1 + price) + values * 1e-6, values - 10
        )

    return score


def price_per_s(
    system: System, used: tuple[bool, ...], interval_s: F64s, every: I64s, found: F64s
) -> F64s:
    """Return what patterns cost for each second of elapsed time: prices, or else shared bytes.

    Where no level has a price, bytes that go to level 3 or beyond are counted, in GB.
    """
    levels = [level for level, is_used in zip(system.levels, used, strict=True) if is_used]
    priced = any(level.price for level in system.levels)
    costs = np.array(
        [
            level.price
            if priced
            else (level.size_bytes / 1e9 if level.number >= _FAR_LEVEL else 0.0)
            for level in levels
        ]
    )
    per_save = (costs / every).sum(axis=1)
    spent: F64s = per_save * found / interval_s
    return spent


def cheapest(system: System, aim: Aim, best: Found) -> Found:
    """Return the cheapest pattern that gives up no more efficiency than the aim allows."""
    if aim.give_up <= 0:
        return best
    starts = [best.pattern, *_longer(best.pattern)]
    found = best_pattern(system, starts, score=score_by_price(system, aim, best.score))
    return Found(found.pattern, found.efficiency, found.efficiency)


def _longer(pattern: Pattern) -> list[Pattern]:
    counts = [count for count in pattern.every if count]
    return [
        Pattern(
            pattern.interval_s,
            spread(
                pattern.used,
                [
                    count if at < len(counts) - 1 else count * factor
                    for at, count in enumerate(counts)
                ],
            ),
        )
        for factor in (2, 4)
        if len(counts) > 1
    ]


def _far(system: System, used: tuple[bool, ...]) -> int | None:
    """Return the place, among the levels used, of the first that outlives the allocation."""
    numbers = [
        level.number for level, is_used in zip(system.levels, used, strict=True) if is_used
    ]
    return next((at for at, number in enumerate(numbers) if number >= _FAR_LEVEL), None)


def longest_far_s(system: System, pattern: Pattern) -> float:
    """Return the computing time between checkpoints that go to level 3 or beyond."""
    far = _far(system, pattern.used)
    if far is None:
        return math.inf
    counts = [count for count in pattern.every if count]
    return pattern.interval_s * counts[far]
