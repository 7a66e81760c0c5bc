"""``invalidate`` and ``rerun``: tasks that are finished, or too far, run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ckptflow.cli import output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.output import JsonOption
from ckptflow.cli.runs import (
    OnChangeOption,
    SetOption,
    SiteOption,
    StoreOption,
    UserOption,
    run_again,
)

if TYPE_CHECKING:
    from ckptflow.workflow.forgetting import Forgotten

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")]
TasksArgument = Annotated[
    list[str],
    typer.Argument(metavar="TASK...", help="Names of tasks; patterns such as 'train-*' work."),
]


@output.reports_errors
def invalidate(
    run: RunArgument,
    tasks: TasksArgument,
    *,
    dependents: Annotated[
        bool,
        typer.Option("--dependents", help="Also the tasks that took their results, and so on."),
    ] = False,
    keep_checkpoints: Annotated[
        bool,
        typer.Option(
            "--keep-checkpoints", help="Let them go on from their newest checkpoints."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
    site: SiteOption = None,
    store: StoreOption = None,
    user: UserOption = None,
    settings: SetOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Forget the results of tasks: the next start of the run begins them anew.

    Nothing is deleted, and nothing is started. Refused while the run goes on.
    """
    from ckptflow.workflow.forgetting import forget
    from ckptflow.workflow.script import UserLayer

    layer = UserLayer(user, tuple(settings or ()))
    done = forget(
        run,
        tasks,
        site=site,
        store=store,
        layer=layer,
        dependents=dependents,
        keep_checkpoints=keep_checkpoints,
        dry_run=dry_run,
    )
    document = {"run": run, "dry_run": dry_run, "tasks": done}
    output.show(document, lambda console: _print(console, done), as_json=json_output)
    return ExitCode.OK


@output.reports_errors
def rerun(
    run: RunArgument,
    tasks: TasksArgument,
    *,
    start: Annotated[
        str,
        typer.Option("--from", metavar="STEP", help="A step with a checkpoint; or: beginning."),
    ] = "beginning",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing and start nothing.")
    ] = False,
    site: SiteOption = None,
    store: StoreOption = None,
    user: UserOption = None,
    settings: SetOption = None,
    on_change: OnChangeOption = None,
    json_output: JsonOption = False,
) -> int:
    """Set tasks back to an earlier checkpoint, and start the run again.

    Later checkpoints become void; nothing is deleted. Refused while the run goes on.
    """
    from ckptflow.workflow.forgetting import go_back, parse_step
    from ckptflow.workflow.script import UserLayer

    step, layer = parse_step(start), UserLayer(user, tuple(settings or ()))
    done = go_back(run, tasks, step=step, site=site, store=store, layer=layer, dry_run=dry_run)
    document: dict[str, object] = {"dry_run": dry_run, "tasks": done}
    if not json_output:
        output.show(done, lambda console: _print(console, done), as_json=False)
    return run_again(
        run,
        document,
        start=not dry_run,
        site=site,
        store=store,
        layer=layer,
        on_change=on_change,
        as_json=json_output,
    )


def _print(console: Console, done: list[Forgotten]) -> None:
    table = output.table(
        "TASK", "RESULT", "NEWEST STEP", "GOES ON FROM", "WHY", numbers=("NEWEST STEP",)
    )
    for one in done:
        result = "forgotten" if one.had_result else "none"
        goes_on = f"step {one.goes_on_from}" if one.goes_on_from is not None else "beginning"
        output.add_row(table, [one.task, result, one.newest_step, goes_on, one.reason])
    console.print(table)
