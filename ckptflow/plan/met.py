"""What a task of a run has met: what its saves cost, where its copies went, how it failed.

Measured values replace what a site's tiers were taken to cost; failures are added to what was
believed. ``tests/unit/test_plan_met.py``; `ckptflow.workflow.seeing.met` reads them from a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ckptflow.policy.multilevel.exact import efficiency
from ckptflow.policy.multilevel.system import Pattern, System
from ckptflow.policy.multilevel.tuning import Tuning
from ckptflow.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What one task has met, over all its attempts.

    Attributes:
        task: its name.
        saves: how many there were.
        state_bytes: of a full copy; the newest that is known.
        changed: bytes stored for each byte of state, but for the first save of an attempt.
        blocked_s: for how long a save held it up; the median.
        interval_s: computing time between two saves; the median. ``None``: there were not two.
        latency_s: by tier, from a save until its copy was there; the median.
        copies: by tier, how many saves came to be there.
        failures: that ended attempts, by class.
        recovery_s: from the end of an attempt that failed to the beginning of the next; the
            median. ``None``: there was none.
        observed_s: for how long its attempts ran, all together.
        elapsed_s: from its beginning to its end.
        lost_s: work that was lost.
        blocked_total_s: for how long all saves together held it up.
    """

    task: str
    saves: int
    state_bytes: int
    changed: float
    blocked_s: float
    interval_s: float | None
    latency_s: Mapping[str, float]
    copies: Mapping[str, int]
    failures: tuple[int, int, int, int, int]
    recovery_s: float | None
    observed_s: float
    elapsed_s: float
    lost_s: float
    blocked_total_s: float

    @property
    def useful(self) -> float:
        """Part of the elapsed time that was computing which was not lost."""
        if self.elapsed_s <= 0:
            return 0.0
        done_s = self.observed_s - self.lost_s - self.blocked_total_s
        return min(1.0, max(0.0, done_s / self.elapsed_s))

    @property
    def failures_text(self) -> str:
        """How it failed, in words."""
        count = sum(self.failures)
        what = (
            "no failure" if count == 0 else "1 failure" if count == 1 else f"{count} failures"
        )
        return f"{what} in {format_seconds(self.observed_s)} of the run"

    def corrected(self, system: System) -> System:
        """Return a system with what was measured, where it was.

        Where a copy took longer than was believed, so did those further out that were not
        measured.
        """
        levels, believed_s, now_s = [], 0.0, 0.0
        for level in system.levels:
            more_s = max(0.0, level.latency_s - believed_s)
            believed_s = level.latency_s
            now_s = max(now_s, self.latency_s.get(level.name, now_s + more_s))
            recovery_s = max(level.recovery_s, self.recovery_s or 0.0)
            levels.append(replace(level, latency_s=now_s, recovery_s=recovery_s))
        return replace(system, levels=tuple(levels), blocked_s=self.blocked_s)

    def pattern(self, system: System) -> Pattern | None:
        """Return the pattern that it followed, about; ``None`` if that cannot be told."""
        if self.interval_s is None or self.interval_s <= 0:
            return None
        counts: list[int] = []
        before = 0
        for level in system.levels:
            copies = self.copies.get(level.name, 0)
            if not copies:
                counts.append(0)
                continue
            wanted = self.saves / copies
            before = 1 if not before else before * max(1, round(wanted / before))
            counts.append(before)
        return Pattern(self.interval_s, tuple(counts)) if before else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a run did, beside what would have been best.

    Attributes:
        task: whose.
        pattern: that it followed, about; ``None`` if that cannot be told.
        expected: efficiency of that pattern, with what is known now.
        best: efficiency of the best one.
        useful: part of the elapsed time that was computing which was not lost, as it was.
        saved: part of the elapsed time that the best pattern would save.
    """

    task: str
    pattern: Pattern | None
    expected: float | None
    best: float
    useful: float
    saved: float | None


def compared(met: Met, tuning: Tuning) -> Comparison:
    """Return what a task did beside the best pattern, both as expected now."""
    pattern = met.pattern(tuning.system)
    expected = None if pattern is None else efficiency(_patient(tuning.system), pattern)
    saved = None
    if expected is not None:
        saved = 1 - expected / tuning.efficiency if expected > 0 else math.nan
    return Comparison(
        task=met.task,
        pattern=pattern,
        expected=expected,
        best=tuning.efficiency,
        useful=met.useful,
        saved=None if saved is None or math.isnan(saved) else max(0.0, saved),
    )


def _patient(system: System) -> System:
    """Return a system in which copies may be on their way whenever the next one comes."""
    return replace(
        system, levels=tuple(replace(level, in_flight=10**6) for level in system.levels)
    )
