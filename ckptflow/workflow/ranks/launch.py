"""Apps with ranks, as the worker calls them: claim, start the ranks, see how it ends.

The attempt is claimed once, here, and its ranks join it. A Python app's ranks each call the
function; a bash app's are started by its command, and attach themselves. Whatever way a launch
ends, no rank is left when the task has: the next try may begin at once.

``tests/process/test_ranked_tasks.py``, ``tests/slurm/test_ranks_on_slurm.py``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import dill  # type: ignore[import-untyped]
from parsl.app.bash import remote_side_bash_executor
from parsl.app.errors import BashExitFailure

from ckptflow.checkpointer import CheckpointWarning
from ckptflow.errors import CheckpointError, FencedError, Preempted, RankLost
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.sharding.launch import claim
from ckptflow.workflow.attempt import (
    TaskFunction,
    TaskSpec,
    block_of_worker,
    own_end,
)
from ckptflow.workflow.blocks.board import presence
from ckptflow.workflow.command import attempt_fields
from ckptflow.workflow.deadline import Deadline, StopSignals, StopWatch, allocation_in
from ckptflow.workflow.identity import CKPT
from ckptflow.workflow.outcomes import opened_tiers, outcome_of
from ckptflow.workflow.portable import unsealed_error, unsealed_result
from ckptflow.workflow.ranks.events import Ending, first_failure, lost, record_of, stopped
from ckptflow.workflow.ranks.launchers import command, hosts_in
from ckptflow.workflow.ranks.options import Ranks
from ckptflow.workflow.ranks.steward import Steward
from ckptflow.workflow.ranks.wire import STEWARD
from ckptflow.workflow.trail import TOLD_AT_END, Trail

GONE_S = 15.0  # For ranks to end that were told to, and for what started them.

_PRINTED_CHARS = 2000
_BYTES_AT_ONCE = 1 << 16


@dataclass(slots=True)
class Launch:
    """The ranks of one attempt; what the function of a bash app with ranks has as ``ckpt``.

    Attributes:
        ranks: how many.
        nodes: on how many nodes.
        hosts: which nodes, where Parsl has chosen them.
        attempt: number of the attempt; 0 if the app has no ``ckpt``.
        launch: a command that starts ``ranks`` copies of the command that follows it.
    """

    ranks: int
    nodes: int
    hosts: tuple[str, ...]
    attempt: int
    launch: str


@dataclass(slots=True)
class _Held:
    """A launch while its task runs."""

    spec: TaskSpec
    ranks: Ranks
    task: str
    attempt: int
    steward: Steward

    @property
    def words(self) -> list[str]:
        """The command that starts the ranks."""
        assert self.ranks.launcher is not None, "the site has said it"
        return command(
            self.ranks.launcher,
            ranks=self.ranks.ranks,
            nodes=self.ranks.nodes,
            hosts=hosts_in(os.environ),
            options=self.ranks.options,
            environ=os.environ,
        )


class RankedFunction(TaskFunction):
    """The function of a Python app with ranks: each rank calls it."""

    __slots__ = ()

    def _attempted(self, spec: TaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ranks = _ranks_of(spec)
        options = {"replicated": ranks.replicated, "per_rank": ranks.per_rank}
        data = bytes(dill.dumps((self.packed(), args, kwargs, options)))
        with _held(self, spec, args, kwargs, data) as held:
            status, printed = _run(held)
            return _value(held, status, printed)


class RankedCommand(TaskFunction):
    """The function of a bash app with ranks: its command starts them."""

    __slots__ = ()

    def _attempted(self, spec: TaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ranks = _ranks_of(spec)
        with (
            _held(self, spec, args, kwargs) as held,
            tempfile.TemporaryDirectory(prefix="ckptflow-") as folder,
        ):
            prefix = shlex.join(held.words)
            told = Launch(
                ranks.ranks, ranks.nodes, tuple(hosts_in(os.environ)), held.attempt, prefix
            )
            exports = _exports(held, prefix, Path(folder))
            mine = {CKPT: told} if self.wants_checkpointer else {}

            def command_line(*args: Any, **kwargs: Any) -> Any:
                line = self._function(*args, **{**kwargs, **mine})
                return exports + line if isinstance(line, str) else line

            command_line.__name__ = self._function.__name__
            try:
                value = remote_side_bash_executor(command_line, *args, **kwargs)
            except BashExitFailure as error:
                if (meaning := _meaning(held, error)) is error:
                    raise
                raise meaning from error
            if (early := stopped(held.task, ranks.ranks, held.steward.endings)) is not None:
                raise early
            return value


def _ranks_of(spec: TaskSpec) -> Ranks:
    assert spec.ranks is not None, "an app with ranks sends them along"
    return spec.ranks


@contextmanager
def _held(
    function: TaskFunction,
    spec: TaskSpec,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    data: bytes = b"",
) -> Iterator[_Held]:
    """Hold the attempt of a launch, and its steward; afterwards say in the store how it ended.

    Without a ``ckpt`` there is no attempt, and a stop signal does what it did before.
    """
    began_s, signals, ranks = time.time(), StopSignals(), _ranks_of(spec)
    here, trail = presence(), Trail(spec.trail)
    watch = StopWatch(signals, Deadline(), board=here.board if here else None)
    welcome: dict[str, Any] = {"app": function.name, "ckpt": CKPT}
    task, number, lineage = function.name, 0, None
    if function.wants_checkpointer:
        task = function.task_name(args, kwargs)
        lineage = Lineage(opened_tiers(spec.tiers), LineageId(spec.run, task))
        token = secrets.token_hex(12)
        number = claim(lineage, ranks.ranks, token)
        fields = attempt_fields(spec, task=task, attempt=number)
        welcome["attempt"] = {**fields, "launch": token}
        allocation = allocation_in(os.environ, spec.margin_s)
        own = own_end(spec, began_s, kwargs.get("walltime"))
        watch.set_ends(own, allocation, spec.margin_s)
        signals.__enter__()
        trail.tell_began(task=task, attempt=number)
    near = ranks.launcher == "processes"
    steward = Steward(ranks.ranks, welcome, data, stop=watch, near=near)
    watch.save_time_s = lambda: steward.save_s
    error: BaseException | None = None
    try:
        with steward:
            yield _Held(spec, ranks, task, number, steward)
    except BaseException as failure:
        error = failure
        if isinstance(failure, Preempted) and watch.block_ends():
            failure.block = block_of_worker()
        raise
    finally:
        signals.__exit__()
        if lineage is not None:
            _record_end(spec, lineage, steward, steward.attempt or number, error)


def _record_end(
    spec: TaskSpec,
    lineage: Lineage,
    steward: Steward,
    number: int,
    error: BaseException | None,
) -> None:
    """Put how a launch ended beside the claim of its attempt."""
    record = {
        "session": spec.session,
        **outcome_of(error),
        **record_of(steward.endings, error),
        "ranks": steward.world,
    }
    told = {name: record.get(name) for name in TOLD_AT_END}
    trail = Trail(spec.trail)
    trail.tell("attempt-ended", task=lineage.id.task, attempt=number, **told)
    trail.settle()
    try:
        lineage.record_end(number, record)
    except CheckpointError as failure:
        text = f"How attempt {number} of {lineage.id.task} ended is not recorded"
        warnings.warn(f"{text}: {failure}", CheckpointWarning, stacklevel=2)


# --- Python apps ---


def _run(held: _Held) -> tuple[int, str]:
    """Start the ranks and wait for them; return the status, and the last that they printed."""
    words = [*held.words, sys.executable, "-m", "ckptflow.workflow.ranks.program"]
    process = subprocess.Popen(
        words,
        env={**os.environ, STEWARD: held.steward.where.as_text()},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    printed = _Passing(process.stderr)
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
            if held.steward.over is not None and held.steward.wait_gone(GONE_S):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GONE_S)
                break
    finally:
        _end(process)
        held.steward.end(f"what has started it {_said(process.returncode)}")
        held.steward.wait_gone(GONE_S)
        printed.close()
    return process.returncode, printed.text


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher that is left over, and what it has started on this node."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GONE_S)


def _said(status: int | None) -> str:
    return "has ended" if not status or status > 0 else f"was killed by signal {-status}"


class _Passing:
    """Passes on what a process prints, and keeps the end of it for messages."""

    def __init__(self, source: IO[bytes] | None) -> None:
        assert source is not None, "it was asked for"
        self._source, self._tail = source, b""
        self._thread = threading.Thread(target=self._work, name="ckptflow-stderr", daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        """The end of what was printed."""
        return self._tail.decode(errors="replace")[-_PRINTED_CHARS:]

    def close(self) -> None:
        """Wait until nothing more comes; a process that was left behind does not hold it up."""
        self._thread.join(1.0)

    def _work(self) -> None:
        with self._source:
            while piece := os.read(self._source.fileno(), _BYTES_AT_ONCE):
                self._tail = (self._tail + piece)[-_BYTES_AT_ONCE:]
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(piece.decode(errors="replace"))
                    sys.stderr.flush()


def _value(held: _Held, status: int, printed: str) -> Any:
    """Return what rank 0 has, or raise what became of the launch instead."""
    endings, world = held.steward.endings, held.ranks.ranks
    died = lost(held.task, world, endings, status=status, printed=printed)
    if died is not None:
        raise _with_reason(died, held.steward.over, endings)
    if (failed := first_failure(endings)) is not None:
        raise unsealed_error(failed.data, here=held.spec.is_home)
    if (early := stopped(held.task, world, endings)) is not None:
        raise early
    data = next(one.data for one in endings if one.rank == 0)
    return unsealed_result(data, here=held.spec.is_home)


def _with_reason(error: RankLost, over: str | None, endings: list[Ending]) -> RankLost:
    if over is not None and first_failure(endings) is None:
        error.add_note(f"Its ranks were told to end: {over}.")
    return error


# --- bash apps ---


def _exports(held: _Held, prefix: str, folder: Path) -> str:
    """Return shell lines that tell the command's ranks where their steward is.

    By way of a file that nobody else can read: what the shell runs may be printed.
    """
    path = folder / "environment"
    path.touch(mode=0o600)
    path.write_text(
        f"export {STEWARD}={shlex.quote(held.steward.where.as_text())}\n"
        f"export PARSL_MPI_PREFIX={shlex.quote(prefix)}\n",
        encoding="utf-8",
    )
    # The shell must outlive a signal that is meant for the program it runs.
    return f". {shlex.quote(str(path))}\ntrap '' USR1 USR2\n"


def _meaning(held: _Held, failed: Exception) -> Exception:
    """Return what the failure of a command means, from how its ranks ended."""
    held.steward.end("the command has ended")
    held.steward.wait_gone(GONE_S)
    endings, world = held.steward.endings, held.ranks.ranks
    fenced = [one for one in endings if one.record.get("outcome") == "fenced"]
    if fenced:
        return FencedError(str(fenced[0].record.get("error")))
    if (died := lost(held.task, world, endings, status=None)) is not None:
        return died
    if (early := stopped(held.task, world, endings)) is not None and not _raised(endings):
        return early
    for one in endings:
        if one.kind == "raised":
            failed.add_note(f"rank {one.rank} of {world}: {one.record.get('error')}")
    return failed


def _raised(endings: list[Ending]) -> bool:
    return any(one.kind == "raised" for one in endings)
