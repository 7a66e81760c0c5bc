"""Bash apps: the command runs with its attempt in the environment, and a program can attach.

The shell gets ``CKPTFLOW_ATTEMPT``. A Python program in the command calls `attach` and has a
`Checkpointer` for the same attempt: it restores and saves like a Python app does, and what came
of it goes back through a file, as the exit status says too little.

A stop signal meets the worker, not the command, so it is passed on, to those of the command's
programs that have a handler for it; others would die of it.

``tests/process/test_parsl_htex.py`` and ``tests/process/test_attach.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from parsl.app.bash import remote_side_bash_executor
from parsl.app.errors import BashExitFailure

from ckptflow.errors import ConfigError, Preempted
from ckptflow.flush import Flushing
from ckptflow.workflow.attempt import (
    Attempt,
    TaskFunction,
    TaskSpec,
    finish,
    opened_tiers,
    outcome,
)
from ckptflow.workflow.blocks.board import presence
from ckptflow.workflow.blocks.processes import handles
from ckptflow.workflow.deadline import (
    ALLOCATION,
    Deadline,
    StopSignals,
    StopWatch,
    stop_signals,
)
from ckptflow.workflow.identity import CKPT
from ckptflow.workflow.outcomes import PREEMPTED_STATUS
from ckptflow.workflow.trail import TellingCheckpointer, Trail

ATTEMPT = "CKPTFLOW_ATTEMPT"
REPORT = "CKPTFLOW_REPORT"

_POLL_S = 0.2


class TaskCommand(TaskFunction):
    """The function of a bash app as the worker calls it: makes the command, and runs it."""

    __slots__ = ()

    def _run(
        self,
        spec: TaskSpec,
        attempt: Attempt | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if attempt is None:
            return remote_side_bash_executor(self._function, *args, **kwargs)
        with tempfile.TemporaryDirectory(prefix="ckptflow-") as folder:
            report = Path(folder) / "report.jsonl"
            exports = _exports(spec, attempt, report)

            def command_line(*args: Any, **kwargs: Any) -> Any:
                command = self._function(*args, **{**kwargs, CKPT: attempt.checkpointer})
                return exports + command if isinstance(command, str) else command

            command_line.__name__ = self._function.__name__
            try:
                with _signals_passed_on(attempt.watch, report):
                    return remote_side_bash_executor(command_line, *args, **kwargs)
            except BashExitFailure as error:
                preempted = _preempted(report)
                if preempted is None:
                    raise
                raise preempted from error
            finally:
                attempt.reports += _read_reports(report)


class AttachedCheckpointer(TellingCheckpointer):
    """A checkpointer for the attempt of the bash app that runs this program.

    Closing it tells the app what came of it. Leave it as a context manager, or call `close`.
    """

    def __init__(
        self, fields: Mapping[str, Any], report: Path, objects: Mapping[str, Any]
    ) -> None:
        self._signals, self._report_path = StopSignals(), report
        self.trail = Trail(fields.get("trail"))
        deadline = Deadline(fields["ends_at_s"], fields["margin_s"], fields["ends"])
        here = presence()
        watch = StopWatch(
            self._signals,
            Deadline(),
            lambda: self.save_time_s,
            board=here.board if here else None,
        )
        of_block = deadline.what == ALLOCATION
        watch.set_ends(
            Deadline() if of_block else deadline,
            deadline if of_block else Deadline(),
            deadline.margin_s,
        )
        self._signals.__enter__()
        super().__init__(
            opened_tiers(fields["tiers"]),
            run=fields["run"],
            task=fields["task"],
            attempt=fields["attempt"],
            every=fields["every"],
            keep=fields["keep"],
            packing=fields["packing"],
            capture=fields["capture"],
            flush_every=fields["flush_every"],
            flushing=Flushing(**fields["flushing"]),
            stop=watch,
            **objects,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(error)
        if isinstance(error, Preempted):
            # What is saved is safe; the status tells the shell that this was no failure.
            sys.stderr.write(f"{error}\n")
            raise SystemExit(PREEMPTED_STATUS) from error

    def close(self) -> None:
        """Finish what is being written, and tell the bash app what came of it."""
        self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        fenced = finish(self)
        self.tell_last_step()
        self._signals.__exit__()
        record = outcome(self, error or fenced)
        if isinstance(error, Preempted):
            record["preempted"] = {
                "message": str(error),
                "task": error.task,
                "step": error.step,
                "resumed_step": error.resumed_step,
            }
        with self._report_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if fenced is not None and error is None:
            raise fenced


def attach(**objects: Any) -> AttachedCheckpointer:
    """Return a checkpointer for the attempt of the bash app that runs this program.

    Use it as a context manager::

        with ckptflow.attach() as ckpt:
            state = ckpt.restore({"step": 0, "x": np.zeros(1000)})
            ...

    When the task has to stop, `Checkpointer.step` saves and raises `Preempted`, which leaves
    the block as exit status 75; the app then stops in the same way.

    Args:
        objects: the state, by name, when `save` gets none.

    Raises:
        ConfigError: this program was not started by a bash app that has a ``ckpt`` parameter.
    """
    text, report = os.environ.get(ATTEMPT), os.environ.get(REPORT)
    if not text or not report:
        raise ConfigError(
            "attach() works in a program that a ckptflow.bash_app with a parameter `ckpt` has "
            "started; elsewhere use ckptflow.Checkpointer(store, run=..., task=...)."
        )
    return AttachedCheckpointer(json.loads(text), Path(report), objects)


def _exports(spec: TaskSpec, attempt: Attempt, report: Path) -> str:
    """Return shell lines that put the attempt into the environment of the command."""
    number = attempt.checkpointer.attempt  # Claims it, and with that settles the deadline.
    deadline = attempt.watch.deadline
    fields = {
        **attempt_fields(spec, task=attempt.checkpointer.task, attempt=number),
        "ends_at_s": deadline.ends_at_s,
        "margin_s": deadline.margin_s,
        "ends": deadline.what,
    }
    return (
        f"export {ATTEMPT}={shlex.quote(json.dumps(fields))}\n"
        f"export {REPORT}={shlex.quote(str(report))}\n"
        # The shell must outlive a signal that is meant for the program it runs.
        f"trap '' USR1 USR2\n"
    )


def attempt_fields(spec: TaskSpec, *, task: str, attempt: int) -> dict[str, Any]:
    """Return what another process has to know to save for an attempt, as JSON-like values."""
    return {
        "run": spec.run,
        "task": task,
        "attempt": attempt,
        "tiers": spec.tiers,
        "every": _plain(spec.every),
        "keep": _plain(spec.keep),
        "packing": _plain(spec.packing),
        "capture": spec.capture if isinstance(spec.capture, str | None) else dict(spec.capture),
        "flush_every": dict(spec.flush_every),
        "flushing": asdict(spec.flushing),
        "trail": spec.trail,
    }


def _plain(policy: object) -> object:
    """Return a policy in its short form; all of them have one."""
    if isinstance(policy, Mapping):  # One for each of some tiers.
        return {name: _plain(one) for name, one in policy.items()}
    return policy if policy is None or isinstance(policy, str | int) else str(policy)


def _read_reports(report: Path) -> list[dict[str, Any]]:
    try:
        lines = report.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # Its writer was killed within the line.
            found.append(json.loads(line))
    return found


def _preempted(report: Path) -> Preempted | None:
    fields = [one["preempted"] for one in _read_reports(report) if "preempted" in one]
    if not fields:
        return None
    last = fields[-1]
    return Preempted(
        last["message"], task=last["task"], step=last["step"], resumed_step=last["resumed_step"]
    )


@contextmanager
def _signals_passed_on(watch: StopWatch, report: Path) -> Iterator[None]:
    """While entered, tell the command's programs when the watch says stop. Once."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(_POLL_S):
            if watch():
                for process in _programs(report):
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(_passed_on())
                return

    thread = threading.Thread(target=work, name="ckptflow-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _programs(report: Path) -> Iterator[psutil.Process]:
    """Yield this process's descendants that belong to the command and handle the signal."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            ours = process.environ().get(REPORT) == str(report)
            if ours and handles(process.pid, _passed_on()):
                yield process


def _passed_on() -> signal.Signals:
    """Return the stop signal that programs get: not TERM, if there is another."""
    return stop_signals(os.environ)[-1]
