"""First-order optima: where a search begins, and what it is compared with.

A. Benoit, A. Cavelan, V. Le Fèvre, Y. Robert, H. Sun, "Towards optimal multi-level
checkpointing", IEEE Transactions on Computers 66 (7), 2017: the least overhead is the sum over
the levels of sqrt(2 * rate * cost), with nested patterns, and dynamic programming finds the
levels to use. Here the cost of a level is what a checkpoint there takes from the application:
blocked time, and what computing is slower meanwhile.
``tests/unit/test_multilevel_closed_form.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.exact import level_rows
from ckptflow.policy.multilevel.system import Pattern, System, lags

F64s = NDArray[np.float64]

SEARCHED_MAX = 1024  # Saves of a pattern that is looked for; its evaluation takes as long.


@dataclass(frozen=True, slots=True)
class FirstOrder:
    """Levels to use, and the overhead that they come to, to first order."""

    used: tuple[bool, ...]
    overhead: float


def cost_s(system: System) -> tuple[float, ...]:
    """Return what a checkpoint costs the application on each level, besides those before.

    The innermost has what every save takes.
    """
    return tuple(float(row[1] + row[2] * row[3]) for row in level_rows(system))


def best_levels(system: System) -> FirstOrder:
    """Return the levels with the least first-order overhead, by dynamic programming.

    A level that is left out hands its failures to the next that is used. The outermost level
    with failures is covered always.
    """
    rates = [level.rate_per_s for level in system.levels]
    costs = cost_s(replace(system, blocked_s=0.0))
    last = max((at for at, rate in enumerate(rates) if rate > 0), default=0)
    # best[k]: levels up to k, with k used and all failures up to its class covered.
    best: list[tuple[float, tuple[int, ...]]] = []
    for here in range(len(rates)):
        # Overhead before, levels before, the last of them, and what every save takes.
        ways: list[tuple[float, tuple[int, ...], int, float]] = []
        ways.append((0.0, (), -1, system.blocked_s))  # As the innermost: every save is its own.
        ways += [(best[at][0], best[at][1], at, 0.0) for at in range(here)]
        total, kept = min(
            (
                before
                + math.sqrt(2 * math.fsum(rates[at + 1 : here + 1]) * (costs[here] + more)),
                used,
            )
            for before, used, at, more in ways
        )
        best.append((total, (*kept, here)))
    overhead, kept = min(best[last:])
    return FirstOrder(tuple(at in kept for at in range(len(rates))), overhead)


def first_order_pattern(system: System, used: Sequence[bool]) -> Pattern:
    """Return the first-order optimum on some levels: Young's periods, nested.

    A level whose copies cost nothing gets them back to back. The interval is no shorter than
    copies to the innermost level allow.

    Raises:
        ConfigError: no level is used.
    """
    part = system.using(used)
    periods = _periods_s(cost_s(part), [level.rate_per_s for level in part.levels])
    interval_s = periods[0]
    if not 0 < interval_s < math.inf:  # Nothing fails there, or it is free: the next will say.
        finite = [period for period in periods if 0 < period < math.inf]
        interval_s = min(finite, default=max(part.levels[0].latency_s, 1.0))
    first = part.levels[0]
    arrives_s = first.latency_s / first.in_flight - first.blocked_s - part.blocked_s
    # Lags are cut off at the last bits; a little longer is safe.
    interval_s = max(interval_s, arrives_s * (1 + 1e-9))
    counts: list[int] = []
    for period, level in zip(periods, part.levels, strict=True):
        before = counts[-1] if counts else 1
        least = math.ceil(level.latency_s / (interval_s * level.in_flight))
        ratio = max(period / interval_s, least, 1.0) / before if counts else 1.0
        counts.append(
            before * max(1, min(round(min(ratio, SEARCHED_MAX)), SEARCHED_MAX // before))
        )
        while counts[-1] < least and counts[-1] + before <= SEARCHED_MAX and len(counts) > 1:
            counts[-1] += before
    return Pattern(interval_s, spread(used, counts))


def _periods_s(costs: Sequence[float], rates: Sequence[float]) -> list[float]:
    """Return Young's period for each level; those in which an outer one is shorter share one.

    What goes outward goes to the levels before, too, so periods do not fall outwards. The best
    that do not are found by joining neighbours that would: of their costs and rates together.
    """
    joined: list[tuple[float, float, int]] = []
    for one in zip(costs, rates, strict=True):
        group = (*one, 1)
        while joined and _young_s(*group[:2]) < _young_s(*joined[-1][:2]):
            cost, rate, count = joined.pop()
            group = (group[0] + cost, group[1] + rate, group[2] + count)
        joined.append(group)
    return [_young_s(cost, rate) for cost, rate, count in joined for _ in range(count)]


def _young_s(cost: float, rate: float) -> float:
    return math.sqrt(2 * cost / rate) if rate > 0 else math.inf


def spread(used: Sequence[bool], counts: Sequence[int]) -> tuple[int, ...]:
    """Return counts of the levels used as those of all levels, 0 for the others."""
    if sum(map(bool, used)) != len(counts):
        raise ConfigError(f"{list(counts)} are not the counts of the levels in {list(used)}.")
    rest = iter(counts)
    return tuple(int(next(rest)) if is_used else 0 for is_used in used)


def first_order_efficiencies(
    system: System, interval_s: F64s, every: NDArray[np.int64]
) -> F64s:
    """Return 1 - waste, to first order, of patterns that use all levels of a system.

    Good to about 0.003 while the waste is below 0.13, and far too low beyond that.

    Args:
        system: its levels are all used.
        interval_s: shape (n,).
        every: shape (n, levels).
    """
    rows = level_rows(system)
    nominal = interval_s + rows[0, 1]
    waste = np.zeros(len(interval_s))
    late = lags(rows[:, 2], nominal[:, None]).T
    for row, count, lag in zip(rows, every.T, late, strict=True):
        rate, blocked, latency, interference, recovery = row[:5]
        waste += (blocked + latency * interference) / (count * nominal)
        waste += rate * ((lag + count / 2) * nominal + recovery)
    found: F64s = np.maximum(0.0, 1 - waste)
    return found
