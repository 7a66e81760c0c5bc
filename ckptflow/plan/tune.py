"""The best pattern for a site and a state: who knows what, put together for the policy.

What a tier can do is given, measured or typical; how often things fail is given, or what the
site says; how long it takes until somebody notices is what the site's executor says. What a run
has met counts for more than any of these. ``tests/unit/test_plan_tune.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ckptflow.errors import ConfigError, NoProgress
from ckptflow.model import SHARED_LEVEL
from ckptflow.plan.met import Met
from ckptflow.plan.schemes import LEVEL, label, redundant_tier, schemes, survival
from ckptflow.plan.sources import GivenTier, Measured, Sourced, node_tier, sourced_tiers
from ckptflow.policy.failures.estimation import Beliefs
from ckptflow.policy.failures.known import KNOWN, known
from ckptflow.policy.failures.rates import Rates, rates_of
from ckptflow.policy.failures.survival import Redundancy
from ckptflow.policy.multilevel.costs import Reaction, Workload, system_of
from ckptflow.policy.multilevel.presets import Aim, preset
from ckptflow.policy.multilevel.surrogate import Surrogate
from ckptflow.policy.multilevel.system import Pattern, System
from ckptflow.policy.multilevel.tuning import Doubt, Tuning, tune
from ckptflow.site import Site
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.units import format_seconds

_SPLIT = "hpc-cpu"  # Which classes of failures there are, where only their total is given.
_TYPICAL_TIMES, _MEASURED_TIMES = 2.0, 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to tune for.

    Attributes:
        workload: what is saved, and from where.
        reaction: what failures take before anything is restored.
        aim: name of a preset.
        failures: name of published rates; what the site says if ``None``.
        mtbf_s: mean time between failures of the whole run, whatever the rates say.
        redundancy: see `schemes.WANTED`.
        tiers: what is given of single tiers.
    """

    workload: Workload
    reaction: Reaction = field(default_factory=Reaction)
    aim: str = "fast"
    failures: str | None = None
    mtbf_s: float | None = None
    redundancy: str = "site"
    tiers: tuple[GivenTier, ...] = ()

    def __post_init__(self) -> None:
        preset(self.aim)
        if self.failures is not None:
            known(self.failures)
        if self.mtbf_s is not None and not 0 < self.mtbf_s < math.inf:
            raise ConfigError(
                f"The mean time between failures must be above 0 s, got {self.mtbf_s:g} s."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One of the systems that were compared.

    Attributes:
        scheme: its redundancy; ``None`` without.
        system: what decides.
        rates: how often each class of failures happens to it.
        tiers: its tiers, inner ones first.
    """

    scheme: Scheme | None
    system: System
    rates: Rates
    tiers: tuple[Sourced, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The pattern for a site, and from what it follows.

    Attributes:
        site: name of the site.
        request: what was asked for.
        tuning: the policy's answer.
        way: the system that it is for.
        pattern: the policy's, and what is protected between nodes is on their own tier, too.
        reasons: the policy's, for that pattern.
        failures: where the rates are from, in words.
        notes: what is to be said besides.
    """

    site: str
    request: Request
    tuning: Tuning
    way: Way
    pattern: Pattern
    reasons: tuple[str, ...]
    failures: str
    notes: tuple[str, ...]


def reaction_of(
    site: Site,
    *,
    detection_s: float | None = None,
    restart_s: float | None = None,
    reallocation_s: float | None = None,
    queue_s: float | None = None,
) -> Reaction:
    """Return what failures take; what is not given is as the site's executor and policy say."""
    usual = Reaction(
        detection_s=site.executor.heartbeat_threshold_s, queue_s=site.policy.queue_s
    )
    given = {
        "detection_s": detection_s, "restart_s": restart_s,
        "reallocation_s": reallocation_s, "queue_s": queue_s,
    }  # fmt: skip
    return replace(usual, **{name: one for name, one in given.items() if one is not None})


def workload_of(
    site: Site,
    *,
    state_bytes: float,
    nodes: int | None = None,
    writers_per_node: int | None = None,
    changed: float = 1.0,
    stored: float = 1.0,
    work_s: float | None = None,
    measured: Measured | None = None,
) -> Workload:
    """Return a workload with a site's nodes and workers, and its saves if these are known."""
    if work_s is not None and not 0 < work_s < math.inf:
        raise ConfigError(f"The work is more than 0 s of computing, got {work_s:g} s.")
    there = getattr(site.executor.allocation, "nodes", 1)
    usual = Workload(
        state_bytes=state_bytes,
        nodes=there if nodes is None else nodes,
        writers_per_node=site.executor.workers
        if writers_per_node is None
        else writers_per_node,
        changed=changed,
        stored=stored,
        work_s=site.policy.work_s if work_s is None else work_s,
    )
    saves = None if measured is None else measured.saves
    if saves is None:
        return usual
    return replace(
        usual,
        capture_bytes_per_s=saves.capture_bytes_per_s,
        encode_bytes_per_s=saves.unchanged_bytes_per_s,
        interference=saves.interference,
    )


def tune_site(
    site: Site,
    request: Request,
    *,
    measured: Measured | None = None,
    met: Met | None = None,
    surrogate: Surrogate | None = None,
    refine: bool = True,
) -> Answer:
    """Return the best pattern for a site.

    Args:
        site: the machine.
        request: what to tune for.
        measured: its calibration, if there is one.
        met: what a run has met there, if there was one.
        surrogate: where the search begins.
        refine: whether to go on from the surrogate's proposals.

    Raises:
        ConfigError: nobody knows how often things fail, or something makes no sense.
        NoProgress: no configuration makes progress.
    """
    tiers, notes = sourced_tiers(
        site, nodes=request.workload.nodes, measured=measured, given=request.tiers
    )
    tiers = tiers if met is None else tuple(_as_met(one, met) for one in tiers)
    wanted = schemes(site, request.redundancy, nodes=request.workload.nodes)
    ways = {label(one): _way(site, request, one, tiers, met) for one in wanted}
    try:
        found = tune(
            {name: way.system for name, way in ways.items()},
            aim=preset(request.aim),
            surrogate=surrogate,
            doubt=_doubt(tiers),
            refine=refine,
        )
    except ConfigError as error:  # All that it was given was checked: it has no answer.
        raise NoProgress(str(error)) from error
    way = ways[found.redundancy]
    return Answer(
        site=site.name,
        request=request,
        tuning=found,
        way=way,
        pattern=_founded(way, found.pattern),
        reasons=_reasons(way, found),
        failures=_failures_text(site, request, met),
        notes=(*notes, *_unneeded(way)),
    )


def _as_met(tier: Sourced, met: Met) -> Sourced:
    if tier.costs.name not in met.latency_s:
        return tier
    return replace(tier, detail=f"copies as the run met them, restores: {tier.detail}")


def _way(
    site: Site,
    request: Request,
    scheme: Scheme | None,
    tiers: tuple[Sourced, ...],
    met: Met | None,
) -> Way:
    """Return the system with one scheme of redundancy."""
    workload, redundancy, second_loss = request.workload, None, 0.0
    if scheme is not None and all(one.costs.level != 2 for one in tiers):
        protected = redundant_tier(site, scheme, tiers, nodes=workload.nodes)
        redundancy, second_loss = survival(scheme, protected, workload, request.reaction)
        tiers = tuple(sorted((*tiers, protected), key=lambda one: one.costs.level))
    rates, aim = _rates(site, request, redundancy, met), preset(request.aim)
    system = system_of(
        [one.costs for one in tiers],
        aim.expected(rates),
        workload,
        reaction=request.reaction,
        second_loss=second_loss,
    )
    system = _needed(system if met is None else met.corrected(system), aim)
    return Way(scheme=scheme, system=system, rates=rates, tiers=tiers)


def _rates(
    site: Site, request: Request, redundancy: Redundancy | None, met: Met | None
) -> Rates:
    """Return the rates of failures of the whole run."""

    def of(name: str) -> Rates:
        return rates_of(
            known(name).times,
            nodes=request.workload.nodes,
            processes=request.workload.writers,
            redundancy=redundancy,
        )

    if request.failures is not None:
        rates = of(request.failures)
    else:
        rates = site.failures.rates(
            nodes=request.workload.nodes,
            processes=request.workload.writers,
            redundancy=redundancy,
        )
    if met is not None and request.mtbf_s is None:
        rates = Beliefs.of(rates).updated(met.failures, met.observed_s).rates
    if request.mtbf_s is not None:
        rates = rates if rates.total_per_s else of(_SPLIT)
        rates = rates.scaled(1 / request.mtbf_s / rates.total_per_s)
    if not preset(request.aim).expected(rates).total_per_s:
        raise ConfigError(
            f"Nobody knows how often things fail on site {site.name!r}, and without failures "
            f"there is no reason to save: give --mtbf, or --failures with one of "
            f"{', '.join(KNOWN)}, or [failures] in the site file."
        )
    return rates


def _failures_text(site: Site, request: Request, met: Met | None) -> str:
    """Return where the rates are from."""
    said = [] if met is None or request.mtbf_s is not None else [met.failures_text]
    if request.mtbf_s is not None:
        said.append(f"one every {format_seconds(request.mtbf_s)}, as given")
    name = request.failures or site.failures.preset
    if request.failures is None and site.failures.source:
        said.append(site.failures.source)
    elif name is not None:
        said.append(str(known(name)))
    elif request.mtbf_s is not None:
        said.append(f"in classes as in {known(_SPLIT)}")
    return "; ".join(said)


def _founded(way: Way, pattern: Pattern) -> Pattern:
    """Return a pattern in which what is protected between nodes is on their own tier, too."""
    every = list(pattern.every)
    own = None if way.scheme is None else node_tier(way.tiers)
    for at, level in enumerate(way.system.levels):
        if own is None or level.name != own.name or every[at]:
            continue
        every[at] = next(
            (
                count
                for count, other in zip(pattern.every, way.system.levels, strict=True)
                if other.number == LEVEL
            ),
            0,
        )
    return Pattern(pattern.interval_s, tuple(every))


def _reasons(way: Way, found: Tuning) -> tuple[str, ...]:
    """Return the reasons of the policy, but for a tier that redundancy needs."""
    founded, said = _founded(way, found.pattern), list(found.reasons)
    for at, level in enumerate(found.system.levels):
        name = f"Level {level.number} ({level.name})"
        if founded.every[at] != found.pattern.every[at]:
            said = [
                f"{name} holds what redundancy between nodes protects."
                if one.startswith(f"{name} is not used")
                else one
                for one in said
            ]
    return tuple(said)


def _doubt(tiers: Sequence[Sourced]) -> Doubt:
    """Return how far times are known: twice the spread of what was measured, if all was."""
    if any(one.origin == "typical" for one in tiers):
        return Doubt(times=_TYPICAL_TIMES)
    spread = max((one.costs.spread for one in tiers), default=0.0)
    return Doubt(times=max(_MEASURED_TIMES, 1 + 2 * spread))


def _needed(system: System, aim: Aim) -> System:
    """Return a system without the outer levels that no failure is known to need.

    One that outlives the allocation stays if the aim asks for such a level.
    """
    levels = list(system.levels)
    while len(levels) > 1 and not levels[-1].rate_per_s:
        if aim.far_every_s is not None and levels[-2].number < SHARED_LEVEL:
            break
        levels.pop()
    return replace(system, levels=tuple(levels))


def _unneeded(way: Way) -> list[str]:
    """Return notes on the levels that no failure is known to need."""
    last = way.system.levels[-1].number
    return [
        f"Tier {one.costs.name!r} is left out: nothing is known of failures that need level "
        f"{one.costs.level}. If there are some, say so in [failures]."
        for one in way.tiers
        if one.costs.level > last
    ]
