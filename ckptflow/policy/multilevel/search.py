"""The best pattern of a system, by exact evaluation.

A search goes from one pattern to the best of its neighbours until there is no better one: other
intervals, other counts, with all patterns of a step evaluated in one call. It begins at several
patterns on several sets of levels, since the counts are whole numbers and the efficiency has
more than one hill. `thorough` begins at so many that tests and benchmarks take its result for
the truth. ``tests/unit/test_multilevel_search.py``, ``tests/property/test_multilevel_laws.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.model import SHARED_LEVEL
from ckptflow.policy.multilevel.closed_form import (
    SEARCHED_MAX,
    best_levels,
    first_order_efficiencies,
    first_order_pattern,
    spread,
)
from ckptflow.policy.multilevel.exact import efficiencies
from ckptflow.policy.multilevel.system import Pattern, System

F64s = NDArray[np.float64]
I64s = NDArray[np.int64]

Score = Callable[[tuple[bool, ...], F64s, I64s, F64s], F64s]
"""From levels used, intervals, counts and efficiencies to what is to be as great as may be."""

PROGRESS_MIN = 1e-3  # Less is no progress: a day's work would take three years.

FINE = (0.25, 0.08, 0.025, 0.008)  # Steps of the logarithm of the interval, coarse to fine.
COARSE = (0.25, 0.08)  # Near enough for whom the costs are not known better than that.
_STEPS_MAX = 60
_ENOUGH = 1e-6  # A step that gains less is the last of its stride.
_NO_GAIN = _ENOUGH / 2  # A level that gains no more is left out. Less than above: no circles.


@dataclass(frozen=True, slots=True)
class Found:
    """A pattern, its expected efficiency, and the score that it was chosen for."""

    pattern: Pattern
    efficiency: float
    score: float

    @property
    def uses(self) -> int:
        """How many levels it uses."""
        return sum(self.pattern.used)


def by_efficiency(_used: tuple[bool, ...], _interval: F64s, _every: I64s, found: F64s) -> F64s:
    """Return the efficiency as the score."""
    return found


def level_sets(system: System) -> Iterator[tuple[bool, ...]]:
    """Return the sets of levels that may be used: with room for two checkpoints on each.

    Without `System.work_s` the outermost level with failures, or one beyond it, is in each. A
    level that no failure needs besides is in none, unless it is the only one that outlives the
    allocation, which an aim may ask for.
    """
    count = len(system.levels)
    rates = [level.rate_per_s for level in system.levels]
    needed = max((at for at, rate in enumerate(rates) if rate > 0), default=0)
    for used in itertools.product((False, True), repeat=count):
        places = [at for at in range(count) if used[at]]
        fits = all((room := system.levels[at].capacity) is None or room >= 2 for at in places)
        covered = places and (places[-1] >= needed or system.work_s is not None)
        if fits and covered and not _idle(system, places, needed):
            yield used


def _idle(system: System, places: Sequence[int], needed: int) -> bool:
    """Return whether the first or the last of some levels is there for no failure, nor an aim.

    What recovers from nothing may still take over where a level further in fails to, so one
    between others is tried.
    """
    if len(places) == 1:
        return False
    if system.levels[places[0]].rate_per_s == 0 and places[0] < needed:
        return True
    if places[-2] < needed:
        return False
    return system.levels[places[-2]].number >= SHARED_LEVEL or (
        system.levels[places[-1]].number < SHARED_LEVEL
    )


def best_pattern(
    system: System,
    starts: Iterable[Pattern] = (),
    *,
    score: Score = by_efficiency,
    strides: Sequence[float] = FINE,
) -> Found:
    """Return the best pattern that is found from some starts and the first-order optima.

    Args:
        system: the levels.
        starts: where to begin besides, for example with what a surrogate says.
        score: what is to be great; the efficiency if not given.
        strides: how near to the best it goes; `COARSE` takes less than half the time.

    Raises:
        ConfigError: no configuration makes progress.
    """
    sets = list(level_sets(system))
    if not sets:
        raise ConfigError(no_progress(system))
    begin = [start for start in starts if start.used in sets]
    ranked = sorted(sets, key=lambda used: -_first_order(system, used))
    dynamic = best_levels(system).used
    chosen = dict.fromkeys([*([dynamic] if dynamic in sets else []), *ranked[:3]])
    begin += [first_order_pattern(system, used) for used in chosen]
    return _onwards(system, _best(system, begin, score, strides), sets, score, strides)


def _onwards(
    system: System,
    best: Found,
    sets: Sequence[tuple[bool, ...]],
    score: Score,
    strides: Sequence[float],
) -> Found:
    """Go on to other levels as long as one more is better, or one less is no worse."""
    while True:
        others = _other_levels(system, best, sets, score, strides)
        other = max(others, key=lambda one: one.score, default=best)
        if other.score <= best.score + _ENOUGH:
            fewer = [one for one in others if one.uses < best.uses]
            other = max(fewer, key=lambda one: one.score, default=best)
            if other is best or other.score < best.score - _NO_GAIN:
                return best
        best = other


def _other_levels(
    system: System,
    best: Found,
    sets: Sequence[tuple[bool, ...]],
    score: Score,
    strides: Sequence[float],
) -> list[Found]:
    """Return the best with each level more, and with each less, than a pattern has."""
    return [
        best_on(system, used, best.pattern, score=score, strides=strides)
        for used in sets
        if sum(a != b for a, b in zip(used, best.pattern.used, strict=True)) == 1
    ]


def best_on(
    system: System,
    used: tuple[bool, ...],
    near: Pattern,
    *,
    score: Score = by_efficiency,
    strides: Sequence[float] = FINE,
) -> Found:
    """Return the best on some levels, from a pattern on others and the first-order one."""
    starts = dict.fromkeys([on_levels(system, near, used), first_order_pattern(system, used)])
    found = [climb(system, start, score=score, strides=strides) for start in starts]
    return max(found, key=lambda one: one.score)


def on_levels(system: System, pattern: Pattern, used: tuple[bool, ...]) -> Pattern:
    """Return a pattern like another one on other levels.

    Levels that both have keep their counts, as nearly as may be; one that is new gets the
    count of the level before it.
    """
    counts, before = list[int](), 1
    first = next(at for at, is_used in enumerate(used) if is_used)
    scale = pattern.every[first] or 1
    for at in range(first, len(system.levels)):
        if not used[at]:
            continue
        wanted = (pattern.every[at] or scale * before) / scale
        before *= max(1, round(wanted / before)) if counts else 1
        counts.append(before)
    return Pattern(pattern.interval_s * scale, spread(used, counts))


def thorough(
    system: System, starts: Iterable[Pattern] = (), *, score: Score = by_efficiency
) -> Found:
    """Return the best pattern found from very many starts: the truth, as far as it goes.

    Raises:
        ConfigError: no configuration makes progress.
    """
    begin, sets = list(starts), list(level_sets(system))
    for used in sets:
        middle = first_order_pattern(system, used)
        grid = _grid(middle)
        values = _values(system, used, grid, score)
        order = np.argsort(-values)[:4]
        begin += [
            Pattern(float(grid[0][at]), spread(used, grid[1][at].tolist())) for at in order
        ]
    if not begin:
        raise ConfigError(no_progress(system))
    return _onwards(system, _best(system, begin, score, FINE), sets, score, FINE)


def no_progress(system: System) -> str:
    """Say that, and why, no configuration makes progress."""
    cramped = [
        level.name
        for level in system.levels
        if level.capacity is not None and level.capacity < 2
    ]
    longest = max(system.levels, key=lambda level: level.recovery_s)
    why = (
        f"failures come every {system.mtbf_s:.4g} s on average, and a recovery takes "
        f"{longest.recovery_s:.4g} s (level {longest.name!r})"
    )
    if cramped:
        why += f"; no room for two checkpoints on {', '.join(cramped)}"
    return (
        f"No configuration makes progress: {why}. Fewer nodes, faster storage or a smaller "
        f"state may."
    )


def _best(
    system: System, begin: Sequence[Pattern], score: Score, strides: Sequence[float]
) -> Found:
    worth = _worth(system, begin, score)
    found = [climb(system, start, score=score, strides=strides) for start in worth]
    best = max(found, key=lambda one: one.score)
    if best.efficiency < PROGRESS_MIN:
        raise ConfigError(no_progress(system))
    return best


def _worth(system: System, begin: Sequence[Pattern], score: Score) -> list[Pattern]:
    """Return the starts without those that lie far behind the best, or stand there already."""
    distinct = list(dict.fromkeys(begin))
    values = [_value(system, pattern, score)[1] for pattern in distinct]
    bar = max(values) - 0.3
    return [one for one, value in zip(distinct, values, strict=True) if value >= bar]


def _value(system: System, pattern: Pattern, score: Score) -> tuple[float, float]:
    intervals = np.array([pattern.interval_s])
    every = np.array([[count for count in pattern.every if count]], dtype=np.int64)
    found = efficiencies(system, pattern.used, intervals, every)
    return float(found[0]), float(score(pattern.used, intervals, every, found)[0])


def _values(
    system: System, used: tuple[bool, ...], patterns: tuple[F64s, I64s], score: Score
) -> F64s:
    return score(used, *patterns, efficiencies(system, used, *patterns))


def _first_order(system: System, used: tuple[bool, ...]) -> float:
    pattern, part = first_order_pattern(system, used), system.using(used)
    every = np.array([[count for count in pattern.every if count]], dtype=np.int64)
    waste = 0.0
    if part.lost_rate_per_s and system.work_s is not None:
        waste = part.lost_rate_per_s * system.work_s / 2
    return (
        float(first_order_efficiencies(part, np.array([pattern.interval_s]), every)[0]) - waste
    )


def climb(
    system: System,
    start: Pattern,
    *,
    score: Score = by_efficiency,
    strides: Sequence[float] = FINE,
) -> Found:
    """Go from a pattern to better ones, in ever smaller steps, on the same levels."""
    used = start.used
    counts = [count for count in start.every if count]
    interval_s = start.interval_s
    _, best = _value(system, start, score)
    for stride in strides:
        for _ in range(_STEPS_MAX):
            patterns = _neighbours(system.using(used), interval_s, counts, stride)
            values = _values(system, used, patterns, score)
            at = int(np.argmax(values))
            if not values[at] > best:
                break
            gain, best = values[at] - best, float(values[at])
            interval_s, counts = float(patterns[0][at]), patterns[1][at].tolist()
            if gain < _ENOUGH:
                break
    pattern = Pattern(interval_s, spread(used, counts))
    return Found(pattern, _value(system, pattern, score)[0], best)


def _neighbours(
    part: System, interval_s: float, counts: list[int], stride: float
) -> tuple[F64s, I64s]:
    """Return patterns near one: intervals a stride apart, counts with other ratios.

    Copies arrive with the end of a segment, so the efficiency jumps where one more segment is
    needed: the shortest intervals at which it is not are among the best.
    """
    ratios = [outer // inner for inner, outer in itertools.pairwise(counts)]
    near = {tuple(counts)}
    for at, ratio in enumerate(ratios):
        for other in {1, ratio // 2, ratio - 1, ratio + 1, ratio * 2, round(ratio * 1.25)}:
            if other < 1:
                continue
            changed = [*ratios[:at], other, *ratios[at + 1 :]]
            near.add(_counts(changed))
            if at + 1 < len(ratios):  # The levels beyond stay as they are, nearly.
                beyond = max(1, round(ratios[at + 1] * ratio / other))
                near.add(_counts([*changed[: at + 1], beyond, *changed[at + 2 :]]))
    here_s = [*(interval_s * np.exp(np.array([-3, -2, -1, 0, 1, 2, 3]) * stride))]
    here_s += _edges(part, interval_s)
    patterns = [(one, tuple(counts)) for one in here_s]
    for every in sorted(near - {tuple(counts)}):
        if every[-1] > max(SEARCHED_MAX, counts[-1]):
            continue
        # With the interval as it is or with the outermost period as it is, and nearly so.
        same_s = interval_s * counts[-1] / every[-1]
        others = {s * math.exp(by * stride) for s in (interval_s, same_s) for by in (-1, 0, 1)}
        others.update(sorted(_edges(part, same_s), key=lambda one: abs(one - same_s))[:3])
        patterns += [(one, every) for one in sorted(others)]
    intervals, everys = zip(*patterns, strict=True)
    return np.array(intervals), np.array(everys, dtype=np.int64)


def _edges(part: System, interval_s: float) -> list[float]:
    """Return the intervals near one at which a copy arrives just with the end of a segment."""
    blocked_s = part.levels[0].blocked_s + part.blocked_s
    edges = set[float]()
    for level in part.levels:
        segments = level.latency_s / (interval_s + blocked_s)
        for lag in {math.floor(segments), math.ceil(segments), math.ceil(segments) + 1}:
            if lag and (edge := level.latency_s / lag - blocked_s) > 0:
                edges.add(edge)
    return sorted(edge for edge in edges if 0.5 < edge / interval_s < 2)


def _counts(ratios: Sequence[int]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(ratios, lambda a, b: a * b, initial=1))


def _grid(middle: Pattern) -> tuple[F64s, I64s]:
    """Return patterns all around one: what a search by brute force looks at."""
    counts = [count for count in middle.every if count]
    ratios = [outer / inner for inner, outer in itertools.pairwise(counts)]
    near = [
        sorted({1, *(max(1, round(ratio * 4.0**power)) for power in (-1, -0.5, 0, 0.5, 1))})
        for ratio in ratios
    ]
    every = [one for one in map(_counts, itertools.product(*near)) if one[-1] <= SEARCHED_MAX]
    every = every or [_counts([1] * len(ratios))]
    factors = np.exp2(np.arange(-4, 4.1, 0.5))
    intervals = np.tile(middle.interval_s * factors, len(every))
    return intervals, np.repeat(np.array(every, dtype=np.int64), len(factors), axis=0)
