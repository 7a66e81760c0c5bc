"""``prune`` and ``consolidate``: what keeps a store small, and restores short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console

from ckptflow.cli import naming, output, sets
from ckptflow.cli.naming import SiteOption, StoreOption
from ckptflow.cli.output import JsonOption
from ckptflow.errors import CheckpointError, ConfigError, CorruptionError, NotFoundError
from ckptflow.flush.agent.ledger import in_flight_of
from ckptflow.model import LineageId
from ckptflow.policy.retention import Keep, Retention, retention_by_tier
from ckptflow.site import load_site
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.consolidate import Consolidation, consolidate, plan_consolidation
from ckptflow.store.prune import PrunePlan, plan_prune, prune
from ckptflow.store.shares import retention_by_lineage
from ckptflow.tiers.tier import Tier
from ckptflow.units import format_bytes, parse_bytes

Plans = list[tuple[LineageId, PrunePlan]]
Outcomes = list[tuple[LineageId, Consolidation]]


@output.reports_errors
def prune_command(
    name: Annotated[
        str | None, typer.Argument(help="RUN or RUN/TASK; everything if left out.")
    ] = None,
    *,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            help="What stays: 3, all, or newest=3,every=1000,best=loss:min:2,bytes=200GB. "
            "With --site, its policy by default.",
        ),
    ] = None,
    room: Annotated[
        str | None,
        typer.Option(
            "--bytes",
            help="Room for all lineages together, on each tier; shared fairly, and no "
            "lineage loses its newest.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing.")] = False,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> None:
    """Delete what is not to be kept; say why, of each."""
    rules = _keep(keep, site, room)
    tiers = naming.open_store(store, site)
    retention = retention_by_tier(rules, [tier.name for tier in tiers])
    lineages = naming.open_lineages(tiers, name, note=output.note)
    act = plan_prune if dry_run else prune
    on_their_way = {one.id: in_flight_of(tiers, one.id) for one in lineages}
    plans: Plans = []
    with output.progress() as bar:
        for tier in bar.track(tiers, description="prune"):
            kept = _of_each(lineages, tier, retention[tier.name], room)
            plans += [
                (one.id, act(one, tier, kept[one.id], in_flight=on_their_way[one.id]))
                for one in lineages
            ]
    order = {lineage.id: number for number, lineage in enumerate(lineages)}
    plans.sort(key=lambda plan: order[plan[0]])  # Stable: tiers stay in order.
    output.show(
        {
            "keep": _keep_as_data(rules, retention),
            "dry_run": dry_run,
            "freed_bytes": sum(plan.freed_bytes for _, plan in plans),
            "plans": [_plan_as_data(lineage, plan) for lineage, plan in plans],
        },
        lambda console: _print_plans(console, plans, dry_run=dry_run),
        as_json=json_output,
    )


def _keep(keep: str | None, site: str | None, room: str | None) -> Keep:
    """Return what to keep; a manual prune without a word on it would guess."""
    if keep is not None:
        return keep
    policy = load_site(site, purpose="tiers").policy.keep if site is not None else None
    if policy is None and room is None:
        raise ConfigError("Say what stays, for example --keep 3; nothing was deleted.")
    return "all" if policy is None else policy


def _keep_as_data(rules: Keep, retention: Mapping[str, Retention]) -> object:
    """Return the rules as text; by tier, if they were given so."""
    by_tier = {name: str(one) for name, one in retention.items()}
    return by_tier if isinstance(rules, Mapping) else next(iter(by_tier.values()))


def _of_each(
    lineages: Sequence[Lineage], tier: Tier, retention: Retention, room: str | None
) -> dict[LineageId, Retention]:
    if room is None:
        return {lineage.id: retention for lineage in lineages}
    return retention_by_lineage(lineages, tier, retention, parse_bytes(room))


def _plan_as_data(lineage: LineageId, plan: PrunePlan) -> dict[str, object]:
    return {
        "lineage": str(lineage),
        "tier": plan.tier,
        "freed_bytes": plan.freed_bytes,
        "kept_bytes": plan.kept_bytes,
        "checkpoints": [
            {
                "step": verdict.id.step,
                "attempt": verdict.id.attempt,
                "keep": verdict.keep,
                "reasons": verdict.reasons,
            }
            for verdict in plan.verdicts
        ],
        "deletes": [*plan.manifests, *plan.packs],
    }


def _print_plans(console: Console, plans: Plans, *, dry_run: bool) -> None:
    table = output.table("CHECKPOINT", "TIER", "VERDICT", "WHY")
    rows = [
        (lineage, verdict.id, plan.tier, verdict)
        for lineage, plan in plans
        for verdict in plan.verdicts
    ]
    for name, tier, ranks in sets.together(rows):
        for keep, reasons in {(one.keep, one.reasons): None for one in ranks.values()}:
            some = [
                rank
                for rank, one in ranks.items()
                if (one.keep, one.reasons) == (keep, reasons)
            ]
            why = "; ".join(reasons)
            if len(some) < len(ranks):
                why += f" ({sets.ranks_text(some)})"
            row = [name, tier, "keep" if keep else "drop", why]
            output.add_row(table, row, style=None if keep else "red")
    dropped = sum(not verdict.keep for _, plan in plans for verdict in plan.verdicts)
    freed = format_bytes(sum(plan.freed_bytes for _, plan in plans))
    if table.row_count:
        console.print(table)
    console.print(
        f"{'would drop' if dry_run else 'dropped'} {dropped} copies, "
        f"{'would free' if dry_run else 'freed'} {freed}"
    )


@output.reports_errors
def consolidate_command(
    name: Annotated[
        str, typer.Argument(help="RUN/TASK, the newest checkpoint, or RUN/TASK@STEP.")
    ],
    *,
    tier_name: Annotated[
        str | None, typer.Option("--tier", help="Name of the tier; the outermost if left out.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every checkpoint of RUN/TASK on the tier.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also where a restore is hardly the faster for it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> None:
    """Write what a checkpoint needs into packs of its own, so that it is restored fast."""
    if every and naming.parse_name(name).step is not None:
        raise ConfigError(f"{name!r} names one checkpoint; with --all it takes RUN/TASK.")
    tiers = naming.open_store(store, site)
    lineage, found = naming.open_checkpoint(tiers, name, note=output.note)
    tier = _tier_named(tiers, tier_name)
    outcomes: Outcomes = []
    failures: list[CheckpointError] = []
    with output.progress() as bar:
        chosen = _on(lineage, tier) if every else [found]
        for one in bar.track(chosen, description="consolidate"):
            try:
                if dry_run:
                    outcome = plan_consolidation(lineage, tier, one.id)
                else:
                    outcome = consolidate(lineage, tier, one.id, force=force, note=output.note)
                outcomes.append((lineage.id, outcome))
            except (CorruptionError, NotFoundError) as error:  # The others may be sound.
                failures.append(error)
    output.show(
        {
            "dry_run": dry_run,
            "written_bytes": sum(outcome.written_bytes for _, outcome in outcomes),
            "checkpoints": [_outcome_as_data(*one) for one in outcomes],
        },
        lambda console: _print_outcomes(console, outcomes, dry_run=dry_run),
        as_json=json_output,
    )
    for failure in failures[1:]:
        output.note(str(failure))
    if failures:
        raise failures[0]


def _tier_named(tiers: Sequence[Tier], name: str | None) -> Tier:
    for tier in tiers:
        if tier.name == name:
            return tier
    if name is not None:
        raise ConfigError(f"There is no tier {name!r}; there is {[one.name for one in tiers]}.")
    return tiers[-1]


def _on(lineage: Lineage, tier: Tier) -> list[Found]:
    return [found for found in lineage.checkpoints_on(tier) if not found.void]


def _outcome_as_data(lineage: LineageId, outcome: Consolidation) -> dict[str, object]:
    return {
        "lineage": str(lineage),
        "step": outcome.id.step,
        "attempt": outcome.id.attempt,
        "tier": outcome.tier,
        "worth": outcome.verdict.worth,
        "reasons": outcome.verdict.reasons,
        "done": outcome.after is not None,
        "packs_before": outcome.before.packs,
        "packs_after": outcome.after.packs if outcome.after else outcome.before.packs,
        "written_bytes": outcome.written_bytes,
    }


def _print_outcomes(console: Console, outcomes: Outcomes, *, dry_run: bool) -> None:
    table = output.table("CHECKPOINT", "TIER", "VERDICT", "PACKS", "WROTE", "WHY")
    for lineage, outcome in outcomes:
        after = outcome.after
        verdict = "worth it" if dry_run and outcome.verdict.worth else "stays"
        packs = f"{outcome.before.packs}" + (f" -> {after.packs}" if after else "")
        output.add_row(
            table,
            [
                f"{lineage}@{outcome.id.step}.{outcome.id.attempt}",
                outcome.tier,
                "consolidated" if after else verdict,
                packs,
                format_bytes(outcome.written_bytes) if after else "",
                "; ".join(outcome.verdict.reasons),
            ],
        )
    if table.row_count:
        console.print(table)
    done = sum(outcome.after is not None for _, outcome in outcomes)
    console.print(f"consolidated {done} of {len(outcomes)}")
