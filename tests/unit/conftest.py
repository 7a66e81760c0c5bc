"""Stores with checkpoints in them, made the way the product makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ckptflow.data.regions import flatten
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]


@pytest.fixture
def save_state() -> SaveState:
    """Return a function that commits a state on a tier and returns its lineage.

    Saves of one lineage follow each other, so that all but the first are deltas.
    """
    bases: dict[LineageId, tuple[Tier, Base]] = {}

    def save(
        tier: Tier,
        name: str,
        step: int,
        state: Any,
        *,
        attempt: int = 1,
        metrics: Mapping[str, float] | None = None,
        chunk_bytes: int = 64,
    ) -> Lineage:
        lineage = LineageId(*name.split("/"))
        ensure_store(tier)
        flat = flatten(state)
        arena = memoryview(bytearray(flat.total_bytes))
        regions = [
            NamedRegion(region.name, view)
            for region, view in zip(flat.regions, flat.copy_into(arena), strict=True)
        ]
        home, base = bases.get(lineage, (tier, None))
        bases[lineage] = (
            tier,
            write_checkpoint(
                tier,
                lineage,
                CheckpointId(step, attempt),
                structure=flat.structure,
                regions=regions,
                base=base if home is tier else None,
                chunk_bytes=chunk_bytes,
                metrics=metrics,
            ),
        )
        return Lineage([tier], lineage)

    return save


@pytest.fixture
def packed_again() -> Callable[[MemoryTier], Tier]:
    """Return a tier that packs the newest checkpoint again when its packs are looked at.

    As consolidation does it: new packs, a new manifest of the same checkpoint, and then the
    packs that nothing needs any more go, with the older checkpoints.
    """

    def wrapped(tier: MemoryTier) -> Tier:
        (name,) = {key.rsplit("/", 2)[0] for key in tier.iter_keys("lineages")}
        lineage = Lineage([tier], LineageId(*name.split("/")[1:3]))
        found, *older = lineage.checkpoints()
        manifest = lineage.manifest(found)
        buffers = [memoryview(bytearray(region.size_bytes)) for region in manifest.regions]
        read_checkpoint([tier], manifest, buffers)

        def pack_again(operation: str, key: str) -> None:
            if "/packs/" not in key or operation == "iter_keys" or pack_again.done:
                return
            pack_again.done = True
            before = list(tier.iter_keys(f"{lineage.id.prefix}/packs"))
            write_checkpoint(
                tier,
                lineage.id,
                found.id,
                structure=manifest.structure,
                regions=[
                    NamedRegion(region.name, data)
                    for region, data in zip(manifest.regions, buffers, strict=True)
                ],
                base=None,
                chunk_bytes=manifest.chunk_bytes,
            )
            for one in older:
                tier.delete(f"{lineage.id.prefix}/{one.id.manifest_key}")
            for old in before:
                tier.delete(old)

        pack_again.done = False
        return FaultyTier(tier, pack_again)

    return wrapped
