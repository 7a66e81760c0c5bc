"""``copy``, ``archive`` and ``import``: a whole run, to another store or into one file."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from ckptflow.cli import naming, output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.naming import SiteOption, StoreOption
from ckptflow.cli.output import JsonOption
from ckptflow.errors import ConfigError, TierFull
from ckptflow.store.moving.archive import read_archive, write_archive
from ckptflow.store.moving.carry import copy_run
from ckptflow.store.moving.items import MoveReport
from ckptflow.tiers.durable import whole_file
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.tier import Tier
from ckptflow.units import format_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

ToOption = Annotated[
    str, typer.Option("--to", help="Store that it goes to: a folder, or an address.")
]
NameOption = Annotated[
    str | None, typer.Option("--as", help="What the run is called there; as here if left out.")
]


@output.reports_errors
def copy_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    *,
    to: ToOption,
    name: NameOption = None,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Copy a whole run to another store, or to another name."""
    tiers, target = naming.open_store(store, site), _open(to)
    with output.progress() as bar:
        report = copy_run(
            tiers, run, target, name=name, on_object=_Bar(bar, "copy"), note=output.note
        )
    return _show(report, f"{name or run} in {to}", as_json=json_output)


@output.reports_errors
def archive_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file: a plain tar.")],
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Write a whole run to one file."""
    tiers = naming.open_store(store, site)
    if path.exists() and not force:
        raise ConfigError(f"{path} is there already; say --force to replace it.")
    try:
        with output.progress() as bar, whole_file(path) as file:
            report = write_archive(
                tiers, run, file, on_object=_Bar(bar, "archive"), note=output.note
            )
    except OSError as error:
        kind = TierFull if error.errno in _FULL else ConfigError
        raise kind(f"Cannot write {path}: {error.strerror or error}.") from error
    return _show(report, f"{run} in {path}", as_json=json_output)


@output.reports_errors
def import_command(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="What archive has written.")],
    *,
    to: ToOption,
    name: NameOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Bring a run that was written to a file into a store."""
    target = _open(to)
    try:
        with output.progress() as bar, path.open("rb") as file:
            report = read_archive(file, target, name=name, on_object=_Bar(bar, "import"))
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror or error}.") from error
    return _show(report, to, as_json=json_output)


class _Bar:
    """Counts objects; how many will come is not known."""

    def __init__(self, bar: Progress, what: str) -> None:
        self._bar, self._task = bar, bar.add_task(what, total=None)

    def __call__(self, _key: str) -> None:
        self._bar.advance(self._task)


def _open(to: str) -> Tier:
    return open_tier({**spec_of(to), "name": "target"})


def _show(report: MoveReport, where: str, *, as_json: bool) -> ExitCode:
    output.show(
        {
            "complete": report.complete,
            "checkpoints": report.checkpoints,
            "objects": report.put,
            "bytes": report.put_bytes,
            "same_objects": report.same,
            "conflicts": report.conflicts,
            "left": report.left,
        },
        lambda console: _print(console, report, where),
        as_json=as_json,
    )
    if report.conflicts:
        return ExitCode.FAILED
    return ExitCode.DAMAGED if report.left else ExitCode.OK


def _print(console: Console, report: MoveReport, where: str) -> None:
    for text in (*report.conflicts, *report.left):
        console.print(text, style="red")
    size = format_bytes(report.put_bytes)
    console.print(
        f"{where}: {report.checkpoints} checkpoints; {report.put} objects written ({size}), "
        f"{report.same} were there"
    )
