"""Other ways to find how often to save and to which level, for `bench/policy.py`.

Closed forms to first order are those of `ckptflow.policy.multilevel.closed_form`. Annealing is
written from what is known of the reference's (CRSim's `optimize_cr`): it begins at the best of
a grid, moves one coordinate by 2 % a step (a count by 1 at least), cools geometrically from 10
to 0.05, accepts what is worse with exp(-|difference| * 100 / temperature), and each evaluation
is a short simulation with fresh random numbers, of some 300 failures as its stop rule gives
with the settings of its sweep. Its best value seen is its answer. Three things are kinder than
there: the grid lies around Young's interval (there it is in seconds for a sweep in minutes),
times are no whole numbers, and more than two levels are annealed likewise, one ratio of counts
each.

Learners learn the optimum itself, interval and counts, as the reference's other half does, from
labels; inputs are free of units. What they answer is made feasible, where it is not, with the
least change: intervals and counts at which no more copies are on their way than may be.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.closed_form import (
    SEARCHED_MAX,
    best_levels,
    first_order_pattern,
    spread,
)
from ckptflow.policy.multilevel.exact import level_rows
from ckptflow.policy.multilevel.simulation import simulate
from ckptflow.policy.multilevel.surrogate import propose, shipped
from ckptflow.policy.multilevel.system import LEVELS_MAX, Pattern, System
from ckptflow.policy.multilevel.tuning import tune

F64s = NDArray[np.float64]

Answer = Callable[[System], Pattern]


def feasible(system: System, pattern: Pattern) -> Pattern:
    """Return a pattern, or the nearest with no more copies on their way than may be."""
    part = system.using(pattern.used)
    blocked_s = part.blocked_s + part.levels[0].blocked_s
    first = part.levels[0]
    interval_s = max(pattern.interval_s, first.latency_s / first.in_flight - blocked_s, 1e-6)
    given = [count for count in pattern.every if count]
    counts, before, latency_s = list[int](), 1, 0.0
    for level, count, inner in zip(part.levels, given, [1, *given], strict=False):
        latency_s = max(latency_s, level.latency_s)
        lag = math.ceil(latency_s / (interval_s + blocked_s) * (1 - 1e-12))
        ratio = max(count // inner, math.ceil(lag / (level.in_flight * before)))
        before *= max(1, min(ratio, SEARCHED_MAX // before))
        counts.append(before)
    for level, count in zip(
        part.levels, counts, strict=True
    ):  # Where counts are at their limit.
        interval_s = max(interval_s, level.latency_s / (count * level.in_flight) - blocked_s)
    return Pattern(interval_s, spread(pattern.used, counts))


# --- to first order, and ours ----------------------------------------------------------


def first_order_best(system: System) -> Pattern:
    """Return the first-order optimum on the levels that dynamic programming chooses."""
    return feasible(system, first_order_pattern(system, best_levels(system).used))


def first_order_all(system: System) -> Pattern:
    """Return the first-order optimum on all levels."""
    return feasible(system, first_order_pattern(system, [True] * len(system.levels)))


def surrogate_alone(system: System) -> Pattern:
    """Return what the surrogate takes for the best, wherever it was trained."""
    return propose(system, shipped())[0]


def full_tuner(system: System) -> Pattern:
    """Return what `tune` says; it finds sensitivities and alternatives besides."""
    return tune({"": system}, surrogate=shipped()).pattern


# --- annealing -------------------------------------------------------------------------

_HOT, _COLD = 10.0, 0.05
_FACTORS = (0.2, 0.5, 1.0, 1.6, 2.4, 4.8)  # As 1000, 2500, 5000, 8000, 12000, 24000 lie apart.
_RATIOS = (1, 2, 5, 10)
_EVENTS = 100_000


@dataclass
class Annealing:
    """The reference's search, with steps and a seed."""

    steps: int
    seed: int

    def __call__(self, system: System) -> Pattern:
        """Return the best pattern seen, as the noise had it."""
        self.seed += 1
        rng = np.random.default_rng(self.seed)
        used = [True] * len(system.levels)
        middle_s = first_order_pattern(system, used).interval_s
        width = len(system.levels) - 1
        grid = [
            (middle_s * factor, (ratio,) * width) for factor in _FACTORS for ratio in _RATIOS
        ]
        values = [_noisy(system, one, rng) for one in grid]
        at = int(np.argmax(values))
        here, value = grid[at], values[at]
        best, best_value = here, value
        for step in range(self.steps):
            heat = _HOT * (_COLD / _HOT) ** (step / max(1, self.steps - 1))
            there = _moved(here, rng)
            other = _noisy(system, there, rng)
            if other > value or rng.random() < math.exp(-(value - other) * 100 / heat):
                here, value = there, other
            if value > best_value:
                best, best_value = here, value
        return feasible(system, _pattern(best))


def _noisy(
    system: System, one: tuple[float, tuple[int, ...]], rng: np.random.Generator
) -> float:
    """Return an efficiency with fresh failures; 0 if too many copies are on their way."""
    seed = int(rng.integers(1 << 40))
    pattern = _pattern(one)
    if pattern.every[-1] > SEARCHED_MAX:
        return 0.0
    try:
        # Any error is small enough: the first, short round is the only one.
        return simulate(
            system, pattern, seed=seed, error_max=1.0, events_max=_EVENTS
        ).efficiency
    except ConfigError:
        return 0.0


def _moved(
    one: tuple[float, tuple[int, ...]], rng: np.random.Generator
) -> tuple[float, tuple[int, ...]]:
    interval_s, ratios = one
    coordinate = int(rng.integers(1 + len(ratios)))
    up = bool(rng.random() < 0.5)
    if coordinate == 0:
        return interval_s * (1.02 if up else 1 / 1.02), ratios
    ratio = ratios[coordinate - 1]
    by = max(1, round(0.02 * ratio))
    changed = list(ratios)
    changed[coordinate - 1] = max(1, ratio + (by if up else -by))
    return interval_s, tuple(changed)


def _pattern(one: tuple[float, tuple[int, ...]]) -> Pattern:
    return Pattern(one[0], tuple(itertools.accumulate(one[1], lambda a, b: a * b, initial=1)))


# --- learners --------------------------------------------------------------------------

_UNUSED = -2.0  # Where a used level has the logarithm of its count, 0 or more.


@dataclass
class Labels:
    """Systems and what was taken for their optima, and what that took."""

    systems: Sequence[System]
    optima: Sequence[Pattern]
    cpu_s: float


def labels_by(answer: Answer, systems: Sequence[System]) -> Labels:
    """Return labels that one of the ways makes."""
    began_s = time.process_time()
    optima = [answer(system) for system in systems]
    return Labels(systems, optima, time.process_time() - began_s)


@dataclass
class Learned:
    """A learner of scikit-learn that answers with patterns."""

    model: Any
    cpu_s: float  # Of fitting; labels come on top.

    def __call__(self, system: System) -> Pattern:
        """Return what it has learned to be best."""
        return _decoded(system, self.model.predict(_inputs(system)[None])[0])


def learn(model: Any, labels: Labels) -> Learned:
    """Fit a learner."""
    inputs = np.stack([_inputs(system) for system in labels.systems])
    wanted = np.stack(
        [_encoded(*one) for one in zip(labels.systems, labels.optima, strict=True)]
    )
    began_s = time.process_time()
    model.fit(inputs, wanted)
    return Learned(model, time.process_time() - began_s)


def learners() -> dict[str, Any]:
    """Return the learners, not yet fitted."""
    # Threads that wait for work take processor time, many times that of one answer.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.multioutput import MultiOutputRegressor
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVR

    return {
        "random forest": RandomForestRegressor(n_estimators=200, random_state=0),
        "SVR": make_pipeline(StandardScaler(), MultiOutputRegressor(SVR(C=10, epsilon=0.02))),
        "k-NN": make_pipeline(
            StandardScaler(), KNeighborsRegressor(n_neighbors=5, weights="distance")
        ),
    }


def _inputs(system: System) -> F64s:
    """Return what is free of units: times by the mean time between failures, shares, levels."""
    total, rows = system.rate_per_s, level_rows(system)
    rate, blocked, latency, interference, recovery, _, second, _ = rows.T
    columns = [
        np.log(rate / total + 1e-6),
        np.log(blocked * total + 1e-9),
        np.log(latency * total + 1e-9),
        np.log(recovery * total + 1e-9),
        interference,
        second,
        np.ones(len(rows)),
    ]
    wide = np.zeros((len(columns), LEVELS_MAX))
    wide[:, : len(rows)] = columns
    young = math.log(first_order_pattern(system, [True] * len(rows)).interval_s * total)
    return np.concatenate([wide.ravel(), [young]])


def _encoded(system: System, optimum: Pattern) -> F64s:
    counts = [math.log2(count) if count else _UNUSED for count in optimum.every]
    counts += [_UNUSED] * (LEVELS_MAX - len(counts))
    return np.array([math.log(optimum.interval_s * system.rate_per_s), *counts])


def _decoded(system: System, answer: F64s) -> Pattern:
    count = len(system.levels)
    needed = max((at for at, level in enumerate(system.levels) if level.rate_per_s), default=0)
    used = [float(value) > _UNUSED / 2 for value in answer[1 : 1 + count]]
    used[needed] = used[needed] or not any(used[needed:])
    counts, before = list[int](), 1
    for at in range(count):
        if used[at]:
            wanted = 2 ** float(answer[1 + at]) / before if counts else 1.0
            before *= max(1, round(wanted))
            counts.append(before)
    interval_s = math.exp(float(answer[0])) / system.rate_per_s
    return feasible(system, Pattern(interval_s, spread(used, counts)))
