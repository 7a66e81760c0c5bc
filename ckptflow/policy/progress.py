"""What a rule on when to save is given, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ckptflow.policy.profile import Profile


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to save now, and why or why not."""

    due: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known about a task at the end of a step. Times are of this attempt."""

    step: int
    last_saved_step: int | None = None  # Saved or restored, whichever was later.
    seconds_since_save: float = 0.0  # Since the last save returned, or since the attempt began.
    elapsed_s: float = 0.0  # Since the attempt began.
    blocked_s: float = 0.0  # The part of ``elapsed_s`` in which saves held the task up.
    save_time_s: float | None = None  # Estimate of how long the next save will block.
    step_time_s: float | None = None  # Estimate of how long a step takes, saves not counted.
    in_flight: int = 0  # Saves that are not durable yet.
    in_flight_limit: int = 1  # How many there may be before a save has to wait for one.
    profile: Profile = field(default_factory=Profile)
    planned_s: float | None = None  # Computing time between saves that a multi-level plan has.


@runtime_checkable
class Interval(Protocol):
    """A rule that says when to save."""

    def decide(self, progress: Progress) -> Decision:
        """Decide for the end of the step in ``progress``; no side effects."""
        ...
