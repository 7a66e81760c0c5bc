"""Read one checkpoint back, verified, from whichever copies of its packs are sound.

The bytes go straight into the buffers that the caller gives, which are the application's own
arrays where that is possible. Then the chunks are digested, by all threads, and the Merkle root
of every region is compared with the manifest. Only if one differs are the frames checked one
by one, to find the damaged copy and take another; so the usual restore pays for one pass of
digests, not two. (To digest what each thread has just read saves a few percent where a disk has
to be waited for, and costs up to twice the time where many small pieces come from memory.)
``tests/unit/test_restore.py``, ``tests/unit/test_fetch.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import digest, merkle
from ckptflow.data.buffers import U64s
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
        fill(manifest, buffers, packs, pool, check_frames=False)
        digests, edges = digest.many_chunk_digests(buffers, manifest.chunk_bytes)
        if bad := _differing(manifest, digests, edges):
            note(
                f"{_listed(bad)} of {manifest.lineage} did not verify; looking for the frames."
            )
            fill(manifest, buffers, packs, pool, check_frames=True)
            digests, edges = digest.many_chunk_digests(buffers, manifest.chunk_bytes)
            if bad := _differing(manifest, digests, edges):
                raise CorruptionError(
                    f"{_listed(bad)} of {manifest.lineage} {manifest.id} do not have the root "
                    f"that the manifest names, although all frames are sound."
                )
    return [digests[a:b] for a, b in pairwise(edges.tolist())]


def _thread_count(tiers: Sequence[Tier]) -> int:
    if any(tier.level >= _FAR_LEVEL for tier in tiers):
        return _FAR_READS  # Threads that wait for a network use no core.
    return min(4, len(os.sched_getaffinity(0)))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return f"Regions {shown}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _differing(manifest: Manifest, digests: U64s, edges: NDArray[np.intp]) -> list[str]:
    roots = merkle.roots(digests, edges.tolist())
    return [
        entry.name
        for entry, root in zip(manifest.regions, roots, strict=True)
        if root != entry.root
    ]
