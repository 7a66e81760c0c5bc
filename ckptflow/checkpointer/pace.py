"""How fast steps and saves go: the measurements that the interval decides by.

A cost belongs to the save that caused it: the time for which `save` held the application up,
what a lazy capture makes it wait for afterwards (`Pace.blocked`), and the time of the steps
during which that save was in flight. It is complete when the next save comes.

What was learnt goes into each checkpoint (`kept`), so that an attempt that goes on from there
need not begin with guesses; it counts only where it was measured (`measured_on`).
``tests/unit/test_pace.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ckptflow.policy.capture import in_flight
from ckptflow.policy.failures.single_level import estimated_mtbf_s
from ckptflow.policy.profile import Comparison, Measured, Profile, StepTimes
from ckptflow.policy.progress import Progress

_NONSENSE = 1e12  # A larger number of seconds, or of anything else here, is none.


class Pace:
    """Keeps times of steps and saves of one attempt. All times in seconds.

    Args:
        clock: seconds that only grow.
        measured_on: machine, storage and number of processes, in short; estimates from
            elsewhere are not taken over.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, measured_on: str = ""
    ) -> None:
        self._clock, self._measured_on = clock, measured_on
        now = clock()
        self._began, self._last_save, self._last_step = now, now, now
        self._step: int | None = None  # The last one whose end was told.
        self._flying = False  # Whether a save was in flight at that moment, or came after it.
        self._times, self._is_first_step = StepTimes(), True
        self._blocked, self._busy, self._durable = Measured(), Measured(), Measured()
        self._between = Measured()
        self._blocked_now_s = self._busy_now_s = self._blocked_in_step_s = 0.0
        self._blocked_s = 0.0
        self._observed_s, self._interruptions = 0.0, 0  # Of the attempts before.
        self._profile, self._fresh = Profile(), False  # Made again when more is known.
        self.last_step: int | None = None
        self.total_steps: int | None = None  # At which the task will be done, if it says so.
        self.saves = 0

    # --- what happens ---

    def start(self, restored_step: int | None, kept: Mapping[str, Any]) -> None:
        """The task begins to compute.

        Args:
            restored_step: where, if it goes on from a checkpoint.
            kept: what that checkpoint has of `kept`, or nothing.
        """
        now = self._clock()
        self._began, self._last_save, self._last_step = now, now, now
        self.last_step, self._fresh = restored_step, False
        self._take_over(kept)

    def step_done(self, step: int, *, in_flight: int) -> None:
        """A step of the application has ended; told again, it counts once.

        Args:
            step: which.
            in_flight: number of saves that are being captured or written, or wait for it.
        """
        if step == self._step:
            return
        now = self._clock()
        duration_s = max(0.0, now - self._last_step - self._blocked_in_step_s)
        busy = self._flying or in_flight > 0
        if busy:
            self._busy_now_s += duration_s
        self._fresh = self._fresh and not (busy or self._times.is_comparing)
        if (
            not self._is_first_step
        ):  # It compiles, allocates, fills caches: no step like others.
            self._times.add(duration_s, busy=busy)
        self._is_first_step, self._flying = False, in_flight > 0
        self._step, self._last_step, self._blocked_in_step_s = step, now, 0.0

    def saved(self, step: int, *, blocked_s: float) -> None:
        """A save has returned after ``blocked_s``."""
        if self.saves:  # What the one before has cost is known now.
            self._blocked.add(self._blocked_now_s)
            self._busy.add(self._busy_now_s)
            self._between.add(max(0.0, self._clock() - self._last_save - blocked_s))
        self.last_step, self.saves = step, self.saves + 1
        self._blocked_now_s, self._busy_now_s, self._flying = blocked_s, 0.0, True
        self._blocked_s += blocked_s
        self._fresh = False
        # The save is no part of a step's time.
        self._last_save = self._last_step = self._clock()
        self._blocked_in_step_s = 0.0

    def blocked(self, duration_s: float) -> None:
        """The last save has held the application up once more, outside of `save`."""
        self._blocked_now_s += duration_s
        self._blocked_s += duration_s
        self._blocked_in_step_s += duration_s
        self._fresh = False

    def durable(self, duration_s: float) -> None:
        """A save has become durable ``duration_s`` after its capture."""
        self._durable.add(duration_s)
        self._fresh = False

    # --- what is known ---

    @property
    def durable_s(self) -> float | None:
        """Estimate of the time from a save to its being durable."""
        return self._durable.expected()

    @property
    def in_flight(self) -> int:
        """How many snapshots may be in flight, as saves go."""
        return in_flight(self.durable_s, self._between.expected())

    def profile(self) -> Profile:
        """Return the estimates as they are now."""
        now = (self._blocked_now_s, self._busy_now_s)
        blocked_now, busy_now = ((one,) if self.saves else () for one in now)
        return Profile(
            blocked_s=self._blocked.expected(*blocked_now),
            busy_s=self._busy.expected(*busy_now) or 0.0,
            busy_now_s=self._busy_now_s if self.saves else 0.0,
            slowdown=self._times.slowdown,
            durable_s=self.durable_s,
            idle_wanted=self._times.idle_wanted,
            mtbf_s=estimated_mtbf_s(
                self._observed_s + self._clock() - self._began, self._interruptions
            ),
        )

    def progress(self, step: int, *, in_flight: int, in_flight_limit: int = 1) -> Progress:
        """Return what the interval wants to know at the end of ``step``."""
        now = self._clock()
        if not self._fresh and in_flight < in_flight_limit:  # Until then no save is due.
            self._profile, self._fresh = self.profile(), True
        profile = self._profile
        return Progress(
            step=step,
            last_saved_step=self.last_step,
            seconds_since_save=now - self._last_save,
            elapsed_s=now - self._began,
            blocked_s=self._blocked_s,
            save_time_s=profile.blocked_s,
            step_time_s=self._times.idle_s,
            in_flight=in_flight,
            in_flight_limit=in_flight_limit,
            profile=profile,
        )

    # --- from attempt to attempt ---

    def kept(self) -> dict[str, Any]:
        """Return what the next attempt may begin with, as plain values; from any thread."""
        profile = self.profile()
        estimates = {
            "blocked_s": profile.blocked_s,
            "busy_s": profile.busy_s,
            "slowdown": profile.slowdown,
            "durable_s": profile.durable_s,
            "total_steps": self.total_steps,
        }
        observed_s = self._observed_s + self._clock() - self._began
        return {
            "measured_on": self._measured_on,
            "interruptions": self._interruptions,
            "observed_s": _rounded(observed_s),
            **{name: _rounded(value) for name, value in estimates.items() if value is not None},
        }

    def is_from_here(self, kept: Mapping[str, Any]) -> bool:
        """Tell whether what was kept was measured on such a machine, and such storage."""
        return bool(self._measured_on) and kept.get("measured_on") == self._measured_on

    def _take_over(self, kept: Mapping[str, Any]) -> None:
        """Begin with the estimates of an attempt before; nonsense is left where it is."""
        number = {name: value for name in kept if _is_time(value := kept[name])}
        self._observed_s = number.get("observed_s", 0.0)
        # Whoever goes on from a checkpoint was interrupted after it. If it was no failure, the
        # MTBF is taken for too short, and the optimum leaves the choice to the other bounds.
        self._interruptions = int(number.get("interruptions", 0)) + ("observed_s" in number)
        if not self.is_from_here(kept):
            return
        for name, estimate in (
            ("blocked_s", self._blocked),
            ("busy_s", self._busy),
            ("durable_s", self._durable),
        ):
            if name in number:
                estimate.add(number[name])
        if "slowdown" in number:
            self._times.learn(Comparison(number["slowdown"], error=0.0, count=1))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _is_time(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value < _NONSENSE  # Not a NaN either.
