"""``run``, ``restart`` and ``demo``: workflows, started and started again."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from ckptflow.cli import output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.output import JsonOption
from ckptflow.errors import CheckpointError

if TYPE_CHECKING:
    from ckptflow.cli.demo import DemoResult
    from ckptflow.workflow.planning import RestartPlan
    from ckptflow.workflow.script import Launch, Outcome, UserLayer

SiteOption = Annotated[
    str | None, typer.Option("--site", help="Name of a site, or its TOML file.")
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="Folder or address for checkpoints, instead of the site's."),
]
UserOption = Annotated[
    Path | None,
    typer.Option("--user", help="File with what you lay on top of sites, not the usual one."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="KEY=VALUE, on top of all files: executor.allocation.account=m1234."
    ),
]

OnChangeOption = Annotated[
    str | None,
    typer.Option(
        "--on-change",
        metavar="resume|redo|fail",
        help="What to do with tasks that have changed since their results or checkpoints "
        "were made.",
    ),
]


@output.reports_errors
def run_command(
    script: Annotated[Path, typer.Argument(help="The workflow, a Python script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, after --.")
    ] = None,
    *,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run, instead of the script's.")
    ] = None,
    site: SiteOption = None,
    store: StoreOption = None,
    user: UserOption = None,
    settings: SetOption = None,
    on_change: OnChangeOption = None,
    json_output: JsonOption = False,
) -> int:
    """Run a workflow script. The same line again goes on.

    Options come before what the script says. The exit status is the script's own, unless
    that is 0: then it tells how the run went.
    """
    from ckptflow.workflow.script import Launch, UserLayer

    launch = Launch(script.expanduser().absolute(), tuple(arguments or ()), Path.cwd())
    outcome = _execute(
        launch,
        name=name,
        site=site,
        store=store,
        layer=UserLayer(user, tuple(settings or ())),
        on_change=on_change,
        as_json=json_output,
    )
    if json_output:
        document = outcome.summary.as_json() if outcome.summary else None
        output.show({"status": outcome.status, "run": document}, _nothing, as_json=True)
    return _exit_code(outcome)


@output.reports_errors
def restart(
    name: Annotated[str, typer.Argument(help="Name of the run.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
    site: SiteOption = None,
    store: StoreOption = None,
    user: UserOption = None,
    settings: SetOption = None,
    on_change: OnChangeOption = None,
    json_output: JsonOption = False,
) -> int:
    """Print what happens to each task of a run and why, and start it again.

    It is started with the script, arguments and folder that its journal names.
    """
    from ckptflow.workflow.script import UserLayer

    return run_again(
        name,
        {},
        start=not dry_run,
        site=site,
        store=store,
        layer=UserLayer(user, tuple(settings or ())),
        on_change=on_change,
        as_json=json_output,
    )


def run_again(
    name: str,
    document: dict[str, object],
    *,
    start: bool,
    site: str | None,
    store: str | None,
    layer: UserLayer,
    on_change: str | None,
    as_json: bool,
) -> int:
    """Print the plan of a restart, and start the run again if that is asked for.

    Args:
        name: the run.
        document: what was done before; the plan and what came of the run are added to it.
        start: whether to start it.
        site: its site, if it was given.
        store: its store, if it was given.
        layer: what is laid on top of its site.
        on_change: what to do with changed tasks; what the script says if not given.
        as_json: print one document at the end, instead of the plan as a table before.

    Returns:
        The exit code.
    """
    from ckptflow.workflow.planning import plan_restart

    plan = plan_restart(name, site=site, store=store, layer=layer, on_change=on_change)
    document["plan"] = plan
    if not as_json:
        output.show(plan, lambda console: _print_plan(console, plan), as_json=False)
        sys.stdout.flush()
    code = int(ExitCode.OK)
    if start:
        outcome = _execute(
            plan.launch,
            name=name,
            site=site,
            store=store,
            layer=layer,
            on_change=on_change,
            as_json=as_json,
        )
        document["status"] = outcome.status
        document["run"] = outcome.summary.as_json() if outcome.summary else None
        code = _exit_code(outcome)
    if as_json:
        output.show(document, _nothing, as_json=True)
    return code


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
    from ckptflow.cli.demo import DemoResult, run_demo, tables

    try:
        result = run_demo(out, console=output.stderr(), site=site)
    except CheckpointError as error:
        result = DemoResult(out=out, failure=f"({error.kind}) {error}")

    def text(console: Console) -> None:
        for table in tables(result):
            if table.row_count:
                console.print(table)
        for line in _things_to_try(result):
            console.print(Text(line))
        console.print(Text(result.line))

    output.show(result, text, as_json=json_output)
    return ExitCode.OK if result.passed else ExitCode.FAILED


def _things_to_try(result: DemoResult) -> list[str]:
    """Return what to look at in what a demo has left, and with which commands."""
    out = result.out
    if not result.holdings:
        return []
    task = result.holdings[-1].task
    commands = (
        "ls", "ls disturbed/{task}", "diff undisturbed/{task} disturbed/{task}", "verify",
        "restart disturbed --dry-run", "export disturbed/{task} {task}.npz",
        "prune --keep 1 --dry-run",
    )  # fmt: skip
    store = shlex.quote(str(out / "store"))
    return [
        f"figures, results, logs and the store are in {out}; try",
        *(f"  {_program()} {line.format(task=task)} --store {store}" for line in commands),
    ]


def _program() -> str:
    """Return what a user has to type to get this command line."""
    if shutil.which("ckptflow"):
        return "ckptflow"
    started = sys.argv[0]
    return started if Path(started).name == "ckptflow" else "python -m ckptflow.cli"


def _execute(
    launch: Launch,
    *,
    name: str | None,
    site: str | None,
    store: str | None,
    layer: UserLayer,
    on_change: str | None,
    as_json: bool,
) -> Outcome:
    """Execute the script; what became of its run goes to stderr, whatever happened."""
    from ckptflow.workflow import script

    if site and Path(site).suffix == ".toml":
        site = str(Path(site).absolute())  # The script may have another current folder.
    console = output.stderr()
    with _stdout_to_stderr() if as_json else contextlib.nullcontext():
        outcome = script.execute(
            launch,
            name=name,
            site=site,
            store=store,
            layer=layer,
            on_change=on_change,
            on_summary=lambda summary: console.print(Text(str(summary))),
        )
    if outcome.message is not None:
        console.print(Text(outcome.message))
    return outcome


def _exit_code(outcome: Outcome) -> int:
    """Return the script's own status if it is not 0, or else how the run went."""
    if outcome.status or outcome.summary is None:
        return outcome.status
    return outcome.summary.exit_code


def _print_plan(console: Console, plan: RestartPlan) -> None:
    table = output.table("TASK", "ACTION", "FROM STEP", "WHY", numbers=("FROM STEP",))
    for task in plan.tasks:
        output.add_row(table, [task.task, task.action, task.resume_step, task.reason])
    console.print(table if plan.tasks else "no tasks were started yet")
    for text in plan.unseen:
        console.print(Text(text))
    console.print(Text(f"before: {plan.before}"))
    console.print(Text(f"now: {plan.now}"))
    launch = plan.launch
    line = " ".join([str(launch.script), *launch.arguments])
    console.print(Text(f"run {plan.run}: {line} (in {launch.folder})"))


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what the script and its programs print to stderr: stdout is for the document."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _nothing(_console: Console) -> None:
    pass
