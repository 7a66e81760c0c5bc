"""The command line: each command reads its arguments, calls one function, shows the result.

Results go to stdout, progress and notes to stderr; ``--json`` makes the result one JSON
document. What the exit status means is in :mod:`ckptflow.cli.exit_codes`.
"""

from __future__ import annotations

from typing import Annotated

import typer

import ckptflow
from ckptflow.cli import (
    again,
    calibrating,
    cleaning,
    doctor,
    flushing,
    keys,
    lists,
    moving,
    policy,
    reading,
    runs,
    seeing,
    site,
    soundness,
    tuning,
    upkeep,
)

app = typer.Typer(
    name="ckptflow",
    help="Checkpoint and restart for HPC workflows.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # A bug keeps Python's own traceback.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 done, 1 failed, 2 usage, 3 not found, 4 damaged, 5 storage, "
    "6 format, 7 unfinished, 8 taken.",
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001  (typer's signature)
    if wanted:
        typer.echo(f"ckptflow {ckptflow.__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Checkpoint and restart for HPC workflows."""


app.command("run")(runs.run_command)
app.command("restart")(runs.restart)
app.command("cleanup")(cleaning.cleanup)
app.command("status")(seeing.status)
app.command("why")(seeing.why)
app.command("logs")(seeing.logs)
app.command("events")(seeing.events)
app.command("report")(seeing.report)
app.command("metrics")(seeing.metrics)
app.command("invalidate")(again.invalidate)
app.command("rerun")(again.rerun)
app.command("ls")(lists.ls)
app.command("show")(lists.show)
app.command("verify")(soundness.verify_command)
app.command("repair")(soundness.repair_command)
app.command("quarantine")(soundness.quarantine_command)
app.command("diff")(reading.diff)
app.command("export")(reading.export_command)
app.command("prune")(upkeep.prune_command)
app.add_typer(keys.keys, name="key")
app.add_typer(site.site, name="site")
app.command("tune")(tuning.tune_command)
app.add_typer(policy.policy, name="policy")
app.command("flushes")(flushing.flushes)
app.command("scavenge")(flushing.scavenge_command)
app.command("agent")(flushing.agent)
app.command("consolidate")(upkeep.consolidate_command)
app.command("copy")(moving.copy_command)
app.command("archive")(moving.archive_command)
app.command("import")(moving.import_command)
app.command("doctor")(doctor.doctor)
app.command("calibrate")(calibrating.calibrate)
app.command("demo")(runs.demo)


def main() -> None:
    """Run the command line."""
    app()
