"""Asks a code to end when its task has to stop, and kills it when it does not.

Asking is a file that appears, or a signal to those processes of the command that handle it.
The code writes its last restart file then, which takes time: so it is asked early
enough, and whatever is not over after `grace_s`, or when the allocation leaves no more time
than a save takes, is killed. ``tests/process/test_external.py``.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ckptflow.workflow.deadline import SAVE_TIME_FACTOR, StopWatch
from ckptflow.workflow.external import processes
from ckptflow.workflow.external.folder import WorkFolder
from ckptflow.workflow.external.options import Code

_POLL_S = 0.1
_ON_ITS_WAY_S = 0.25  # A signal that was sent already may wait for a thread that gets to run.
_log = logging.getLogger("ckptflow")


class Stopper:
    """Watches the time of an attempt while its command runs; use it as a context manager.

    Args:
        code: how it can be asked.
        watch: says whether to stop.
        folder: of the attempt.
        clock: returns seconds.

    Attributes:
        reason: why the command was asked to end, or killed; ``None`` if it was not.
        was_killed: whether it was.
        failures: what went wrong with it, in sentences.
    """

    def __init__(
        self,
        code: Code,
        watch: StopWatch,
        folder: WorkFolder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._code, self._watch, self._folder, self._clock = code, watch, folder, clock
        self._mark = processes.mark_of(folder.path, folder.attempt)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ckptflow-stop", daemon=True)
        self.reason: str | None = None
        self.was_killed = False
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
        self.leave()

    def leave(self) -> None:
        """Stop watching: the command is over."""
        if self._over.is_set():
            return
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        # Schedulers and leaders tell the code itself, too. One that hears them ends well,
        # perhaps before anybody here has looked, and yet has not finished.
        until_s = time.monotonic() + _ON_ITS_WAY_S
        while self.reason is None and time.monotonic() < until_s:
            self.reason = self._watch()
            time.sleep(_POLL_S / 10)

    def kill(self) -> None:
        """Kill the command now, or when it starts: what it is asked of may be on its way."""
        self.was_killed = True
        try:
            while not self._over.is_set():
                processes.end(lambda mark: mark == self._mark)
                self._over.wait(_POLL_S)
        except TimeoutError as error:
            self.failures.append(str(error))

    def _why(self) -> str | None:
        """Return why to stop now: the watch says so, or ending takes as long as is left."""
        if reason := self._watch():
            return reason
        left_s = self._watch.left_s()
        needed_s = self._save_s() + (self._code.grace_s if self._code.can_be_asked else 0.0)
        if left_s > needed_s:
            return None
        return (
            f"the {self._watch.deadline.what} leaves {max(0.0, left_s):.1f} s, and to end in "
            f"good order may take {needed_s:.1f} s"
        )

    def _save_s(self) -> float:
        return SAVE_TIME_FACTOR * self._watch.save_time_s()

    def _work(self) -> None:
        try:
            while not self._over.wait(_POLL_S):
                if reason := self._why():
                    self.reason = reason
                    self._stop()
                    return
        except Exception as error:  # noqa: BLE001  The thread ends here; the caller is told.
            self.failures.append(f"Nobody watches the time any more: {error!r}")
            _log.exception("Watching the time ended.")

    def _stop(self) -> None:
        _log.warning("%s is asked to end: %s", self._folder.path, self.reason)
        asked_s = self._clock()
        if self._code.can_be_asked and self._ask():
            while self._has_time(asked_s):
                if self._over.wait(_POLL_S):
                    return
        if not self._over.is_set():
            _log.warning("%s is killed, %s", self._folder.path, self._how_it_did(asked_s))
            self.kill()

    def _ask(self) -> bool:
        """Ask the code; return whether anything was there to be asked."""
        asked = False
        if self._code.stop_file is not None:
            try:
                (self._folder.path / self._code.stop_file).touch()
                asked = True
            except OSError as error:
                self.failures.append(f"The stop file could not be made: {error}")
        if self._code.stop_signal is not None:
            number = signal.Signals[f"SIG{self._code.stop_signal}"]
            sent = processes.signal_handlers(self._mark, number)
            if not sent:
                _log.warning("No process of %s handles %s.", self._folder.path, number.name)
            asked = asked or sent > 0
        return asked

    def _has_time(self, asked_s: float) -> bool:
        if self._clock() - asked_s >= self._code.grace_s:
            return False
        # The first save is yet to come: its time counts from when it is known.
        return self._watch.left_s() > self._save_s()

    def _how_it_did(self, asked_s: float) -> str:
        if not self._code.can_be_asked:
            return "since it cannot be asked to end"
        return f"since it has not ended within {self._clock() - asked_s:.1f} s"
