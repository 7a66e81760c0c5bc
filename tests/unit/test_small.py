"""Small regions diffed all together give what each gives by itself, save after save."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import digest
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.memory import Memory, NamedRegion
from ckptflow.store.planning import changes, small
from ckptflow.store.planning.changes import find_changes
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier

CHUNK = 16
BYTES = st.one_of(
    st.binary(max_size=5 * CHUNK),
    st.integers(0, 5 * CHUNK).map(bytes),  # A fill, or nearly one.
    st.lists(st.sampled_from([b"a" * CHUNK, b"b" * CHUNK, b"12345678ABCDEFGH"])).map(b"".join),
)
STATES = st.lists(st.dictionaries(st.sampled_from("abcdef"), BYTES, max_size=6), max_size=4)


def regions(state: dict[str, bytes]) -> list[NamedRegion]:
    return [NamedRegion(name, memoryview(data)) for name, data in state.items()]


def facts(memory: Memory, state: dict[str, bytes]) -> Any:
    """All that a diff says, per region; ids of cells in the order in which they were met."""
    found = find_changes(regions(state), memory, chunk_bytes=CHUNK, cell_bytes=None)
    memory.rollback()
    return [
        (
            diff.region.name,
            diff.cell_bytes,
            diff.changes.size_bytes,
            *(getattr(diff.changes, name).tolist() for name in ("chunks", "index", "digest")),
            *(getattr(diff.changes, name).tolist() for name in ("kind", "pattern")),
            *(getattr(diff.runs, name).tolist() for name in ("kind", "start_bytes")),
            *(getattr(diff.runs, name).tolist() for name in ("length_bytes", "ref")),
            diff.seen is memory.seen.get(CHUNK),
        )
        for diff in found
        if len(diff.region.data)
    ]


@given(STATES, st.sampled_from(["native", "numba", "numpy"]))
def test_together_is_as_one_by_one(states: list[dict[str, bytes]], backend: str) -> None:
    tier, base = MemoryTier(), None
    if backend not in {one.name for one in digest.available()}:
        return
    with digest.use(backend), pytest.MonkeyPatch.context() as patch:
        for step, state in enumerate(states):
            memory = base.memory if base else Memory()
            together = facts(memory, state)
            with patch.context() as alone:
                alone.setattr(changes, "is_small", lambda *_given: False)
                assert facts(memory, state) == together
            base = write_checkpoint(
                tier,
                LineageId("run", "task"),
                CheckpointId(step, 0),
                structure=None,
                regions=regions(state),
                base=base,
                chunk_bytes=CHUNK,
            )
            back = [bytearray(len(data)) for data in state.values()]
            read_checkpoint([tier], base.manifest, [memoryview(one) for one in back])
            assert back == list(state.values())


def test_a_region_that_shrank_to_a_small_one_keeps_its_cells() -> None:
    region = NamedRegion("a", memoryview(bytes(100)))
    memory = Memory()
    assert small.is_small(region, None, 16)
    assert not small.is_small(NamedRegion("a", memoryview(b"")), None, 16)
    assert not small.is_small(NamedRegion("a", memoryview(bytes(1 << 20))), None, 16)
    tier = MemoryTier()
    rng = np.random.default_rng(0)
    data, base = rng.integers(0, 256, 2 << 20, dtype=np.uint8), None
    for step in range(5):
        data[:: 3 << 10] += 1
        base = write_checkpoint(
            tier,
            LineageId("run", "task"),
            CheckpointId(step, 0),
            structure=None,
            regions=[NamedRegion("a", data[: len(data) >> (step == 4)].data)],
            base=base,
            chunk_bytes=4096,
        )
    memory = base.memory
    old = memory.regions["a"]
    assert not small.is_small(NamedRegion("a", data[:500_000].data), old, 4096)
