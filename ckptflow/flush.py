"""Copy checkpoints outward, to tiers that survive more, in the background.

A copy takes the packs first and the manifest last, so that on the outer tier too a checkpoint
exists only when all of it does. What is read is compared with its digests first: damage is
not copied outward and called durable there. A copy is idempotent: what is there already, with
the right size, is not copied again, so an interrupted flush is simply repeated.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ckptflow import manifest as manifest_file
from ckptflow.errors import (
    CheckpointError,
    CorruptionError,
    FlushError,
    NotFoundError,
    TierError,
)
from ckptflow.model import CheckpointId, LineageId, Manifest, PackRef
from ckptflow.store.catalog import ensure_store
from ckptflow.store.guards import hold
from ckptflow.store.rereading import consolidated, is_whole
from ckptflow.store.verify import check_pack
from ckptflow.tiers.tier import Tier


def copy_checkpoint(
    sources: Sequence[Tier],
    target: Tier,
    lineage: LineageId,
    manifest: Manifest,
    *,
    on_copied: Callable[[int, int], None] = lambda _done, _total: None,
) -> int:
    """Copy one checkpoint, with every pack that it needs, to ``target``.

    Args:
        sources: tiers that may hold its packs, the preferred first.
        target: where it goes.
        lineage: whose it is.
        manifest: which one.
        on_copied: told (bytes done, bytes in all) after each object.

    Returns:
        The bytes that were copied; what was there already does not count.

    Raises:
        FlushError: an object could not be read from any source, or not be written.
    """
    try:
        ensure_store(target)
        if is_whole(target, manifest):  # Maybe consolidated meanwhile: that is not undone.
            return 0
        try:
            return _copy(sources, target, manifest, on_copied)
        except NotFoundError:
            other = consolidated(sources, manifest)
            if other is None:
                raise
            return _copy(sources, target, other, on_copied)
    except (TierError, CorruptionError, NotFoundError) as error:
        raise FlushError(
            f"{lineage} {manifest.id} did not reach tier {target.name!r} (level "
            f"{target.level}): {error}"
        ) from error


def _copy(
    sources: Sequence[Tier],
    target: Tier,
    manifest: Manifest,
    on_copied: Callable[[int, int], None],
) -> int:
    """Copy what is missing, and then the manifest; return how many bytes."""
    lineage, total = manifest.lineage, sum(pack.size_bytes for pack in manifest.packs)
    done = copied = 0
    with hold(target, lineage, manifest.id, [pack.key for pack in manifest.packs]):
        for pack in manifest.packs:
            if not _is_there(target, lineage, pack):
                _copy_pack(sources, target, lineage, pack)
                copied += pack.size_bytes
            done += pack.size_bytes
            on_copied(done, total)
        data = manifest_file.encode(manifest)
        target.put(f"{lineage.prefix}/{manifest.id.manifest_key}", [data])  # The commit there.
    return copied + len(data)


def _is_there(target: Tier, lineage: LineageId, pack: PackRef) -> bool:
    try:
        return target.size(f"{lineage.prefix}/{pack.key}") == pack.size_bytes
    except NotFoundError:
        return False


def _copy_pack(
    sources: Sequence[Tier], target: Tier, lineage: LineageId, pack: PackRef
) -> None:
    key = f"{lineage.prefix}/{pack.key}"
    failures: list[CheckpointError] = []
    for source in sources:
        if source is target:
            continue
        try:
            data = source.get(key)
            check_pack(data, pack, where=f"{key!r} on tier {source.name!r}")
        except (NotFoundError, TierError, CorruptionError) as error:
            failures.append(error)
            continue
        target.put(key, [data])
        return
    raise failures[-1] if failures else NotFoundError(f"No tier holds {key!r}.")


@dataclass(frozen=True, slots=True)
class FlushRequest:
    """One checkpoint to be copied to one tier, and who wants to know."""

    manifest: Manifest
    target: Tier
    on_done: Callable[[CheckpointError | None], None]


class Flusher:
    """One thread that copies the checkpoints of a lineage outward, oldest request first.

    Args:
        sources: the tiers of the lineage, inner ones first.
        lineage: whose checkpoints these are.
        after_copy: called with each tier that has received a checkpoint; prunes it.
    """

    def __init__(
        self,
        sources: Sequence[Tier],
        lineage: LineageId,
        *,
        after_copy: Callable[[Tier, CheckpointId], None],
    ) -> None:
        self._sources, self._lineage, self._after_copy = tuple(sources), lineage, after_copy
        self._requests: queue.SimpleQueue[FlushRequest | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ckptflow-flush", daemon=True)
        self._thread.start()

    def submit(self, request: FlushRequest) -> None:
        """Queue a copy; ``request.on_done`` is called when it is durable, or has failed."""
        self._requests.put(request)

    def close(self) -> None:
        """Finish what is queued, then stop."""
        self._requests.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            failure: CheckpointError | None = None
            try:
                copy_checkpoint(self._sources, request.target, self._lineage, request.manifest)
                self._after_copy(request.target, request.manifest.id)
            except CheckpointError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - the boundary of this thread
                failure = FlushError(f"A flush to {request.target.name!r} broke: {error!r}")
                failure.__cause__ = error
            request.on_done(failure)
