"""Bytes that come back are taken from packs that only older checkpoints name.

Nobody keeps such a pack for us: whatever happens to it, before the save or during it, the new
checkpoint is whole.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.store.memory import Base, NamedRegion, remember
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("run", "task")
X, Y = (np.random.default_rng(seed).bytes(100_000) for seed in (1, 2))


def write(tier: Tier, step: int, data: bytes, base: Base | None) -> Base:
    return write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(step, 1),
        structure=None,
        regions=[NamedRegion("w", memoryview(data))],
        base=base,
        chunk_bytes=4096,
    )


def read(tier: Tier, manifest: Manifest) -> bytes:
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in manifest.regions]
    read_checkpoint([tier], manifest, buffers)
    return b"".join(buffers)


def pack_of(manifest: Manifest) -> str:
    (pack,) = manifest.own_packs
    return f"{LINEAGE.prefix}/{pack.key}"


def there_and_back(tier: Tier, before_last: Callable[[Manifest], None]) -> Base:
    first = write(tier, 1, X, None)
    spare = first.manifest
    second = write(tier, 2, Y, first)
    assert not set(second.manifest.packs) & set(spare.packs)
    before_last(spare)
    return write(tier, 3, X, second)


def test_what_comes_back_is_not_written_again() -> None:
    tier = MemoryTier()
    last = there_and_back(tier, lambda _spare: None).manifest
    assert last.own_packs == ()
    assert read(tier, last) == X


def test_a_spare_pack_that_is_gone_is_written_again() -> None:
    tier = MemoryTier()
    last = there_and_back(tier, lambda spare: tier.delete(pack_of(spare))).manifest
    assert len(last.own_packs) == 1
    assert read(tier, last) == X


@pytest.mark.parametrize("when", ["before the commit", "behind it"])
def test_a_spare_pack_that_goes_during_the_save_is_written_again(when: str) -> None:
    """As by a prune of another process, which goes by the manifests that it has seen."""
    disk = MemoryTier()
    doomed: list[str] = []

    def prune(operation: str, key: str) -> None:
        at_commit = operation == "put" and "manifests/" in key
        if doomed and at_commit and when == "before the commit":
            disk.delete(doomed.pop())

    class Pruned(FaultyTier):
        def put(self, key, parts) -> None:
            super().put(key, parts)
            if doomed and "manifests/" in key and when == "behind it":
                disk.delete(doomed.pop())

    tier = Pruned(disk, prune)
    last = there_and_back(tier, lambda spare: doomed.append(pack_of(spare))).manifest
    assert not doomed
    assert len(last.own_packs) == 1
    assert read(disk, last) == X
    # And whoever goes on from it finds its bytes.
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in last.regions]
    base = remember(last, buffers, read_checkpoint([tier], last, buffers))
    mixed = X[:50_000] + Y[:50_000]
    assert read(disk, write(tier, 4, mixed, base).manifest) == mixed
