"""Ranges of regions: the right bytes, verified, from no more frames than they lie in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ckptflow.errors import CorruptionError
from ckptflow.model import Manifest
from ckptflow.store.catalog import Lineage
from ckptflow.store.comparing.spans import SpanReader
from ckptflow.store.find import find_checkpoint
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.metered import MeteredTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

SaveState = Callable[..., Lineage]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def newest(lineage: Lineage) -> Manifest:
    return lineage.manifest(find_checkpoint(lineage))


def ranges(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    start, length = zip(*pairs, strict=True)
    return np.array(start, np.uint64), np.array(length, np.uint64)


def pack_keys(tier: Tier) -> list[str]:
    return [key for key in tier.iter_keys("") if key.endswith(".pack")]


def test_ranges_of_a_delta(save_state: SaveState, pool: ThreadPoolExecutor) -> None:
    tier, rng = MemoryTier(), np.random.default_rng(0)
    state = {"a": np.zeros(10_000, np.uint8), "b": rng.integers(0, 256, 50_000, np.uint8)}
    save_state(tier, "exp/a", 1, state)
    state["b"][20_000:20_100] = rng.integers(0, 256, 100)
    state["b"][30_000:32_000] = 7
    manifest = newest(save_state(tier, "exp/a", 2, state))
    reader = SpanReader([tier], manifest, pool)
    (number,) = [i for i, region in enumerate(manifest.regions) if region.size_bytes == 50_000]
    wanted = ranges((0, 1), (19_990, 200), (29_999, 2_003), (49_999, 1))
    found = reader.read(reader.rows(number, *wanted))
    expected = [state["b"][int(a) : int(a + n)] for a, n in zip(*wanted, strict=True)]
    assert found.tobytes() == np.concatenate(expected).tobytes()


def test_only_the_frames_concerned_are_read(
    save_state: SaveState, pool: ThreadPoolExecutor
) -> None:
    tier, rng = MemoryTier(), np.random.default_rng(0)
    data = rng.integers(0, 256, 6 * MIB, np.uint8)
    manifest = newest(save_state(tier, "exp/a", 1, {"w": data}, chunk_bytes=4096))
    metered = MeteredTier(tier)
    reader = SpanReader([metered], manifest, pool)
    found = reader.read(reader.rows(0, *ranges((3 * MIB + 5, 10))))
    assert found.tobytes() == data[3 * MIB + 5 : 3 * MIB + 15].tobytes()
    assert 10 <= metered.read_bytes < 1.1 * MIB
    before = metered.read_bytes
    reader.read(reader.rows(0, *ranges((3 * MIB - 1, 2))))
    assert metered.read_bytes - before == 2 * MIB, "two frames, and no table again"


def test_fills_are_not_read(save_state: SaveState, pool: ThreadPoolExecutor) -> None:
    manifest = newest(save_state(MemoryTier(), "exp/a", 1, {"w": np.full(1000, 3.5)}))
    reader = SpanReader([MemoryTier("empty")], manifest, pool)
    found = reader.read(reader.rows(0, *ranges((12, 20))))
    assert found.tobytes() == np.full(5, 3.5).tobytes()[4:24]


@pytest.mark.damaged_store
def test_a_damaged_frame_comes_from_another_copy(
    save_state: SaveState, pool: ThreadPoolExecutor
) -> None:
    tier, spare = MemoryTier("near"), MemoryTier("far")
    data = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    manifest = newest(save_state(tier, "exp/a", 1, {"w": data}))
    (key,) = pack_keys(tier)
    spare.put(key, [tier.get(key)])
    damaged = bytearray(tier.get(key))
    damaged[100] ^= 1
    tier.put(key, [damaged])
    notes: list[str] = []
    reader = SpanReader([tier, spare], manifest, pool, note=notes.append)
    found = reader.read(reader.rows(0, *ranges((80, 40))))
    assert found.tobytes() == data[80:120].tobytes()
    assert "'near' (bytes 16 to" in notes[0]
    alone = SpanReader([tier], manifest, pool)
    with pytest.raises(CorruptionError, match="no sound copy"):
        alone.read(alone.rows(0, *ranges((500, 1))))
