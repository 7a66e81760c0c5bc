"""``verify``, ``diff`` and ``export``: what is in checkpoints, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ckptflow.bridges.export import Format, export
from ckptflow.cli import naming, output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.naming import SiteOption, StoreOption
from ckptflow.cli.output import JsonOption
from ckptflow.data.leaves import shown
from ckptflow.model import LineageId
from ckptflow.store.compare import ArrayChange, Comparison, Values, compare
from ckptflow.store.find import is_there
from ckptflow.store.verify import CopyReport, verify
from ckptflow.units import format_bytes

VALUES_MAX = 20  # Plain values shown as text; JSON has all of them.


@output.reports_errors
def verify_command(
    name: Annotated[
        str | None,
        typer.Argument(help="RUN, RUN/TASK or RUN/TASK@STEP; everything if left out."),
    ] = None,
    *,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Read every stored byte again and check its digest.

    Every copy on every tier; the exit status is 4 if one of them is damaged.
    """
    tiers = naming.open_store(store, site)
    if name and "@" in name:
        chosen = [naming.open_checkpoint(tiers, name, note=output.note)]
    else:
        lineages = naming.open_lineages(tiers, name, note=output.note)
        chosen = [(one, found) for one in lineages for found in one.checkpoints()]
    reports: list[tuple[LineageId, CopyReport]] = []
    with output.progress() as bar:
        for lineage, found in bar.track(chosen, description="verify"):
            reports += [
                (lineage.id, report)
                for tier, report in zip(found.tiers, verify(lineage, found), strict=True)
                if report.sound or is_there(tier, lineage.id, found.id)
            ]
    output.show(
        {
            "sound": all(report.sound for _, report in reports),
            "copies": [
                {
                    "lineage": str(lineage),
                    "step": report.id.step,
                    "attempt": report.id.attempt,
                    "tier": report.tier,
                    "checked_bytes": report.checked_bytes,
                    "problems": report.problems,
                }
                for lineage, report in reports
            ],
        },
        lambda console: _print_reports(console, reports),
        as_json=json_output,
    )
    return ExitCode.OK if all(report.sound for _, report in reports) else ExitCode.DAMAGED


@output.reports_errors
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="RUN/TASK or RUN/TASK@STEP.")],
    right: Annotated[str, typer.Argument(metavar="B", help="RUN/TASK or RUN/TASK@STEP.")],
    *,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Compare two checkpoints, bit by bit.

    The exit status is 1 if the states differ. The random states of the processes are
    compared, too, but count for nothing: where nobody seeds them they always differ.
    """
    tiers = naming.open_store(store, site)
    old, old_rng = naming.open_arrays(tiers, left, note=output.note)
    new, new_rng = naming.open_arrays(tiers, right, note=output.note)
    with output.progress() as bar:
        task = bar.add_task("diff", total=len({*old, *new}))
        found = compare(old, new, on_array=lambda _name: bar.advance(task))
    same_rng = compare(old_rng, new_rng).same
    output.show(
        {
            "same": found.same,
            "left": f"{old.lineage.id}@{old.manifest.id.step}",
            "right": f"{new.lineage.id}@{new.manifest.id.step}",
            "random_states_same": same_rng,
            "arrays": found.arrays,
            "values": found.plain,
        },
        lambda console: _print_comparison(console, found, same_rng=same_rng),
        as_json=json_output,
    )
    return ExitCode.OK if found.same else ExitCode.FAILED


@output.reports_errors
def export_command(
    name: Annotated[str, typer.Argument(help="RUN/TASK for the newest, or RUN/TASK@STEP.")],
    path: Annotated[Path, typer.Argument(help="File to write: .npz or .safetensors.")],
    *,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Arrays whose name matches, as 'model/*'; repeatable."),
    ] = None,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="What to write, whatever the ending.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> None:
    """Write the arrays of a checkpoint to one file."""
    tiers = naming.open_store(store, site)
    stored, _rng = naming.open_arrays(tiers, name, note=output.note)
    with output.progress() as bar:
        task = bar.add_task("export", total=len(stored))
        done = export(
            stored,
            path,
            file_format=file_format,
            only=only or (),
            overwrite=force,
            on_array=lambda _name: bar.advance(task),
        )
    source = f"{stored.lineage.id}@{stored.manifest.id.step}"
    size = format_bytes(done.size_bytes)
    output.show(
        {"source": source, "path": done.path, "format": done.format,
         "bytes": done.size_bytes, "arrays": done.arrays},
        lambda console: console.print(
            f"{source}: {len(done.arrays)} arrays in {done.path} ({size})"
        ),
        as_json=json_output,
    )  # fmt: skip


def _print_reports(console: Console, reports: list[tuple[LineageId, CopyReport]]) -> None:
    table = output.table("CHECKPOINT", "TIER", "CHECKED", "RESULT", numbers=("CHECKED",))
    for lineage, report in reports:
        checkpoint = f"{lineage}@{report.id.step}.{report.id.attempt}"
        checked = format_bytes(report.checked_bytes)
        for problem in report.problems or ("sound",):
            style = None if report.sound else "red"
            output.add_row(table, [checkpoint, report.tier, checked, problem], style=style)
    damaged = sum(not report.sound for _, report in reports)
    console.print(table if reports else "Nothing to verify.")
    if reports:
        total = format_bytes(sum(report.checked_bytes for _, report in reports))
        console.print(f"{len(reports)} copies, {total}: {damaged} damaged")


def _print_comparison(console: Console, found: Comparison, *, same_rng: bool) -> None:
    changed = [array for array in found.arrays if array.change != "same"]
    if changed:
        table = output.table(
            "ARRAY", "CHANGE", "TYPE", "ELEMENTS", "MAX |A-B|", "A", "B",
            numbers=("ELEMENTS", "MAX |A-B|"),
        )  # fmt: skip
        for array in changed:
            output.add_row(
                table,
                [
                    shown(array.name or None), array.change, _types(array), _extent(array),
                    _number(array.max_abs_difference),
                    _values(array.values_before), _values(array.values_after),
                ],
            )  # fmt: skip
        console.print(table)
    if found.plain:
        values = output.table("VALUE", "A", "B")
        for leaf in found.plain[:VALUES_MAX]:
            before = "" if leaf.change == "added" else f"{leaf.before!r:.100}"
            after = "" if leaf.change == "removed" else f"{leaf.after!r:.100}"
            output.add_row(values, [shown(leaf.name or None), before, after])
        console.print(values)
        if len(found.plain) > VALUES_MAX:
            console.print(f"and {len(found.plain) - VALUES_MAX} more; --json has all")
    console.print(
        Text(
            f"{len(changed)} of {len(found.arrays)} arrays differ, {len(found.plain)} values "
            f"differ, random states of the "
            f"process {'are the same' if same_rng else 'differ'}"
        )
    )


def _types(array: ArrayChange) -> str:
    if array.before and array.after and array.before != array.after:
        return f"{array.before} -> {array.after}"
    return array.after or array.before or ""


def _extent(array: ArrayChange) -> str:
    if array.change != "changed":
        return str(array.elements)
    share = 100 * array.changed_elements / array.elements
    return f"{array.changed_elements} of {array.elements} ({share:.3g} %)"


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:.4g}"


def _values(values: Values | None) -> str:
    if values is None:
        return ""
    nans = f" nan×{values.nan_count}" if values.nan_count else ""
    return f"{values.min:.4g}..{values.max:.4g} mean {values.mean:.4g}{nans}"
