"""When a task has to stop: its time runs out, or somebody sent a signal.

Both are asked, never pushed: the checkpointer calls a `StopWatch` at each step, and what it
returns is the reason to save and stop. A signal handler does nothing but note the number;
saving inside a handler could meet the application halfway through a change of its state.

Handlers work in the main thread of a process only. That is where Parsl's HighThroughputExecutor
runs tasks. Handlers that were there before are called as well, and put back afterwards, because
workers are used again; a process that the task forks off does as it would without us. Where a
leader heads the block (`workflow.blocks.leader`) its board is looked at besides, once a second
at most: it says when the block ends, and that tasks have to stop.

Times are seconds since 1970, on the clock of the machine: an end is written down by one
process (the batch script) and read by another. ``tests/unit/test_deadline.py``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from ckptflow.workflow.blocks.board import HEARS, Board, presence
from ckptflow.workflow.blocks.time_left import end_in

STOP_SIGNALS = "CKPTFLOW_STOP_SIGNALS"  # Names of those that a site uses; or else all of these:
_ALL_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

# The next save may take longer than the last ones did; this much longer is planned for.
SAVE_TIME_FACTOR = 2.0

ALLOCATION = "allocation"
LOOK_EVERY_S = 1.0
_NUDGE = signal.SIGURG  # Which nobody uses, and everybody survives.
_NOTICE_S = 0.5  # What a leader may take to post what a task has heard, too.


def stop_signals(environment: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """Return the signals that mean stop; TERM always does."""
    names = environment.get(STOP_SIGNALS)
    if not names:
        return _ALL_SIGNALS
    chosen = [one for one in _ALL_SIGNALS if one.name.removeprefix("SIG") in names.split(",")]
    return tuple(dict.fromkeys([signal.SIGTERM, *chosen]))


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment after which nothing can be saved any more.

    Attributes:
        ends_at_s: seconds since 1970, or ``None`` if time does not run out.
        margin_s: how long before that the state has to be safe.
        what: what ends then, for messages.
    """

    ends_at_s: float | None = None
    margin_s: float = 0.0
    what: str = "time"

    def left_s(self, now_s: float) -> float:
        """Return the seconds left until the margin begins; infinity without an end."""
        return (
            float("inf") if self.ends_at_s is None else self.ends_at_s - self.margin_s - now_s
        )

    def reason(self, save_time_s: float, now_s: float) -> str | None:
        """Return why to stop now, given how long a save takes; ``None`` to go on."""
        left_s = self.left_s(now_s)
        if left_s > SAVE_TIME_FACTOR * save_time_s:
            return None
        return (
            f"the {self.what} ends in {max(0.0, left_s + self.margin_s):.1f} s "
            f"and a save takes about {save_time_s:.1f} s"
        )


def earliest(deadlines: Iterable[Deadline]) -> Deadline:
    """Return the deadline that comes first."""
    return min(deadlines, key=lambda deadline: deadline.left_s(0.0), default=Deadline())


def allocation_in(environment: Mapping[str, str], margin_s: float) -> Deadline:
    """Return the end of the allocation, as far as the environment knows it."""
    end = end_in(environment)
    return Deadline() if end is None else Deadline(end.ends_at_s, margin_s, ALLOCATION)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal that has done its work by coming."""


class StopSignals:
    """While entered, notes stop signals instead of dying from them.

    Outside of a process's main thread, entering does nothing, since Python allows no handlers
    there.
    """

    def __init__(self, signals: Iterable[signal.Signals] | None = None) -> None:
        self._signals = stop_signals(os.environ) if signals is None else tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self._received: int | None = None
        self._pid = os.getpid()
        self._presence = ExitStack()

    @property
    def received(self) -> signal.Signals | None:
        """The signal that came, if one did."""
        return None if self._received is None else signal.Signals(self._received)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._pid = os.getpid()
            for number in self._signals:
                previous = signal.signal(number, self._note)
                # A handler that was set from C cannot be put back by Python.
                self._previous[number] = signal.SIG_DFL if previous is None else previous
            if signal.getsignal(_NUDGE) in {signal.SIG_DFL, signal.SIG_IGN}:
                self._previous[_NUDGE] = signal.signal(_NUDGE, _nothing)
            if (here := presence()) is not None:
                self._presence.enter_context(here.as_one_that(HEARS))
        return self

    def nudge(self) -> None:
        """Have the main thread look at its signals, although it waits for a process.

        The kernel may hand a signal to any thread. If that is another one, nothing ends the
        main thread's wait, and there alone does Python run handlers.
        """
        if _NUDGE in self._previous and os.getpid() == self._pid:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, _NUDGE)

    def __exit__(self, *_: object) -> None:
        self._presence.close()
        for number, previous in self._previous.items():
            # A handler that the task itself set meanwhile goes too: the worker is used again.
            signal.signal(number, previous)
        self._previous.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous.get(signal.Signals(number))
        if os.getpid() != self._pid:
            # Forked off the task, to load its data perhaps: nobody there asks for a flag.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
            os.kill(os.getpid(), number)
            return
        self._received = number
        if callable(previous):
            previous(number, frame)


class StopWatch:
    """Asked at every step; answers with the reason to stop, if there is one.

    Args:
        signals: entered by the task for as long as it runs.
        deadline: the end that comes first, beside that of the allocation.
        save_time_s: asked for the expected duration of a save.
        clock: returns seconds since 1970.
        board: of this node, if a leader heads it.
    """

    def __init__(
        self,
        signals: StopSignals,
        deadline: Deadline,
        save_time_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.time,
        *,
        board: Board | None = None,
    ) -> None:
        self.signals, self.save_time_s, self._clock = signals, save_time_s, clock
        self._own, self._allocation, self._margin_s = deadline, Deadline(), 0.0
        self._board, self._looked_s = board, float("-inf")
        self._posted: str | None = None

    def set_ends(self, own: Deadline, allocation: Deadline, margin_s: float) -> None:
        """Say when the task has to stop.

        Args:
            own: an end of the task or of its run.
            allocation: the end of the allocation, as far as it is known now.
            margin_s: how long before an end of the allocation the state has to be safe.
        """
        self._own, self._allocation, self._margin_s = own, allocation, margin_s

    @property
    def deadline(self) -> Deadline:
        """The end that comes first."""
        return earliest([self._allocation, self._own])

    def __call__(self) -> str | None:
        """Return why to save and stop now, or ``None`` to go on."""
        if _stop_reason is not None:
            return _stop_reason
        if threading.current_thread() is not threading.main_thread():
            self.signals.nudge()
        now_s = self._clock()
        self._look(now_s)
        deadline = self.deadline
        if deadline.ends_at_s is not None:
            late = deadline.reason(self.save_time_s(), now_s)
            if late is not None:
                return late
        if self._posted is not None:
            return self._posted
        received = self.signals.received
        if received is not None:
            return f"signal {received.name} was received by process {os.getpid()}"
        return None

    def left_s(self) -> float:
        """Return the seconds until the task has to be safe; infinity without an end."""
        return self.deadline.left_s(self._clock())

    def block_ends(self) -> bool:
        """Tell whether the block of this node takes no more tasks, now that this one stops.

        If its own time is over the task posts that, so that the leader knows.
        """
        if self._board is None:
            return False
        if self._allocation.reason(self.save_time_s(), self._clock()) is not None:
            self._board.post_closed(f"a task has stopped, since the {ALLOCATION} ends soon")
            return True
        until_s = time.monotonic() + (_NOTICE_S if self.signals.received is not None else 0.0)
        while self._board.closed() is None:  # The leader may have got the signal a bit later.
            if time.monotonic() >= until_s:
                return False
            time.sleep(0.01)
        return True

    def _look(self, now_s: float) -> None:
        if self._board is None or 0 <= now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s, self._posted = now_s, self._board.stop()
        end = self._board.end()
        if end is not None:
            self._allocation = Deadline(end.ends_at_s, self._margin_s, ALLOCATION)


_stop_reason: str | None = None


def stop_tasks_here(reason: str | None) -> None:
    """Have all tasks that run in threads of this process stop at the end of their step.

    Args:
        reason: why; ``None``: new ones may run again.
    """
    global _stop_reason  # noqa: PLW0603  It is about the process.
    _stop_reason = reason
