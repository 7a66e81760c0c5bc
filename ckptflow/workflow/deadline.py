"""When a task has to stop: its time runs out, or somebody sent a signal.

Both are asked, never pushed: the checkpointer calls a `StopWatch` at each step, and what it
returns is the reason to save and stop. A signal handler does nothing but note the number;
saving inside a handler could meet the application halfway through a change of its state.

Handlers work in the main thread of a process only. That is where Parsl's HighThroughputExecutor
runs tasks; on a ThreadPoolExecutor there is only the deadline. Handlers that were there
before are called as well, and put back afterwards, because workers are used again.

Times are seconds since 1970, on the clock of the machine: an end is written down by one
process (the batch script) and read by another. ``tests/unit/test_deadline.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

# Slurm's --signal is USR1 or USR2 by habit; TERM comes before KILL at the end of everything.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

# The next save may take longer than the last ones did; this much longer is planned for.
SAVE_TIME_FACTOR = 2.0

ENDS_AT = "CKPTFLOW_ENDS_AT"  # Exported by the block's start-up script.
_SLURM_END = "SLURM_JOB_END_TIME"  # Set by newer releases of Slurm.


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


def deadlines_in(environment: Mapping[str, str], margin_s: float) -> Iterator[Deadline]:
    """Yield the ends that the batch system or our start-up script wrote into the environment.

    A value that is no number is passed over: the environment belongs to the site.
    """
    for name in (_SLURM_END, ENDS_AT):
        with contextlib.suppress(KeyError, ValueError):
            yield Deadline(float(environment[name]), margin_s, "allocation")


class StopSignals:
    """While entered, notes stop signals instead of dying from them.

    Outside of a process's main thread, entering does nothing, since Python allows no handlers
    there.
    """

    def __init__(self, signals: Iterable[signal.Signals] = STOP_SIGNALS) -> None:
        self._signals = tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self._received: int | None = None

    @property
    def received(self) -> signal.Signals | None:
        """The signal that came, if one did."""
        return None if self._received is None else signal.Signals(self._received)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                previous = signal.signal(number, self._note)
                # A handler that was set from C cannot be put back by Python.
                self._previous[number] = signal.SIG_DFL if previous is None else previous
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            # A handler that the task itself set meanwhile goes too: the worker is used again.
            signal.signal(number, previous)
        self._previous.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        previous = self._previous.get(signal.Signals(number))
        if callable(previous):
            previous(number, frame)


class StopWatch:
    """Asked at every step; answers with the reason to stop, if there is one.

    Args:
        signals: entered by the task for as long as it runs.
        deadline: the end that comes first.
        save_time_s: asked for the expected duration of a save.
        clock: returns seconds since 1970.
    """

    def __init__(
        self,
        signals: StopSignals,
        deadline: Deadline,
        save_time_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.signals, self.deadline = signals, deadline
        self.save_time_s, self._clock = save_time_s, clock

    def __call__(self) -> str | None:
        """Return why to save and stop now, or ``None`` to go on."""
        if self.deadline.ends_at_s is not None:
            late = self.deadline.reason(self.save_time_s(), self._clock())
            if late is not None:
                return late
        received = self.signals.received
        if received is not None:
            return f"signal {received.name} was received by process {os.getpid()}"
        return None

    def left_s(self) -> float:
        """Return the seconds until the task has to be safe; infinity without an end."""
        return self.deadline.left_s(self._clock())
