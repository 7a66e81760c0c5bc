"""The tuned rule: as often as is worth it, and never dearer than a bound.

The time between two saves is the greatest of three, each of which alone would be too short:

* the *overhead bound*: what a save costs is at most a given part of the time until the next.
  CheckFreq's second bound (Mohan et al., FAST 2021), with interference counted as well;
* the *durability bound*: it is at least the time to durable over the number of saves that may
  be in flight, since storage takes no more (CheckFreq's first bound; for several in flight
  PCcheck, Strati et al., ASPLOS 2025). No save is made while that number is in flight;
* the *availability optimum* (Young, Daly) for a mean time between failures: to save more often
  costs more than it protects.

`ckptflow.policy.profile` says how costs are estimated. ``tests/unit/test_tuned.py``,
``tests/property/test_interval_laws.py``, ``tests/simulate/test_loops.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Literal, NamedTuple

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.single_level import daly_interval_s
from ckptflow.policy.progress import Decision, Progress
from ckptflow.units import format_seconds

OVERHEAD_MAX = 0.035  # CheckFreq's: frequent, and hard to notice.


BoundName = Literal["overhead", "durability", "availability"]


class Bound(NamedTuple):
    """A time that has to pass between two saves, and what for."""

    name: BoundName
    seconds: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """Save as often as is worth it, while that costs at most ``fraction`` of the computing.

    Args:
        fraction: the bound on the overhead, between 0 and 1: time blocked and time lost by
            slower steps, over the time that the steps would have taken without saves.
        mtbf_s: mean time between failures of the whole task, if it is known; otherwise it is
            estimated when the task has met some, and until then failures do not count.
    """

    fraction: float = OVERHEAD_MAX
    mtbf_s: float | None = None

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        if self.mtbf_s is not None:
            check_mtbf(self.mtbf_s)

    def __str__(self) -> str:
        parts = ["auto"]
        if self.fraction != OVERHEAD_MAX:
            parts.append(f"overhead<={percent(self.fraction)}%")
        if self.mtbf_s is not None:
            parts.append(f"mtbf={self.mtbf_s:.12g}s")
        return ",".join(parts)

    def decide(self, progress: Progress) -> Decision:
        """See `Interval.decide`."""
        if early := nothing_new(progress) or self._not_now(progress):
            return early
        if progress.profile.blocked_s is None:
            return Decision(due=True, reason="the first save, which measures what a save takes")
        since_s = progress.seconds_since_save
        bound = max(self.bounds(progress), key=lambda one: one.seconds)
        due = since_s >= bound.seconds
        compared = f"{'at least' if due else 'less than'} {format_seconds(bound.seconds)}"
        since = f"{format_seconds(since_s)} since the last save"
        return Decision(due, f"{since}, {compared} ({self._why(bound.name, progress)})")

    def bounds(self, progress: Progress) -> tuple[Bound, ...]:
        """Return the overhead bound, the durability bound and the availability optimum.

        The last is 0 s while no mean time between failures is known.
        """
        profile = progress.profile
        save_s = profile.save_s
        # What the last save cost in the background is no computing time that pays for the next.
        lost_s = profile.interference_s(profile.busy_now_s)
        mtbf_s, best_s = self.mtbf_s or profile.mtbf_s, 0.0
        if mtbf_s is not None:
            half_step_s = (progress.step_time_s or 0.0) / 2  # The nearest step end will do.
            best_s = max(0.0, daly_interval_s(save_s, mtbf_s) + lost_s - half_step_s)
        return (
            Bound("overhead", save_s / self.fraction + lost_s),
            Bound("durability", (profile.durable_s or 0.0) / progress.in_flight_limit),
            Bound("availability", best_s),
        )

    def _why(self, name: BoundName, progress: Progress) -> str:
        profile = progress.profile
        costs = f"saves that cost {format_seconds(profile.save_s)}"
        match name:
            case "overhead":
                return f"{percent(self.fraction)} % for {costs}"
            case "durability":
                durable = f"saves are durable after {format_seconds(profile.durable_s or 0.0)}"
                return f"{durable}, {progress.in_flight_limit} may be in flight"
            case "availability":
                mtbf_s = self.mtbf_s or profile.mtbf_s or 0.0
                return f"best for {costs} and an MTBF of {format_seconds(mtbf_s)}"

    def _not_now(self, progress: Progress) -> Decision | None:
        flying, limit, profile = progress.in_flight, progress.in_flight_limit, progress.profile
        if flying >= limit:
            are = "save before is" if flying == 1 else f"{flying} saves before are"
            return Decision(due=False, reason=f"the {are} still being written")
        # A save that is soon durable cannot make long steps much longer.
        may_matter = (profile.durable_s or 0.0) > self.fraction * (progress.step_time_s or 0.0)
        if profile.idle_wanted and may_matter:
            steps = profile.idle_wanted
            return Decision(
                due=False,
                reason=f"{steps} step{'s' * (steps > 1)} without a save in flight are wanted, "
                f"to see how long they take",
            )
        return None


def nothing_new(progress: Progress) -> Decision | None:
    """Return that nothing is due if the step is saved already."""
    last = progress.last_saved_step
    if last is None or progress.step > last:
        return None
    return Decision(due=False, reason=f"step {progress.step} is not past the last save, {last}")


def check_fraction(fraction: float) -> None:
    """Raise a `ConfigError` unless an overhead can be bounded by that."""
    if not 0 < fraction < 1:
        raise ConfigError(
            f"An overhead of {fraction:.4g}: it must lie between 0 and 1 (100 %)."
        )


def check_mtbf(mtbf_s: float) -> None:
    """Raise a `ConfigError` unless that can be a mean time between failures."""
    if not 0 < mtbf_s < float("inf"):
        raise ConfigError(f"An MTBF of {mtbf_s} s: it must be more than 0 s.")


@cache
def percent(fraction: float) -> str:
    """Return a part in percent, exactly: in binary 100 * 0.07 is no 7."""
    return f"{(Decimal(repr(fraction)) * 100).normalize():f}"
