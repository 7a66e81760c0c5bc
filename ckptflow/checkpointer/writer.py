"""The background thread that turns snapshots into checkpoints, one after another.

A save that fails on the inner tier is tried on the next one, and the tier that failed is left
alone for a while (`health`). The thread never raises into the void: what fails is kept on the
ticket and in ``failures``, and the checkpointer hands it to the application.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from ckptflow.checkpointer.capture import Capturer
from ckptflow.checkpointer.health import TierHealth
from ckptflow.checkpointer.hooks import Hooks
from ckptflow.checkpointer.kept import KeptSnapshots
from ckptflow.checkpointer.requests import SaveRequest, Written
from ckptflow.checkpointer.runners import Hanging, Runner, Turn
from ckptflow.checkpointer.taking import Captured
from ckptflow.checkpointer.ticket import Ticket
from ckptflow.errors import (
    CheckpointError,
    FencedError,
    IncompleteSnapshot,
    TierError,
    TierUnavailable,
    TornCapture,
)
from ckptflow.flush import Flushing, FlushRequest
from ckptflow.flush.agent.client import open_flusher
from ckptflow.model import CheckpointId
from ckptflow.policy.health import Condition
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.completion import Sources
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.inventory import Known
from ckptflow.store.memory import Base
from ckptflow.store.packing import Packing
from ckptflow.store.prune import prune
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.tier import Tier
from ckptflow.tiers.watched import WatchedTier

_log = logging.getLogger("ckptflow")


class _Unrecorded(Exception):
    """No tier can take the save: where the attempt went on from could not be put on record."""

    def __init__(self, cause: TierError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Writer:
    """One thread, one attempt of one lineage.

    Args:
        lineage: where the checkpoints go.
        attempt: in whose name.
        capturer: takes the snapshots; told what is known of them afterwards.
        record_resume: says in the store where the attempt goes on from; called once, before
            the first commit. ``None`` if that is said already.
        bases: per tier name, what the first delta there is diffed against.
        packing: how states are compared and stored.
        retention: what stays, by the name of the tier.
        proven: checkpoints that this process has read as a whole and found sound.
        on_durable: told how long a save took, in seconds, when it is committed.
        pace: asked for what the next attempt may know of how fast saves go.
        flushing: how checkpoints are copied outward.
        health: how the tiers do.
    """

    def __init__(
        self,
        lineage: Lineage,
        attempt: int,
        *,
        capturer: Capturer,
        record_resume: Callable[[], None] | None,
        bases: Mapping[str, Base],
        packing: Packing,
        retention: Mapping[str, Retention],
        proven: Collection[CheckpointId] = (),
        on_durable: Callable[[float], None],
        pace: Callable[[], Mapping[str, Any]],
        health: TierHealth,
        flushing: Flushing | None = None,
    ) -> None:
        self._lineage, self._attempt, self._capturer = lineage, attempt, capturer
        self._bases, self._first = dict(bases), lineage.tiers[0]
        self._on_durable, self._pace, self._record_resume = on_durable, pace, record_resume
        self._health = health
        self._runners: dict[str, Runner] = {}  # By the name of the tier.
        self._fence_error: TierError | None = None  # Of the last time it was asked.
        self._submitted = self._finished = 0  # Each is changed by one thread only.
        self._packing, self._retention, self._proven = packing, retention, proven
        self._known = {tier.name: Known() for tier in lineage.tiers}
        self._kept = KeptSnapshots(
            capturer, keeps_parent=packing.keeps_parent, chunk_bytes=packing.chunk_bytes
        )
        # Neither side of a prune by the flusher may see half of a save that had to go outward.
        self._flusher = open_flusher(
            lineage.tiers,
            options=flushing or Flushing(),
            after_copy=lambda request: self._prune(request.target, lineage),
        )
        self._tier_locks = {
            tier.name: self._flusher.tier_lock(lineage.id, tier) for tier in lineage.tiers
        }
        self.failures: list[CheckpointError] = []
        self.written: list[Written] = []
        self.fenced: FencedError | None = None
        self._in_flight: dict[CheckpointId, int] = {}  # To how many tiers still to be copied.
        self._in_flight_lock = threading.Lock()
        self._requests: queue.SimpleQueue[SaveRequest | threading.Event | None]
        self._requests = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ckptflow-writer", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        """How many requests are queued or being written."""
        return self._submitted - self._finished

    @property
    def has_parent(self) -> bool:
        """Whether the next save will probably be written against a checkpoint."""
        if self.in_flight:
            return True
        tiers = self._health.in_order(self._from(self._first))
        return bool(tiers) and tiers[0].name in self._bases

    def submit(self, request: SaveRequest) -> None:
        """Queue a save."""
        self._submitted += 1
        self._first = request.first
        self._requests.put(request)

    def settle(self) -> None:
        """Wait until all that is queued is written, or has failed, and room was made for it."""
        settled = threading.Event()
        self._requests.put(settled)
        settled.wait()

    def close(self) -> None:
        """Write what is queued, copy it outward or have that done by the agent, then stop."""
        self._requests.put(None)
        self._thread.join()
        for runner in self._runners.values():
            runner.close()
        self.make_room()  # The memory belongs to all attempts of the task.
        self._flusher.close()

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            if isinstance(request, threading.Event):
                request.set()
                continue
            try:
                tier, base, duration_s = self._write_and_keep(request)
                self._finish(request, tier, base, duration_s)
            except CheckpointError as error:
                self._fail_save(request, error)
            except Exception as error:  # noqa: BLE001 - the boundary of this thread
                step = request.ticket.step
                broken = CheckpointError(
                    f"{self._lineage.id}: the save of step {step} broke: {error!r}"
                )
                broken.__cause__ = error
                self._fail_save(request, broken)
            finally:
                self._finished += 1
                if self._capturer.is_short:  # Who asked meanwhile got nothing.
                    self.make_room()

    def reject(self, request: SaveRequest, error: CheckpointError) -> None:
        """Take note that a save that was submitted could not even be captured."""
        request.captured.release()
        self._fail_save(request, error)

    def _fail_save(self, request: SaveRequest, error: CheckpointError) -> None:
        self._fail(request.ticket, error)
        for tier in request.outer:
            request.hooks.missed(tier)

    def make_room(self) -> None:
        """Give up what is kept in memory of earlier saves: the next one needs room."""
        self._kept.make_room(is_busy=self.in_flight > 0)

    def _write_and_keep(self, request: SaveRequest) -> tuple[Tier, Base, float]:
        """Write a snapshot, then keep it or give it back. See `_write`."""
        captured = request.captured
        with self._kept.in_use():
            try:
                tier, base, duration_s = self._write(request)
            except BaseException as error:
                self._kept.failed(captured)
                if isinstance(error, TornCapture):
                    self._capturer.note_torn(error.regions)
                raise
        self._capturer.learn(captured, base.memory)
        self._kept.committed(captured, base)
        return tier, base, duration_s

    def _write(self, request: SaveRequest) -> tuple[Tier, Base, float]:
        """Write to the innermost tier that takes it; return which, and how long it took."""
        tiers, failures = self._from(request.first), list[TierError]()
        incomplete: IncompleteSnapshot | None = None
        for tier in self._health.in_order(tiers):
            if self._runner(tier).is_stuck:
                continue
            began = time.monotonic()
            try:
                base = self._write_to(tier, request)
            except IncompleteSnapshot as error:  # No fault of the tier.
                incomplete = incomplete or error
                self._capturer.forget()
            except _Unrecorded as error:
                self._health.missed(tiers)
                raise error.cause from error
            except TierError as error:
                failures.append(error)
                self._mark(error.at if isinstance(error, Hanging) else tier, error)
            else:
                self._bases[tier.name] = base
                self._health.worked(tier)
                self._health.missed(tiers[: tiers.index(tier)])
                return tier, base, time.monotonic() - began
        self._health.missed(tiers)
        if incomplete is not None:
            raise incomplete
        if not failures:
            raise TierUnavailable("Every tier hangs: see the warnings before.")
        raise failures[-1]

    def _from(self, first: Tier) -> list[Tier]:
        """Return the tiers in the order in which a save is tried on them."""
        return [first, *(tier for tier in self._lineage.tiers if tier is not first)]

    def _write_to(self, tier: Tier, request: SaveRequest) -> Base:
        runner, base = self._runner(tier), self._bases.get(tier.name)
        readers = [request.captured, *self._kept.all]
        sources = self._sources(tier, request.captured)

        def write(turn: Turn[Base]) -> Base:
            ensure_store(runner.tier)
            lock = self._tier_locks[tier.name]
            if not lock.acquire(timeout=self._health.stall_s):  # No call: nobody watches it.
                raise TierUnavailable(f"A prune does not let go of tier {tier.name!r}.")
            try:
                return write_checkpoint(
                    runner.tier,
                    self._lineage.id,
                    CheckpointId(request.ticket.step, self._attempt),
                    structure=request.captured.structure,
                    regions=request.captured.regions,
                    base=base,
                    chunk_bytes=self._packing.chunk_bytes,
                    cell_bytes=self._packing.cell_bytes,
                    goal=self._packing.goal,
                    verify=self._packing.verify,
                    sources=sources,
                    metrics=request.metrics,
                    pace=self._pace(),
                    before_commit=partial(self._before_commit, runner, turn, request.hooks),
                )
            finally:
                lock.release()

        def let_go() -> None:
            for one in readers:
                one.release()

        for one in readers:
            one.hold()
        try:
            return runner.run(write, stall_s=self._health.stall_s, after=let_go)
        except Hanging:  # It goes on reading, some day: nobody else may use what it uses.
            for one in readers:
                one.write_off()
            if base is not None:
                self._bases = {
                    n: one for n, one in self._bases.items() if one.memory is not base.memory
                }
            raise

    def _sources(self, tier: Tier, captured: Captured) -> Sources:
        """Return where bytes are to be had, besides ``tier``, that a snapshot has not."""
        runner, by_base = self._runner(tier), dict[int, tuple[Base, list[Tier]]]()
        for other in self._lineage.tiers:
            base = self._bases.get(other.name)
            if base is not None and other is not tier and not self._health.hangs(other):
                of_base = by_base.setdefault(id(base), (base, []))
                of_base[1].append(WatchedTier(other, runner.watch))
        return Sources(
            snapshots=[one.regions for one in self._kept.unsaved],
            checkpoints=list(by_base.values()),
            completed=captured.grow,
        )

    def _runner(self, tier: Tier) -> Runner:
        if tier.name not in self._runners:
            self._runners[tier.name] = Runner(
                tier,
                self._health.clock_s,
                on_return=lambda: self._health.worked(tier),
            )
        return self._runners[tier.name]

    def _mark(self, tier: Tier, error: CheckpointError) -> None:
        """Leave a tier that failed alone for a while; tell of it once."""
        if self._health.failed(tier, error):
            self.failures.append(error)
            _log.warning("%s: %s", self._lineage.id, error)

    def _before_commit(self, runner: Runner, turn: Turn[Base], hooks: Hooks) -> None:
        """Stop a commit if this attempt was overtaken, or nobody waits for it any more.

        A fence tier that cannot be asked holds no commit up, once it says where this attempt
        went on from: what an overtaken attempt commits after that is void, whenever it arrives.
        """
        with runner.watch.call(self._lineage.fence_tier):
            hooks.before_commit()
            self._ask_and_record()
        turn.check()

    def _ask_and_record(self) -> None:
        self._ask_fence(self._lineage)
        if self._record_resume is None:
            return
        if self._fence_error is not None:
            raise _Unrecorded(self._fence_error)
        try:
            self._record_resume()
        except TierError as error:
            raise _Unrecorded(error) from error
        self._record_resume = None
        self._ask_fence(self._lineage)

    def _ask_fence(self, lineage: Lineage) -> bool:
        """Return whether the fence tier answers; that it does not is told once.

        Raises:
            FencedError: a newer attempt has taken over.
        """
        fence = self._lineage.fence_tier
        if self._health.hangs(fence):  # Each who asks would get stuck, too.
            self._fence_error = TierUnavailable(
                f"Tier {fence.name!r} hangs, and has the claims."
            )
            return False
        try:
            lineage.check_fence(self._attempt)
        except TierError as error:
            if self._fence_error is None:
                self.failures.append(error)
            self._fence_error = error
        else:
            self._fence_error = None
            if self._health.of(fence).condition is Condition.HANGING:
                self._health.worked(fence)
        return self._fence_error is None

    def _finish(self, request: SaveRequest, tier: Tier, base: Base, duration_s: float) -> None:
        """Tell that a checkpoint is durable, send it outward, and make room."""
        manifest = base.manifest
        self.written.append(
            Written(manifest.id.step, manifest.state_bytes, manifest.written_bytes, duration_s)
        )
        self._on_durable(duration_s)
        targets = [target for target in request.outer if target is not tier]
        request.ticket.mark_durable(tier.level, outer=[target.level for target in targets])
        if targets:
            self._in_flight[manifest.id] = len(targets)
            for target in targets:
                told = request.ticket, request.hooks
                done = partial(self._flushed, *told, target, manifest.id)
                self._flusher.submit(
                    FlushRequest(
                        manifest,
                        target,
                        done,
                        self._retention[target.name],
                        kept_elsewhere=self._retention,
                    )
                )
        request.hooks.committed(tier)
        self._prune_by_runner(tier)
        for full in self._health.full(self._lineage.tiers):  # Old ones may go meanwhile.
            self._prune_by_runner(full)

    def _prune_by_runner(self, tier: Tier) -> None:
        """Prune; a tier that hangs meanwhile is left."""
        runner = self._runner(tier)
        if runner.is_stuck:
            return

        def act(_turn: Turn[None]) -> None:  # Each call is watched, not how long it takes.
            self._prune(tier, self._lineage.around(lambda one: WatchedTier(one, runner.watch)))

        try:
            runner.run(act, stall_s=self._health.stall_s)
        except Hanging as error:
            self._mark(error.at, error)

    def _flushed(
        self,
        ticket: Ticket,
        hooks: Hooks,
        target: Tier,
        checkpoint: CheckpointId,
        error: CheckpointError | None,
    ) -> None:
        with self._in_flight_lock:  # Several runners may tell at once.
            self._in_flight[checkpoint] -= 1
            if not self._in_flight[checkpoint]:
                del self._in_flight[checkpoint]
        if error is None:
            self._health.worked(target)
            hooks.committed(target)
            ticket.mark_durable(target.level)
            return
        hooks.missed(target)
        if not isinstance(error.__cause__, TierError):
            self._fail(ticket, error, target.level)  # No fault of the target.
            return
        self._mark(target, error)
        self._health.missed([target])
        ticket.fail(error, target.level)

    def _prune(self, tier: Tier, lineage: Lineage) -> None:
        retention = self._retention[tier.name]
        if retention.keeps_all:
            return  # All are kept, and to look at all after each save would cost more and more.
        try:
            # Whoever was overtaken does not know any more what others still need.
            if not self._ask_fence(lineage):
                return
            lock = self._tier_locks[tier.name]
            if not lock.acquire(timeout=self._health.stall_s):
                return  # A save hangs there.
            try:
                # Those of an attempt before this one may be on their way, too.
                in_flight = {*self._in_flight, *self._flusher.in_flight(self._lineage.id)}
                plan = prune(
                    lineage,
                    next(one for one in lineage.tiers if one.name == tier.name),
                    retention,
                    in_flight=in_flight,
                    proven=self._proven,
                    known=self._known[tier.name],
                )
            finally:
                lock.release()
            if plan.packs:
                self._health.room_was_made(tier)
        except FencedError as error:
            self._overtaken(error)
        except (CheckpointError, OSError) as error:  # Old ones stay a little longer.
            known = error if isinstance(error, CheckpointError) else TierError(str(error))
            self.failures.append(known)
            _log.warning("%s: pruning tier %r failed: %s", self._lineage.id, tier.name, error)

    def _overtaken(self, error: FencedError) -> None:
        if self.fenced is None:
            self.fenced = error
            self.failures.append(error)

    def _fail(self, ticket: Ticket, error: CheckpointError, level: int | None = None) -> None:
        if isinstance(error, FencedError):
            self._overtaken(error)
        elif error not in self.failures:
            self.failures.append(error)
        _log.error("%s step %d: %s", self._lineage.id, ticket.step, error)
        ticket.fail(error, level)
