"""Read every stored byte of a checkpoint again and compare it with its digests.

Unlike a restore it looks at every copy, on every tier, so that damage is found while
another copy is still sound.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ckptflow.data import digest
from ckptflow.data.pack import HEAD, decode_table, table_bytes
from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError, TierError
from ckptflow.model import CheckpointId, LineageId, Manifest, PackRef
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.copies import open_pack
from ckptflow.store.rereading import consolidated
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
    return [verify_copy(tier, lineage, found.id) for tier in found.tiers]


def verify_copy(tier: Tier, lineage: Lineage, checkpoint: CheckpointId) -> CopyReport:
    """Check the copy of a checkpoint on one tier; again, if it was replaced meanwhile."""
    while True:
        report, manifest = _verify_once(tier, lineage, checkpoint)
        if report.sound or manifest is None or consolidated([tier], manifest) is None:
            return report


def _verify_once(
    tier: Tier, lineage: Lineage, checkpoint: CheckpointId
) -> tuple[CopyReport, Manifest | None]:
    problems: list[str] = []
    try:
        manifest = lineage.manifest_on(tier, checkpoint)
        checked_bytes = tier.size(f"{lineage.id.prefix}/{checkpoint.manifest_key}")
    except CheckpointError as error:
        return CopyReport(checkpoint, tier.name, 0, (str(error),)), None
    for ref in manifest.packs:
        try:
            problems += _frame_problems(tier, lineage.id, ref)
            checked_bytes += ref.size_bytes
        except (CorruptionError, NotFoundError, TierError) as error:
            problems.append(str(error))
    if manifest.root != checkpoint_root(manifest.regions):
        problems.append(f"The root of {lineage.id} {checkpoint} is not that of its regions.")
    if not problems:
        problems += _root_problems(tier, manifest)
    return CopyReport(checkpoint, tier.name, checked_bytes, tuple(problems)), manifest


def check_pack(stored: bytes, ref: PackRef, *, where: str) -> None:
    """Compare the bytes of a whole pack with what its manifest says of it.

    Raises:
        CorruptionError: they are not those that were written.
    """
    if len(stored) != ref.size_bytes:
        raise CorruptionError(
            f"Pack {where} has {len(stored)} bytes instead of {ref.size_bytes}."
        )
    frames = decode_table(
        stored[: len(HEAD)],
        stored[-table_bytes(ref.frame_count) :],
        size_bytes=ref.size_bytes,
        frame_count=ref.frame_count,
        sealed=ref.table_seal,
        where=where,
    )
    view = memoryview(stored)
    for frame, (begin, end) in enumerate(itertools.pairwise(frames.offset.tolist())):
        if digest.digest(view[begin:end]) != frames.digest[frame].tobytes():
            raise CorruptionError(f"Frame {frame} of pack {where} does not match its digest.")


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
