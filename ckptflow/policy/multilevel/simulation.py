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
    _core = None  # type: ignore[assignment]

_ELAPSED, _USEFUL, _BLOCKED, _INTERFERENCE, _AGAIN, _RECOVERY, _WAITING = range(7)
_FAILURES = 7
_COPIES = _FAILURES + LEVELS_MAX + 1
_STOPS = _COPIES + LEVELS_MAX
_COLUMNS = _STOPS + 3

_BATCHES = 40  # Batch means: enough for a t distribution that is nearly normal,
_SURE = 2.02  # whose 97.5 % quantile with 40 degrees of freedom this is.
_ROUNDS = 16
_PLAYED_ROWS = 8192  # A trace ends within a save or, in one of more saves than this, a few.
_NOBODY = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What there is around levels. Times in seconds; 0 means: no such thing.

    Attributes:
        walltime_s: of an allocation, at whose end the task stops in time.
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
        if self.walltime_s and self.walltime_s <= self.stop_s:
            raise ConfigError(
                f"An allocation of {self.walltime_s} s ends before a save of {self.stop_s} s "
                f"is done: no configuration makes progress."
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
        error: half the width of its 95 % confidence interval; 0 where a trace was played once.
        parts: where the time goes: useful, blocked, interference, again (computed before, or
            lost with a failure), recovery, waiting.
        failures_per_h: by level; preemptions come last.
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
            system, if not given. Where a level is not used its failures need the next one.
        around: what else there is.
        error_max: half the width of the 95 % confidence interval at which to stop.
        events_max: where to stop at the latest; then ``error`` says how far it got.

    Raises:
        ConfigError: there is no native core, a law is missing, or failures are left out that no
            used level survives; or the pattern has more copies on their way than may be.
    """
    if _core is None:
        raise ConfigError(
            "Simulation needs the native core, which this installation lacks (see "
            "`ckptflow doctor`); exact evaluation does without it."
        )
    part, part_laws, places = _used(system, pattern, laws)
    around = around or Surroundings()
    rows, times = _law_rows((*part_laws, around.preemption))
    every = np.array([count for count in pattern.every if count], dtype=np.int64)
    given = _around_row(around, [level.number for level in part.levels])

    def run(batch: int, rows_out: int) -> tuple[F64s, int]:
        out = np.zeros((rows_out, _COLUMNS))
        done = _core.simulate_pattern(
            level_rows(part), pattern.interval_s, every, rows, times, given, seed, batch,
            max(1, events_max // rows_out), out,
        )  # fmt: skip
        if done < 0:
            raise ConfigError(f"{pattern} has more copies on their way than a level takes.")
        return out, done

    if end_s := _recorded_s((*part_laws, around.preemption)):
        saves = math.ceil(end_s / pattern.interval_s)
        batch = math.ceil(saves / _PLAYED_ROWS)
        out, done = run(batch, math.ceil(saves / batch) + 1)
        until = int(np.searchsorted(out[:done, _ELAPSED].cumsum(), end_s)) + 1
        return _summary(out[:until], places, len(system.levels), error=0.0)
    batch = _first_batch(part, pattern, int(every[-1]))
    accounts = np.zeros((0, _COLUMNS))
    for _ in range(_ROUNDS):
        out, done = run(batch, _BATCHES + 1)
        accounts = out[1:done]  # The first begins with copies everywhere, as none other does.
        error, events = _error(accounts), out[:, -1].sum()
        if done <= _BATCHES or error <= error_max or events >= events_max / 2:
            break
        wanted = min(16.0, 1.2 * (error / error_max) ** 2, events_max / events)
        batch = max(batch + 1, int(batch * wanted))
    if len(accounts) < _BATCHES:  # Too few got anywhere: what happened is all that is known.
        accounts = out[: max(1, done + 1)]
    return _summary(accounts, places, len(system.levels), error=_error(accounts))


def _used(
    system: System, pattern: Pattern, laws: Sequence[Law | None] | None
) -> tuple[System, tuple[Law | None, ...], list[int]]:
    """Return the levels that are used, the laws of their failures, and their places."""
    part = system.using(pattern.used)
    places = [at for at, used in enumerate(pattern.used) if used]
    if part.lost_rate_per_s > system.lost_rate_per_s:
        raise ConfigError(
            f"Levels beyond {system.levels[places[-1]].name!r} are not used, but failures "
            f"need them: no configuration without them makes progress for ever."
        )
    if laws is None:
        return part, tuple(_exponential(level.rate_per_s) for level in part.levels), places
    if len(laws) != len(system.levels):
        raise ConfigError(f"{len(system.levels)} levels need as many laws, got {len(laws)}.")
    bounds = zip([-1, *places], places, strict=False)
    return part, tuple(_joined(laws[low + 1 : high + 1]) for low, high in bounds), places


def _exponential(rate_per_s: float) -> Law | None:
    return Exponential(rate_per_s) if rate_per_s else None


def _joined(laws: Sequence[Law | None]) -> Law | None:
    """Return the law of failures of several kinds together.

    Raises:
        ConfigError: it is no law of ours: only traces, and laws without memory, can be joined.
    """
    known = [law for law in laws if law is not None]
    if len(known) <= 1:
        return known[0] if known else None
    if all(isinstance(law, Exponential) for law in known):
        return Exponential(math.fsum(law.rate_per_s for law in known))
    if all(isinstance(law, Trace) for law in known):
        traces = [law for law in known if isinstance(law, Trace)]
        times_s = sorted(time_s for trace in traces for time_s in trace.times_s)
        return Trace(tuple(times_s), _recorded_s(traces))
    raise ConfigError(
        "Failures of a level that is not used can be added to those of the next if both have "
        "no memory, or both are traces; use the level, or give such laws."
    )


def _recorded_s(laws: Sequence[Law | None]) -> float:
    """Return where the longest of the traces ends; 0 without one."""
    ends = [law.observed_s or law.times_s[-1] for law in laws if isinstance(law, Trace)]
    return max(ends, default=0.0)


def _law_rows(laws: Sequence[Law | None]) -> tuple[F64s, F64s]:
    rows, times = np.zeros((len(laws), 4)), list[float]()
    rows[:, 1] = 1.0
    for row, law in zip(rows, laws, strict=True):
        row[2] = len(times)
        match law:
            case Exponential():
                row[0] = 1 / law.rate_per_s
            case Weibull():
                row[0], row[1] = law.scale_s, law.shape
            case Trace():
                times += law.times_s
        row[3] = len(times)
    return rows, np.array(times)


def _around_row(around: Surroundings, numbers: Sequence[int]) -> F64s:
    # Levels are numbered by their place among those used in the core.
    def place(level: int) -> int:
        return next((at for at, number in enumerate(numbers) if number >= level), _NOBODY)

    return np.array(
        [
            around.walltime_s, around.stop_s, around.queue_s, around.resume_s, around.notice_s,
            -1 if around.spares is None else around.spares, around.repair_s,
            place(around.node_level), place(around.allocation_level), around.capacity or 0,
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


def _summary(
    accounts: F64s, places: Sequence[int], levels: int, *, error: float
) -> Simulated:
    total = accounts.sum(axis=0)
    elapsed_s = float(total[_ELAPSED])
    names = ("useful", "blocked", "interference", "again", "recovery", "waiting")
    hours = elapsed_s / 3600

    def by_level(first: int) -> tuple[float, ...]:
        found = [0.0] * levels
        for at, place in enumerate(places):
            found[place] = float(total[first + at]) / hours
        return tuple(found)

    return Simulated(
        efficiency=float(total[_USEFUL]) / elapsed_s,
        error=error if math.isfinite(error) else 1.0,
        parts={name: float(total[1 + at]) / elapsed_s for at, name in enumerate(names)},
        failures_per_h=(*by_level(_FAILURES), float(total[_FAILURES + LEVELS_MAX]) / hours),
        copies_per_h=by_level(_COPIES),
        planned_stops_per_h=float(total[_STOPS]) / hours,
        abandoned_per_h=float(total[_STOPS + 1]) / hours,
        elapsed_s=elapsed_s,
        events=int(total[_STOPS + 2]),
    )
