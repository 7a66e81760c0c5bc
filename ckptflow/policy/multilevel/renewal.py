"""Exact evaluation of one pattern without the native core: the same tables, by NumPy.

A step of all processes of a level is taken at once; see ``native/renewal.hpp``, whose words
these are: a *process* (level, base) with its table of expected time and probabilities of each
*ending* by distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.policy.multilevel.system import lags

F64s = NDArray[np.float64]
I64s = NDArray[np.int64]

_ENDINGS_MAX = 1 << 22  # In all tables; as in the core.
# Columns of an ending: expected time; at 1 + c the probability of class c; and how much of the
# unknown that a table is being solved for it has.
_SECONDS, _UNKNOWN = 0, -1


@dataclass(frozen=True)
class _Levels:
    """Numbers of the levels, and what follows from them: one entry a level."""

    rate: F64s
    every: I64s
    lag: I64s
    escalation: F64s
    second_loss: F64s
    seconds: F64s  # Of a recovery until it succeeds or becomes another.
    success: F64s
    segment: F64s  # Seconds of each segment of the pattern.

    @property
    def count(self) -> int:
        return len(self.rate)

    def newest(self, klass: int, position: I64s) -> I64s:
        """Return the newest copy of a level at positions, if nothing was lost."""
        every = self.every[klass]
        arrived: I64s = (position - self.lag[klass]) // every * every
        return arrived


def efficiency(rows: F64s, interval_s: float, every: NDArray[np.int64]) -> float:
    """Return the long-run efficiency of a pattern; 0 if it makes none, or may not be.

    Args:
        rows: levels, float64, shape (levels, 8); see `exact.level_rows`.
        interval_s: computing time between two saves.
        every: counts of the levels, nested.
    """
    with np.errstate(all="ignore"):
        levels = _prepared(rows, interval_s, np.asarray(every, dtype=np.int64))
        if levels is None:
            return 0.0
        tables: list[F64s] = []
        for level in range(levels.count):
            tables.append(_table(levels, tables, level))
        seconds = _cycle_seconds(levels, tables)
    useful = interval_s * int(levels.every[-1])
    return useful / seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _prepared(rows: F64s, interval_s: float, every: I64s) -> _Levels | None:
    rate, blocked, latency, interference, recovery, escalation, second, flying = rows.T
    nominal = interval_s + blocked[0]
    lag = lags(latency, nominal).astype(np.int64)
    width = every + lag + 2
    if (lag > flying * every).any() or (every[-1] // every * width).sum() > _ENDINGS_MAX:
        return None
    start = np.arange(int(every[-1]))
    segment = np.full(len(start), interval_s)
    for at in range(len(rate)):
        segment += np.where((start + 1) % every[at] == 0, blocked[at], 0.0)
        if latency[at] > 0:
            for age in range(int(lag[at])):
                begin = age * nominal
                part = max(0.0, min(latency[at], begin + nominal) - begin)
                segment += np.where((age - start) % every[at] == 0, part * interference[at], 0)
    total = rate.sum()
    above = np.array([rate[at + 1 :].sum() for at in range(len(rate))])
    leaves = above + second * rate
    leaves[-1] = 0.0
    once = _until(total, recovery)
    again = np.exp(-total * recovery) + leaves * once
    outer = np.arange(len(rate)) == len(rate) - 1
    return _Levels(
        rate, every, lag, np.where(outer, 0.0, escalation), np.where(outer, 0.0, second),
        once / again, np.exp(-total * recovery) / again, segment,
    )  # fmt: skip


def _until(rate: float, length: F64s) -> F64s:
    """Return the expected time until a stretch is over or a failure comes."""
    return -np.expm1(-rate * length) / rate if rate > 0 else length


def _follow(
    levels: _Levels, tables: list[F64s], level: int, *, own: F64s, base: I64s, position: I64s
) -> list[F64s]:
    """Return what follows a failure of each class up to ``level`` at positions, as endings.

    Args:
        levels: all of them.
        tables: of the levels below ``level``.
        level: of the processes.
        own: what follows a failure of that class itself.
        base: where each process began.
        position: where each is.
    """
    by: list[F64s] = [own] * (level + 1)
    for klass in range(level - 1, -1, -1):
        origin = np.maximum(base, levels.newest(klass, position))
        back = _endings(levels, tables[klass], klass, origin, position + 1 - origin)
        by[klass] = _after(levels, klass, back, by, level)
    return by


def _endings(levels: _Levels, table: F64s, klass: int, origin: I64s, distance: I64s) -> F64s:
    number = origin // levels.every[klass] % len(table)
    found: F64s = table[number, distance]
    return found


def _after(levels: _Levels, klass: int, back: F64s, by: list[F64s], level: int) -> F64s:
    """Return what follows a failure of a class, given the way back and the classes above."""
    seconds, success = levels.seconds[klass], levels.success[klass]
    restored = success * (1 - levels.escalation[klass])
    result = np.zeros_like(back)
    result[:, _SECONDS] = seconds + restored * back[:, _SECONDS]
    for above in range(klass + 1, levels.count):
        enters = levels.rate[above] * seconds + restored * back[:, 1 + above]
        if above == klass + 1:
            enters = enters + success * levels.escalation[klass]
            enters = enters + levels.second_loss[klass] * levels.rate[klass] * seconds
        if above > level:
            result[:, 1 + above] += enters
        else:
            result += enters[:, None] * by[above]
    return result


def _step(levels: _Levels, by: list[F64s], position: I64s) -> F64s:
    """Return the ending of a segment and of what follows the failures in it."""
    length = levels.segment[position % len(levels.segment)]
    once = _until(levels.rate.sum(), length)
    result = np.zeros((len(position), 2 + levels.count))
    result[:, _SECONDS] = once
    for klass in range(levels.count):
        if klass < len(by):
            result += (levels.rate[klass] * once)[:, None] * by[klass]
        else:
            result[:, 1 + klass] += levels.rate[klass] * once
    return result


def _table(levels: _Levels, tables: list[F64s], level: int) -> F64s:
    """Return the endings of the processes of a level, by base and distance.

    A failure of the class of the level leads back to the base: what follows has the unknown
    segment in it again. All is linear, so a column that says how much of it gives the rest.
    """
    outermost = level == levels.count - 1
    every = int(levels.every[level])
    bases = 1 if outermost else int(levels.every[-1]) // every
    width = every + int(levels.lag[level]) + 2
    table = np.zeros((bases, width, 2 + levels.count))
    base = np.arange(bases, dtype=np.int64) * every
    restored = levels.success[level] * (1 - levels.escalation[level])
    for distance in range(width - 1):
        far, position = table[:, distance], base + distance
        arrived = np.maximum(0.0, 1 - far[:, 2 + level : _UNKNOWN].sum(axis=1))
        own = _after(levels, level, far, [], level)
        own[:, _UNKNOWN] = restored * arrived
        by = _follow(levels, tables, level, own=own, base=base, position=position)
        one = _step(levels, by, position)
        left = 1 - one[:, _UNKNOWN]
        one[:, _UNKNOWN] = 0.0
        table[:, distance + 1] = far + (arrived / left)[:, None] * one
    return table


def _cycle_seconds(levels: _Levels, tables: list[F64s]) -> float:
    """Return the expected time of the pattern in the long run."""
    last = levels.count - 1
    position = np.arange(int(levels.every[-1]), dtype=np.int64)
    base = levels.newest(last, position)
    back = tables[last][0, position + 1 - base]
    own = _after(levels, last, back, [], last)
    by = _follow(levels, tables, last, own=own, base=base, position=position)
    return float(_step(levels, by, position)[:, _SECONDS].sum())
