"""Policies with the same failures: useful time, lost work and bytes to shared storage.

Records of failures (`bench/replay_scenes.py`: so many as are published, at times drawn with ten
seeds) are played to each policy by `simulate`, from their beginning to their end. All policies
know the true rates, costs and times, save whole states, and wait alike before they restore.

* *fixed*: to the shared storage every 30 minutes, holding the application up.
* *Young*, *Daly*: there at their interval, holding it up (*sync*) or in the background
  (*async*), where the cost is what it blocks and what it slows down.
* *CheckFreq*: there in the background, as often as the copy before it and 3.5 % overhead allow.
* *two levels*: the optimum of the reference's model: each save holds the application up until
  the partner has it, and the flush is taken to be free. It is played with the slowdown that
  there is.
* *ours*: what `tune` says, by preset.

Where the file system fails, the others send copies on to the archive, too, in the background:
at Young's interval for these failures and what such a copy slows down.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from policy_rivals import feasible
from replay_scenes import DAY, GB, QUICK, SCENES, TB, Scene
from report import Claim, Row, arguments, finish, require, show

from ckptflow.model import SHARED_LEVEL
from ckptflow.policy.failures.laws import Law, Trace
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.failures.single_level import daly_interval_s, young_interval_s
from ckptflow.policy.multilevel.costs import system_of
from ckptflow.policy.multilevel.exact import efficiency
from ckptflow.policy.multilevel.presets import PRESETS
from ckptflow.policy.multilevel.search import best_pattern
from ckptflow.policy.multilevel.simulation import Simulated, simulate
from ckptflow.policy.multilevel.surrogate import shipped
from ckptflow.policy.multilevel.system import Pattern, System
from ckptflow.policy.multilevel.tuning import tune

TRACES = 10
FIXED_S, BOUND = 1800.0, 0.035
PARTNER_LEVEL = 2


@dataclass(frozen=True, slots=True)
class Policy:
    """What is saved where and when, and what that costs it."""

    name: str
    system: System
    pattern: Pattern

    @property
    def ours(self) -> bool:
        """Whether it is one of ours."""
        return self.name.startswith("ours")


def main() -> None:
    """Play, print."""
    given = arguments(__doc__)
    seeds = range(2 if given.quick else TRACES)
    details: list[Row] = []
    summary: list[Row] = []
    claims: list[Claim] = []
    for scene in QUICK if given.quick else SCENES:
        found = {one: [play(scene, one, seed) for seed in seeds] for one in policies(scene)}
        rows = [row(scene, one, runs) for one, runs in found.items()]
        free = not any(row["price_a_day"] for row in rows)
        show(f"{scene.name}: {scene.about}", [short(one, free=free) for one in rows])
        details += rows
        summary.append(beside(scene, found))
        name = f"fast_over_best_rival_{scene.name.replace(', ', '_').replace(' ', '_')}"
        claims.append(Claim(name, float(summary[-1]["lead"]), ">=", 0.0))
    finish(
        "ours (fast) beside the best of the others",
        summary,
        claims,
        given.json_path,
        details=details,
    )
    for claim in claims:
        require(claim.met, f"{claim.name} is {claim.value:.4g}: another policy was better")


def play(scene: Scene, policy: Policy, seed: int) -> Simulated:
    """Play one record to one policy."""
    laws = by_level(policy.system, scene.traces(seed))
    found = simulate(policy.system, policy.pattern, laws=laws, seed=seed)
    require(
        found.elapsed_s >= scene.recorded_s * (1 - 1e-9), f"{policy.name} saw the whole record"
    )
    require(abs(sum(found.parts.values()) - 1) < 1e-6, "time is spent on one thing at a time")
    return found


def by_level(system: System, traces: dict[int, Trace]) -> list[Law | None]:
    """Return the failures of each level: of its class, and of those before without a level."""
    laws: list[Law | None] = []
    pending = sorted(traces)
    for level in system.levels:
        mine = [traces[one] for one in pending if one <= level.number]
        pending = [one for one in pending if one > level.number]
        times_s = sorted(time_s for trace in mine for time_s in trace.times_s)
        laws.append(Trace(tuple(times_s), mine[0].observed_s) if mine else None)
    require(not pending, "each failure has a level that survives it")
    return laws


# --- policies --------------------------------------------------------------------------


def policies(scene: Scene) -> list[Policy]:
    """Return all of them for a scene."""
    sync, async_ = shared_only(scene, sync=True), shared_only(scene, sync=False)
    found = [single("fixed, 30 min", sync, FIXED_S)]
    for kind, system in (("sync", sync), ("async", async_)):
        cost_s = system.blocked_s + system.levels[0].interference * system.levels[0].latency_s
        young_s, daly_s = (
            rule(cost_s, system.mtbf_s) for rule in (young_interval_s, daly_interval_s)
        )
        found += [
            single(f"Young, {kind}", system, young_s),
            single(f"Daly, {kind}", system, daly_s),
        ]
        if kind == "async":
            often_s = max(system.levels[0].latency_s, cost_s / BOUND)
            found.append(single("CheckFreq, 3.5 %", system, often_s))
    found.append(two_levels(scene))
    for name, aim in PRESETS.items():
        reckoned = everything(scene, aim.expected(scene.rates))
        tuned = tune({"": reckoned}, aim=aim, surrogate=shipped())
        found.append(Policy(f"ours, {name}", everything(scene, scene.rates), tuned.pattern))
    return found


def everything(scene: Scene, rates: Rates) -> System:
    """Return the system of all tiers."""
    return system_of(
        scene.tiers,
        rates,
        scene.workload,
        reaction=scene.reaction,
        second_loss=scene.second_loss,
    )


def shared_only(scene: Scene, *, sync: bool) -> System:
    """Return the system of what all nodes share."""
    tiers = [tier for tier in scene.tiers if tier.level >= SHARED_LEVEL]
    system = system_of(tiers, scene.rates, scene.workload, reaction=scene.reaction)
    return holding_up(system) if sync else system


def holding_up(system: System) -> System:
    """Return a system in which saves hold the application up until the first copy is there."""
    wait_s = system.levels[0].latency_s
    levels = tuple(replace(one, latency_s=one.latency_s - wait_s) for one in system.levels)
    return replace(system, levels=levels, blocked_s=system.blocked_s + wait_s)


def single(name: str, system: System, interval_s: float) -> Policy:
    """Return a policy of one level, which sends copies on if there is a level beyond."""
    return Policy(
        name, system, feasible(system, Pattern(interval_s, onwards(system, interval_s, (1,))))
    )


def onwards(system: System, interval_s: float, every: tuple[int, ...]) -> tuple[int, ...]:
    """Return counts with those of one level more, if the system has it, at Young's interval."""
    if len(every) == len(system.levels):
        return every
    beyond, before = system.levels[-1], system.levels[-2]
    cost_s = beyond.interference * (beyond.latency_s - before.latency_s)
    wanted_s = young_interval_s(cost_s, 1 / beyond.rate_per_s)
    outermost = max(every)
    return (*every, outermost * max(1, round(wanted_s / (interval_s * outermost))))


def two_levels(scene: Scene) -> Policy:
    """Return the reference's optimum on the levels of the partner and the file system."""
    tiers = [tier for tier in scene.tiers if tier.level >= PARTNER_LEVEL]
    system = holding_up(
        system_of(
            tiers,
            scene.rates,
            scene.workload,
            reaction=scene.reaction,
            second_loss=scene.second_loss,
        )
    )
    inner = replace(
        system, levels=tuple(replace(one, interference=0.0) for one in system.levels[:2])
    )
    found = best_pattern(inner).pattern
    pattern = Pattern(found.interval_s, onwards(system, found.interval_s, found.every))
    return Policy("two levels, flush free", system, feasible(system, pattern))


# --- what became of them ---------------------------------------------------------------


def row(scene: Scene, policy: Policy, runs: Sequence[Simulated]) -> Row:
    """Return the means over the records."""
    levels = policy.system.levels
    shared = [at for at, level in enumerate(levels) if level.number >= SHARED_LEVEL]
    price = 0.0
    egress = {tier.name: tier.egress_price_per_gb for tier in scene.tiers}
    for run in runs:
        for at in shared:
            price += run.copies_per_h[at] * 24 * levels[at].price / len(runs)
            restored = run.failures_per_h[at] * 24 * scene.workload.state_bytes / GB
            price += restored * egress[levels[at].name] / len(runs)
    useful = [run.efficiency for run in runs]

    def share(name: str) -> float:
        return 100 * float(np.mean([run.parts[name] for run in runs]))

    return {
        "scene": scene.name,
        "policy": policy.name,
        "interval_s": policy.pattern.interval_s,
        "every": " ".join(
            f"{level.name}:{count}"
            for level, count in zip(levels, policy.pattern.every, strict=True)
            if count
        ),
        "useful_pct": 100 * float(np.mean(useful)),
        "useful_min": 100 * min(useful),
        "useful_max": 100 * max(useful),
        "expected": 100 * efficiency(policy.system, policy.pattern),
        "lost_pct": share("again"),
        "saving_pct": share("blocked") + share("interference"),
        "recovery_pct": share("recovery"),
        "TB_a_day": moved_tb(policy, runs),
        "price_a_day": price,
    }


def moved_tb(policy: Policy, runs: Sequence[Simulated]) -> float:
    """Return the TB that go to what all nodes share, in a day."""
    levels = [
        (at, level)
        for at, level in enumerate(policy.system.levels)
        if level.number >= SHARED_LEVEL
    ]
    return float(
        np.mean([
            sum(24 * run.copies_per_h[at] * level.size_bytes / TB for at, level in levels)
            for run in runs
        ])
    )  # fmt: skip


def short(one: Row, *, free: bool) -> Row:
    """Return a row without what is in the JSON only, with digits enough to compare."""
    digits = {"useful_pct", "expected", "lost_pct"}
    left_out = {"scene", "useful_min", "useful_max"} | ({"price_a_day"} if free else set())
    return {
        name: f"{value:.2f}" if name in digits and isinstance(value, float) else value
        for name, value in one.items()
        if name not in left_out
    }


def beside(scene: Scene, found: dict[Policy, list[Simulated]]) -> Row:
    """Compare the preset `fast` with the best of the others, record by record."""

    def shares(policy: Policy) -> list[float]:
        return [100 * run.efficiency for run in found[policy]]

    fast = next(one for one in found if one.name == "ours, fast")
    rivals = [one for one in found if not one.ours]
    best = max(rivals, key=lambda one: float(np.mean(shares(one))))
    for preset in found:
        behind = float(np.mean(shares(fast)) - np.mean(shares(preset)))
        require(not preset.ours or behind >= 0, f"{preset.name} computes more than {fast.name}")
    leads = [ours - other for ours, other in zip(shares(fast), shares(best), strict=True)]
    fixed = next(one for one in found if one.name.startswith("fixed"))
    over_fixed = float(np.mean(shares(fast)) - np.mean(shares(fixed)))
    return {
        "scene": scene.name,
        "failures": sum(scene.failures.values()),
        "days": scene.recorded_s / DAY,
        "ours_fast": float(np.mean(shares(fast))),
        "best_other": best.name,
        "its_share": float(np.mean(shares(best))),
        "lead": float(np.mean(leads)),
        "least_lead": min(leads),
        "over_fixed": over_fixed,
        "TB_a_day": moved_tb(fast, found[fast]),
        "its_TB_a_day": moved_tb(best, found[best]),
    }


if __name__ == "__main__":
    main()
