"""The process of a run is told to stop: by a terminal that closes, or a host that goes down.

SIGTERM and SIGHUP then have the script leave with status 7, so that the run ends in
order: tasks save, blocks are cancelled, the journal says how it ended. Python does the same for
SIGINT, as `KeyboardInterrupt`. Who has a handler of their own, or ignores a signal as ``nohup``
does, keeps that. ``tests/process/test_ending.py``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from ckptflow.workflow.deadline import stop_tasks_here

STOPPED_STATUS = 7  # As everywhere: stopped before the end, start it again.

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class StopInOrder:
    """While begun, a stop signal to this process ends the run in order.

    Args:
        run: name of the run, for the message.
    """

    def __init__(self, run: str) -> None:
        self._run, self._pid = run, os.getpid()
        self._ours: list[signal.Signals] = []
        self._ending = False
        self.received: signal.Signals | None = None

    def begin(self) -> None:
        """Begin to listen; only a process's main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._stop)
                self._ours.append(number)

    def leave_in_peace(self) -> None:
        """From now on do not interrupt: the run is ending anyway."""
        self._ending = True

    def end(self) -> None:
        """Listen no more."""
        for number in self._ours:
            signal.signal(number, signal.SIG_DFL)
        self._ours.clear()

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.received is not None:
            return  # It is on its way out; twice is not more.
        self.received = signal.Signals(number)
        reason = f"signal {self.received.name} was received by process {self._pid}"
        stop_tasks_here(reason)
        if not self._ending:
            sys.stderr.write(f"run {self._run}: {reason}; it ends, start it again to go on.\n")
            raise SystemExit(STOPPED_STATUS)
