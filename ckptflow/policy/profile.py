"""What saves cost a loop, estimated from measurements that are noisy and do change.

A save costs twice. It holds the loop up: that is *blocked* time, measured around our own
calls. And while it is being written in the background steps may take longer: that is
*interference*. It is the difference between steps with a save in flight and *idle* steps, of
the same loop at the same speed. So a loop that becomes slower, for whatever reason, does so in
both kinds of steps and costs nothing here; a stretch in which it changed its speed is not
judged at all, and a new comparison begins.

All estimates rise at once and fall late, and what happened a single time moves them little:
`expected` says how. ``tests/unit/test_profile.py``, ``tests/property/test_interval_laws.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low

MEASUREMENTS = 32  # As many are kept of each kind.
_QUICK, _USUAL = 3, 8  # Newest measurements whose medians are looked at.
_ACCIDENT = 4.0  # The largest counts at most so many times the second largest.
_CHEAPER = 0.8  # Of what was usual: from there on it counts as a change for the better,
_IN_A_ROW = 5  # if it happens so often in a row.

_BEFORE, _AFTER = 8, 3  # Idle steps on the two sides of a comparison.
_BUSY = 64  # Steps in flight that are remembered for one.
_WAIT_AFTER = 48  # Steps in flight, after which idle ones are asked for,
_WAIT_FIRST = 8  # and as long as nothing is known yet.
_COMPARISONS = 64
_EXTREME = 8  # One in so many is left out at either end, one at least.
_PAUSE = 3.0  # A step counts at most so many times the median of its kind.
_OTHER_SPEED = 0.2  # Idle steps that differ by more, and by more than noise, tell of a change.
_SURE, _VERY_SURE = 2.0, 3.0  # Standard errors.


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is known of the cost of saves. Times in seconds.

    Attributes:
        blocked_s: for how long the next save will hold the loop up; ``None`` before the first.
        busy_s: time that the steps take during which a save is in flight.
        busy_now_s: that of the newest save, so far.
        slowdown: by what part such steps are longer than idle ones.
        durable_s: from a save to its being durable.
        idle_wanted: how many idle steps the comparison lacks; 0 while it lacks none.
        mtbf_s: mean time between failures, if enough of them were met.
    """

    blocked_s: float | None = None
    busy_s: float = 0.0
    busy_now_s: float = 0.0
    slowdown: float = 0.0
    durable_s: float | None = None
    idle_wanted: int = 0
    mtbf_s: float | None = None

    def interference_s(self, busy_s: float) -> float:
        """Return by how much a save made the loop later, whose steps in flight took ``busy_s``.

        It cannot be more than the time for which it was being written; twice, since older
        checkpoints are deleted afterwards.
        """
        excess_s = busy_s * self.slowdown / (1 + self.slowdown)
        return excess_s if self.durable_s is None else min(excess_s, 2 * self.durable_s)

    @property
    def save_s(self) -> float:
        """Time that the next save will cost in all, 0 before the first."""
        return (self.blocked_s or 0.0) + self.interference_s(self.busy_s)


def expected(values: Sequence[float]) -> float:
    """Return what to expect next after ``values``, the oldest first. At least one.

    The greatest of these, and so no less than any of them:

    * the median of the newest three: two dear ones in three raise it to what they cost;
    * the median of the newest eight, so that it falls late;
    * the newest, up to twice that median: a single dear one may double it;
    * the mean of all, so that what comes rarely, but again and again, counts in full. The
      largest counts at most four times the second largest: once in 32 is an accident.

    It never falls when one of the values rises.
    """
    usual = median_low(values[-_USUAL:])
    quick = max(usual, median_low(values[-_QUICK:]), min(values[-1], 2 * usual))
    if len(values) == 1:
        return quick
    *_, second, largest = sorted(values)
    limited = min(largest, _ACCIDENT * second)
    return max(quick, (math.fsum(values) - largest + limited) / len(values))


class Measured:
    """Measurements of one kind, of which the older ones are forgotten."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=MEASUREMENTS)

    def add(self, value: float) -> None:
        """Take a measurement.

        When the newest five are all clearly cheaper than what was usual before, the ones
        before are forgotten: what they tell of is over.
        """
        self._values.append(value)
        values = tuple(self._values)
        older, newest = values[:-_IN_A_ROW], values[-_IN_A_ROW:]
        if older and max(newest) < _CHEAPER * median_low(older[-_USUAL:]):
            self._values = deque(newest, MEASUREMENTS)

    def expected(self, *also: float) -> float | None:
        """Return what to expect next; ``also`` counts as measured last. ``None``: no idea."""
        values = (*self._values, *also)
        return expected(values) if values else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much longer steps in flight took than idle ones: a part, its error, their number."""

    slowdown: float
    error: float
    count: int


class StepTimes:
    """Compares steps during which a save was in flight with idle ones before and after.

    A comparison needs three idle steps after those in flight. `idle_wanted` asks for them
    when saves follow each other without a gap for too long.
    """

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=_BEFORE)
        self._busy: deque[float] = deque(maxlen=_BUSY)
        self._after: list[float] = []
        self._met = False  # Whether a comparison was tried at all.
        self._comparisons: deque[Comparison] = deque(maxlen=_COMPARISONS)
        self.slowdown = 0.0  # By what part steps are longer with a save in flight.

    def add(self, duration_s: float, *, busy: bool) -> None:
        """Take the time of a step; ``busy``: a save was in flight during some of it."""
        if busy:
            self._busy.append(duration_s)
        elif not self._busy:
            self._before.append(duration_s)
        else:
            self._after.append(duration_s)
            if len(self._after) >= _AFTER:
                self._compare()

    @property
    def idle_s(self) -> float | None:
        """Time of an idle step; of any step while no idle one was met."""
        idle = [*self._before, *self._after][-_BEFORE:] or self._busy
        return median(idle) if idle else None

    @property
    def is_comparing(self) -> bool:
        """Whether idle steps are going to be compared with steps in flight."""
        return bool(self._busy)

    @property
    def idle_wanted(self) -> int:
        """How many idle steps the comparison lacks; 0 while it can do without."""
        enough = _WAIT_AFTER if self._met else _WAIT_FIRST
        return _AFTER - len(self._after) if len(self._busy) >= enough else 0

    def _compare(self) -> None:
        """Judge the steps in flight, unless the loop has changed its speed meanwhile."""
        before, busy, after = list(self._before), list(self._busy), self._after
        self._before, self._after = deque(after, _BEFORE), []
        self._busy.clear()
        self._met = True
        idle = before or after
        usual = (_level(idle) + _level(after)) / 2
        spread = math.sqrt((_spread(before) ** 2 + _spread(after) ** 2) / (1 + bool(before)))
        change = abs(_level(idle) - _level(after))
        noise = _SURE * spread * math.sqrt(1 / len(idle) + 1 / len(after))
        if usual <= 0 or change > max(_OTHER_SPEED * usual, noise):
            return
        count = len(before) + len(after)
        error = spread / usual * math.sqrt(1 / len(busy) + 1 / count)
        self.learn(Comparison(_level(busy) / usual - 1, error, len(busy)))

    def learn(self, comparison: Comparison) -> None:
        """Take a comparison, made here or by an attempt before."""
        self._comparisons.append(comparison)
        self._forget()
        self.slowdown = _slowdown(tuple(self._comparisons))

    def _forget(self) -> None:
        """Forget what was before, if the mean of the newest five surely lies clearly below."""
        known = tuple(self._comparisons)
        older, newest = known[:-_IN_A_ROW], known[-_IN_A_ROW:]
        if not older:
            return
        at_most = _middle_mean(newest) + _VERY_SURE * _mean_error(newest)
        if at_most < _CHEAPER * _middle_mean(older):
            self._comparisons = deque(newest, _COMPARISONS)


def _slowdown(known: Sequence[Comparison]) -> float:
    """Return by what part steps are longer with a save in flight; never negative.

    The mean of the comparisons, without the smallest and the largest, and its standard error
    on top: what is not known well is taken for dear. It is more if the newest is sure of more,
    up to twice as much, or if two of the newest three are.
    """
    mean = max(0.0, _middle_mean(known) + _mean_error(known))
    sure = [one.slowdown - _SURE * one.error for one in known[-_QUICK:]]
    return max(mean, min(sure[-1], 2 * mean), median_low(sure))


def _middle_mean(comparisons: Sequence[Comparison]) -> float:
    """Return the mean slowdown by the number of steps, without the extreme comparisons."""
    known = sorted(comparisons, key=lambda one: one.slowdown)
    out = max(1, len(known) // _EXTREME) if len(known) > 2 else 0
    known = known[out : len(known) - out]
    count = sum(one.count for one in known)
    return sum(one.slowdown * one.count for one in known) / count


def _mean_error(comparisons: Sequence[Comparison]) -> float:
    return math.sqrt(sum(one.error**2 for one in comparisons)) / len(comparisons)


def _level(steps: Sequence[float]) -> float:
    """Return the mean; a pause of the loop (a validation, a file) is cut to a long step."""
    longest = _PAUSE * median(steps)
    return sum(min(one, longest) for one in steps) / len(steps)


def _spread(steps: Sequence[float]) -> float:
    """Return the standard deviation, likewise; 0 of fewer than two."""
    if len(steps) < 2:
        return 0.0
    longest, level = _PAUSE * median(steps), _level(steps)
    squares = sum((min(one, longest) - level) ** 2 for one in steps)
    return math.sqrt(squares / (len(steps) - 1))
