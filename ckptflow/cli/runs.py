"""``run``, ``restart`` and ``demo``: workflows, started and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ckptflow.cli import output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.output import JsonOption


@output.reports_errors
def demo(
    *,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for results, logs and the store.")
    ] = Path("demo-out"),
    site: Annotated[
        str, typer.Option("--site", help="Where it runs; on this machine.")
    ] = "local",
    json_output: JsonOption = False,
) -> ExitCode:
    """Kill a real workflow three times; it ends all the same.

    The last line is `demo: PASS …` or `demo: FAIL …`, and the exit status says the same.
    """
    from ckptflow.cli.demo import run_demo, tables

    result = run_demo(out, console=output.stderr(), site=site)

    def text(console: Console) -> None:
        for table in tables(result):
            console.print(table)
        console.print(result.line)

    output.show(result, text, as_json=json_output)
    return ExitCode.OK if result.passed else ExitCode.FAILED
