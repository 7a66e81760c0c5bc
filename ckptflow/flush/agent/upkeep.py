"""What an agent does for a task's checkpoints once they have arrived and nothing is on its way.

Some checkpoints are consolidated on the tier that they were copied to, so that a restore costs
as little after a thousand saves as after one: `ckptflow.policy.consolidation` says which, and
when. Once the task has gone the inner tiers are pruned, too, since what was on its way then had
to stay there. One thread does one thing after another, for one lineage and tier after another.
Nothing of this is on file: what a killed agent had not begun, the next copy, the next attempt
or ``ckptflow consolidate`` does. ``tests/unit/test_agent_upkeep.py``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field

from ckptflow.errors import CheckpointError, FencedError, TierError
from ckptflow.flush.copying import GivenUp
from ckptflow.flush.limits import Bandwidth
from ckptflow.flush.requests import FlushRequest
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.consolidation import judges_kept, quiet_after_s, to_judge
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.consolidate import Consolidation, consolidate
from ckptflow.tiers.tier import Dependent, Tier

HISTORY_MAX = 100  # Consolidations that are told of.
PLACES_MAX = 1000  # Lineages on tiers that are looked after at once.
STEP_ASIDE_S = 1.0  # So long one part of a consolidation waits at most for copies.
LEAVE_S = 5.0  # To give up what is done.

Prune = Callable[[Lineage, int, Tier, Retention], None]
"""Prunes a tier for an attempt, unless that was overtaken; never raises."""

_log = logging.getLogger("ckptflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkept:
    """What came of one consolidation.

    Attributes:
        lineage: run/task.
        step: of the checkpoint.
        attempt: of the checkpoint.
        tier: where.
        at: when it was over, in seconds since 1970.
        packs_before: how many packs a restore opened.
        packs_after: how many it opens now.
        written_bytes: of new packs.
        error: why it did not come off; the checkpoint is as it was.
    """

    lineage: str
    step: int
    attempt: int
    tier: str
    at: float
    packs_before: int = 0
    packs_after: int = 0
    written_bytes: int = 0
    error: str | None = None


@dataclass(slots=True)
class _Place:
    """One lineage on one tier, and what is still to be done there."""

    newest: FlushRequest
    arrived_s: float
    gap_s: float = 0.0  # Between the last two arrivals.
    has_kept: bool = False  # Whether those that stay for long are to be looked at,
    is_fresh: bool = True  # and the newest, when it will have rested.
    judged: set[CheckpointId] = field(default_factory=set)


class Upkeep:
    """Looks after what has arrived. Threads of the flusher and of clients call it.

    Args:
        tiers: of the store, inner ones first.
        prune: prunes one of them.
        in_use: returns the names of tiers that copies are on their way to.
        consolidates: whether checkpoints are consolidated.
        bandwidth_bytes_per_s: how fast that may be.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        prune: Prune,
        in_use: Callable[[], Collection[str]],
        consolidates: bool = True,
        bandwidth_bytes_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tiers, self._prune, self._in_use = tuple(tiers), prune, in_use
        self._consolidates, self._clock = consolidates, clock
        self._bandwidth = Bandwidth(bandwidth_bytes_per_s, clock=clock)
        self._places: dict[tuple[LineageId, str], _Place] = {}
        self._users: dict[LineageId, set[Hashable]] = {}
        self._at_work = self._paused = self._closing = False
        self._history: deque[Upkept] = deque(maxlen=HISTORY_MAX)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether something is done, or could be at once."""
        with self._changed:
            return self._at_work or self._due()[0] is not None

    def history(self) -> list[Upkept]:
        """Return what came of consolidations, the last first."""
        return list(reversed(self._history))

    def used_by(self, lineage: LineageId, user: Hashable) -> None:
        """Note that a task of a lineage runs."""
        with self._changed:
            self._users.setdefault(lineage, set()).add(user)

    def gone(self, user: Hashable) -> None:
        """Note that it has gone."""
        with self._changed:
            for lineage, users in list(self._users.items()):
                users.discard(user)
                if not users:
                    del self._users[lineage]
            self._changed.notify_all()

    def arrived(self, request: FlushRequest) -> None:
        """Note that a checkpoint has arrived, and what is kept where."""
        key, now_s = (request.lineage, request.target.name), self._clock()
        with self._changed:
            place = self._places.pop(key, None) or _Place(request, now_s)
            if place.newest.id <= request.id:
                place.newest = request
            place.gap_s, place.arrived_s = now_s - place.arrived_s, now_s
            place.is_fresh = True
            place.has_kept = self._consolidates and judges_kept(_retention(request))
            self._places[key] = place
            if len(self._places) > PLACES_MAX:
                del self._places[next(iter(self._places))]
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="ckptflow-upkeep", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def look(self) -> None:
        """Look again: something may be free now."""
        with self._changed:
            self._changed.notify_all()

    def pause(self) -> None:
        """Give up what is done now, and begin nothing before `go_on`."""
        with self._changed:
            self._paused = True
            self._changed.notify_all()

    def go_on(self) -> None:
        """End a pause."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def close(self) -> None:
        """Give up what is done now, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(LEAVE_S)  # A tier that does not answer keeps nobody.

    # --- the thread ---

    def _work(self) -> None:
        while (place := self._next()) is not None:
            try:
                self._look_after(place)
            except Exception as error:  # noqa: BLE001 - the boundary of this thread
                _log.error("Looking after %s broke: %r", place.newest.lineage, error)
            with self._changed:
                self._at_work = False

    def _next(self) -> _Place | None:
        with self._changed:
            while not self._closing:
                place, wait_s = (None, None) if self._paused else self._due()
                if place is not None:
                    self._at_work = True
                    return place
                self._changed.wait(wait_s)
            return None

    def _due(self) -> tuple[_Place | None, float | None]:
        """Return a place with something to do now; or else how long until there is one."""
        wait_s: float | None = None
        in_use = self._in_use()
        for place in self._places.values():
            if place.newest.target.name in in_use:
                continue
            left_s = self._rests_in_s(place)
            if place.has_kept or self._has_gone(place) or (place.is_fresh and left_s <= 0):
                return place, None
            if place.is_fresh:
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
        return None, wait_s

    def _rests_in_s(self, place: _Place) -> float:
        """Return in how many seconds the newest checkpoint is one that will stay it."""
        if self._has_gone(place):
            return 0.0
        return place.arrived_s + quiet_after_s(place.gap_s) - self._clock()

    def _has_gone(self, place: _Place) -> bool:
        return place.newest.lineage not in self._users

    def _look_after(self, place: _Place) -> None:
        with self._changed:
            newest, gone = place.newest, self._has_gone(place)
            rests = place.is_fresh and self._rests_in_s(place) <= 0
            place.has_kept, place.is_fresh = False, place.is_fresh and not rests
            if gone:
                self._places.pop((newest.lineage, newest.target.name), None)
        lineage = Lineage(self._tiers, newest.lineage)
        try:
            lineage.check_fence(newest.id.attempt)
            if gone:
                self._prune_inner(lineage, newest)
            if self._consolidates and not isinstance(newest.target, Dependent):
                self._consolidate(lineage, place, rests=rests)
        except FencedError:
            return  # Whoever has taken over knows what is needed.
        except GivenUp:
            with self._changed:  # For the sake of others; it is still to be done.
                place.has_kept, place.is_fresh = True, place.is_fresh or rests
                self._places.setdefault((newest.lineage, newest.target.name), place)
        except CheckpointError as error:
            _log.warning("%s was not looked after: %s", newest.lineage, error)

    def _prune_inner(self, lineage: Lineage, newest: FlushRequest) -> None:
        """Make room on the other tiers, as the task would have."""
        for tier in self._tiers:
            retention = newest.kept_elsewhere.get(tier.name)
            if retention is not None and tier is not newest.target:
                self._prune(lineage, newest.id.attempt, tier, retention)

    def _consolidate(self, lineage: Lineage, place: _Place, *, rests: bool) -> None:
        target, retention = place.newest.target, _retention(place.newest)
        there = [found.id for found in lineage.checkpoints_on(target) if not found.void]
        place.judged &= {*there}
        written_bytes = 0
        for checkpoint in to_judge(there, retention, rests=rests):
            if checkpoint not in place.judged:
                place.judged.add(checkpoint)
                written_bytes += self._consolidate_one(lineage, place, checkpoint)
        if written_bytes:  # The packs that the old manifests named.
            self._prune(lineage, place.newest.id.attempt, target, retention)

    def _consolidate_one(
        self, lineage: Lineage, place: _Place, checkpoint: CheckpointId
    ) -> int:
        """Consolidate a checkpoint if that is worth it; return the bytes that were written."""
        tier = place.newest.target

        def pace(size_bytes: int) -> None:
            self._step_aside(tier)
            self._bandwidth.take(size_bytes, self._wait)
            self._check_going_on()

        try:
            self._check_going_on()
            outcome = consolidate(lineage, tier, checkpoint, pace=pace, note=_log.warning)
        except GivenUp:
            place.judged.discard(checkpoint)
            raise
        except CheckpointError as error:
            if isinstance(error, TierError):
                place.judged.discard(checkpoint)  # Tried again when the next one has arrived.
            _log.warning("%s: consolidating %s failed: %s", lineage.id, checkpoint, error)
            self._note(lineage, checkpoint, tier, None, str(error))
            return 0
        if outcome.after is not None:
            _log.info("%s %s on tier %r consolidated", lineage.id, checkpoint, tier.name)
            self._note(lineage, checkpoint, tier, outcome, None)
        return outcome.written_bytes

    def _note(
        self,
        lineage: Lineage,
        checkpoint: CheckpointId,
        tier: Tier,
        outcome: Consolidation | None,
        error: str | None,
    ) -> None:
        after = outcome.after if outcome else None
        self._history.append(
            Upkept(
                lineage=str(lineage.id),
                step=checkpoint.step,
                attempt=checkpoint.attempt,
                tier=tier.name,
                at=time.time(),
                packs_before=outcome.before.packs if outcome else 0,
                packs_after=after.packs if after else 0,
                written_bytes=outcome.written_bytes if outcome else 0,
                error=error,
            )
        )

    def _step_aside(self, tier: Tier) -> None:
        """Let copies to the tier go first, though not for ever: the work is held up."""
        with self._changed:
            self._changed.wait_for(
                lambda: tier.name not in self._in_use() or self._paused or self._closing,
                STEP_ASIDE_S,
            )

    def _wait(self, duration_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._paused or self._closing, duration_s)

    def _check_going_on(self) -> None:
        if self._paused or self._closing:
            raise GivenUp("A consolidation was given up; the checkpoint is as it was.")


def _retention(request: FlushRequest) -> Retention:
    return request.retention or Retention(newest=None)
