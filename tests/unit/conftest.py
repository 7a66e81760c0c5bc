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
from ckptflow.store.save import write_checkpoint
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
