"""Efficiency of a pattern by simulation: also with memory, traces, walltimes, spares, no room.

Failures come from streams that depend on the seed only: patterns that are compared under one
seed meet the same failures (common random numbers). It stops when the confidence interval is
narrow enough. ``tests/unit/test_multilevel_simulation.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.laws import Exponential, Law, Trace, Weibull
from ckptflow.policy.multilevel.exact import level_rows
from ckptflow.policy.multilevel.system import LEVELS_MAX, Pattern, System

F64s = NDArray[np.float64]

try:
    from ckptflow.native import _core
except ImportError:  # No compiler was there.
    HAS_CORE = False
else:
    HAS_CORE = True

_ELAPSED, _USEFUL, _BLOCKED, _INTERFERENCE, _AGAIN, _RECOVERY, _WAITING = range(7)
_FAILURES = 7
_COPIES = _FAILURES + LEVELS_MAX + 1
_STOPS = _COPIES + LEVELS_MAX
_COLUMNS = _STOPS + 3

_BATCHES = 40  # Batch means: enough for a t distribution that is nearly normal,
_SURE = 2.02  # whose 97.5 % quantile with 39 degrees of freedom this is.
_ROUNDS = 16
_PLAYED_ROWS = 8192  # A trace ends within a save or, in one of more saves than this, a few.
_NOBODY = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What there is around levels. Times in seconds; 0 means: no such thing.

    Attributes:
        walltime_s: of an allocation, at whose end the task stops in time and loses nothing.
        stop_s: what its save before that takes.
        queue_s: from the end of an allocation to the beginning of the next.
        resume_s: restoring after a planned stop.
        preemption: how often allocations are taken away; ``None``: never.
        notice_s: how long before it; a task that needs longer to stop loses what it did.
        spares: nodes in reserve; ``None``: enough. Without one the task waits ``queue_s``, or
            until one is repaired.
        repair_s: from the loss of a node until it is a spare again; 0: it never is.
        node_level: failures from this level on take a node.
        allocation_level: failures from this level on take the allocation.
        capacity: checkpoints that fit on the innermost level that is used. What is on its way
            outward stays there until it has arrived; if room is short, the oldest is given up.
    """

    walltime_s: float = 0.0
    stop_s: float = 0.0
    queue_s: float = 0.0
    resume_s: float = 0.0
    preemption: Law | None = None
    notice_s: float = 0.0
    spares: int | None = None
    repair_s: float = 0.0
    node_level: int = 2
    allocation_level: int = 3
    capacity: int | None = None

    def __post_init__(self) -> None:
        for name in ("walltime_s", "stop_s", "queue_s", "resume_s", "notice_s", "repair_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is 0 s or more, got {getattr(self, name)}.")
        if self.walltime_s and self.walltime_s <= self.stop_s + self.resume_s:
            raise ConfigError(
                f"An allocation of {self.walltime_s} s ends before a restore of "
                f"{self.resume_s} s and a save of {self.stop_s} s are done: no configuration "
                f"makes progress."
            )
        if self.spares is not None and self.spares < 0:
            raise ConfigError(f"There cannot be {self.spares} spare nodes.")
        if self.capacity is not None and self.capacity < 2:
            raise ConfigError(
                f"The innermost level has room for {self.capacity} checkpoints; it takes 2: "
                f"the old one stays until the new one is there."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulation found. Parts add up to 1; numbers are for an hour of elapsed time.

    Attributes:
        efficiency: useful part of the elapsed time.
        error: half the width of its 95 % confidence interval; 0 where a trace was played once,
            1 if too little could be simulated to tell.
        parts: where the time goes: useful, blocked, interference, again (computed before, or
            lost with a failure), recovery, waiting.
        failures_per_h: by level that they need, used or not; preemptions come last.
        copies_per_h: by level, how many checkpoints went there.
        planned_stops_per_h: ends of allocations that were foreseen, preemptions in time too.
        abandoned_per_h: copies that were given up for want of room.
        elapsed_s: simulated time.
        events: segments, failures and recoveries that were simulated.
    """

    efficiency: float
    error: float
    parts: dict[str, float]
    failures_per_h: tuple[float, ...]
    copies_per_h: tuple[float, ...]
    planned_stops_per_h: float
    abandoned_per_h: float
    elapsed_s: float
    events: int


def simulate(
    system: System,
    pattern: Pattern,
    *,
    seed: int = 0,
    laws: Sequence[Law | None] | None = None,
    around: Surroundings | None = None,
    error_max: float = 1e-3,
    events_max: int = 50_000_000,
) -> Simulated:
    """Simulate a pattern until its efficiency is known to ``error_max``, or a trace ends.

    With a trace among the laws it begins at the beginning of the record and stops at its end,
    where the longest of them ends.

    Args:
        system: the levels; failures that no level survives are left out.
        pattern: as for `exact.efficiency`.
        seed: the same seed, the same failures, whatever the pattern.
        laws: of the failures of each level of the system; without memory, at the rates of the
            system, if not given. Where a level is not used its failures need the next one, and
            come when they would.
        around: what else there is.
        error_max: half the width of the 95 % confidence interval at which to stop.
        events_max: where to stop at the latest; then ``error`` says how far it got.

    Raises:
        ConfigError: there is no native core, a law is missing, or failures are left out that no
            used level survives; or the pattern has more copies on their way than may be.
    """
    if not HAS_CORE:
        raise ConfigError(
            "Simulation needs the native core, which this installation lacks (see "
            "`ckptflow doctor`); exact evaluation does without it."
        )
    part, places = _used(system, pattern)
    around = around or Surroundings()
    every_law = (*_laws(system, places, laws), around.preemption)
    needs = [sum(place < at for place in places) for at in range(len(system.levels))]
    # Beyond the outermost level that is used there is no failure.
    needs = [min(need, len(places) - 1) for need in needs]
    rows, times = _law_rows(every_law, [*needs, 0])
    every = np.array([count for count in pattern.every if count], dtype=np.int64)
    given = _around_row(around, system, places)

    def run(batch: int, rows_out: int) -> tuple[F64s, int]:
        out = np.zeros((rows_out, _COLUMNS))
        done = _core.simulate_pattern(
            level_rows(part), pattern.interval_s, every, rows, times, given, seed, batch,
            max(1, events_max // rows_out), out,
        )  # fmt: skip
        if done < 0:
            raise ConfigError(f"{pattern} has more copies on their way than a level takes.")
        return out, done

    if end_s := _recorded_s(every_law):
        saves = math.ceil(end_s / pattern.interval_s)
        batch = math.ceil(saves / _PLAYED_ROWS)
        out, done = run(batch, math.ceil(saves / batch) + 1)
        until = int(np.searchsorted(out[:done, _ELAPSED].cumsum(), end_s)) + 1
        return _summary(out[:until], places, len(system.levels), error=0.0)
    batch = _first_batch(part, pattern, int(every[-1]))
    out, done = run(batch, _BATCHES + 1)
    if done <= _BATCHES:  # Too few got anywhere: what happened is all that is known.
        return _summary(out[: done + 1], places, len(system.levels), error=math.inf)
    for _ in range(_ROUNDS):
        accounts = out[1:]  # The first begins with copies everywhere, as none other does.
        error, events = _error(accounts), out[:, -1].sum()
        if error <= error_max or events >= events_max / 2:
            break
        # With room for a batch that meets more than others.
        wanted = min(16.0, 1.2 * (error / error_max) ** 2, 0.7 * events_max / events)
        batch = max(batch + 1, int(batch * wanted))
        again, done = run(batch, _BATCHES + 1)
        if done <= _BATCHES:
            break
        out = again
    return _summary(accounts, places, len(system.levels), error=_error(accounts))


def _used(system: System, pattern: Pattern) -> tuple[System, list[int]]:
    """Return the levels that are used, and their places."""
    part = system.using(pattern.used)
    places = [at for at, used in enumerate(pattern.used) if used]
    if part.lost_rate_per_s > system.lost_rate_per_s:
        raise _uncovered(system, places)
    return part, places


def _uncovered(system: System, places: Sequence[int]) -> ConfigError:
    return ConfigError(
        f"Levels beyond {system.levels[places[-1]].name!r} are not used, but failures need "
        f"them: no configuration without them makes progress for ever."
    )


def _laws(
    system: System, places: Sequence[int], laws: Sequence[Law | None] | None
) -> tuple[Law | None, ...]:
    """Return the law of the failures of each level, those of levels that are not used too."""
    if laws is None:
        rates = [level.rate_per_s for level in system.levels]
        return tuple(Exponential(rate_per_s) if rate_per_s else None for rate_per_s in rates)
    if len(laws) != len(system.levels):
        raise ConfigError(f"{len(system.levels)} levels need as many laws, got {len(laws)}.")
    if any(law is not None for law in laws[places[-1] + 1 :]):
        raise _uncovered(system, places)
    return tuple(laws)


def _recorded_s(laws: Sequence[Law | None]) -> float:
    """Return where the longest of the traces ends; 0 without one."""
    ends = [law.observed_s or law.times_s[-1] for law in laws if isinstance(law, Trace)]
    return max(ends, default=0.0)


def _law_rows(laws: Sequence[Law | None], needs: Sequence[int]) -> tuple[F64s, F64s]:
    """Return laws as the core reads them, with the place of the level that each needs."""
    rows, times = np.zeros((len(laws), 5)), list[float]()
    rows[:, 1] = 1.0
    for row, law, need in zip(rows, laws, needs, strict=True):
        row[2] = len(times)
        match law:
            case Exponential():
                row[0] = 1 / law.rate_per_s
            case Weibull():
                row[0], row[1] = law.scale_s, law.shape
            case Trace():
                times += law.times_s
        row[3], row[4] = len(times), need
    return rows, np.array(times)


def _around_row(around: Surroundings, system: System, places: Sequence[int]) -> F64s:
    def first(number: int) -> int:
        found = (at for at, level in enumerate(system.levels) if level.number >= number)
        return next(found, _NOBODY)

    lost = first(around.allocation_level)
    taken = next((at for at, place in enumerate(places) if place >= lost), None)
    if taken is None and around.preemption is not None and around.notice_s < around.stop_s:
        raise ConfigError(
            f"Allocations are taken away {around.notice_s:g} s after the notice, a save before "
            f"that takes {around.stop_s:g} s, and no level {around.allocation_level} or beyond "
            f"is used to go on from: no configuration without one makes progress."
        )
    return np.array(
        [
            around.walltime_s, around.stop_s, around.queue_s, around.resume_s, around.notice_s,
            -1 if around.spares is None else around.spares, around.repair_s,
            first(around.node_level), lost, around.capacity or 0, taken or 0,
        ],
        dtype=np.float64,
    )  # fmt: skip


def _first_batch(system: System, pattern: Pattern, positions: int) -> int:
    """Return how many saves a batch has at first: some failures, and whole patterns."""
    failures = 1 / (system.rate_per_s * pattern.interval_s) if system.rate_per_s else 1.0
    return int(max(8 * positions, min(8 * failures, 1e6)))


def _error(accounts: F64s) -> float:
    """Return half the width of the 95 % interval of the ratio of two means, by batches."""
    if len(accounts) < _BATCHES:
        return math.inf
    elapsed, useful = accounts[:, _ELAPSED], accounts[:, _USEFUL]
    ratio = useful.sum() / elapsed.sum()
    residual = useful - ratio * elapsed
    return float(_SURE * residual.std(ddof=1) / math.sqrt(len(accounts)) / elapsed.mean())


def _summary(accounts: F64s, places: Sequence[int], levels: int, *, error: float) -> Simulated:
    total = accounts.sum(axis=0)
    elapsed_s = float(total[_ELAPSED]) or math.ulp(0.0)  # A limit of events may end it at once.
    names = ("useful", "blocked", "interference", "again", "recovery", "waiting")
    hours = elapsed_s / 3600
    failures = total[_FAILURES : _FAILURES + levels] / hours

    def by_level(first: int) -> tuple[float, ...]:
        found = [0.0] * levels
        for at, place in enumerate(places):
            found[place] = float(total[first + at]) / hours
        return tuple(found)

    return Simulated(
        efficiency=float(total[_USEFUL]) / elapsed_s,
        error=error if math.isfinite(error) else 1.0,
        parts={name: float(total[1 + at]) / elapsed_s for at, name in enumerate(names)},
        failures_per_h=(*failures.tolist(), float(total[_FAILURES + LEVELS_MAX]) / hours),
        copies_per_h=by_level(_COPIES),
        planned_stops_per_h=float(total[_STOPS]) / hours,
        abandoned_per_h=float(total[_STOPS + 1]) / hours,
        elapsed_s=elapsed_s,
        events=int(total[_STOPS + 2]),
    )
