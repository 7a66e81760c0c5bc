"""Read one checkpoint back, verified, from whichever copies of its packs are sound.

The bytes go straight into the buffers that the caller gives, which are the application's own
arrays where that is possible. Then the Merkle root of every region is compared with the
manifest. Only if one differs are the frames checked one by one, to find the damaged copy
and take another; so the usual restore pays for one pass of digests, not two.
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

_FAR_LEVEL, _FAR_READS = 4, 16  # From this level on each read waits for a round trip.


def read_checkpoint(
    tiers: Sequence[Tier],
    manifest: Manifest,
    buffers: Sequence[memoryview],
    *,
    note: Callable[[str], None] = lambda _text: None,
) -> list[NDArray[np.uint64]]:
    """Fill ``buffers`` with the regions of a checkpoint and verify them.

    Args:
        tiers: where copies of its packs may lie, the preferred first.
        manifest: the checkpoint.
        buffers: one writable flat buffer per region, of exactly its size.
        note: told, in a sentence, of every copy that was skipped and why.

    Returns:
        The digests of the chunks of each region, uint64 [n, 2].

    Raises:
        CorruptionError: some region could not be made whole from any copy. The buffers
            are then partly overwritten.
    """
    for entry, buffer in zip(manifest.regions, buffers, strict=True):
        assert len(buffer) == entry.size_bytes, "the caller sizes buffers from the manifest"
    packs = [
        Pack(tiers, manifest.lineage, ref, note, hold_small=True) for ref in manifest.packs
    ]
    with ThreadPoolExecutor(_thread_count(tiers), "ckptflow-restore") as pool:
        fill(manifest, buffers, packs, pool, check_frames=False)
        digests = _digests(manifest, buffers, pool)
        if bad := _differing(manifest, digests):
            note(
                f"{_listed(bad)} of {manifest.lineage} did not verify; looking for the frames."
            )
            fill(manifest, buffers, packs, pool, check_frames=True)
            digests = _digests(manifest, buffers, pool)
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


def _digests(
    manifest: Manifest, buffers: Sequence[memoryview], pool: ThreadPoolExecutor
) -> list[NDArray[np.uint64]]:
    def one(buffer: memoryview) -> NDArray[np.uint64]:
        return digest.chunk_digests(buffer, manifest.chunk_bytes)

    return list(pool.map(one, buffers))


def _differing(manifest: Manifest, digests: Sequence[NDArray[np.uint64]]) -> list[str]:
    return [
        entry.name
        for entry, chunks in zip(manifest.regions, digests, strict=True)
        if merkle.root(chunks) != entry.root
    ]
