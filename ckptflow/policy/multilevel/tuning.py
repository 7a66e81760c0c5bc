"""The whole answer: the pattern, what to expect of it, how sensitive it is, and why.

The surrogate proposes, exact evaluation decides. Where a system lies outside of what the
surrogate was trained with, or there is none, the search begins at the first-order optima and
all around them instead, and says so. ``tests/unit/test_multilevel_tuning.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.closed_form import first_order_pattern
from ckptflow.policy.multilevel.exact import efficiency, level_rows
from ckptflow.policy.multilevel.presets import (
    PRESETS,
    Aim,
    cheapest,
    longest_far_s,
    score_of,
)
from ckptflow.policy.multilevel.search import (
    PROGRESS_MIN,
    Found,
    Score,
    best_on,
    best_pattern,
    climb,
    level_sets,
    no_progress,
    thorough,
)
from ckptflow.policy.multilevel.surrogate import Surrogate, propose, used_rows
from ckptflow.policy.multilevel.system import Level, Pattern, System
from ckptflow.units import format_seconds


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What happens if something is not as believed.

    Attributes:
        what: it is.
        factor: by which it is multiplied.
        kept: efficiency with the pattern as it is.
        tuned: efficiency with the pattern that would be best then.
    """

    what: str
    factor: float
    kept: float
    tuned: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best pattern on other levels, or with another redundancy."""

    redundancy: str
    pattern: Pattern
    efficiency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """A pattern and all that is to be said of it.

    Attributes:
        redundancy: the scheme of the redundancy sets; empty without a choice.
        system: the levels, with the rates that the aim reckons with.
        pattern: the answer.
        efficiency: expected.
        low: it, if failures are as frequent and storage as slow as they may well be.
        high: it, in the other direction.
        method: how the pattern was found.
        parts: where the time goes; adds up to 1.
        sensitivity: what happens if things are not as believed.
        alternatives: other ways, the best first.
        reasons: in words.
    """

    redundancy: str
    system: System
    pattern: Pattern
    efficiency: float
    low: float
    high: float
    method: str
    parts: Mapping[str, float]
    sensitivity: tuple[Sensitivity, ...]
    alternatives: tuple[Alternative, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Doubt:
    """By what factors things may well be otherwise, 1 if they are known."""

    rates: float = 2.0
    times: float = 1.25

    def __post_init__(self) -> None:
        if not (1 <= self.rates < math.inf and 1 <= self.times < math.inf):
            raise ConfigError(f"A doubt is a factor from 1 on, got {self}.")


def tune(
    systems: Mapping[str, System],
    *,
    aim: Aim | None = None,
    surrogate: Surrogate | None = None,
    doubt: Doubt | None = None,
    refine: bool = True,
) -> Tuning:
    """Return the best pattern on the best of several systems.

    Args:
        systems: by the redundancy scheme that makes them what they are; one under ``""`` if
            there is no choice. Their rates are those that the aim reckons with.
        aim: what matters besides efficiency; the preset ``fast`` if not given.
        surrogate: where to begin.
        doubt: how far rates and times are known.
        refine: whether to go on from the surrogate's proposals by exact evaluation. Without
            it the best proposal is taken as it is; only its efficiency is exact.

    Raises:
        ConfigError: no configuration makes progress, or there is no system.
    """
    if not systems:
        raise ConfigError("There is nothing to tune: no system was given.")
    aim, doubt = aim or PRESETS["fast"], doubt or Doubt()
    answers: dict[str, tuple[Found, str]] = {}
    refused: list[ConfigError] = []
    for name, system in systems.items():
        try:
            answers[name] = _answer(system, aim, surrogate, refine=refine)
        except ConfigError as error:
            refused.append(error)
    if not answers:
        raise refused[0]
    name = max(answers, key=lambda one: answers[one][0].score)
    (found, method), system = answers[name], systems[name]
    low, high = _range(system, found.pattern, doubt)
    alternatives = _alternatives(systems, answers, name, aim) if refine else ()
    return Tuning(
        redundancy=name,
        system=system,
        pattern=found.pattern,
        efficiency=found.efficiency,
        low=low,
        high=high,
        method=method,
        parts=parts(system, found.pattern, found.efficiency),
        sensitivity=_sensitivities(system, found.pattern) if refine else (),
        alternatives=alternatives,
        reasons=_reasons(system, aim, answers, name, alternatives),
    )


def _answer(
    system: System, aim: Aim, surrogate: Surrogate | None, *, refine: bool
) -> tuple[Found, str]:
    score = score_of(system, aim)
    if surrogate is None:
        return _exact(system, aim), "exact search; there is no surrogate"
    proposals = propose(system, surrogate, score=score)
    if not proposals:
        return _exact(system, aim), "exact search; the surrogate knows no pattern that may be"
    outside = _outside(system, surrogate, proposals[0])
    doubt = f"the surrogate was not trained with this: {', '.join(outside[:3])}"
    if refine and outside:
        return _exact(system, aim, proposals), f"exact search; {doubt}"
    if refine:
        found = cheapest(system, aim, best_pattern(system, proposals, score=score))
        return found, "the surrogate's proposals, refined by exact evaluation"
    if not outside:
        return _first_of(system, proposals[:1], score), "the surrogate's proposal"
    simple = [first_order_pattern(system, one.used) for one in proposals]
    found = _first_of(system, [*proposals, *simple], score)
    return found, f"the best of the surrogate's proposals and first-order optima; {doubt}"


def _first_of(system: System, candidates: list[Pattern], score: Score) -> Found:
    """Return the best of a few patterns, by exact evaluation and without any search."""
    found = []
    for pattern in dict.fromkeys(candidates):
        value = efficiency(system, pattern)
        every = np.array([[count for count in pattern.every if count]], dtype=np.int64)
        interval_s, values = np.array([pattern.interval_s]), np.array([value])
        scored = float(score(pattern.used, interval_s, every, values)[0])
        found.append(Found(pattern, value, scored))
    best = max(found, key=lambda one: one.score)
    if best.efficiency < PROGRESS_MIN:
        raise ConfigError(no_progress(system))
    return best


def _exact(system: System, aim: Aim, starts: list[Pattern] | None = None) -> Found:
    return cheapest(system, aim, thorough(system, starts or (), score=score_of(system, aim)))


def _outside(system: System, surrogate: Surrogate, pattern: Pattern) -> list[str]:
    rows = used_rows(system, pattern.used)
    every = np.array([[count for count in pattern.every if count]], dtype=np.int64)
    return surrogate.outside(rows, np.array([pattern.interval_s]), every)


def parts(system: System, pattern: Pattern, value: float) -> dict[str, float]:
    """Return where the time goes: useful, blocked, interference, and what failures cost."""
    part = system.using(pattern.used)
    counts = [count for count in pattern.every if count]
    rows = level_rows(part)
    blocked = sum(row[1] / count for row, count in zip(rows, counts, strict=True))
    slowed = sum(row[2] * row[3] / count for row, count in zip(rows, counts, strict=True))
    blocked, slowed = (float(one) * value / pattern.interval_s for one in (blocked, slowed))
    return {
        "useful": value,
        "blocked": blocked,
        "interference": slowed,
        "failures": max(0.0, 1 - value - blocked - slowed),
    }


def scaled(system: System, *, rates: float = 1.0, times: float = 1.0) -> System:
    """Return a system with other rates, and with other times of copies and restores."""
    levels = tuple(
        replace(
            level,
            rate_per_s=level.rate_per_s * rates,
            latency_s=level.latency_s * times,
            recovery_s=level.recovery_s * times,
        )
        for level in system.levels
    )
    return replace(system, levels=levels, lost_rate_per_s=system.lost_rate_per_s * rates)


def _range(system: System, pattern: Pattern, doubt: Doubt) -> tuple[float, float]:
    """Return the efficiency in the worse and in the better case; flushes that run on count."""
    worse = scaled(system, rates=doubt.rates, times=doubt.times)
    better = scaled(system, rates=1 / doubt.rates, times=1 / doubt.times)
    return efficiency(_patient(worse), pattern), efficiency(_patient(better), pattern)


def _patient(system: System) -> System:
    """Return a system in which copies may wait for each other: those that are late, only."""
    return replace(
        system, levels=tuple(replace(level, in_flight=10**6) for level in system.levels)
    )


def _sensitivities(system: System, pattern: Pattern) -> tuple[Sensitivity, ...]:
    changes: list[tuple[str, float, System]] = []
    for factor in (0.5, 2.0):
        changes.append(("rates of all failures", factor, scaled(system, rates=factor)))
        for at, level in enumerate(system.levels):
            if not pattern.used[at]:
                continue
            slower = replace(level, latency_s=level.latency_s * factor)
            changes.append(
                (f"time of a copy to {level.name}", factor, _with(system, at, slower))
            )
        blocked = replace(system, blocked_s=system.blocked_s * factor)
        changes.append(("time that a save blocks", factor, blocked))
    return tuple(
        Sensitivity(what, factor, efficiency(_patient(other), pattern), _tuned(other, pattern))
        for what, factor, other in changes
    )


def _tuned(system: System, pattern: Pattern) -> float:
    """Return the best efficiency on the same levels, from a pattern and the first-order one."""
    starts = [pattern, first_order_pattern(system, pattern.used)]
    return max(climb(system, start).efficiency for start in starts)


def _with(system: System, at: int, level: Level) -> System:
    """Return a system with another level, and latencies that do not fall outwards."""
    levels = list(system.levels)
    shift = level.latency_s - levels[at].latency_s
    levels[at] = level
    for place in range(at + 1, len(levels)):
        levels[place] = replace(
            levels[place], latency_s=max(level.latency_s, levels[place].latency_s + shift)
        )
    for place in range(at):
        levels[place] = replace(
            levels[place], latency_s=min(level.latency_s, levels[place].latency_s)
        )
    return replace(system, levels=tuple(levels))


def _alternatives(
    systems: Mapping[str, System],
    answers: Mapping[str, tuple[Found, str]],
    chosen: str,
    aim: Aim,
) -> tuple[Alternative, ...]:
    """Return the best with one level more or less, or other redundancy, the best first."""
    system, best = systems[chosen], answers[chosen][0]
    score = score_of(system, aim)
    found = [
        Alternative(name, one.pattern, one.efficiency)
        for name, (one, _) in answers.items()
        if name != chosen
    ]
    for used in level_sets(system):
        if sum(a != b for a, b in zip(used, best.pattern.used, strict=True)) != 1:
            continue
        other = best_on(system, used, best.pattern, score=score)
        found.append(Alternative(chosen, other.pattern, other.efficiency))
    return tuple(sorted(found, key=lambda one: -one.efficiency))


def _reasons(
    system: System,
    aim: Aim,
    answers: Mapping[str, tuple[Found, str]],
    redundancy: str,
    alternatives: tuple[Alternative, ...],
) -> tuple[str, ...]:
    """Return why the answer is what it is, a sentence for each thing that decided."""
    found = answers[redundancy][0]
    pattern = found.pattern
    blocked_s = level_rows(system.using(pattern.used))[0, 1]
    said = [
        f"A save every {format_seconds(pattern.interval_s)} of computing: it blocks for "
        f"{format_seconds(float(blocked_s))}, and "
        + (
            f"failures come every {format_seconds(system.mtbf_s)}."
            if system.rate_per_s
            else "no failures are expected."
        )
    ]
    for at, level in enumerate(system.levels):
        other = _turned(pattern, at, alternatives, redundancy)
        said.append(_about(level, pattern, at, other))
    if redundancy and len(answers) > 1:
        others = ", ".join(
            f"{name} {one.efficiency:.4f}"
            for name, (one, _) in answers.items()
            if name != redundancy
        )
        said.append(f"Redundancy {redundancy}: expected {found.efficiency:.4f}; {others}.")
    if system.lost_rate_per_s and system.work_s is None:
        said.append(
            f"Failures that no level survives come every "
            f"{format_seconds(1 / system.lost_rate_per_s)} and begin the task again; how long "
            f"it is is not known, so they are not counted."
        )
    if aim.far_every_s is not None:
        said.append(_about_far(aim, aim.far_every_s, longest_far_s(system, pattern)))
    if aim.give_up:
        said.append(
            f"Preset {aim.name}: up to {100 * aim.give_up:.3g} % of the time for lower cost."
        )
    return tuple(said)


def _about_far(aim: Aim, wanted_s: float, far_s: float) -> str:
    if math.isinf(far_s):
        return f"Preset {aim.name} asks for level 3 or beyond, and there is none."
    said = (
        f"Preset {aim.name}: {format_seconds(far_s)} of computing between checkpoints on level "
        f"3 or beyond"
    )
    if far_s <= wanted_s * (1 + 1e-6):
        return f"{said}, at most {format_seconds(wanted_s)}."
    return (
        f"{said}; {format_seconds(wanted_s)}, as it asks for, is more often than copies arrive."
    )


def _turned(
    pattern: Pattern, at: int, alternatives: tuple[Alternative, ...], redundancy: str
) -> float | None:
    """Return the best efficiency with a level used that is not, or the other way round."""
    return max(
        (
            one.efficiency
            for one in alternatives
            if one.redundancy == redundancy and one.pattern.used[at] != pattern.used[at]
        ),
        default=None,
    )


def _about(level: Level, pattern: Pattern, at: int, other: float | None) -> str:
    name = f"Level {level.number} ({level.name})"
    if not pattern.every[at]:
        if level.capacity is not None and level.capacity < 2:
            return f"{name} is not used: it has room for one checkpoint, and takes two."
        with_it = "" if other is None else f": with it, {other:.4f} at best"
        return f"{name} is not used{with_it}."
    count = pattern.every[at]
    which = (
        "every save"
        if count == 1
        else f"one save in {count} ({format_seconds(pattern.period_s(at))})"
    )
    copy = (
        f"a copy takes {format_seconds(level.latency_s)}"
        if level.latency_s
        else "it is there at once"
    )
    rate = (
        f"failures that need it come every {format_seconds(1 / level.rate_per_s)}"
        if level.rate_per_s
        else "no failure needs it by itself"
    )
    without = "" if other is None else f"; without it, {other:.4f} at best"
    return (
        f"{name} gets {which}: {copy}, {rate}, "
        f"recovering takes {format_seconds(level.recovery_s)}{without}."
    )
