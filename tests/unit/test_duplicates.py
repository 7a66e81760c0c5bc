"""Bytes that are to be stored as known are compared with those they are known from, if asked.

Digests do not collide here, so the tests change bytes behind them: in memory after the scan,
and in a pack on the tier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckptflow.errors import CorruptionError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.memory import Base, Memory, NamedRegion
from ckptflow.store.planning.changes import find_changes
from ckptflow.store.planning.duplicates import SAMPLE_RUNS, without_wrong_duplicates
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier

LINEAGE = LineageId("run", "task")
CHUNK, CELL = 1024, 64
NOISE = np.random.default_rng(3).bytes(64 * CHUNK)


def regions_of(state: dict[str, bytearray]) -> list[NamedRegion]:
    return [NamedRegion(name, memoryview(data)) for name, data in state.items()]


def write(tier: MemoryTier, step: int, state: dict[str, bytearray], **options: Any) -> Base:
    arguments = {"base": None, "chunk_bytes": CHUNK, "cell_bytes": CELL, **options}
    return write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(step, 1),
        structure=None,
        regions=regions_of(state),
        **arguments,
    )


def read(tier: MemoryTier, base: Base) -> dict[str, bytes]:
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in base.manifest.regions]
    read_checkpoint([tier], base.manifest, buffers)
    names = [entry.name for entry in base.manifest.regions]
    return {name: bytes(buffer) for name, buffer in zip(names, buffers, strict=True)}


@pytest.mark.parametrize("verify", ["sample", "all"])
def test_right_duplicates_stay(verify: str) -> None:
    """Of an older checkpoint, of another region, and of the same one, cut at any cell."""
    tier = MemoryTier()
    state = {"a": bytearray(NOISE[: 8 * CHUNK])}
    base = write(tier, 1, state, verify=verify)
    shifted = bytearray(NOISE[5 * CELL : 6 * CHUNK])
    state = {"a": state["a"] * 3, "b": shifted, "c": bytearray(NOISE[CHUNK : 2 * CHUNK + 7])}
    second = write(tier, 2, state, base=base, verify=verify)
    assert read(tier, second) == state
    own = sum(pack.plain_bytes for pack in second.manifest.own_packs)
    assert own < 2 * CELL  # Only the odd ends are new.


def changed_behind_the_scan(verify: Any, at: int) -> tuple[list[str], list[bool]]:
    state = {
        "first": bytearray(NOISE[: 4 * CHUNK]),
        "twin": bytearray(NOISE[: 4 * CHUNK]),
        "other": bytearray(NOISE[8 * CHUNK : 9 * CHUNK]),
    }
    memory, tier = Memory(), MemoryTier()
    diffs = find_changes(regions_of(state), memory, chunk_bytes=CHUNK, cell_bytes=CELL)
    state["twin"][at] ^= 1
    checked, wrong = without_wrong_duplicates(diffs, memory, tier, LINEAGE, verify=verify)
    return wrong, [diff.seen is not None for diff in checked]


@pytest.mark.parametrize("at", [0, 2 * CHUNK + 5, 4 * CHUNK - 1])
def test_a_wrong_duplicate_within_the_state_is_found(at: int) -> None:
    assert changed_behind_the_scan("all", at) == (["twin"], [True, False, True])


def test_off_looks_at_nothing() -> None:
    assert changed_behind_the_scan("off", 0) == ([], [True, True, True])


def test_a_sample_looks_at_some_of_many() -> None:
    """Every fourth of 256 runs: a fault in the first is found, one in the second is not."""
    runs = 4 * SAMPLE_RUNS
    noise = np.random.default_rng(4)
    source = bytearray(noise.bytes(runs * CELL))
    order = noise.permutation(runs)
    shuffled = bytearray(b"".join(source[i * CELL : (i + 1) * CELL] for i in order.tolist()))

    def wrong(at: int) -> list[str]:
        data, memory = bytearray(shuffled), Memory()
        regions = regions_of({"a": source, "b": data})
        diffs = find_changes(regions, memory, chunk_bytes=CHUNK, cell_bytes=CELL)
        assert len(diffs[1].runs) > 0.9 * runs
        data[at] ^= 1
        return without_wrong_duplicates(diffs, memory, MemoryTier(), LINEAGE, verify="sample")[
            1
        ]

    assert wrong(0) == ["b"]
    assert wrong(CELL) == []


def damage(tier: MemoryTier, base: Base) -> None:
    """Change one byte of its only pack, which is stored as it is."""
    (pack,) = base.manifest.packs
    key = f"{LINEAGE.prefix}/{pack.key}"
    damaged = bytearray(tier.get(key))
    damaged[16 + 3 * CHUNK + 9] ^= 1
    tier.delete(key)
    tier.put(key, [damaged])


def test_bytes_damaged_on_the_tier_are_not_copied() -> None:
    tier = MemoryTier()
    base = write(tier, 1, {"a": bytearray(NOISE[: 8 * CHUNK])})
    damage(tier, base)
    # The cells of "b" are met before "a" says anything new: they are known from the pack alone.
    state = {"b": bytearray(NOISE[: 8 * CHUNK])}
    second = write(tier, 2, state, base=base, verify="all")
    assert second.manifest.kind == "full"
    assert read(tier, second) == state


def test_without_it_the_damage_is_found_by_the_restore() -> None:
    tier = MemoryTier()
    base = write(tier, 1, {"a": bytearray(NOISE[: 8 * CHUNK])})
    damage(tier, base)
    second = write(tier, 2, {"b": bytearray(NOISE[: 8 * CHUNK])}, base=base)
    assert second.manifest.own_packs == ()
    with pytest.raises(CorruptionError, match="no sound copy"):
        read(tier, second)
