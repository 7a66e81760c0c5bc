"""Copy one checkpoint, with all that it needs, to another tier.

Packs first and the manifest last, so that on the outer tier too a checkpoint exists only when
all of it does. What is read is compared with its digests first: damage is not copied outward
and called durable there. A copy is idempotent: a pack that is there, with the right size, is
not copied again, so an interrupted flush is simply repeated.

``tests/unit/test_flush.py`` dies before every write of a copy, and repeats it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial

from ckptflow import manifest as manifest_file
from ckptflow.errors import (
    CheckpointError,
    CorruptionError,
    FlushError,
    NotFoundError,
    TierError,
)
from ckptflow.flush.limits import Bandwidth, Buffers, ByteBudget, step_back
from ckptflow.model import CheckpointId, LineageId, Manifest, PackRef
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.guards import hold
from ckptflow.store.rereading import consolidated, is_whole
from ckptflow.store.verify import check_pack
from ckptflow.tiers.tier import Tier

_FAILED = (TierError, CorruptionError, NotFoundError)


class GivenUp(FlushError):
    """A copy was cancelled: nothing is wrong, and it may be asked for again."""


class Superseded(FlushError):
    """A copy was not made: nobody waited for it, and newer ones have arrived."""


class Transport:
    """What the packs of copies to one tier travel by: threads, memory, bandwidth.

    The threads are daemons: an operation that hangs on a dead tier does not keep the process.

    Args:
        streams: how many packs at once.
        budget: memory for them.
        bandwidth: how fast.
        name: of the threads.
        nice: how far the threads step back behind others.
    """

    def __init__(
        self,
        *,
        streams: int,
        budget: ByteBudget,
        bandwidth: Bandwidth,
        name: str = "pack",
        nice: int = 0,
    ) -> None:
        self._nice = nice
        self.budget, self.bandwidth = budget, bandwidth
        self.buffers = Buffers(budget.budget_bytes)
        self._streams, self._name = streams, f"ckptflow-flush-{name}"
        self._moves: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def each(self, packs: Sequence[PackRef], move: Callable[[PackRef], None]) -> None:
        """Call ``move`` with every pack, several at once, and raise the first error.

        After an error no further pack begins, and those on their way have ended.
        """
        if len(packs) == 1:
            move(packs[0])
            return
        self._start(min(self._streams, len(packs)))
        failures: list[BaseException] = []
        ended = threading.Semaphore(0)

        def unless_failed(pack: PackRef) -> None:
            try:
                if not failures:
                    move(pack)
            except BaseException as error:  # noqa: BLE001 - the boundary of this thread
                failures.append(error)
            finally:
                ended.release()

        for pack in packs:
            self._moves.put(partial(unless_failed, pack))
        for _ in packs:
            ended.acquire()
        if failures:
            raise failures[0]

    def rest(self) -> None:
        """Give memory back: there is nothing to do now."""
        self.buffers.release()

    def close(self) -> None:
        """End the threads."""
        self.rest()
        with self._lock:
            for _ in self._threads:
                self._moves.put(None)
            for thread in self._threads:
                thread.join()

    def _start(self, count: int) -> None:
        with self._lock:
            while len(self._threads) < count:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        step_back(self._nice)
        while (move := self._moves.get()) is not None:
            move()


def copy_checkpoint(
    sources: Sequence[Tier],
    target: Tier,
    lineage: LineageId,
    manifest: Manifest,
    *,
    on_copied: Callable[[int, int], None] = lambda _done, _total: None,
    transport: Transport | None = None,
    cancelled: threading.Event | None = None,
) -> int:
    """Copy one checkpoint, with every pack that it needs, to ``target``.

    Args:
        sources: tiers that may hold its packs, the preferred first.
        target: where it goes.
        lineage: whose it is.
        manifest: which one.
        on_copied: told (bytes done, bytes in all) after each object.
        transport: what its packs travel by; without one they go one after another.
        cancelled: when it is set no further object is begun.

    Returns:
        The bytes that were copied; what was there already does not count.

    Raises:
        FlushError: an object could not be read from any source, or not be written; or the
            copy was cancelled. Its cause is the error of the tier.
    """
    copy = _Copy(
        [source for source in sources if source is not target],
        target,
        lineage,
        on_copied=on_copied,
        transport=transport,
        cancelled=cancelled or threading.Event(),
    )
    try:
        return copy.run(manifest)
    except _FAILED as error:
        raise FlushError(
            f"{lineage} {manifest.id} did not reach tier {target.name!r} (level "
            f"{target.level}): {error}"
        ) from error


def manifest_on(tier: Tier, lineage: LineageId, checkpoint: CheckpointId) -> Manifest:
    """Read the manifest that a tier has of a checkpoint; see `Lineage.manifest_on`."""
    key = f"{lineage.prefix}/{checkpoint.manifest_key}"
    where = f"{key!r} on tier {tier.name!r}"
    data = tier.get(key, size_bytes=manifest_file.OBJECT_BYTES_MAX + 1)
    manifest = manifest_file.decode(data, where=where)
    if (manifest.lineage, manifest.id) != (lineage, checkpoint):
        raise CorruptionError(f"{where} is {manifest.id} of {manifest.lineage}: it was moved.")
    return manifest


class _Copy:
    """One copy on its way."""

    def __init__(
        self,
        sources: Sequence[Tier],
        target: Tier,
        lineage: LineageId,
        *,
        on_copied: Callable[[int, int], None],
        transport: Transport | None,
        cancelled: threading.Event,
    ) -> None:
        self._sources, self._target, self._lineage = sources, target, lineage
        self._on_copied, self._transport, self._cancelled = on_copied, transport, cancelled
        self._done_bytes = self._total_bytes = self._copied_bytes = 0
        self._found = False  # Whether some pack was there already.
        self._lock = threading.Lock()

    def run(self, manifest: Manifest) -> int:
        """Copy it; see `copy_checkpoint`."""
        self._check_cancelled()
        ensure_store(self._target)
        if is_whole(self._target, manifest):  # Maybe consolidated there: that is not undone.
            total_bytes = sum(pack.size_bytes for pack in manifest.packs)
            self._on_copied(total_bytes, total_bytes)
            return 0
        try:
            return self._copy_all(manifest)
        except (NotFoundError, CorruptionError):
            other = consolidated(self._sources, manifest)
            if other is None:
                raise
            return self._copy_all(other)

    def _copy_all(self, manifest: Manifest) -> int:
        """Copy what is missing, and then the manifest; return how many bytes."""
        packs = [pack.key for pack in manifest.packs]
        with hold(self._target, self._lineage, manifest.id, packs) as holding:
            self._bring(manifest)
            holding.confirm(found=self._found)
            self._check_cancelled()
            data = manifest_file.encode(manifest)
            key = f"{self._lineage.prefix}/{manifest.id.manifest_key}"
            self._target.put(key, [data])  # The commit there.
        return self._copied_bytes + len(data)

    def _bring(self, manifest: Manifest) -> None:
        """Make the target hold every pack of a manifest."""
        self._done_bytes = 0
        self._total_bytes = sum(pack.size_bytes for pack in manifest.packs)

        def bring(pack: PackRef) -> None:
            self._check_cancelled()
            if self._is_there(pack):
                self._found = True
            else:
                self._copy(pack)
            self._report(pack)

        self._each(manifest.packs, bring)

    def _each(self, packs: Sequence[PackRef], move: Callable[[PackRef], None]) -> None:
        if self._transport and packs:
            self._transport.each(packs, move)
        else:
            for pack in packs:
                move(pack)

    def _copy(self, pack: PackRef) -> None:
        if self._transport is None:
            self._move(pack, memoryview(bytearray(pack.size_bytes)))
            return
        with self._transport.budget.hold(pack.size_bytes):
            self._transport.bandwidth.take(pack.size_bytes, self._cancelled.wait)
            self._check_cancelled()
            with self._transport.buffers.lend(pack.size_bytes) as data:
                self._move(pack, data)

    def _move(self, pack: PackRef, data: memoryview) -> None:
        """Put what the first source with a sound copy has."""
        key = f"{self._lineage.prefix}/{pack.key}"
        failures: list[CheckpointError] = []
        for source in self._sources:
            try:
                source.read_into(key, data)
                check_pack(data, pack, where=f"{key!r} on tier {source.name!r}")
            except (NotFoundError, TierError, CorruptionError) as error:
                failures.append(error)
                continue
            self._target.put(key, [data])
            with self._lock:
                self._copied_bytes += pack.size_bytes
            return
        raise failures[-1] if failures else NotFoundError(f"No tier holds {key!r}.")

    def _is_there(self, pack: PackRef) -> bool:
        try:
            size_bytes = self._target.size(f"{self._lineage.prefix}/{pack.key}")
        except NotFoundError:
            return False
        return size_bytes == pack.size_bytes

    def _report(self, pack: PackRef) -> None:
        with self._lock:
            self._done_bytes += pack.size_bytes
            self._on_copied(self._done_bytes, self._total_bytes)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise GivenUp(
                f"A copy of {self._lineage} to tier {self._target.name!r} was given up before "
                f"it was complete; what has arrived stays, and is used when it is tried again."
            )
