"""``calibrate``: measure what the tiers of a site can do, and write it down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from ckptflow.cli import output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.naming import SiteOption, site_named
from ckptflow.cli.output import JsonOption
from ckptflow.cli.runs import SetOption, UserOption
from ckptflow.errors import ConfigError
from ckptflow.plan.calibration import (
    Calibration,
    MeasuredTier,
    SaveCosts,
    calibration_file,
    write_calibration,
)
from ckptflow.plan.measure import Measured, measure
from ckptflow.plan.request import DEFAULT_S, Request, request_of
from ckptflow.site import Site, in_an_allocation, load_site
from ckptflow.site.layers import parse_setting
from ckptflow.units import format_bytes, format_seconds, parse_seconds

_THERE_S = 120.0  # What it takes on a node besides the measuring: programs start.


@output.reports_errors
def calibrate(
    *,
    site: SiteOption = None,
    seconds: Annotated[
        str, typer.Option("--seconds", help="About how long to measure, in all.")
    ] = f"{DEFAULT_S:g}s",
    writers: Annotated[
        int | None,
        typer.Option(
            "--writers",
            help="The most processes that write at once; the workers of a node by default, "
            "and no more than it has cores.",
        ),
    ] = None,
    there: Annotated[
        bool, typer.Option("--there", help="Get an allocation, and measure on a node of it.")
    ] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", help="How long --there waits, in all.")
    ] = "15min",
    file: Annotated[
        Path | None,
        typer.Option("--output", help="The file that gets it, instead of the usual one."),
    ] = None,
    user: UserOption = None,
    settings: SetOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Measure what the tiers of a site can do, with 1, 2, 4 ... writers at once.

    What is written is deleted again. Ends with 5 if a tier failed; the others are measured.
    """
    limit_s, wait_s = parse_seconds(seconds), parse_seconds(timeout)
    overrides = dict(parse_setting(text) for text in settings or ())
    chosen = load_site(
        site_named(site), user=user, overrides=overrides, purpose="run" if there else "tiers"
    )
    path = file if file is not None else calibration_file(chosen.name)
    on_node = there or in_an_allocation()
    request = request_of(chosen, seconds=limit_s, writers=writers, on_node=on_node)
    found = _there(chosen, request, wait_s) if there else _here(request)
    made = found.calibration
    if made.tiers:
        write_calibration(path, made)
    elif not any(one.failed for one in made.unmeasured):
        reasons = " ".join(f"{one.tier.name}: {one.reason}" for one in made.unmeasured)
        raise ConfigError(f"No tier of site {chosen.name!r} can be measured. {reasons}")
    written = str(path) if made.tiers else None
    where = _where(chosen, made, on_node=on_node)
    document = {
        "path": written,
        "where": where,
        "notes": found.notes,
        "calibration": made.model_dump(mode="json"),
    }
    output.show(
        document,
        lambda console: _print(console, made, [where, *found.notes], written),
        as_json=json_output,
    )
    failed = any(one.failed for one in made.unmeasured)
    return ExitCode.STORAGE if failed else ExitCode.OK


def _here(request: Request) -> Measured:
    with output.progress() as bar:
        return measure(request, tell=_Bar(bar))


class _Bar:
    """Shows how much is done."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._task = bar, bar.add_task("calibrate", total=100)

    def __call__(self, part: float, text: str) -> None:
        self._bar.update(self._task, completed=round(100 * part), description=text)


def _there(site: Site, request: Request, wait_s: float) -> Measured:
    from ckptflow.workflow.blocks.there import on_a_node

    with output.progress() as bar:
        bar.add_task("waiting for a node, and measuring there", total=None)
        found, _ = on_a_node(
            site.at(Path.cwd()),
            measure,
            [request],
            name="calibrate",
            takes_s=_THERE_S + 3 * request.seconds,
            timeout_s=wait_s,
        )
    return found


def _where(site: Site, made: Calibration, *, on_node: bool) -> str:
    if on_node or not site.executor.on_other_nodes:
        return f"Measured on {made.host}."
    return (
        f"Measured on {made.host}, which is none of the nodes that tasks run on: what these "
        f"reach may differ. Measure with --there."
    )


def _print(console: Console, made: Calibration, notes: list[str], written: str | None) -> None:
    table = output.table(
        "TIER", "KIND", "LEVEL", "HOW", "WRITERS", "EACH", "WRITE/S", "+-", "READ/S", "+-",
        "LATENCY", numbers=("LEVEL", "WRITERS", "EACH", "WRITE/S", "+-", "READ/S", "LATENCY"),
    )  # fmt: skip
    for one in made.tiers:
        for cells in _rows(one):
            output.add_row(table, cells)
    console.print(table)
    for left in made.unmeasured:
        word = "FAILED" if left.failed else "not measured"
        style = "red" if left.failed else "dim"
        console.print(Text(f"{left.tier.name}: {word}: {left.reason}", style=style))
    for cost in made.tier_costs():
        for what, limit in (
            ("writers", cost.write_shared_bytes_per_s),
            ("readers", cost.read_shared_bytes_per_s),
        ):
            if limit is not None:
                console.print(f"{cost.name}: more {what} do not get more together")
    if made.saves is not None:
        console.print(Text(_saves_text(made.saves)))
    for note in notes:
        console.print(Text(note))
    if written:
        console.print(Text(f"written to {written}"), soft_wrap=True)


def _rows(one: MeasuredTier) -> Iterator[list[object]]:
    tier = one.tier
    first: list[object] = [tier.name, tier.kind, tier.level, one.how]
    times = f"{format_seconds(one.write_latency_s)}, {format_seconds(one.read_latency_s)}"
    for number, total in enumerate(one.totals):
        yield [
            *(first if number == 0 else [""] * len(first)),
            total.writers,
            format_bytes(total.size_bytes),
            format_bytes(total.write_bytes_per_s),
            f"{total.write_spread:.0%}",
            format_bytes(total.read_bytes_per_s),
            f"{total.read_spread:.0%}",
            times if number == 0 else "",
        ]


def _saves_text(saves: SaveCosts) -> str:
    return (
        f"saves: captured at {format_bytes(saves.capture_bytes_per_s)}/s, digested at "
        f"{format_bytes(saves.digest_bytes_per_s)}/s; a loop beside one is "
        f"{saves.interference:.0%} slower; the densest packing makes {saves.encode_ratio:.2f} "
        f"of a smooth array, at {format_bytes(saves.encode_bytes_per_s)}/s"
    )
