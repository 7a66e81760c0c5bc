"""Measure the tiers of a site with the product's own save, flush and restore.

Each tier is measured for itself, with 1, 2, 4 … writers: one that fails is told of, and the
others go on. ``tests/unit/test_calibration.py``, ``tests/process/test_calibrate.py``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from ckptflow.errors import CheckpointError, ConfigError
from ckptflow.plan.calibration import (
    VERSION,
    Calibration,
    MeasuredTier,
    SaveCosts,
    UnmeasuredTier,
)
from ckptflow.plan.crew import Crew, Processes
from ckptflow.plan.one_tier import OneTier, Tell, Work
from ckptflow.plan.request import Request
from ckptflow.plan.sandbox import Sandbox

_SAVES_SHARE = 0.15  # Of the time, for what a save costs besides its tier.


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it; ``notes`` tell of what went wrong besides, such as files left behind."""

    calibration: Calibration
    notes: tuple[str, ...]


def measure(
    request: Request,
    *,
    tell: Tell = lambda _part, _text: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Measured:
    """Measure, with writers in processes, and delete all that was written.

    Args:
        request: what.
        tell: told how much is done, from 0 to 1, and what comes next.
        now: the clock, UTC.
    """
    sandboxes: list[Sandbox] = []
    try:
        with Processes() as crew:
            return measure_with(crew, request, sandboxes, tell=tell, now=now)
    except BaseException:  # The writers have ended, so what is there now is all there is.
        for one in sandboxes:
            one.clear(note=lambda _text: None)
        raise


def measure_with(
    crew: Crew,
    request: Request,
    sandboxes: list[Sandbox],
    *,
    tell: Tell = lambda _part, _text: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Measured:
    """Measure, with these writers; see `measure`.

    Args:
        crew: the writers.
        request: what.
        sandboxes: gets every place to which something may be written, before it is.
        tell: told how much is done.
        now: the clock, UTC.
    """
    host, date = socket.gethostname(), now()
    measured: list[MeasuredTier] = []
    unmeasured = [
        UnmeasuredTier(tier=one.identity, reason=one.unseen)
        for one in request.tiers
        if one.unseen
    ]
    counts = writer_counts(min(request.writers, len(os.sched_getaffinity(0))))
    seen = [one for one in request.tiers if not one.unseen]
    share_s = request.seconds * (1 - _SAVES_SHARE) / max(1, len(seen) * len(counts))
    notes: list[str] = []
    work = Work(crew, request, share_s, sandboxes, notes)
    saves: SaveCosts | None = None
    for number, one in enumerate(seen):
        part = partial(_tell_part, tell, f"tier {one.identity.name}", (number, len(seen)))
        try:
            with OneTier(one, work) as measuring:
                measured.append(measuring.tier(host, counts, tell=part))
                if saves is None:
                    saves = measuring.saves(host, request.seconds * _SAVES_SHARE)
        except CheckpointError as error:
            # What cannot be had here, such as a variable or a package, is no fault of the tier.
            failed = not isinstance(error, ConfigError)
            unmeasured.append(
                UnmeasuredTier(tier=one.identity, reason=str(error), failed=failed)
            )
    tell(1.0, "done")
    made = Calibration(
        site=request.site,
        host=host,
        date=date,
        ckptflow_version=VERSION,
        tiers=tuple(measured),
        unmeasured=tuple(unmeasured),
        saves=saves,
    )
    return Measured(made, tuple(notes))


def _tell_part(tell: Tell, what: str, place: tuple[int, int], part: float, text: str) -> None:
    number, count = place
    tell((number + part) / count, f"{what}: {text}")


def writer_counts(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 … and ``most``."""
    counts = [1]
    while 2 * counts[-1] < most:
        counts.append(2 * counts[-1])
    return (*counts, most) if most > 1 else (1,)
