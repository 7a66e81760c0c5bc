"""Whether a tier that has failed is worth another try.

A tier that failed is left alone for a while, which doubles with every failure in a row; then it
is tried once. To ask it at every save would cost each of them the time until it fails: minutes
if a server does not answer. Pure: the time is an argument.
``tests/unit/test_health.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Condition(StrEnum):
    """How a tier is, as seen by whoever writes to it."""

    OK = "ok"
    FAILING = "failing"  # It may pass: an I/O error, a server that is away, throttling.
    FULL = "full"  # Until something is deleted, here or by others.
    DENIED = "denied"  # Until somebody mends rights or credentials.
    HANGING = "hanging"  # A call has not come back.


# What may pass soon is tried again soon; what somebody has to mend, later.
FIRST_PAUSE_S = {
    Condition.FAILING: 5.0,
    Condition.FULL: 30.0,
    Condition.DENIED: 60.0,
    Condition.HANGING: 60.0,
}
PAUSE_MAX_S = 900.0


@dataclass(frozen=True, slots=True)
class Health:
    """How a tier is; a new one is well.

    Attributes:
        condition: the kind of its last failure, or ok.
        failures: how many there were in a row.
        try_after_s: when it may be tried again, on the clock of whoever asks.
    """

    condition: Condition = Condition.OK
    failures: int = 0
    try_after_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class Trial:
    """Whether to try a tier now, and why."""

    now: bool
    reason: str


def after_failure(health: Health, condition: Condition, *, now_s: float) -> Health:
    """Return the health of a tier that has just failed (again).

    A failure of another kind begins with its own first pause.
    """
    failures = health.failures + 1 if health.condition is condition else 1
    doublings = min(failures - 1, 30)
    pause_s = min(FIRST_PAUSE_S[condition] * 2.0**doublings, PAUSE_MAX_S)
    return Health(condition, failures, now_s + pause_s)


def after_room_was_made(health: Health) -> Health:
    """Return the health after something was deleted: a full tier is tried at once."""
    if health.condition is not Condition.FULL:
        return health
    return Health(health.condition, health.failures)


def trial(health: Health, *, now_s: float) -> Trial:
    """Decide whether a tier is tried now."""
    if health.condition is Condition.OK:
        return Trial(now=True, reason="is well")
    left_s = health.try_after_s - now_s
    times = "once" if health.failures == 1 else f"{health.failures} times in a row"
    found = f"was found {health.condition} {times}"
    if left_s > 0:
        return Trial(now=False, reason=f"{found}; it is left alone for another {left_s:.0f} s")
    return Trial(now=True, reason=f"{found}; it is time to try it again")
