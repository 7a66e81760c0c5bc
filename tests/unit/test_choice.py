"""How the new bytes of regions are encoded: when it is worth a sample, and when a delta is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckptflow.data.codec import Codec
from ckptflow.data.encoding import sample_ranges
from ckptflow.data.frames import RAW
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.cells import Writing
from ckptflow.store.memory import Memory, NamedRegion
from ckptflow.store.planning.changes import find_changes
from ckptflow.store.planning.choice import (
    DELTA_BOUNDS,
    SAMPLED_BYTES_MIN,
    USUAL,
    _samples,
    choose_encodings,
    note_ratios,
    writings_of,
)
from ckptflow.store.planning.drafting import RegionEncoding
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier

SIZE = 200_000
LINEAGE = LineageId("exp", "task")


def chosen(
    data: np.ndarray, memory: Memory | None = None, goal: Any = "small", item_bytes: int = 4
) -> RegionEncoding:
    """The encoding of a region; the memory stays as it was."""
    memory = memory or Memory()
    regions = [NamedRegion("w", data.view(np.uint8).data, item_bytes)]
    diffs = find_changes(regions, memory, chunk_bytes=4096, cell_bytes=None)
    (found,) = choose_encodings(diffs, memory, goal=goal, cores=1)
    memory.rollback()
    return found


def numbers(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(SIZE // 4).astype("<f4")


def saved(data: np.ndarray, *, at_hand: bool) -> Memory:
    base = write_checkpoint(
        MemoryTier(),
        LINEAGE,
        CheckpointId(0, 1),
        structure=None,
        regions=[NamedRegion("w", data.view(np.uint8).data, 4)],
        base=None,
        chunk_bytes=4096,
    )
    if at_hand:
        base.memory.bytes_at_hand = {"w": data.view(np.uint8).data}
    return base.memory


def test_noise_is_stored_as_it_is(rng: np.random.Generator) -> None:
    found = chosen(rng.integers(0, 256, SIZE, dtype=np.uint8), item_bytes=1)
    assert found.plain == RAW
    assert found.delta is None
    assert found.reasons.startswith("raw: ")


def test_what_repeats_is_compressed(rng: np.random.Generator) -> None:
    found = chosen(np.repeat(rng.integers(0, 99, SIZE // 100), 25).astype("<u4"))
    assert found.plain.codec in {Codec.ZSTD, Codec.LZ4}
    assert found.reasons.startswith(f"{found.plain}: ")


@pytest.mark.parametrize("goal", ["auto", "small"])
def test_little_is_not_worth_a_sample(rng: np.random.Generator, goal: Any) -> None:
    little = SAMPLED_BYTES_MIN[goal] - 8
    assert chosen(rng.integers(0, 256, little, dtype=np.uint8), goal=goal) == RegionEncoding(
        USUAL
    )


def test_what_changed_a_little_is_a_delta_if_the_parent_is_at_hand(
    rng: np.random.Generator,
) -> None:
    old = numbers(rng)
    new = (old * np.float32(1 + 2**-20)).astype("<f4")
    found = chosen(new, saved(old, at_hand=True))
    assert found.delta is not None
    assert found.delta.op is not None
    assert found.plain.op is None  # For what the parent does not reach.
    assert found.reasons.startswith(f"{found.delta}: ")
    assert chosen(new, saved(old, at_hand=False)).delta is None


def test_a_parent_that_is_shorter_is_none(rng: np.random.Generator) -> None:
    """Samples would have nothing to be compared with."""
    old = numbers(rng)
    memory = saved(old, at_hand=True)
    new = np.concatenate([old, old[:100]]) * np.float32(1 + 2**-20)
    assert chosen(new.astype("<f4"), memory).delta is None
    memory = saved(old, at_hand=True)
    assert chosen(new[: SIZE // 8].astype("<f4"), memory).delta is not None


def test_deltas_of_regions_are_bounded() -> None:
    auto, small = DELTA_BOUNDS["auto"], DELTA_BOUNDS["small"]
    assert auto.stored_fraction <= 0.3  # What a restore reads besides the bytes of a full one.
    assert small.layers > auto.layers
    assert small.stored_fraction > auto.stored_fraction


def test_samples_are_of_new_bytes_only() -> None:
    start = np.arange(0, 4_000_000, 4000, dtype=np.uint64)
    length = np.full(1000, 640, np.uint64)
    ranges = _samples(start, length, 8)
    sampled = sum(n for _, n in sample_ranges(1000 * 640, 8))
    assert sum(b - a for a, b in ranges) == sampled < 1000 * 640
    for a, b in ranges:
        assert a // 4000 == (b - 1) // 4000
        assert a % 8 == 0
        assert b <= a // 4000 * 4000 + 640
    assert ranges[0][0] < 1000
    assert ranges[-1][1] > 3_990_000
    assert _samples(start[:1], length[:1], 8) == [(0, 640)]


def test_a_ratio_that_moved_is_measured_anew(rng: np.random.Generator) -> None:
    memory = Memory()
    data = np.repeat(rng.integers(0, 99, SIZE // 100), 25).astype("<u4")
    assert chosen(data, memory).plain != RAW
    noise = rng.integers(0, 2**32, SIZE // 4, dtype="<u4")
    assert chosen(noise, memory).plain != RAW  # Not looked at yet.
    diffs = find_changes(
        [NamedRegion("w", noise.view(np.uint8).data)], memory, chunk_bytes=4096, cell_bytes=None
    )
    note_ratios(diffs, memory, {0: (SIZE, SIZE // 20)})
    note_ratios(diffs, memory, {0: (SIZE, SIZE)})
    memory.rollback()
    assert chosen(noise, memory).plain == RAW


def test_how_regions_were_written_is_told() -> None:
    memory = Memory(put_bytes_per_s=3e8)
    assert writings_of(2, {0}, memory, {0: (300, 100)}, goal="auto") == [
        Writing(ratio=3.0, delta_coded=True, bytes_per_s=3e8),
        Writing(ratio=1.0, delta_coded=False, bytes_per_s=3e8),
    ]
    memory.put_bytes_per_s = 9e9  # No tier makes bytes free.
    assert writings_of(1, (), memory, {}, goal="auto")[0].bytes_per_s == 1e9
    assert writings_of(1, (), memory, {}, goal="small")[0].bytes_per_s == 1e8
