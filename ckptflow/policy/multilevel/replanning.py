"""The plan of a running task: made from what is believed and measured, again and again.

What nobody has said or measured is assumed, so that there is a plan from the first save on:
typical bandwidths for tiers, and failures of each class once in a long time, since a task that
takes a class of failures for impossible keeps nothing against it. What is measured replaces it.

Rates are those of `ckptflow.policy.failures.estimation`. Where so many failures come that the
believed rate is a poor guess, the belief is given a tenth of its weight. One plan follows
another by at most a factor of two in the interval and in each count, so that a burst of
failures or a slow hour does not turn everything over.
``tests/unit/test_multilevel_replanning.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.estimation import SURPRISE_MAX, Belief, Beliefs
from ckptflow.policy.failures.rates import CLASS_NAMES, Rates
from ckptflow.policy.multilevel.closed_form import best_levels, first_order_pattern, spread
from ckptflow.policy.multilevel.costs import Reaction, Workload, system_of
from ckptflow.policy.multilevel.exact import efficiencies, efficiency
from ckptflow.policy.multilevel.presets import Aim, cheapest, preset, score_of
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.multilevel.search import COARSE, Found, best_pattern
from ckptflow.policy.multilevel.system import Level, Pattern, System
from ckptflow.policy.multilevel.tier_costs import TierCosts
from ckptflow.policy.multilevel.typical import typical_of_level
from ckptflow.units import format_bytes, format_seconds

ASSUMED_S = (10 * 86400.0, 60 * 86400.0, 60 * 86400.0, 30 * 86400.0, 365 * 86400.0)
"""Mean time between failures of each class that nobody gave a rate."""

STEP_MAX = 2.0  # From plan to plan an interval or a count changes by this factor at the most.
_ASSUMED_WEIGHT = 0.01  # Failures that an assumed rate is worth,
_SURPRISED_WEIGHT = 0.1  # and part of its weight that a believed one keeps after a surprise.
_ELSEWHERE = 0.5  # What another task met counts half.
_CHANGED = 1.25  # A smaller change of an input is not worth a sentence,
_WORTH = 1e-3  # nor a smaller gain a new plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What a task has measured so far. Times in seconds.

    Attributes:
        tiers: names and levels, inner ones first.
        state_bytes: of the newest save; 0 before the first.
        stored_bytes: what is expected to be stored by the next.
        blocked_s: for how long the next save will hold the task up; ``None`` before the first.
        slowdown: by what part steps are longer while a save is in flight.
        copies_s: per tier, how long after a save its copy is there.
        restores_s: per tier, how long a restore from there took.
        free_bytes: per tier, room that is left; tiers of which it is not known are missing.
        failures: interruptions that were no planned stops, by class.
        observed_s: time in which these were met.
        failures_elsewhere: likewise of other tasks of the run.
        observed_elsewhere_s: time in which those were met.
    """

    tiers: tuple[tuple[str, int], ...]
    state_bytes: int = 0
    stored_bytes: int = 0
    blocked_s: float | None = None
    slowdown: float = 0.0
    copies_s: Mapping[str, float] = field(default_factory=dict)
    restores_s: Mapping[str, float] = field(default_factory=dict)
    free_bytes: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)
    observed_s: float = 0.0
    failures_elsewhere: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)
    observed_elsewhere_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often a task saves and to which tiers, and why.

    Attributes:
        pattern: of the system's levels.
        counts: per tier, every how many saves one goes there; 0: none.
        system: what it was made for.
        rates: of failures, as they are believed after what was met.
        efficiency: expected.
        reasons: why it is as it is; of a new plan, what has changed first.
        is_step: whether it is on the way to another one, which was too far away.
    """

    pattern: Pattern
    counts: Mapping[str, int]
    system: System
    rates: Rates
    efficiency: float
    reasons: tuple[str, ...]
    is_step: bool = False

    @property
    def interval_s(self) -> float:
        """Computing time between two saves."""
        return self.pattern.interval_s


def first_plan(rule: MultiLevel) -> Plan | None:
    """Return the plan of the pattern that a rule begins with; ``None`` if it gives none."""
    if rule.interval_s is None:
        return None
    return plan_of(rule.interval_s, dict(rule.counts), "the pattern that the site gives")


def plan_of(
    interval_s: float, counts: Mapping[str, int], reason: str, rates: Rates | None = None
) -> Plan:
    """Return a plan that others have made: all that is known of it is what it says.

    Args:
        interval_s: computing time between two saves.
        counts: per tier, inner ones first, every how many saves one goes there.
        reason: where it is from.
        rates: what it was made for, if that is known.

    Raises:
        ConfigError: it is no pattern.
    """
    levels = tuple(
        Level(name=name, number=at, rate_per_s=0.0) for at, name in enumerate(counts)
    )
    return Plan(
        pattern=Pattern(interval_s, tuple(counts.values())),
        counts=dict(counts),
        system=System(levels),
        rates=rates or Rates((0.0, 0.0, 0.0, 0.0, 0.0)),
        efficiency=0.0,
        reasons=(reason,),
    )


def make_plan(rule: MultiLevel, known: Knowledge, before: Plan | None = None) -> Plan:
    """Return the plan for what is known; ``before`` itself if a new one is not worth it.

    Args:
        rule: what the site and the user say.
        known: what was measured.
        before: the plan that holds now.

    Raises:
        ConfigError: nothing was saved yet, or no tier has room.
    """
    if not known.state_bytes:
        raise ConfigError("A plan needs the size of the state: nothing was saved yet.")
    aim = preset(rule.preset)
    rates, surprises = believed_rates(rule, known)
    system = current_system(rule, known, aim.cautious(rates))
    start = _transferred(before, system)
    found, hopeless = _found(system, aim, start)
    pattern = found.pattern
    if before is not None and start is not None and not hopeless:
        # A step was worth it for the sake of where it leads to: the last of them, too.
        worth = 0.0 if before.is_step else _WORTH
        if found.score <= _score(system, aim, start) + worth:
            return before
        pattern = bounded(system, start, found.pattern)
    said = (*hopeless, *surprises, *(_changes(before, system, rates) if before else ()))
    return Plan(
        pattern=pattern,
        counts=_counts(pattern, system, known),
        system=system,
        rates=rates,
        efficiency=efficiency(system, pattern),
        reasons=(*said, *_reasons(system, pattern, found.pattern)),
        is_step=pattern != found.pattern,
    )


def _score(system: System, aim: Aim, pattern: Pattern) -> float:
    """Return what a pattern is worth to an aim."""
    intervals = np.array([pattern.interval_s])
    every = np.array([[count for count in pattern.every if count]], dtype=np.int64)
    found = efficiencies(system, pattern.used, intervals, every)
    return float(score_of(system, aim)(pattern.used, intervals, every, found)[0])


def _found(system: System, aim: Aim, start: Pattern | None) -> tuple[Found, tuple[str, ...]]:
    """Return the best pattern, and what is to be said if there is none that makes progress.

    A task that is hopeless by what is known goes on all the same: what is known may be wrong.
    The first-order optimum does not look at how long recoveries take.
    """
    try:
        found = best_pattern(
            system, [start] if start else [], score=score_of(system, aim), strides=COARSE
        )
        return cheapest(system, aim, found), ()
    except ConfigError as error:
        pattern = first_order_pattern(system, best_levels(system).used)
        value = efficiency(system, pattern)
        return Found(pattern, value, value), (f"{error} The first-order optimum is used.",)


def believed_rates(rule: MultiLevel, known: Knowledge) -> tuple[Rates, tuple[str, ...]]:
    """Return the rates to reckon with, and what was surprising about what was met."""
    given = preset(rule.preset).believed(rule.rates or Rates((0.0, 0.0, 0.0, 0.0, 0.0)))
    prior = Beliefs.of(given)
    classes = [
        belief if rate else Belief(_ASSUMED_WEIGHT, _ASSUMED_WEIGHT * assumed_s)
        for belief, rate, assumed_s in zip(prior.classes, given.per_s, ASSUMED_S, strict=True)
    ]
    a, b, c, d, e = classes
    told = Beliefs((a, b, c, d, e)).updated(
        known.failures_elsewhere, known.observed_elsewhere_s, weight=_ELSEWHERE
    )
    classes, said = list(told.classes), list[str]()
    for at, (belief, count) in enumerate(zip(classes, known.failures, strict=True)):
        whole = math.floor(count)
        # One may come at any time: that is an accident.
        often = belief.chance_of_at_least(whole, known.observed_s) if whole > 1 else 1.0
        seldom = belief.chance_of_at_most(whole, known.observed_s)
        if min(often, seldom) >= SURPRISE_MAX:
            continue
        classes[at] = Belief(
            belief.failures * _SURPRISED_WEIGHT, belief.observed_s * _SURPRISED_WEIGHT
        )
        said.append(
            f"{CLASS_NAMES[at]}: {whole} failures in {format_seconds(known.observed_s)}, where "
            f"{belief.mean_per_s * known.observed_s:.2g} were expected"
        )
    a, b, c, d, e = classes
    after = Beliefs((a, b, c, d, e)).updated(known.failures, known.observed_s)
    return after.rates, tuple(said)


def current_system(rule: MultiLevel, known: Knowledge, rates: Rates) -> System:
    """Return the system as it is known: calibrated or typical tiers, with what was measured.

    Raises:
        ConfigError: no tier has room for a checkpoint.
    """
    costs = {one.name: one for one in rule.tiers}
    tiers = [
        _with_room(
            costs.get(name) or typical_of_level(level).costs(name, level, nodes=1), known
        )
        for name, level in known.tiers
    ]
    roomy = [tier for tier in tiers if _fits(tier, known)]
    if not roomy:
        raise ConfigError(
            f"No tier has room for one checkpoint of {format_bytes(known.state_bytes)}: "
            f"no configuration makes progress."
        )
    changed = min(1.0, max(1e-6, known.stored_bytes / known.state_bytes))
    workload = Workload(
        state_bytes=known.state_bytes,
        nodes=1,  # One task writes its own state, wherever it runs.
        changed=changed,
        interference=known.slowdown,
        work_s=rule.work_s,
    )
    made = system_of(roomy, rates, workload, reaction=Reaction(queue_s=rule.queue_s))
    blocked_s = made.blocked_s if known.blocked_s is None else known.blocked_s
    levels: list[Level] = []
    latest_s = 0.0
    for level in made.levels:
        latest_s = max(latest_s, known.copies_s.get(level.name, level.latency_s))
        restore_s = known.restores_s.get(level.name)
        recovery_s = level.recovery_s
        if restore_s is not None:
            recovery_s = (
                Reaction(queue_s=rule.queue_s).before_restore_s(level.number) + restore_s
            )
        levels.append(replace(level, latency_s=latest_s, recovery_s=recovery_s))
    return replace(made, levels=tuple(levels), blocked_s=blocked_s)


def bounded(system: System, before: Pattern, wanted: Pattern) -> Pattern:
    """Return a pattern on the way to the wanted one, a step from the one before at the most.

    A level that is new gets the count that is wanted; one that is not wanted any more goes.
    """
    low, high = before.interval_s / STEP_MAX, before.interval_s * STEP_MAX
    interval_s = min(max(wanted.interval_s, low), high)
    counts: list[int] = []
    for old, new in zip(before.every, wanted.every, strict=True):
        if not new:
            continue
        if not counts:
            counts.append(1)
            continue
        limited = new if not old else min(max(new, old / STEP_MAX), old * STEP_MAX)
        counts.append(counts[-1] * max(1, round(limited / counts[-1])))
    pattern = Pattern(interval_s, spread(wanted.used, counts))
    # What would have more copies on their way than may be is no plan: then the wanted one.
    return pattern if efficiency(system, pattern) > 0 else wanted


def _transferred(before: Plan | None, system: System) -> Pattern | None:
    """Return the pattern of a plan on the levels of another system, as far as it has them."""
    if before is None:
        return None
    wanted = [before.counts.get(level.name, 0) for level in system.levels]
    if not any(wanted):
        return None
    counts: list[int] = []
    for count in wanted:
        if count:
            counts.append(counts[-1] * max(1, round(count / counts[-1])) if counts else 1)
    return Pattern(before.interval_s, spread([count > 0 for count in wanted], counts))


def _counts(pattern: Pattern, system: System, known: Knowledge) -> dict[str, int]:
    """Return the count of every tier; of several of one level all have that of the level."""
    by_level = {
        level.number: count for level, count in zip(system.levels, pattern.every, strict=True)
    }
    return {name: by_level.get(level, 0) for name, level in known.tiers}


def _with_room(tier: TierCosts, known: Knowledge) -> TierCosts:
    free = known.free_bytes.get(tier.name)
    if free is None:
        return tier
    own = known.state_bytes * tier.storage_factor if tier.name in known.copies_s else 0.0
    return replace(tier, capacity_bytes=max(1.0, free + own))


def _fits(tier: TierCosts, known: Knowledge) -> bool:
    return tier.capacity_bytes is None or tier.capacity_bytes >= max(
        known.stored_bytes, known.state_bytes * tier.storage_factor
    )


def _changes(before: Plan, system: System, rates: Rates) -> tuple[str, ...]:
    """Say what is not any more as it was when the plan before was made."""
    said = [
        f"{name} every {format_seconds(1 / new)} now, before every {format_seconds(1 / old)}"
        for name, old, new in zip(CLASS_NAMES, before.rates.per_s, rates.per_s, strict=True)
        if old and new and _differs(old, new)
    ]
    if before.system.blocked_s and _differs(before.system.blocked_s, system.blocked_s):
        said.append(
            f"a save blocks for {format_seconds(system.blocked_s)} now, before for "
            f"{format_seconds(before.system.blocked_s)}"
        )
    old_s = {level.name: level.latency_s for level in before.system.levels}
    said += [
        f"a copy to {level.name} takes {format_seconds(level.latency_s)} now, before "
        f"{format_seconds(old_s[level.name])}"
        for level in system.levels
        if old_s.get(level.name) and _differs(old_s[level.name], level.latency_s)
    ]
    return tuple(said)


def _differs(old: float, new: float) -> bool:
    return not 1 / _CHANGED <= new / old <= _CHANGED


def _reasons(system: System, pattern: Pattern, wanted: Pattern) -> tuple[str, ...]:
    said = [
        f"failures come every {format_seconds(system.mtbf_s)}, a save blocks for "
        f"{format_seconds(system.blocked_s)}: a save every {format_seconds(pattern.interval_s)}"
    ]
    said += map(_about, system.levels, pattern.every)
    if pattern != wanted:
        said.append(
            f"a step towards {format_seconds(wanted.interval_s)} and {list(wanted.every)}"
        )
    return tuple(said)


def _about(level: Level, count: int) -> str:
    if not count:
        return f"{level.name} is not used: the next level serves its failures better"
    gets = "every save" if count == 1 else f"one save in {count}"
    copy = f"a copy takes {format_seconds(level.latency_s)}"
    if not level.rate_per_s:
        return f"{level.name} gets {gets}: {copy}, and no failure needs it by itself"
    every = format_seconds(1 / level.rate_per_s)
    return f"{level.name} gets {gets}: {copy}, failures that need it come every {every}"


def is_due(plan: Plan | None, made_from: Knowledge | None, known: Knowledge) -> bool:
    """Tell whether a plan is to be made again: what it was made from has changed."""
    if plan is None or made_from is None:
        return bool(known.state_bytes)
    if sum(known.failures) != sum(made_from.failures):
        return True
    if sum(known.failures_elsewhere) != sum(made_from.failures_elsewhere):
        return True
    pairs: list[tuple[float, float]] = [
        (made_from.blocked_s or 0.0, known.blocked_s or 0.0),
        (made_from.stored_bytes, known.stored_bytes),
        (1 + made_from.slowdown, 1 + known.slowdown),
        (made_from.observed_s + 60.0, known.observed_s + 60.0),
    ]
    pairs += [
        (made_from.copies_s.get(name, 0.0), known.copies_s[name]) for name in known.copies_s
    ]
    return any(_differs(old, new) if old and new else old != new for old, new in pairs)
