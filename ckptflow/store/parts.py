"""One checkpoint, written by several processes, committed by one of them.

Each process diffs its regions against what it wrote before, puts packs, and tells the one that
commits what came of it: a `Part`, small and without data. Who commits joins the parts to one
manifest, as if one process had written everything, and puts that; before, there are packs that
nobody names. So a checkpoint is there when all of it is, and nothing that reads, verifies,
copies or prunes checkpoints needs to know how many wrote it.

How the parts come together is not the business of this module: `ckptflow.bridges.dcp` lets
torch carry them. ``tests/unit/test_parts.py``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ckptflow import manifest as manifest_file
from ckptflow.errors import ConfigError, TierUnavailable
from ckptflow.model import (
    KEEP,
    CheckpointId,
    ExtentTable,
    LineageId,
    Manifest,
    PackRef,
    RegionEntry,
)
from ckptflow.store.catalog import Lineage
from ckptflow.store.completion import NO_SOURCES
from ckptflow.store.find import is_there
from ckptflow.store.guards import read_notices
from ckptflow.store.memory import Memory, NamedRegion
from ckptflow.store.packer import Packer
from ckptflow.store.packing import Packing
from ckptflow.store.planning.plan import Planner
from ckptflow.store.save import WRITER, checkpoint_root, remember_written
from ckptflow.tiers.tier import Tier


@dataclass(frozen=True, slots=True)
class Part:
    """What one process has put of a checkpoint.

    Attributes:
        id: of the checkpoint.
        parent: the checkpoint that some of it is stored in; ``None`` if none is.
        chunk_bytes: unit of digest.
        regions: its regions, in order.
        packs: that these need, older ones first.
        extents: the rows of its regions; packs count through ``packs``.
    """

    id: CheckpointId
    parent: CheckpointId | None
    chunk_bytes: int
    regions: tuple[RegionEntry, ...]
    packs: tuple[PackRef, ...]
    extents: ExtentTable


class PartWriter:
    """Writes the parts of one process, checkpoint by checkpoint, each against the one before.

    Args:
        tier: where they go; all processes have to see it.
        lineage: whose checkpoints they are parts of.
        packing: how they are compared and stored, the same in all processes.
    """

    def __init__(self, tier: Tier, lineage: LineageId, packing: Packing) -> None:
        self._tier, self._lineage, self._packing = tier, lineage, packing
        self._memory = Memory()

    def write(
        self,
        checkpoint: CheckpointId,
        regions: Sequence[NamedRegion],
        *,
        nonce: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> Part:
        """Put what is new of some regions; nothing is committed.

        If the checkpoint that the last part belongs to was never committed, nothing is known of
        what is stored, and all is new.

        Args:
            checkpoint: that this will be a part of.
            regions: their bytes must not change until this function returns.
            nonce: draws 8 hex digits for the key of each pack.

        Raises:
            TierError: the tier failed.
        """
        before, packing = self._memory.of, self._packing
        if before and not is_there(self._tier, self._lineage, before.id):
            self._memory = Memory()
        planner = Planner(
            self._tier,
            self._lineage,
            regions,
            packing.chunk_bytes,
            packing.cell_bytes,
            packing.goal,
            packing.verify,
            NO_SOURCES,
        )
        plan = planner.plan(self._memory)
        packer = Packer(self._tier, plan, self._lineage)
        try:
            count = plan.layout.plan.pack_count
            packer.put_all([checkpoint.pack_key(number, nonce()) for number in range(count)])
        except BaseException:
            plan.memory.rollback()
            packer.forget()
            raise
        packs = (*plan.shared, *packer.packs)
        part = Part(
            checkpoint, plan.parent, packing.chunk_bytes, plan.entries, packs, plan.extents
        )
        self._memory = Memory()  # What breaks off here leaves nothing to rely on.
        adapt = packing.cell_bytes is None
        alone = joined([part], self._lineage, structure=None)
        remember_written(plan, packer, alone, goal=packing.goal, adapt=adapt)
        self._memory = plan.memory
        return part


def joined(
    parts: Sequence[Part],
    lineage: LineageId,
    *,
    structure: Any,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Manifest:
    """Return the manifest of a checkpoint that was written in parts.

    Args:
        parts: at least one; their regions follow each other in the order of the parts.
        lineage: whose checkpoint it is.
        structure: how all these regions make the state.
        now: the clock, UTC.

    Raises:
        ConfigError: they are not of one checkpoint, or have chunks of different sizes.
    """
    first = parts[0]
    for part in parts:
        if (part.id, part.chunk_bytes) != (first.id, first.chunk_bytes):
            raise ConfigError(
                f"The parts of {lineage} {first.id} do not fit: one has chunks of "
                f"{first.chunk_bytes} bytes, another is of {part.id} with chunks of "
                f"{part.chunk_bytes}. All processes need the same step and packing."
            )
    own = {
        pack: CheckpointId.of_pack(pack.key) == first.id for one in parts for pack in one.packs
    }
    packs = sorted(own, key=own.__getitem__)  # Stable; older ones first.
    number = {pack: place for place, pack in enumerate(packs)}
    regions = tuple(region for part in parts for region in part.regions)
    parents = [part.parent for part in parts if part.parent is not None]
    return Manifest(
        lineage=lineage,
        id=first.id,
        parent=max(parents, default=None),
        kind="full" if all(own.values()) else "delta",
        created=now().isoformat(timespec="milliseconds"),
        writer=WRITER,
        metrics={},
        root=checkpoint_root(regions),
        chunk_bytes=first.chunk_bytes,
        packs=tuple(packs),
        regions=regions,
        extents=ExtentTable.of([_renumbered(part, number) for part in parts]),
        structure=structure,
    )


def commit(
    tier: Tier, lineage: Lineage, manifest: Manifest, *, before_commit: Callable[[], None]
) -> None:
    """Put the manifest of a checkpoint whose packs are all there.

    Args:
        tier: that has the packs.
        lineage: whose checkpoint it is.
        manifest: of it.
        before_commit: an exception stops the commit.

    Raises:
        TierUnavailable: packs that it needs went meanwhile; it was taken back.
        TierError: the tier failed.
    """
    manifest_file.check_extents(manifest)  # Better none than one that cannot be read.
    key = f"{lineage.id.prefix}/{manifest.id.manifest_key}"
    data = manifest_file.encode(manifest)
    before_commit()
    tier.put(key, [data])  # The commit.
    # First who is about to delete some, then what is there: see "Guards" on the format page.
    doomed = read_notices(tier, lineage.id).announced
    there = set(tier.iter_keys(f"{lineage.id.prefix}/packs"))
    for pack in manifest.packs:
        if pack.key in doomed or f"{lineage.id.prefix}/{pack.key}" not in there:
            tier.delete(key)
            raise TierUnavailable(
                f"{lineage.id} {manifest.id} was taken back: a prune took {pack.key!r}, which "
                f"it needs, from tier {tier.name!r} meanwhile. Save again: all is written then."
            )


def _renumbered(part: Part, number: dict[PackRef, int]) -> ExtentTable:
    """Return the rows of a part; packs count through those of the whole checkpoint."""
    table, place = part.extents, np.array([number[pack] for pack in part.packs], np.uint32)
    pack = table.pack.copy()
    stored = pack < KEEP
    pack[stored] = place[pack[stored]]
    return replace(table, pack=pack)
