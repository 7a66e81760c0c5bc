"""``prune``: delete what is not to be kept, or say what would be."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from ckptflow.cli import naming, output
from ckptflow.cli.naming import SiteOption, StoreOption
from ckptflow.cli.output import JsonOption
from ckptflow.errors import ConfigError
from ckptflow.model import LineageId
from ckptflow.policy.retention import Retention, parse_retention
from ckptflow.site import load_site
from ckptflow.store.prune import PrunePlan, plan_prune, prune
from ckptflow.units import format_bytes

Plans = list[tuple[LineageId, PrunePlan]]


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
            help="What stays: 3, all, or newest=3,every=1000,best=loss:min:2. "
            "With --site, its policy by default.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing.")] = False,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> None:
    """Delete what is not to be kept; say why, of each."""
    retention = _retention(keep, site)
    tiers = naming.open_store(store, site)
    lineages = naming.open_lineages(tiers, name, note=output.note)
    act = plan_prune if dry_run else prune
    plans: Plans = []
    with output.progress() as bar:
        for lineage in bar.track(lineages, description="prune"):
            plans += [(lineage.id, act(lineage, tier, retention)) for tier in tiers]
    output.show(
        {
            "keep": str(retention),
            "dry_run": dry_run,
            "freed_bytes": sum(plan.freed_bytes for _, plan in plans),
            "plans": [
                {
                    "lineage": str(lineage),
                    "tier": plan.tier,
                    "freed_bytes": plan.freed_bytes,
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
                for lineage, plan in plans
            ],
        },
        lambda console: _print_plans(console, plans, dry_run=dry_run),
        as_json=json_output,
    )


def _retention(keep: str | None, site: str | None) -> Retention:
    """Return what to keep; a manual prune without a word on it would guess."""
    if keep is not None:
        return parse_retention(keep)
    policy = load_site(site).policy.keep if site is not None else None
    if policy is None:
        raise ConfigError("Say what stays, for example --keep 3; nothing was deleted.")
    return parse_retention(policy)


def _print_plans(console: Console, plans: Plans, *, dry_run: bool) -> None:
    table = output.table("CHECKPOINT", "TIER", "VERDICT", "WHY")
    for lineage, plan in plans:
        for verdict in plan.verdicts:
            output.add_row(
                table,
                [
                    f"{lineage}@{verdict.id.step}.{verdict.id.attempt}",
                    plan.tier,
                    "keep" if verdict.keep else "drop",
                    "; ".join(verdict.reasons),
                ],
                style=None if verdict.keep else "red",
            )
    dropped = sum(not verdict.keep for _, plan in plans for verdict in plan.verdicts)
    freed = format_bytes(sum(plan.freed_bytes for _, plan in plans))
    if table.row_count:
        console.print(table)
    console.print(
        f"{'would drop' if dry_run else 'dropped'} {dropped} copies, "
        f"{'would free' if dry_run else 'freed'} {freed}"
    )
