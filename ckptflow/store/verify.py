"""Read every stored byte of a checkpoint again and compare it with its digests.

Unlike a restore it looks at every copy, on every tier, so that damage is found while
another copy is still sound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ckptflow.data import digest
from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError, TierError
from ckptflow.manifest import decode
from ckptflow.model import CheckpointId, LineageId, Manifest, PackRef
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.fetch import open_pack
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import checkpoint_root
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

_READ_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was found out about one checkpoint on one tier."""

    id: CheckpointId
    tier: str
    checked_bytes: int
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether every byte is as it was written."""
        return not self.problems


def verify(lineage: Lineage, found: Found) -> list[CopyReport]:
    """Check every copy of a checkpoint: manifest, packs, frames, and the state's roots."""
    return [verify_copy(tier, lineage.id, found.id) for tier in found.tiers]


def verify_copy(tier: Tier, lineage: LineageId, checkpoint: CheckpointId) -> CopyReport:
    """Check the copy of a checkpoint on one tier."""
    problems: list[str] = []
    key = f"{lineage.prefix}/{checkpoint.manifest_key}"
    try:
        data = tier.get(key)
        manifest = decode(data, where=f"{key!r} on tier {tier.name!r}")
    except (CheckpointError, NotFoundError) as error:
        return CopyReport(checkpoint, tier.name, 0, (str(error),))
    checked_bytes = len(data)
    for ref in manifest.packs:
        try:
            problems += _frame_problems(tier, lineage, ref)
            checked_bytes += ref.size_bytes
        except (CorruptionError, NotFoundError, TierError) as error:
            problems.append(str(error))
    if manifest.root != checkpoint_root(manifest.regions):
        problems.append(f"The root of {lineage} {checkpoint} is not that of its regions.")
    if not problems:
        problems += _root_problems(tier, manifest)
    return CopyReport(checkpoint, tier.name, checked_bytes, tuple(problems))


def _frame_problems(tier: Tier, lineage: LineageId, ref: PackRef) -> list[str]:
    frames, key = open_pack(tier, lineage, ref), f"{lineage.prefix}/{ref.key}"
    problems, first = [], 0
    while first < len(frames):
        limit = frames.offset[first] + _READ_BYTES
        last = max(first + 1, int(np.searchsorted(frames.offset, limit, side="right")) - 1)
        begin, end = int(frames.offset[first]), int(frames.offset[last])
        stored = memoryview(tier.get(key, start_bytes=begin, size_bytes=end - begin))
        for frame in range(first, last):
            piece = stored[frames.offset[frame] - begin : frames.offset[frame + 1] - begin]
            if digest.digest(piece) != frames.digest[frame].tobytes():
                problems.append(
                    f"Frame {frame} of pack {key!r} on tier {tier.name!r} does not match its "
                    f"digest."
                )
        first = last
    return problems


def _root_problems(tier: Tier, manifest: Manifest) -> list[str]:
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in manifest.regions]
    try:
        read_checkpoint([tier], manifest, buffers)
    except (CorruptionError, TierError) as error:
        return [str(error)]
    return []
