"""The queue before one tier, and which request goes next.

Every tier has a lane of its own, with its own threads, so that a slow tier holds up nobody but
itself. Checkpoints of one lineage go one after another, those of several at once.
``tests/unit/test_lanes.py``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence

from ckptflow.flush.limits import step_back
from ckptflow.flush.requests import Flight
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention

AT_ONCE_MAX = 4  # Checkpoints, of so many lineages, on their way to one tier at once.
QUEUE_MAX = 10_000
_MEMORY_MAX = 1000  # Lineages whose arrivals are remembered.

_log = logging.getLogger("ckptflow")


def next_flight(queue: Sequence[Flight], busy: Collection[LineageId]) -> Flight | None:
    """Return which request goes next, or ``None`` if none can.

    It is the oldest of a lineage that has none on its way. But if nobody waits for that one,
    the newest of its lineage that nobody waits for goes before it: a restart wants that.
    """
    free = (flight for flight in queue if flight.request.lineage not in busy)
    first = next(free, None)
    if first is None or first.request.is_awaited():
        return first
    lineage = first.request.lineage
    alike = [
        flight
        for flight in queue
        if flight.request.lineage == lineage and not flight.request.is_awaited()
    ]
    return max(alike, key=lambda flight: flight.request.id, default=first)


def is_superseded(
    checkpoint: CheckpointId,
    retention: Retention | None,
    arrived: Collection[CheckpointId],
) -> bool:
    """Tell whether the target would delete a checkpoint at once, for the sake of newer ones.

    Only newer ones of the same attempt count, which cannot have become void without it; and
    only if the newest is all that is kept.
    """
    if retention is None or retention.newest is None:
        return False  # Limits of count or bytes decide when it is there, and never keep more.
    if retention.every_steps is not None or retention.best is not None:
        return False
    newer = [one for one in arrived if one.step > checkpoint.step]
    newer = [one for one in newer if one.attempt == checkpoint.attempt]
    return len(newer) >= retention.newest


class Lane:
    """What waits for one tier, and the threads that take it there.

    Args:
        name: of the tier.
        carry: copies one; called by a thread of the lane, never for one lineage at once. It
            may not raise.
        nice: how far the threads step back behind others.
    """

    def __init__(self, name: str, carry: Callable[[Flight], None], *, nice: int = 0) -> None:
        self._name, self._carry, self._nice = name, carry, nice
        self._queue: list[Flight] = []
        self._active: list[Flight] = []
        self._arrived: dict[LineageId, set[CheckpointId]] = {}
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closing = False
        self._changed = threading.Condition()

    def submit(self, flight: Flight) -> bool:
        """Queue a request; tell whether there was room for it."""
        with self._changed:
            if len(self._queue) >= QUEUE_MAX:
                return False
            self._queue.append(flight)
            if len(self._queue) > self._idle and len(self._threads) < AT_ONCE_MAX:
                thread = threading.Thread(
                    target=self._work, name=f"ckptflow-flush-{self._name}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()
        return True

    def flights(self) -> list[Flight]:
        """Return what is on its way and what waits, in that order."""
        with self._changed:
            return [*self._active, *self._queue]

    def take_out(self, is_meant: Callable[[Flight], bool]) -> list[Flight]:
        """Cancel requests; return those that had not begun, which nothing happens to."""
        with self._changed:
            for flight in self._active:
                if is_meant(flight):
                    flight.cancelled.set()
            out = [flight for flight in self._queue if is_meant(flight)]
            self._queue = [flight for flight in self._queue if not is_meant(flight)]
            self._changed.notify_all()
        return out

    def arrived(self, flight: Flight) -> None:
        """Note that a checkpoint is on the tier."""
        request = flight.request
        with self._changed:
            if len(self._arrived) >= _MEMORY_MAX:
                self._arrived.clear()  # Costs at most a copy that would not have been needed.
            there = self._arrived.setdefault(request.lineage, set())
            there.add(request.id)
            newest = sorted(there, reverse=True)[: (request.retention or Retention()).newest]
            self._arrived[request.lineage] = set(newest)

    def is_superseded(self, flight: Flight) -> bool:
        """Tell whether nobody waits for a request, and newer ones have made it useless."""
        request = flight.request
        with self._changed:
            arrived = self._arrived.get(request.lineage, set())
            return not request.is_awaited() and is_superseded(
                request.id, request.retention, arrived
            )

    def close(self) -> None:
        """Finish what waits, then end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        step_back(self._nice)
        while (flight := self._next()) is not None:
            try:
                self._carry(flight)
            except Exception:  # noqa: BLE001  A bug: the lineage is not busy for ever.
                _log.exception("A lane to tier %r broke", self._name)
            finally:
                with self._changed:
                    self._active.remove(flight)
                    self._changed.notify_all()

    def _next(self) -> Flight | None:
        with self._changed:
            self._idle += 1
            try:
                while True:
                    busy = {flight.request.lineage for flight in self._active}
                    flight = next_flight(self._queue, busy)
                    if flight is not None:
                        self._queue.remove(flight)
                        self._active.append(flight)
                        return flight
                    if self._closing and not self._queue:
                        return None
                    self._changed.wait()
            finally:
                self._idle -= 1
