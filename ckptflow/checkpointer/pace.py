"""How fast steps and saves go: the measurements that the interval decides by."""

from __future__ import annotations

import time

from ckptflow.policy.capture import in_flight
from ckptflow.policy.interval import Progress

_NEWEST_WEIGHT = 0.3  # Of the newest measurement in a running estimate.


class Pace:
    """Keeps times of steps and saves of one attempt. All times in seconds."""

    def __init__(self) -> None:
        now = time.monotonic()
        self._began, self._last_save, self._last_step = now, now, now
        self._blocked_s = 0.0
        self._blocked_each_s: float | None = None
        self._step_s: float | None = None
        self.durable_s: float | None = None  # From a save to its being durable.
        self._between_s: float | None = None  # Saves, without what they blocked.
        self.last_step: int | None = None
        self.saves = 0

    def start(self, restored_step: int | None) -> None:
        """The task begins to compute, at ``restored_step`` if there was one."""
        now = time.monotonic()
        self._began, self._last_save, self._last_step = now, now, now
        self.last_step = restored_step

    def step_done(self) -> None:
        """A step of the application has ended."""
        now = time.monotonic()
        self._step_s = _smoothed(self._step_s, now - self._last_step)
        self._last_step = now

    def saved(self, step: int, *, blocked_s: float) -> None:
        """A save has returned after ``blocked_s``."""
        self.last_step, self.saves = step, self.saves + 1
        if self.saves > 1:
            between_s = time.monotonic() - self._last_save - blocked_s
            self._between_s = _smoothed(self._between_s, max(between_s, 0.0))
        self._blocked_s += blocked_s
        self._blocked_each_s = _smoothed(self._blocked_each_s, blocked_s)
        # The save is no part of a step's time.
        self._last_save = self._last_step = time.monotonic()

    def durable(self, duration_s: float) -> None:
        """A save has become durable ``duration_s`` after its capture."""
        self.durable_s = _smoothed(self.durable_s, duration_s)

    @property
    def in_flight(self) -> int:
        """How many snapshots may be in flight, as saves go."""
        return in_flight(self.durable_s, self._between_s)

    def progress(self, step: int, *, in_flight: bool) -> Progress:
        """Return what the interval wants to know at the end of ``step``."""
        now = time.monotonic()
        return Progress(
            step=step,
            last_saved_step=self.last_step,
            seconds_since_save=now - self._last_save,
            elapsed_s=now - self._began,
            blocked_s=self._blocked_s,
            save_time_s=self._blocked_each_s,
            step_time_s=self._step_s,
            in_flight=in_flight,
        )


def _smoothed(before: float | None, newest: float) -> float:
    return newest if before is None else before + _NEWEST_WEIGHT * (newest - before)
