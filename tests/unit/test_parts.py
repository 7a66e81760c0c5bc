"""A checkpoint that several processes write in parts is one like any other, or not there."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ckptflow.errors import ConfigError, TierUnavailable
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import NamedRegion
from ckptflow.store.packing import Packing
from ckptflow.store.parts import Part, PartWriter, commit, joined
from ckptflow.store.restore import read_checkpoint
from ckptflow.testing.faults import Crash, CrashingTier
from ckptflow.tiers.memory import MemoryTier

LINEAGE = LineageId("exp", "task")
PACKING = Packing(chunk_bytes=64)


def store() -> MemoryTier:
    tier = MemoryTier()
    ensure_store(tier)
    return tier


def regions(*arrays: NDArray[np.uint8], first: int = 0) -> list[NamedRegion]:
    return [NamedRegion(f"r{first + i}", array.data) for i, array in enumerate(arrays)]


def put(tier: MemoryTier, parts: list[Part]) -> Manifest:
    manifest = joined(parts, LINEAGE, structure=None)
    commit(tier, Lineage([tier], LINEAGE), manifest, before_commit=lambda: None)
    return manifest


def read(tier: MemoryTier, step: int) -> list[bytes]:
    lineage = Lineage([tier], LINEAGE)
    manifest = lineage.manifest(lineage.valid_of_step(step)[0])
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in manifest.regions]
    read_checkpoint([tier], manifest, buffers)
    return [bytes(buffer) for buffer in buffers]


@given(
    owners=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    changes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 990)), max_size=6),
    lost=st.sets(st.integers(1, 6)),
)
def test_what_is_read_is_what_was_written_last(
    owners: list[int], changes: list[tuple[int, int]], lost: set[int]
) -> None:
    """However regions are dealt out; saves that are ``lost`` are never committed."""
    rng = np.random.default_rng(1)
    state = [rng.integers(0, 256, 1000, dtype=np.uint8) for _ in owners]
    tier = store()
    writers = [PartWriter(tier, LINEAGE, PACKING) for _ in range(3)]
    numbers = [[i for i, owner in enumerate(owners) if owner == rank] for rank in range(3)]
    expected: dict[int, list[bytes]] = {}
    for step in range(len(changes) + 1):
        if step:
            region, at = changes[step - 1]
            state[region % len(state)][at : at + 7] += 1
        parts = [
            writer.write(CheckpointId(step, 1), [regions(state[i], first=i)[0] for i in mine])
            for writer, mine in zip(writers, numbers, strict=True)
        ]
        if step not in lost:
            put(tier, pickle.loads(pickle.dumps(parts)))
            expected[step] = [state[i].tobytes() for mine in numbers for i in mine]
    for step, bits in expected.items():
        assert read(tier, step) == bits


def test_only_what_changed_is_put_again() -> None:
    tier, a, b = store(), np.arange(255, dtype=np.uint8), np.arange(200, dtype=np.uint8)
    writers = [PartWriter(tier, LINEAGE, PACKING) for _ in range(2)]
    for step in (1, 2):
        parts = [
            writer.write(CheckpointId(step, 1), regions(array, first=i))
            for i, (writer, array) in enumerate(zip(writers, (a, b), strict=True))
        ]
        manifest = put(tier, parts)
        b[70] += 1
    assert (manifest.kind, manifest.parent) == ("delta", CheckpointId(1, 1))
    assert len(manifest.own_packs) == 1
    assert manifest.own_packs[0].plain_bytes == 64


def test_a_part_that_dies_leaves_its_writer_as_it_was() -> None:
    tier, data = store(), np.arange(255, dtype=np.uint8)
    dying = CrashingTier(tier, crash_at=1)
    writer = PartWriter(dying, LINEAGE, PACKING)
    put(tier, [writer.write(CheckpointId(1, 1), regions(data))])
    data[0] += 1
    with pytest.raises(Crash):
        writer.write(CheckpointId(2, 1), regions(data))
    assert read(tier, 1)[0][1:] == data[1:].tobytes()


def test_parts_have_to_be_of_one_checkpoint_and_of_one_kind() -> None:
    tier, data = store(), np.zeros(10, np.uint8)
    one = PartWriter(tier, LINEAGE, PACKING).write(CheckpointId(1, 1), regions(data))
    later = PartWriter(tier, LINEAGE, PACKING).write(CheckpointId(2, 1), regions(data))
    coarse = PartWriter(tier, LINEAGE, Packing()).write(CheckpointId(1, 1), regions(data))
    for other in (later, coarse):
        with pytest.raises(ConfigError, match="All processes need the same step and packing"):
            joined([one, other], LINEAGE, structure=None)


def test_a_commit_without_its_packs_is_taken_back() -> None:
    tier = store()
    writer = PartWriter(tier, LINEAGE, PACKING)
    part = writer.write(CheckpointId(1, 1), regions(np.arange(255, dtype=np.uint8)))
    tier.delete(f"{LINEAGE.prefix}/{part.packs[0].key}")
    with pytest.raises(TierUnavailable, match="was taken back"):
        put(tier, [part])
    assert Lineage([tier], LINEAGE).valid() == []
