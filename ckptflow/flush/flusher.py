"""Copies many checkpoints outward: a lane for each tier, one budget for all.

What a copy may take in memory is divided among the tiers, so that a slow one cannot hold all of
it. A tier that does not answer is tried again for a while. Nothing here looks at a clock while
there is nothing to do. ``tests/unit/test_flush.py``, ``tests/unit/test_lanes.py``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol

from ckptflow.errors import CheckpointError, FlushError, TierUnavailable
from ckptflow.flush.copying import GivenUp, Superseded, Transport, copy_checkpoint
from ckptflow.flush.lanes import QUEUE_MAX, Lane
from ckptflow.flush.limits import Bandwidth, ByteBudget
from ckptflow.flush.options import Flushing
from ckptflow.flush.requests import Flight, FlushProgress, FlushRequest
from ckptflow.model import CheckpointId, LineageId
from ckptflow.tiers.tier import Tier

HISTORY_MAX = 100  # Finished copies that `Flusher.progress` still tells of.

_FIRST_PAUSE_S, _PAUSE_MAX_S = 0.5, 30.0
_NEWEST_WEIGHT = 0.3  # Of the newest measurement in the rate of a tier.


class TierLock(Protocol):
    """What a save to a tier and a prune of it hold, never both at once."""

    def acquire(self, *, timeout: float = -1) -> bool:
        """Take it; return whether that came off within ``timeout`` seconds, if not -1."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


Lease = Callable[[Flight], AbstractContextManager[object]]


class Flusher:
    """Copies checkpoints outward, of one lineage or of many.

    Args:
        sources: the tiers of the store, inner ones first.
        after_copy: called with each request whose checkpoint has arrived; prunes the tier.
        options: what it may take.
        lease: held while a checkpoint is copied, so that it has one owner.
    """

    def __init__(
        self,
        sources: Sequence[Tier],
        *,
        after_copy: Callable[[FlushRequest], None] = lambda _request: None,
        options: Flushing | None = None,
        lease: Lease = lambda _flight: nullcontext(),
    ) -> None:
        self._sources, self._after_copy, self._lease = tuple(sources), after_copy, lease
        self._options = options or Flushing()
        self._bandwidth = Bandwidth(self._options.bandwidth_bytes_per_s)
        self._lanes: dict[str, Lane] = {}
        self._transports: dict[str, Transport] = {}
        self._rates: dict[str, float] = {}
        self._down_since_s: dict[str, float] = {}  # By tier, while it does not answer.
        self._history: deque[FlushProgress] = deque(maxlen=HISTORY_MAX)
        self._lock = threading.Lock()

    def submit(self, request: FlushRequest) -> None:
        """Queue a copy; ``request.on_done`` is called when it is durable, or has failed."""
        flight = Flight(request)
        if not self._lane(request.target).submit(flight):
            tier = request.target.name
            self._fail(
                flight, FlushError(f"{QUEUE_MAX} copies wait for tier {tier!r} already.")
            )

    def progress(self) -> list[FlushProgress]:
        """Return how far everything is: on its way, waiting, then the last that finished."""
        finished = reversed(list(self._history))
        return [*(flight.progress for flight in self._flights()), *finished]

    def in_flight(self, lineage: LineageId) -> list[CheckpointId]:
        """Return the checkpoints of a lineage that are being copied, or wait for it."""
        requests = (flight.request for flight in self._flights())
        return [request.id for request in requests if request.lineage == lineage]

    def tier_lock(self, _lineage: LineageId, _tier: Tier) -> TierLock:
        """Return what a save to a tier and a prune of it hold: both are in this process."""
        return threading.Lock()

    def rates(self) -> dict[str, float]:
        """Return, by tier, the bytes a second that copies there have reached."""
        return dict(self._rates)

    def cancel(self, lineage: LineageId | None = None) -> None:
        """Give up the copies of one lineage, or of all. What has arrived stays."""

        def is_meant(flight: Flight) -> bool:
            return lineage is None or flight.request.lineage == lineage

        for lane in list(self._lanes.values()):
            for flight in lane.take_out(is_meant):
                request = flight.request
                text = f"A copy of {request.lineage} {request.id} to {request.target.name!r}"
                self._fail(flight, GivenUp(f"{text} was given up before it began."))

    def close(self) -> None:
        """Finish what is queued, then stop."""
        for lane in list(self._lanes.values()):
            lane.close()
        for transport in self._transports.values():
            transport.close()

    def _flights(self) -> list[Flight]:
        return [flight for lane in list(self._lanes.values()) for flight in lane.flights()]

    def _lane(self, target: Tier) -> Lane:
        with self._lock:
            if target.name not in self._lanes:
                shares = max(1, len(self._sources) - 1)
                self._transports[target.name] = Transport(
                    streams=self._options.streams,
                    budget=ByteBudget(self._options.budget_bytes // shares),
                    bandwidth=self._bandwidth,
                    name=target.name,
                    nice=self._options.nice,
                )
                self._lanes[target.name] = Lane(
                    target.name, self._carry, nice=self._options.nice
                )
            return self._lanes[target.name]

    def _carry(self, flight: Flight) -> None:
        request = flight.request
        failure: CheckpointError | None = None
        try:
            if self._lanes[request.target.name].is_superseded(flight):
                flight.state = "skipped"
                failure = Superseded(f"{request.lineage} {request.id} was skipped.")
            else:
                self._copy(flight)
                flight.state, flight.error = "done", None
                self._lanes[request.target.name].arrived(flight)
                self._after_copy(request)
        except CheckpointError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the boundary of this thread
            failure = FlushError(f"A flush to {request.target.name!r} broke: {error!r}")
            failure.__cause__ = error
        if len(self._lanes[request.target.name].flights()) == 1:
            self._transports[request.target.name].rest()
        if isinstance(failure, Superseded):
            self._history.append(flight.progress)
            request.on_done(failure)
        elif failure is not None:
            self._fail(flight, failure)
        else:
            self._history.append(flight.progress)
            request.on_done(None)

    def _fail(self, flight: Flight, error: CheckpointError) -> None:
        flight.state, flight.error = "failed", str(error)
        self._history.append(flight.progress)
        flight.request.on_done(error)

    def _copy(self, flight: Flight) -> None:
        """Copy a checkpoint; while its tier does not answer, again and again for a time."""
        name, pause_s = flight.request.target.name, _FIRST_PAUSE_S
        with self._lease(flight):
            while True:
                flight.state = "copying"
                try:
                    self._copy_once(flight)
                except FlushError as error:
                    if not isinstance(error.__cause__, TierUnavailable):
                        raise
                    # One time for all that wait: else each in a long queue would take its own.
                    now_s = time.monotonic()
                    down_since_s = self._down_since_s.setdefault(name, now_s)
                    left_s = down_since_s + self._options.retry_s - now_s
                    if left_s <= 0:
                        raise
                    flight.state, flight.error = "waiting", str(error)
                    flight.cancelled.wait(min(pause_s, left_s))
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                else:
                    self._down_since_s.pop(name, None)
                    return

    def _copy_once(self, flight: Flight) -> None:
        request, began_s = flight.request, time.monotonic()
        copied_bytes = copy_checkpoint(
            self._sources,
            request.target,
            request.lineage,
            request.manifest,
            on_copied=flight.copied,
            transport=self._transports[request.target.name],
            cancelled=flight.cancelled,
        )
        duration_s = time.monotonic() - began_s
        if copied_bytes and duration_s:
            rate, name = copied_bytes / duration_s, request.target.name
            before = self._rates.get(name, rate)
            self._rates[name] = before + _NEWEST_WEIGHT * (rate - before)
