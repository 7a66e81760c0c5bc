"""Read one checkpoint back, verified, from whichever copies of its packs are sound.

The bytes go straight into the buffers that the caller gives, which are the application's own
arrays where that is possible. Chunks are digested by the thread that has just read them, while
others wait for the disk. Then the Merkle root of every region is compared with the manifest.
Only if one differs are the frames checked one by one, to find the damaged copy and take
another; so the usual restore pays for one pass of digests, not two.
``tests/unit/test_restore.py``, ``tests/unit/test_fetch.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import digest, merkle
from ckptflow.errors import CorruptionError
from ckptflow.model import Manifest
from ckptflow.store.copies import Pack
from ckptflow.store.fetch import fill
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

_TOGETHER_BYTES = 4 * MIB  # Digested by one call: enough of them for all threads.

_FAR_LEVEL, _FAR_READS = 4, 16  # From this level on each read waits for a round trip.


def read_checkpoint(
    tiers: Sequence[Tier],
    manifest: Manifest,
    buffers: Sequence[memoryview],
    *,
    note: Callable[[str], None] = lambda _text: None,
    on_failed: Callable[[Tier], None] = lambda _tier: None,
) -> list[NDArray[np.uint64]]:
    """Fill ``buffers`` with the regions of a checkpoint and verify them.

    Args:
        tiers: where copies of its packs may lie, the preferred first.
        manifest: the checkpoint.
        buffers: one writable flat buffer per region, of exactly its size.
        note: told, in a sentence, of every copy that was skipped and why.
        on_failed: told of each tier whose copy of a pack could not be used.

    Returns:
        The digests of the chunks of each region, uint64 [n, 2].

    Raises:
        CorruptionError: some region could not be made whole from any copy. The buffers
            are then partly overwritten.
    """
    for entry, buffer in zip(manifest.regions, buffers, strict=True):
        assert len(buffer) == entry.size_bytes, "the caller sizes buffers from the manifest"
    packs = [
        Pack(tiers, manifest.lineage, ref, note, hold_small=True, on_failed=on_failed)
        for ref in manifest.packs
    ]
    with ThreadPoolExecutor(_thread_count(tiers), "ckptflow-restore") as pool:
        hot = ChunkDigests(manifest, buffers)
        fill(manifest, buffers, packs, pool, check_frames=False, on_final=hot.add)
        digests = hot.all(pool)
        if bad := _differing(manifest, digests):
            note(
                f"{_listed(bad)} of {manifest.lineage} did not verify; looking for the frames."
            )
            fill(manifest, buffers, packs, pool, check_frames=True)
            digests = ChunkDigests(manifest, buffers).all(pool)
            if bad := _differing(manifest, digests):
                raise CorruptionError(
                    f"{_listed(bad)} of {manifest.lineage} {manifest.id} do not have the root "
                    f"that the manifest names, although all frames are sound."
                )
    return digests


def _thread_count(tiers: Sequence[Tier]) -> int:
    if any(tier.level >= _FAR_LEVEL for tier in tiers):
        return _FAR_READS  # Threads that wait for a network use no core.
    return min(4, len(os.sched_getaffinity(0)))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return f"Regions {shown}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class ChunkDigests:
    """The digests of the chunks of all regions, made as their bytes arrive."""

    def __init__(self, manifest: Manifest, buffers: Sequence[memoryview]) -> None:
        self._chunk, self._buffers = manifest.chunk_bytes, buffers
        counts = [digest.chunk_count(len(buffer), self._chunk) for buffer in buffers]
        self._digests = [np.empty((count, 2), np.uint64) for count in counts]
        self._done = [np.zeros(count, np.bool_) for count in counts]

    def add(self, region: int, start: int, stop: int) -> None:
        """Digest the chunks that lie in a part of a region, whose bytes are final.

        Called by several threads, with parts that have no byte in common.
        """
        if stop == len(self._buffers[region]):
            stop += -stop % self._chunk  # The last chunk may be shorter.
        self._digest(region, -(-start // self._chunk), stop // self._chunk)

    def all(self, pool: ThreadPoolExecutor) -> list[NDArray[np.uint64]]:
        """Digest what is left; return the digests of each region, uint64 [n, 2]."""
        left: list[tuple[int, int, int]] = []
        at_once = max(1, _TOGETHER_BYTES // self._chunk)
        for region, done in enumerate(self._done):
            edges = np.flatnonzero(np.diff(done, prepend=True, append=True)).tolist()
            for first, last in zip(edges[::2], edges[1::2], strict=True):
                left += [
                    (region, a, min(a + at_once, last)) for a in range(first, last, at_once)
                ]
        for _ in pool.map(lambda part: self._digest(*part), left):
            pass
        return self._digests

    def _digest(self, region: int, first: int, last: int) -> None:
        if first < last:
            data = self._buffers[region][first * self._chunk : last * self._chunk]
            digest.chunk_digests(data, self._chunk, out=self._digests[region][first:last])
            self._done[region][first:last] = True


def _differing(manifest: Manifest, digests: Sequence[NDArray[np.uint64]]) -> list[str]:
    return [
        entry.name
        for entry, chunks in zip(manifest.regions, digests, strict=True)
        if merkle.root(chunks) != entry.root
    ]
