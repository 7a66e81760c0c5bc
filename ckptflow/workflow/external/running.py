"""One attempt of a code that writes restart files of its own, from folder to outcome.

The folder is taken over and made ready; the command runs there; one thread takes files in,
another one watches the time. When the command is over, so is everything it has started, and
the last file is taken in: what is in the store then is what the next attempt begins with.
``tests/process/test_external.py``.
"""

from __future__ import annotations

import logging
import os
import shlex
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from parsl.app.bash import remote_side_bash_executor
from parsl.app.errors import BashExitFailure

from ckptflow.checkpointer import CheckpointWarning
from ckptflow.checkpointer.endings import preempted
from ckptflow.errors import ConfigError, FencedError
from ckptflow.workflow.external import processes
from ckptflow.workflow.external.folder import WorkFolder, take_over
from ckptflow.workflow.external.handle import CodeTask
from ckptflow.workflow.external.intake import Intake
from ckptflow.workflow.external.judge import Ending
from ckptflow.workflow.external.notices import Happened, Notices
from ckptflow.workflow.external.options import Code
from ckptflow.workflow.external.starting import Start, make_ready
from ckptflow.workflow.external.stopping import Stopper
from ckptflow.workflow.identity import CKPT

if TYPE_CHECKING:
    from ckptflow.workflow.attempt import Attempt

_POLL_MAX_S, _POLL_MIN_S = 0.5, 0.05
_SHOWN_BYTES = 1000
_log = logging.getLogger("ckptflow")

Function = Callable[..., Any]


def run_code(
    function: Function,
    code: Code,
    attempt: Attempt,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run one attempt; return what Parsl's own bash apps return.

    Raises:
        Preempted: it had to stop, and goes on from what it wrote.
        FencedError: a newer attempt has taken over.
        ConfigError: the folder or the command cannot be right.
        BashExitFailure: the command failed.
        And what restoring raises.
    """
    checkpointer = attempt.checkpointer
    number = checkpointer.attempt  # Claims it, and with that settles the deadline.
    place = place_of(code, run=checkpointer.run, task=checkpointer.task)
    folder = take_over(place, str(checkpointer.lineage.id), number)
    mark = processes.mark_of(folder.path, number)
    try:
        start = make_ready(code, checkpointer, folder)
        return _Execution(function, code, attempt, folder, start).run(args, kwargs)
    finally:
        processes.end(lambda found: found == mark)
        folder.write(replace(folder.record, ended=True))


def place_of(code: Code, *, run: str, task: str) -> Path:
    """Return the folder of a task, on this node.

    Raises:
        ConfigError: a variable in it is not set here.
    """
    if code.folder is None:
        return Path(code.work) / task
    text = os.path.expandvars(code.folder)
    if "$" in text:
        raise ConfigError(
            f"folder={code.folder!r} has a variable that is not set here: {text}."
        )
    text = text.replace("{run}", run).replace("{task}", task)
    return Path(text).expanduser().absolute()


class _Execution:
    """The command of one attempt, while it runs and when it is over."""

    def __init__(
        self,
        function: Function,
        code: Code,
        attempt: Attempt,
        folder: WorkFolder,
        start: Start,
    ) -> None:
        self._function, self._code, self._attempt = function, code, attempt
        self._folder, self._start = folder, start
        self._checkpointer = attempt.checkpointer
        self._stopper = Stopper(code, attempt.watch, folder)
        self._intake = Intake(code, self._checkpointer, folder)
        self._failure: BashExitFailure | None = None

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the command, take in what it wrote, and say how it ended."""
        ending, value = Ending.BADLY, None
        with _Taker(self._code, self._folder, self._intake, self._stopper.kill) as taker:
            try:
                value = self._command(args, kwargs)
                ending = Ending.WELL
            except BashExitFailure as error:
                self._failure = error
            finally:
                self._stopper.leave()
                processes.end(lambda mark: mark == self._mark)
                taker.finish(ending)
                self._report(taker, ending)
        if taker.fenced is not None:
            raise taker.fenced
        if self._stopper.reason is not None:
            raise self._preempted() from self._failure
        if self._failure is not None:
            self._failure.add_note(self._said())
            raise self._failure
        return value

    @property
    def _mark(self) -> str:
        return processes.mark_of(self._folder.path, self._folder.attempt)

    def _command(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        task = CodeTask(
            run=self._checkpointer.run,
            task=self._checkpointer.task,
            attempt=self._folder.attempt,
            folder=self._folder.path,
            name=self._start.name,
            step=self._start.step,
            template=self._code.restart_arg,
        )
        with processes.Lifeline() as lifeline, self._stopper:

            def command_line(*args: Any, **kwargs: Any) -> Any:
                command = self._function(*args, **{**kwargs, CKPT: task})
                if not isinstance(command, str):
                    return command
                task.check_used(command)
                return self._script(command, task, lifeline, kwargs)

            command_line.__name__ = self._function.__name__
            return remote_side_bash_executor(command_line, *args, **kwargs)

    def _script(
        self,
        command: str,
        task: CodeTask,
        lifeline: processes.Lifeline,
        kwargs: dict[str, Any],
    ) -> str:
        """Write the command into a file, and return the line that runs it in its folder."""
        own = self._folder.own
        file = own / "command.sh"
        file.write_text(
            lifeline.script
            # The shell must outlive what is meant for the code. USR1 and USR2 are warnings of
            # schedulers, and would kill a code that does not know them.
            + "trap '' USR1 USR2\ntrap : TERM INT HUP\n"
            + processes.exports(task.variables(self._code.stop_file))
            + f"{command}\n",
            encoding="utf-8",
        )
        outputs = [
            f"{sign} {shlex.quote(str(own / name))}"
            for name, sign in (("stdout", ">"), ("stderr", "2>"))
            if kwargs.get(name) is None
        ]
        return (
            f"cd {shlex.quote(str(self._folder.path))} || exit 1\n"
            f"export {processes.MARK}={shlex.quote(self._mark)}\n"
            f"exec setsid /bin/bash {shlex.quote(str(file))} {' '.join(outputs)} </dev/null\n"
        )

    def _said(self) -> str:
        """Return where the output of the command is, and the end of what it complained of."""
        file = self._folder.own / "stderr"
        try:
            with file.open("rb") as output:
                output.seek(max(0, file.stat().st_size - _SHOWN_BYTES))
                text = output.read().decode(errors="replace").strip()
        except OSError:
            text = ""
        return f"It ran in {self._folder.path}; its output is in {self._folder.own}. {text}"

    def _preempted(self) -> Exception:
        last = self._checkpointer.last_step
        how = "was killed" if self._stopper.was_killed else "has ended"
        return preempted(
            self._checkpointer.lineage.id,
            -1 if last is None else last,
            f"{self._stopper.reason}; the command {how}",
            saved=[] if last is None else [last],
            resumed_step=self._checkpointer.restored_step,
            failure=None,
        )

    def _report(self, taker: _Taker, ending: Ending) -> None:
        """Hand on what went wrong, so that the summary of the run has it."""
        failures = [*self._start.failures, *self._intake.failures, *self._stopper.failures]
        failures += taker.failures
        refused = self._intake.refused
        if refused is not None and ending is Ending.WELL:
            failures.append(refused)
        if failures:
            self._attempt.reports.append({"failures": failures})
        never = self._start.name is None and not self._intake.taken
        if ending is Ending.WELL and never and refused is None:
            warnings.warn(
                f"{self._checkpointer.task} has ended, and no file matched "
                f"watch={self._code.watch!r} in {self._folder.path}: it had no checkpoints.",
                CheckpointWarning,
                stacklevel=2,
            )


class _Taker:
    """The thread that takes files in while the command runs; use it as a context manager.

    Attributes:
        fenced: set if a newer attempt has taken over; the command is killed then.
        failures: what ended the thread otherwise, in sentences.
    """

    def __init__(
        self, code: Code, folder: WorkFolder, intake: Intake, kill: Callable[[], None]
    ) -> None:
        self._intake, self._kill = intake, kill
        self._poll_s = min(_POLL_MAX_S, max(_POLL_MIN_S, code.stable_s / 2))
        self._notices = Notices(folder.path / code.watched.folder)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ckptflow-intake", daemon=True)
        self.fenced: FencedError | None = None
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()
        self._notices.close()

    def finish(self, ending: Ending) -> None:
        """Take in the last file, now that the command is over."""
        self._stop()
        if self.fenced is None:
            self._guarded(lambda: self._look(self._notices.wait(0), ending))

    def _stop(self) -> None:
        self._over.set()
        self._notices.wake()
        self._thread.join()

    def _work(self) -> None:
        self._guarded(self._watch)

    def _watch(self) -> None:
        while not self._over.is_set():
            happened = self._notices.wait(self._poll_s)
            if self._over.is_set():
                self._intake.note(happened)
                return
            self._look(happened, Ending.RUNNING)

    def _look(self, happened: Happened, ending: Ending) -> None:
        self._intake.note(happened)
        self._intake.look(ending)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except FencedError as error:
            self.fenced = error
            self._kill()
        except Exception as error:  # noqa: BLE001  The thread ends here; the caller is told.
            self.failures.append(f"Taking files in ended: {type(error).__name__}: {error}")
            _log.exception("Taking files in ended.")
