"""CheckFreq's rule, written again from what is known of its code, to compare with ours.

Mohan et al., FAST 2021, and `src/cf_iterator.py` of its repository: iterations 1 to 4 are
skipped and 5 to 99 measured; at 100 a save is measured, and the period is what the parts of it
that are hidden take, in iterations. After a save as many iterations are timed as a period has.
If they took more than the bound above the average, the period grows by two; if not, watching
ends for good, unless it is asked for (`dynamic`). The period never shrinks and the average is
never taken again.

Two things are kinder than there: the time to storage is measured (there it is that of a disk
of 515 MB/s), and the bound is that of the comparison (there 5 %).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ckptflow.policy.progress import Decision, Progress

FIRST, PROFILE_AT = 5, 100


@dataclass
class CheckFreq:
    """The rule, which has a memory: one object for one loop."""

    bound: float
    dynamic: bool = False
    steps: int | None = None  # The period; None before the profile.
    _profiled: list[float] = field(default_factory=list)
    _watched: list[float] = field(default_factory=list)
    _count: int = 0
    _usual_s: float = 0.0
    _watching: bool = True

    def __str__(self) -> str:
        return "cf-scheme, dynamic" if self.dynamic else "cf-scheme"

    def step_took(self, duration_s: float) -> None:
        """Take the time of an iteration."""
        self._count += 1
        if FIRST <= self._count < PROFILE_AT:
            self._profiled.append(duration_s)
        elif self.steps is not None and self._watching:
            self._watched.append(duration_s)
            if len(self._watched) >= self.steps:
                self._judge()

    def decide(self, progress: Progress) -> Decision:
        """See `ckptflow.policy.progress.Interval.decide`."""
        if self._count < PROFILE_AT:
            return Decision(due=False, reason="not profiled")
        if progress.last_saved_step is None:
            return Decision(due=True, reason="profile")
        if self.steps is None:
            if progress.in_flight:
                return Decision(due=False, reason="the profile is being written")
            self._usual_s = sum(self._profiled) / len(self._profiled)
            hidden_s = progress.profile.durable_s or 0.0
            self.steps = max(1, math.ceil(hidden_s / self._usual_s))
        passed = progress.step - progress.last_saved_step
        return Decision(passed >= self.steps, f"{passed} of {self.steps}")

    def _judge(self) -> None:
        assert self.steps is not None, "watching begins with a period"
        usual_s = self._usual_s * len(self._watched)
        if sum(self._watched) / usual_s - 1 > self.bound:
            self.steps += 2
        elif not self.dynamic:
            self._watching = False
        self._watched.clear()
