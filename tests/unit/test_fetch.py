"""Reads straight into place, and over short gaps, whatever was changed.

A read that went wrong would be mended by the second, careful pass; so the notes have to be
empty.
"""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.model import CheckpointId, LineageId
from ckptflow.store import fetch
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier

LINEAGE = LineageId("run", "task")
SIZE = 3 << 20


def change(data: np.ndarray, rng: np.random.Generator) -> None:
    """Change, or make constant, stretches of very different length, so that gaps do, too."""
    for _ in range(rng.integers(1, 40)):
        length = int(8 ** rng.uniform(2, 6))
        start = int(rng.integers(0, SIZE - 8))
        part = data[start : start + length]
        if rng.random() < 0.3:
            part[:] = rng.integers(0, 256)
        else:
            part[:] = np.frombuffer(rng.bytes(len(part)), np.uint8)


@pytest.mark.parametrize("chunk_bytes", [64, 4096])
@pytest.mark.parametrize("seed", range(6))
def test_many_histories_read_back(seed: int, chunk_bytes: int) -> None:
    rng, tier = np.random.default_rng(seed), MemoryTier()
    data = np.frombuffer(rng.bytes(SIZE), np.uint8).copy()
    base: Base | None = None
    joined = 0
    for step in range(14):
        change(data, rng)
        base = write_checkpoint(
            tier,
            LINEAGE,
            CheckpointId(step, 1),
            structure=None,
            regions=[NamedRegion("w", data.data)],
            base=base,
            chunk_bytes=chunk_bytes,
        )
        back = np.full(SIZE, 255, np.uint8)
        notes: list[str] = []
        read_checkpoint([tier], base.manifest, [back.data], note=notes.append)
        assert np.array_equal(back, data)
        assert notes == []
        joined += _reads_over_gaps(base)
    assert joined, "no read went over a gap, so nothing was tested"


def test_two_sources_that_take_turns_do_not_overwrite_each_other() -> None:
    """Both lie in one pack, and the gaps of each are what the other has to bring."""
    rng, tier = np.random.default_rng(0), MemoryTier()
    one, other = (np.frombuffer(rng.bytes(SIZE), np.uint8) for _ in range(2))
    turns = np.arange(SIZE) // (16 << 10) % 2 == 0
    states = [one, other, np.where(turns, one, other)]
    base = write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(0, 1),
        structure=None,
        regions=[
            NamedRegion(name, state.data) for name, state in zip("abc", states, strict=True)
        ],
        base=None,
        chunk_bytes=4096,
    )
    assert base.manifest.written_bytes < 2.1 * SIZE
    back = [np.full(SIZE, 255, np.uint8) for _ in states]
    notes: list[str] = []
    read_checkpoint([tier], base.manifest, [one.data for one in back], note=notes.append)
    assert all(map(np.array_equal, back, states))
    assert notes == []


def _reads_over_gaps(base: Base) -> int:
    """Count short rows between two long ones of one pack, which a read may go over."""
    table = base.manifest.extents
    long = table.length >= fetch.MAIN_DIRECT_BYTES
    short = table.length <= fetch.GAP_BYTES
    same_pack = table.pack[2:] == table.pack[:-2]
    return int((long[2:] & long[:-2] & short[1:-1] & same_pack).sum())
