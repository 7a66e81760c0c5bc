"""Kill a real workflow three times, and see it end with the bits of an undisturbed run.

The workflow runs as a user would start it: first undisturbed; then under another run name,
while a busy simulation and a busy training lose their worker to SIGKILL, and at last the main
process goes with everything it started. The same command then goes on. On a busy machine the
workflow may end before a kill has found its victim; then it is disturbed once more, from the
beginning. A task that did not resume at its newest checkpoint, or one differing bit, makes the
demo fail; so does a workflow that ends too early each time. ``tests/process/test_demo.py`` runs
all of it.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

import ckptflow
from ckptflow.cli.disturb import Execution, Loss, NoVictim, Workload, resumed_step
from ckptflow.errors import CheckpointError, ConfigError, NotFoundError, WorkflowError
from ckptflow.site import load_site
from ckptflow.site.finding import find_site
from ckptflow.store.catalog import Lineage
from ckptflow.units import format_bytes, format_seconds

SCRIPT = "sim_train_analyse.py"
RESULT = "result.json"
FIGURES = ("patterns.png", "training.png")
NEEDED = ("sklearn", "matplotlib")
UNDISTURBED, DISTURBED = "undisturbed", "disturbed"
DISTURBANCES_MAX = 3  # Of one demo, where the workflow ends before it could be killed.
MARK = "ckptflow-demo.json"
"""A folder with this file in it is an earlier demo's, which may be replaced."""

_Say = Callable[[str], None]
_Play = Callable[[Execution, _Say], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the store holds of one task, and what full copies would take."""

    task: str
    checkpoints: int
    full_bytes: int
    stored_bytes: int


@dataclass(slots=True, kw_only=True)
class DemoResult:
    """What the demo saw; ``failure`` says why it is no success, if it is none."""

    out: Path
    kills: int = 0
    resumed: int = 0
    bit_identical: bool = False
    losses: list[Loss] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)
    undisturbed_s: float = 0.0
    disturbed_s: float = 0.0
    failure: str | None = None

    @property
    def passed(self) -> bool:
        """Whether all kills were done, all tasks resumed, and all bits agree."""
        return self.failure is None

    @property
    def stored_ratio(self) -> float:
        """Bytes that full copies would take, over bytes stored."""
        stored = sum(holding.stored_bytes for holding in self.holdings)
        return sum(holding.full_bytes for holding in self.holdings) / max(1, stored)

    @property
    def line(self) -> str:
        """The one line that says how it ended."""
        if self.failure is not None:
            return f"demo: FAIL {self.failure}"
        return (
            f"demo: PASS kills={self.kills} resumed={self.resumed} "
            f"bit_identical={str(self.bit_identical).lower()} "
            f"stored_ratio={self.stored_ratio:.2f}"
        )


def run_demo(
    out: Path, *, console: Console, work: Workload | None = None, site: str = "local"
) -> DemoResult:
    """Run the workflow undisturbed and disturbed below ``out``; compare the results.

    Args:
        out: folder for figures, results, logs and the store; an earlier demo's is replaced.
        console: told what happens, when it happens.
        work: how much work the workflow does.
        site: name of a site, or its TOML file; its workers must run on this machine.

    Raises:
        ConfigError: ``out`` holds something else than an earlier demo, a package that the
            workflow needs is not installed, or the site has no workers that could be killed.
        NotFoundError: the workflow script is not installed.
    """
    script, place, work = workflow_script(), _site_file(site), work or Workload()
    out = _fresh_folder(out)
    result = DemoResult(out=out)
    quiet, shaken = (
        Execution(script, run, out, work, place) for run in (UNDISTURBED, DISTURBED)
    )
    try:
        console.print(f"{UNDISTURBED}: the workflow runs and is left alone", highlight=False)
        result.undisturbed_s = _timed(quiet, console, _leave_alone)
        console.print(f"{DISTURBED}: the same workflow, killed three times", highlight=False)
        result.disturbed_s = _timed(shaken, console, _disturb)
        _judge(result, quiet, shaken)
    except CheckpointError as error:
        result.failure = f"({error.kind}) {str(error).splitlines()[0]}"
    finally:
        quiet.kill_all()
        shaken.kill_all()
    return result


def workflow_script() -> Path:
    """Return the path of the example workflow: in the source tree, or where wheels put it.

    Raises:
        ConfigError: a package that the workflow needs is not installed.
        NotFoundError: the script is in neither place.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The example workflow needs {' and '.join(missing)}; install ckptflow[demo]."
        )
    folders = [
        Path(ckptflow.__file__).resolve().parent.parent / "workflows",
        Path(sysconfig.get_path("data")) / "share" / "ckptflow" / "workflows",
    ]
    for folder in folders:
        if (folder / SCRIPT).is_file():
            return folder / SCRIPT
    raise NotFoundError(
        f"The example workflow {SCRIPT} is neither in {folders[0]} nor in {folders[1]}. "
        f"Install ckptflow again."
    )


def tables(result: DemoResult) -> Iterator[Table]:
    """Yield what each kill cost, and what the store holds."""
    losses = Table(title="What each kill cost", title_justify="left")
    for name in ("kill", "victim", "task", "newest checkpoint", "work lost", "resumed at"):
        losses.add_column(name, justify="left" if name in {"victim", "task"} else "right")
    for loss in result.losses:
        losses.add_row(
            str(loss.kill),
            loss.victim,
            loss.task,
            f"step {loss.newest.step}",
            format_seconds(loss.lost_s),
            "never" if loss.resumed_step is None else f"step {loss.resumed_step}",
        )
    yield losses
    holdings = Table(title=f"What the store holds of {DISTURBED!r}", title_justify="left")
    for name in ("task", "checkpoints", "as full copies", "stored", "ratio"):
        holdings.add_column(name, justify="left" if name == "task" else "right")
    for held in result.holdings:
        holdings.add_row(
            held.task,
            str(held.checkpoints),
            format_bytes(held.full_bytes),
            format_bytes(held.stored_bytes),
            f"{held.full_bytes / max(1, held.stored_bytes):.2f}",
        )
    yield holdings


def _timed(execution: Execution, console: Console, play: _Play) -> float:
    """Play one run; return how many seconds it took."""
    started = time.monotonic()
    play(execution, lambda text: console.print(f"  {text}", highlight=False))
    duration_s = time.monotonic() - started
    console.print(f"  finished after {format_seconds(duration_s)}", highlight=False)
    return duration_s


def _leave_alone(execution: Execution, _say: _Say) -> None:
    execution.start()
    execution.wait()


def _disturb(execution: Execution, say: _Say) -> None:
    for left in reversed(range(DISTURBANCES_MAX)):
        try:
            _kill_three_times(execution, say)
        except NoVictim as error:
            if not left:
                raise
            say(f"{error}; once more from the beginning")
            execution.forget()
        else:
            return


def _kill_three_times(execution: Execution, say: _Say) -> None:
    execution.start()
    for kill in (
        partial(execution.kill_worker, "simulate", done=0.3),
        partial(execution.kill_worker, "train", done=0.2),
        partial(execution.kill_main, "train", done=0.2),
    ):
        losses = kill()
        newest = ", ".join(f"{loss.task} step {loss.newest.step}" for loss in losses)
        say(f"kill {execution.kills}: SIGKILL to {losses[0].victim}; committed: {newest}")
    say("the same command again")
    execution.start()
    execution.wait()


def _judge(result: DemoResult, quiet: Execution, shaken: Execution) -> None:
    """Complete the result from the store and the two result files.

    Raises:
        WorkflowError: something is not as it has to be.
    """
    tasks = shaken.tasks()
    result.kills, result.losses = shaken.kills, shaken.final_losses()
    result.resumed = sum(
        resumed_step(record) is not None for task in tasks for record in task.attempts()
    )
    result.holdings = [held for task in tasks if (held := _holding(task)).checkpoints]
    for loss in result.losses:
        if loss.resumed_step != loss.newest.step:
            raise WorkflowError(
                f"{loss.task} resumed at step {loss.resumed_step}, though step "
                f"{loss.newest.step} was committed when kill {loss.kill} struck"
            )
    ours, theirs = quiet.folder / RESULT, shaken.folder / RESULT
    result.bit_identical = ours.read_bytes() == theirs.read_bytes()
    if not result.bit_identical:
        raise WorkflowError(f"bit_identical=false: {ours} and {theirs} differ")


def _holding(task: Lineage) -> Holding:
    tier = task.fence_tier
    manifests = [task.manifest(found) for found in task.checkpoints()]
    return Holding(
        task=task.id.task,
        checkpoints=len(manifests),
        full_bytes=sum(manifest.state_bytes for manifest in manifests),
        stored_bytes=sum(tier.size(key) for key in tier.iter_keys(task.id.prefix)),
    )


def _site_file(site: str) -> Path:
    """Return the site's file, absolute: the workflow runs in another folder than this one."""
    file = find_site(site)
    kind = load_site(file).executor.kind
    if kind != "htex":
        raise ConfigError(
            f"The demo kills workers, and site {site!r} has none: its tasks are {kind}. "
            f"Take a site whose executor is htex, such as 'local'."
        )
    return file


def _fresh_folder(out: Path) -> Path:
    out = out.resolve()
    if out.is_dir() and any(out.iterdir()):
        if not (out / MARK).is_file():
            raise ConfigError(
                f"{out} holds something else than an earlier demo. Name another folder, "
                f"or empty it."
            )
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text(json.dumps({"ckptflow": "demo", "version": ckptflow.__version__}))
    return out
