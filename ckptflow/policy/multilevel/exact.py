"""Expected efficiency of patterns, exactly, for failures without memory.

The model and the insight that makes it cheap stand in docs/design/014-multilevel-policy.md. It
is computed by the native core, or else, some hundred times slower, by
`ckptflow.policy.multilevel.renewal`; ``tests/unit/test_multilevel_exact.py`` holds both against
a Markov chain that knows nothing of the insight, and against simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel import renewal
from ckptflow.policy.multilevel.system import Pattern, System

F64s = NDArray[np.float64]

try:
    from ckptflow.native import _core
except ImportError:  # No compiler was there.
    HAS_CORE = False
else:
    HAS_CORE = True


def efficiency(system: System, pattern: Pattern) -> float:
    """Return useful computing time over elapsed time, in the long run: 0 to 1.

    0 if the pattern makes no progress to speak of, if more copies would be on their way than
    may be (or than 200 MB of tables hold), or if it leaves failures out that the system could
    survive and `System.work_s` is not known. If it is, these begin the task again, as do those
    that nothing survives; without it, the latter are not counted.

    Raises:
        ConfigError: the pattern is of another number of levels.
    """
    if len(pattern.every) != len(system.levels):
        raise ConfigError(
            f"The pattern {pattern.every} is not one of {len(system.levels)} levels."
        )
    every = np.array([[count for count in pattern.every if count]], dtype=np.int64)
    intervals = np.array([pattern.interval_s])
    return float(efficiencies(system, pattern.used, intervals, every)[0])


def efficiencies(
    system: System, used: Sequence[bool], interval_s: F64s, every: NDArray[np.int64]
) -> F64s:
    """Return the efficiency of many patterns on the same levels; see `efficiency`.

    Args:
        system: all levels.
        used: which of them are used.
        interval_s: float64, shape (n,).
        every: counts of the levels used, int64, shape (n, number of levels used), nested.
    """
    part = system.using(used)
    left_out = part.lost_rate_per_s > system.lost_rate_per_s
    if left_out and system.work_s is None:
        return np.zeros(len(interval_s))
    found = _of_used(
        part,
        np.ascontiguousarray(interval_s, dtype=np.float64),  # The core reads nothing else.
        np.ascontiguousarray(every, dtype=np.int64),
    )
    if part.lost_rate_per_s and system.work_s is not None:
        return _begun_again(found, part.lost_rate_per_s, system.work_s)
    return found


def _of_used(system: System, interval_s: F64s, every: NDArray[np.int64]) -> F64s:
    rows, out = level_rows(system), np.zeros(len(interval_s))
    if HAS_CORE:
        _core.pattern_efficiencies(rows, interval_s, every, out)
        return out
    for at, counts in enumerate(every):
        out[at] = renewal.efficiency(rows, float(interval_s[at]), counts)
    return out


def _begun_again(found: F64s, lost_rate_per_s: float, work_s: float) -> F64s:
    """Return efficiencies of a task that failures begin again.

    Without them it takes ``work / efficiency``, taken for certain since it is long; with them
    the time until so long a stretch is met without one is (e^(rate * time) - 1) / rate.
    """
    with np.errstate(divide="ignore", over="ignore"):
        stretch = np.where(found > 0, lost_rate_per_s * work_s / found, np.inf)
        return lost_rate_per_s * work_s / np.expm1(stretch)


def level_rows(system: System) -> F64s:
    """Return the numbers of the levels as the core reads them: shape (levels, 8).

    The innermost has what every save takes.
    """
    rows: list[list[Any]] = [
        [
            level.rate_per_s,
            level.blocked_s + (0.0 if at else system.blocked_s),
            level.latency_s,
            _beyond(system, at),
            level.recovery_s,
            level.escalation,
            level.second_loss,
            float(level.in_flight),
        ]
        for at, level in enumerate(system.levels)
    ]
    return np.array(rows, dtype=np.float64)


def _beyond(system: System, at: int) -> float:
    """Return the slowdown by copies to a level, over the whole of its latency.

    A copy moves to a level in the time between the latency of the level before and its own.
    """
    level = system.levels[at]
    before_s = system.levels[at - 1].latency_s if at else 0.0
    if level.latency_s <= 0 or math.isclose(level.latency_s, before_s):
        return 0.0
    return level.interference * (level.latency_s - before_s) / level.latency_s
