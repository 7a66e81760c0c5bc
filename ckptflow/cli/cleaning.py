"""``cleanup``: clear away what dead sessions of a run have left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from ckptflow.cli import output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.output import JsonOption
from ckptflow.cli.runs import SiteOption, StoreOption

if TYPE_CHECKING:
    from ckptflow.workflow.cleanup import CleanUp


@output.reports_errors
def cleanup(
    name: Annotated[str, typer.Argument(help="Name of the run.")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what there is.")
    ] = False,
    site: SiteOption = None,
    store: StoreOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """End processes and blocks that dead sessions of a run have left, and remove their files.

    Processes on this host, blocks wherever they are. A run that is running is refused.
    """
    from ckptflow.workflow.cleanup import clean_up
    from ckptflow.workflow.script import site_of

    found = clean_up(site_of(site, store), name, dry_run=dry_run)
    output.show(found, lambda console: _print(console, found), as_json=json_output)
    return ExitCode.FAILED if found.problems else ExitCode.OK


def _print(console: Console, found: CleanUp) -> None:
    table = output.table("WHAT", "WHICH", "OF SESSION")
    for process in found.processes:
        output.add_row(table, ["process", f"{process.pid} {process.name}", process.session])
    for block in found.blocks:
        which = f"{block.batch_system} {block.number} {block.state}"
        output.add_row(table, ["block", which, block.session])
    for path in found.files:
        output.add_row(table, ["file", str(path), None])
    console.print(table if table.row_count else "nothing is left")
    for problem in found.problems:
        console.print(Text(f"problem: {problem}"))
