"""``verify``, ``repair`` and ``quarantine``: what is damaged, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from ckptflow.cli import naming, output, sets
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.naming import SiteOption, StoreOption
from ckptflow.cli.output import JsonOption
from ckptflow.errors import TierError
from ckptflow.model import STORE_KEY, CheckpointId, LineageId
from ckptflow.store import quarantine
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.descriptor import check_store, mend_store
from ckptflow.store.find import is_there
from ckptflow.store.repair import RepairReport, repair
from ckptflow.store.sharding.sets import lacking
from ckptflow.store.verify import CopyReport, Sample, parse_sample, verify_lineage
from ckptflow.tiers.tier import Tier
from ckptflow.units import format_bytes

NameArgument = Annotated[
    str | None,
    typer.Argument(help="RUN, RUN/TASK or RUN/TASK@STEP; everything if left out."),
]
Chosen = list[tuple[Lineage, list[Found]]]


def _chosen(tiers: list[Tier], name: str | None) -> Chosen:
    """Return the checkpoints that are named, by lineage."""
    if name and "@" in name:
        named = naming.parse_name(name)
        if (of_ranks := sets.sets_of(tiers, named.lineage)) is not None:
            one = sets.find_set(of_ranks, named.step, named.attempt)
            if one.missing:
                output.note(f"{of_ranks.id} {one} is incomplete: {lacking(one)}.")
            return sets.shards_in(of_ranks, one)
        lineage, found = naming.open_checkpoint(tiers, name, note=output.note)
        return [(lineage, [found])]
    lineages = naming.open_lineages(tiers, name, note=output.note)
    return [(lineage, lineage.checkpoints()) for lineage in lineages]


# --- verify ----------------------------------------------------------------------------


@output.reports_errors
def verify_command(
    name: NameArgument = None,
    *,
    sample: Annotated[
        str, typer.Option("--sample", help="Look at a share of the bytes only, as 5%.")
    ] = "100%",
    seed: Annotated[int, typer.Option("--seed", help="Another sample for each number.")] = 0,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads that read, for each tier.")
    ] = None,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Read every stored byte again and check its digest.

    Every copy on every tier; the exit status is 4 if one of them is damaged.
    """
    share = parse_sample(sample, seed=seed)
    chosen = _chosen(naming.open_store(store, site), name)
    reports: list[tuple[LineageId, CopyReport]] = []
    copies = sum(len(found.tiers) for _, all_found in chosen for found in all_found)
    with output.progress() as bar:
        task = bar.add_task("verify", total=copies)
        for lineage, all_found in chosen:
            reports += _verify(lineage, all_found, share, threads, lambda: bar.advance(task))
    output.show(
        {
            "sound": all(report.sound for _, report in reports),
            "sample": share.share,
            "checked_share": _checked_share(reports),
            "copies": [
                {
                    "lineage": str(lineage),
                    "step": report.id.step,
                    "attempt": report.id.attempt,
                    "tier": report.tier,
                    "checked_bytes": report.checked_bytes,
                    "stored_bytes": report.stored_bytes,
                    "problems": report.problems,
                }
                for lineage, report in reports
            ],
        },
        lambda console: _print_reports(console, reports),
        as_json=json_output,
    )
    return ExitCode.OK if all(report.sound for _, report in reports) else ExitCode.DAMAGED


def _verify(
    lineage: Lineage,
    found: list[Found],
    sample: Sample,
    threads: int | None,
    advance: Callable[[], None],
) -> list[tuple[LineageId, CopyReport]]:
    """Verify some checkpoints of a lineage, and lift the quarantine of those that are sound."""
    tiers = {tier.name: tier for tier in lineage.tiers}
    reports = [
        report
        for report, _found in verify_lineage(
            lineage, found, sample=sample, threads=threads, on_copy=lambda _report: advance()
        )
        if report.sound or _may_be_there(tiers[report.tier], lineage, report.id)
    ]
    if sample.is_all:
        sound = {report.id for report in reports if report.sound}
        quarantine.lift_all(lineage, sound, note=output.note)
    return [(lineage.id, report) for report in reports]


def _may_be_there(tier: Tier, lineage: Lineage, checkpoint: CheckpointId) -> bool:
    """Tell whether a checkpoint may still be there: it is, or its tier does not answer."""
    try:
        return is_there(tier, lineage.id, checkpoint)
    except TierError:
        return True


def _checked_share(reports: list[tuple[LineageId, CopyReport]]) -> float:
    stored_bytes = sum(report.stored_bytes for _, report in reports)
    return sum(report.checked_bytes for _, report in reports) / max(1, stored_bytes)


def _print_reports(console: Console, reports: list[tuple[LineageId, CopyReport]]) -> None:
    table = output.table("CHECKPOINT", "TIER", "CHECKED", "RESULT", numbers=("CHECKED",))
    rows = [(lineage, report.id, report.tier, report) for lineage, report in reports]
    for checkpoint, tier, ranks in sets.together(rows):
        checked = format_bytes(sum(one.checked_bytes for one in ranks.values()))
        problems = [problem for one in ranks.values() for problem in one.problems]
        for problem in problems or ("sound",):
            style = "red" if problems else None
            output.add_row(table, [checkpoint, tier, checked, problem], style=style)
    damaged = sum(not report.sound for _, report in reports)
    console.print(table if reports else "Nothing to verify.")
    if reports:
        total = format_bytes(sum(report.checked_bytes for _, report in reports))
        share = f"{100 * _checked_share(reports):.3g} % of their bytes"
        console.print(f"{len(reports)} copies, {total} ({share}): {damaged} damaged")


# --- repair ----------------------------------------------------------------------------


@output.reports_errors
def repair_command(
    name: NameArgument = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
    everywhere: Annotated[
        bool,
        typer.Option("--everywhere", help="Make copies on tiers, too, that have none."),
    ] = False,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Write damaged and missing objects again, from a sound copy on another tier.

    The exit status is 4 if something is left that no sound copy was found of.
    """
    is_store = check_store if dry_run else _mend_store
    chosen = _chosen(naming.open_store(store, site, is_store=is_store), name)
    reports: list[tuple[LineageId, RepairReport]] = []
    with output.progress() as bar:
        task = bar.add_task("repair", total=sum(len(found) for _, found in chosen))
        for lineage, found in chosen:
            done = repair(
                lineage,
                found,
                everywhere=everywhere,
                dry_run=dry_run,
                on_checkpoint=lambda _id: bar.advance(task),
                note=output.note,
            )
            reports.append((lineage.id, done))
    output.show(
        {
            "complete": all(report.complete for _, report in reports),
            "dry_run": dry_run,
            "mended": [
                {"lineage": str(lineage), **output.plain(one)}
                for lineage, report in reports
                for one in report.mended
            ],
            "lost": [
                {"lineage": str(lineage), **output.plain(one)}
                for lineage, report in reports
                for one in report.lost
            ],
        },
        lambda console: _print_repair(console, reports, dry_run=dry_run),
        as_json=json_output,
    )
    return ExitCode.OK if all(one.complete for _, one in reports) else ExitCode.DAMAGED


def _mend_store(tier: Tier) -> bool:
    if mend_store(tier):
        output.note(f"Tier {tier.name!r}: {STORE_KEY!r} was damaged, and was written again.")
    return check_store(tier)


def _print_repair(
    console: Console, reports: list[tuple[LineageId, RepairReport]], *, dry_run: bool
) -> None:
    table = output.table("OBJECT", "TIER", "RESULT", "WHY")
    verb = "would be mended" if dry_run else "mended"
    for _, report in reports:
        for one in report.mended:
            result = f"{verb} from {one.source}"
            output.add_row(table, [one.key, one.tier, result, one.why])
        for lost in report.lost:
            row = [lost.key, lost.tier, "lost", " ".join(lost.reasons)]
            output.add_row(table, row, style="red")
    if table.row_count:
        console.print(table)
    mended, lost_count = (
        sum(len(getattr(report, what)) for _, report in reports) for what in ("mended", "lost")
    )
    console.print(f"{mended} objects {verb}, {lost_count} lost")


# --- quarantine ------------------------------------------------------------------------


@output.reports_errors
def quarantine_command(
    name: NameArgument = None,
    *,
    lift: Annotated[
        bool, typer.Option("--lift", help="Forget the failures of what is named.")
    ] = False,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> None:
    """List checkpoints that failed to restore, or lift their quarantine."""
    rows: list[dict[str, Any]] = []
    for lineage, found in _chosen(naming.open_store(store, site), name):
        failures = quarantine.failures(lineage)
        for one in found:
            if one.id in failures:
                rows.append(_failed(lineage, one.id, len(failures[one.id])))
                if lift:
                    quarantine.lift(lineage, one.id)
    output.show(
        {"lifted": lift, "checkpoints": rows},
        lambda console: _print_quarantine(console, rows, lifted=lift),
        as_json=json_output,
    )


def _failed(lineage: Lineage, checkpoint: CheckpointId, failures: int) -> dict[str, Any]:
    return {
        "lineage": str(lineage.id),
        "step": checkpoint.step,
        "attempt": checkpoint.attempt,
        "failures": failures,
        "quarantined": failures >= quarantine.FAILURES,
        "records": quarantine.reasons(lineage, checkpoint),
    }


def _print_quarantine(console: Console, rows: list[dict[str, Any]], *, lifted: bool) -> None:
    table = output.table("CHECKPOINT", "FAILURES", "STATUS", "LAST REASON")
    for row in rows:
        status = "quarantined" if row["quarantined"] else "suspected"
        checkpoint = f"{row['lineage']}@{row['step']}.{row['attempt']}"
        reason = row["records"][-1].get("reason")
        output.add_row(
            table, [checkpoint, row["failures"], "lifted" if lifted else status, reason]
        )
    console.print(table if rows else "No checkpoint has failed to restore.")


def _named(lineage: LineageId, checkpoint: CheckpointId) -> str:
    return f"{lineage}@{checkpoint.step}.{checkpoint.attempt}"
