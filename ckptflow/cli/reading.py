"""``diff`` and ``export``: what is in checkpoints, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptflow.bridges.export import Format, export
from ckptflow.cli import differences, naming, output, sets
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.naming import SiteOption, StoreOption
from ckptflow.cli.output import JsonOption
from ckptflow.errors import ConfigError
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.comparing.compare import compare
from ckptflow.store.comparing.descent import compare_values
from ckptflow.store.comparing.tally import Tolerance
from ckptflow.store.sharding.partial import SetArrays
from ckptflow.units import format_bytes


@output.reports_errors
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="RUN/TASK or RUN/TASK@STEP.")],
    right: Annotated[str, typer.Argument(metavar="B", help="RUN/TASK or RUN/TASK@STEP.")],
    *,
    values: Annotated[
        bool,
        typer.Option("--values", help="Count and measure; read only what may differ."),
    ] = False,
    atol: Annotated[
        float | None,
        typer.Option("--atol", help="With --values: close if |a-b| <= ATOL + RTOL * |b|."),
    ] = None,
    rtol: Annotated[
        float | None, typer.Option("--rtol", help="With --values: see --atol.")
    ] = None,
    store_b: Annotated[
        list[str] | None,
        typer.Option("--store-b", help="Folder or address of the store of B, if another one."),
    ] = None,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Compare two checkpoints, bit by bit, or within a tolerance.

    The exit status is 1 if the states differ. The random states of the processes are
    compared, too, but count for nothing: where nobody seeds them they always differ.
    """
    tolerance = _tolerance(atol, rtol, values=values)
    tiers = naming.open_store(store, site)
    tiers_b = naming.open_store(store_b, None) if store_b else tiers
    a, a_rng = naming.open_arrays(tiers, left, note=output.note)
    b, b_rng = naming.open_arrays(tiers_b, right, note=output.note)
    if values:
        return _diff_values(a, b, a_rng, b_rng, tolerance=tolerance, as_json=json_output)
    with output.progress() as bar:
        task = bar.add_task("diff", total=len({*a, *b}))
        found = compare(a, b, on_array=lambda _name: bar.advance(task))
    same_rng = compare(a_rng, b_rng).same
    output.show(
        {
            "same": found.same,
            **_sides(a, b),
            "random_states_same": same_rng,
            "arrays": found.arrays,
            "values": found.plain,
        },
        lambda console: differences.print_changes(console, found, same_rng=same_rng),
        as_json=json_output,
    )
    return ExitCode.OK if found.same else ExitCode.FAILED


def _diff_values(
    a: StoredArrays,
    b: StoredArrays,
    a_rng: StoredArrays,
    b_rng: StoredArrays,
    *,
    tolerance: Tolerance | None,
    as_json: bool,
) -> ExitCode:
    with output.progress() as bar:
        task = bar.add_task("diff", total=len({*a, *b}))
        found = compare_values(
            a,
            b,
            tolerance=tolerance,
            note=output.note,
            on_array=lambda _name: bar.advance(task),
        )
    same_rng = compare_values(a_rng, b_rng, note=output.note).same
    output.show(
        {
            "same": found.same,
            "identical": found.identical,
            **_sides(a, b),
            "tolerance": tolerance,
            "random_states_same": same_rng,
            "read_bytes": found.read_bytes,
            "state_bytes": found.state_bytes,
            "arrays": [differences.document(array) for array in found.arrays],
            "values": found.plain,
            "values_close": found.plain_close,
        },
        lambda console: differences.print_values(
            console, found, same_rng=same_rng, tolerance=tolerance
        ),
        as_json=as_json,
    )
    return ExitCode.OK if found.same else ExitCode.FAILED


def _tolerance(atol: float | None, rtol: float | None, *, values: bool) -> Tolerance | None:
    if atol is None and rtol is None:
        return None
    if not values:
        raise ConfigError(
            "A tolerance is for values: say --values with --atol and --rtol. Without it, "
            "diff compares bit by bit."
        )
    return Tolerance(atol or 0.0, rtol or 0.0)


def _sides(a: StoredArrays, b: StoredArrays) -> dict[str, str]:
    return {
        side: f"{stored.lineage.id}@{stored.manifest.id.step}"
        for side, stored in (("left", a), ("right", b))
    }


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
    named = naming.parse_name(name)
    stored: StoredArrays | SetArrays
    if (of_ranks := sets.sets_of(tiers, named.lineage)) is not None:
        one = sets.find_set(of_ranks, named.step, named.attempt)
        stored = SetArrays(of_ranks, one, note=output.note)
    else:
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
    source = f"{stored.manifest.lineage}@{stored.manifest.id.step}"
    size = format_bytes(done.size_bytes)
    output.show(
        {"source": source, "path": done.path, "format": done.format,
         "bytes": done.size_bytes, "arrays": done.arrays},
        lambda console: console.print(
            f"{source}: {len(done.arrays)} arrays in {done.path} ({size})"
        ),
        as_json=json_output,
    )  # fmt: skip
