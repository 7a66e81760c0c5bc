"""``ls`` and ``show``: what a store holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckptflow.cli import naming, output, regions, sets
from ckptflow.cli.naming import SiteOption, StoreOption
from ckptflow.cli.output import JsonOption
from ckptflow.data.leaves import shown
from ckptflow.model import LineageId
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.catalog import AttemptRecord, Lineage
from ckptflow.store.comparing.compare import type_of
from ckptflow.store.quarantine import quarantined
from ckptflow.store.sharding.partial import SetArrays
from ckptflow.store.sharding.sets import ShardSets
from ckptflow.store.sharding.survey import survey_set_lineage, survey_sets
from ckptflow.store.survey import (
    CheckpointSummary,
    LineageSummary,
    survey_checkpoints,
    survey_lineage,
)
from ckptflow.tiers.tier import Tier
from ckptflow.units import format_bytes

VALUES_MAX = 20  # Plain values shown as text; JSON has all of them.


@output.reports_errors
def ls(
    name: Annotated[
        str | None, typer.Argument(help="RUN or RUN/TASK; everything if left out.")
    ] = None,
    *,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> None:
    """List runs and tasks, or one task's checkpoints."""
    tiers = naming.open_store(store, site)
    if name and "/" in name and (found_sets := sets.sets_of(tiers, naming.lineage_of(name))):
        _list_sets(found_sets, as_json=json_output)
        return
    lineages = naming.open_lineages(tiers, name, note=output.note)
    if name and "/" in name:
        found, attempts = survey_checkpoints(lineages[0]), lineages[0].attempts()
        output.show(
            {
                "lineage": str(lineages[0].id),
                "checkpoints": [_checkpoint(one) for one in found],
                "attempts": attempts,
            },
            lambda console: _print_lineage(console, lineages[0].id, found, attempts),
            as_json=json_output,
        )
    else:
        summaries = _summaries(tiers, lineages)
        output.show(
            {"lineages": summaries},
            lambda console: _print_lineages(console, summaries),
            as_json=json_output,
        )


def _list_sets(found: ShardSets, *, as_json: bool) -> None:
    summaries, attempts = survey_sets(found), found.lineage.attempts()
    output.show(
        {
            "lineage": str(found.id),
            "sets": [sets.document(one) for one in summaries],
            "attempts": attempts,
        },
        lambda console: sets.print_sets(console, found, summaries),
        as_json=as_json,
    )


def _summaries(tiers: list[Tier], lineages: list[Lineage]) -> list[LineageSummary]:
    """Return all lineages at a glance; those of ranks that save together are one."""
    tasks = {shard.set for one in lineages if (shard := one.id.shard) is not None}
    found = [
        survey_lineage(one) for one in lineages if one.id.shard is None and one.id not in tasks
    ]
    found += [survey_set_lineage(ShardSets(tiers, one, note=output.note)) for one in tasks]
    return sorted(found, key=lambda one: one.lineage)


@output.reports_errors
def show(
    name: Annotated[str, typer.Argument(help="RUN/TASK for the newest, or RUN/TASK@STEP.")],
    *,
    reasons: Annotated[
        bool, typer.Option("--reasons", help="Say why each region was encoded as it was.")
    ] = False,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show one checkpoint: its origin, arrays and values, and how they are stored."""
    tiers = naming.open_store(store, site)
    named = naming.parse_name(name)
    if (found_sets := sets.sets_of(tiers, named.lineage)) is not None:
        _show_set(found_sets, named, as_json=json_output)
        return
    lineage, found = naming.open_checkpoint(tiers, name, note=output.note)
    stored = StoredArrays(lineage, lineage.manifest(found), note=output.note)
    facts = _facts(stored, found.void, [tier.name for tier in found.tiers])
    if found.id in quarantined(lineage, note=output.note):
        facts["quarantined"] = True
    arrays = [
        {"name": name, "dtype": spec.dtype, "shape": list(spec.shape), "bytes": spec.size_bytes}
        for name, spec in stored.specs.items()
    ]
    output.show(
        {
            **facts,
            "arrays": arrays,
            "values": stored.plain,
            **regions.document(stored.manifest),
        },
        lambda console: _print_checkpoint(console, stored, facts, reasons=reasons),
        as_json=json_output,
    )


def _show_set(found: ShardSets, named: naming.Name, *, as_json: bool) -> None:
    chosen = sets.find_set(found, named.step, named.attempt)
    summary = next(one for one in survey_sets(found) if one.found.id == chosen.id)
    arrays = SetArrays(found, chosen, note=output.note)
    facts = sets.facts(arrays, summary)
    output.show(
        {**facts, "arrays": sets.array_rows(arrays), "values": arrays.plain},
        lambda console: sets.print_set(console, arrays, facts),
        as_json=as_json,
    )


def _checkpoint(one: CheckpointSummary) -> dict[str, Any]:
    manifest = one.manifest
    return {
        "step": one.id.step,
        "attempt": one.id.attempt,
        "status": one.status,
        "problem": one.problem,
        "tiers": one.tiers,
        "kind": manifest.kind if manifest else None,
        "created": manifest.created if manifest else None,
        "state_bytes": manifest.state_bytes if manifest else None,
        "written_bytes": manifest.written_bytes if manifest else None,
        "root": manifest.root if manifest else None,
        "metrics": manifest.metrics if manifest else {},
    }


def _print_lineage(
    console: Console,
    lineage: LineageId,
    found: list[CheckpointSummary],
    attempts: list[AttemptRecord],
) -> None:
    console.print(Text(str(lineage), style="bold"))
    console.print(_checkpoint_table(found) if found else "no checkpoints")
    if attempts:
        table = output.table("ATTEMPT", "STARTED", "HOST", "WENT ON FROM", "ENDED")
        for one in attempts:
            claim, resume, end = one.claim or {}, one.resume, one.end or {}
            step = resume.get("step") if resume else None
            went_on = (
                "" if resume is None else "the beginning" if step is None else f"step {step}"
            )
            host, started = claim.get("host"), claim.get("started")
            row = [one.attempt, started, host, went_on, end.get("outcome")]
            output.add_row(table, row)
        console.print()
        console.print(table)


def _checkpoint_table(found: list[CheckpointSummary]) -> Table:
    numbers = ("STEP", "ATTEMPT", "STATE", "WRITTEN")
    table = output.table(
        "STEP", "ATTEMPT", "STATUS", "KIND", "CREATED", "STATE", "WRITTEN", "TIERS", "METRICS",
        numbers=numbers,
    )  # fmt: skip
    for one in found:
        row = _checkpoint(one)
        metrics = " ".join(f"{name}={value:.6g}" for name, value in row["metrics"].items())
        output.add_row(
            table,
            [
                one.id.step, one.id.attempt, one.status, row["kind"], row["created"],
                _bytes(row["state_bytes"]), _bytes(row["written_bytes"]),
                ",".join(one.tiers), metrics or one.problem,
            ],
            style=None if one.status == "ok" else "dim" if one.void else "red",
        )  # fmt: skip
    return table


def _print_lineages(console: Console, summaries: list[LineageSummary]) -> None:
    table = output.table(
        "RUN/TASK", "NEWEST STEP", "SAVED", "CHECKPOINTS", "ATTEMPTS", "STATES", "STORED",
        numbers=("NEWEST STEP", "CHECKPOINTS", "ATTEMPTS", "STATES"),
    )  # fmt: skip
    for one in summaries:
        stored = " ".join(
            f"{tier}:{format_bytes(size)}" for tier, size in one.stored_bytes.items()
        )
        void = f" (+{one.void} void)" if one.void else ""
        output.add_row(
            table,
            [
                one.lineage, one.newest.step if one.newest else None, one.saved,
                f"{one.checkpoints}{void}", one.attempts, format_bytes(one.state_bytes), stored,
            ],
        )  # fmt: skip
    console.print(table if summaries else "The store is empty.")


def _facts(stored: StoredArrays, void: bool, tiers: list[str]) -> dict[str, Any]:  # noqa: FBT001
    manifest = stored.manifest
    return {
        "run": manifest.lineage.run,
        "task": manifest.lineage.task,
        "step": manifest.id.step,
        "attempt": manifest.id.attempt,
        "void": void,
        "tiers": tiers,
        "created": manifest.created,
        "writer": manifest.writer,
        "kind": manifest.kind,
        "parent_step": manifest.parent.step if manifest.parent else None,
        "root": manifest.root,
        "state_bytes": manifest.state_bytes,
        "written_bytes": manifest.written_bytes,
        "packs": len(manifest.packs),
        "chunk_bytes": manifest.chunk_bytes,
        "metrics": manifest.metrics,
    }


def _print_checkpoint(
    console: Console, stored: StoredArrays, facts: dict[str, Any], *, reasons: bool
) -> None:
    head = output.table("", "")
    head.show_header = False
    for name, value in facts.items():
        if value is None or value is False or value == {}:
            continue
        if name == "metrics":
            text = " ".join(f"{metric}={number:.6g}" for metric, number in value.items())
        elif name.endswith("_bytes"):
            name, text = name.removesuffix("_bytes"), _bytes(value)  # noqa: PLW2901
        else:
            plain = output.plain(value)
            text = ", ".join(plain) if isinstance(plain, list) else str(plain)
        output.add_row(head, [name.replace("_", " "), text])
    console.print(head)
    if stored.specs:
        table = output.table("ARRAY", "TYPE", "BYTES", numbers=("BYTES",))
        for name, spec in stored.specs.items():
            output.add_row(table, [shown(name or None), type_of(stored, name), spec.size_bytes])
        console.print()
        console.print(table)
    if values := stored.plain:
        table = output.table("VALUE", "")
        for name, value in list(values.items())[:VALUES_MAX]:
            output.add_row(table, [shown(name or None), f"{value!r:.200}"])
        console.print()
        console.print(table)
        if len(values) > VALUES_MAX:
            console.print(f"and {len(values) - VALUES_MAX} more; --json has all")
    regions.print_regions(console, stored.manifest, reasons=reasons)


def _bytes(size_bytes: int | None) -> str:
    return "" if size_bytes is None else format_bytes(size_bytes)
