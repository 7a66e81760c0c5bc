"""How a region is compared: in which cells, how that follows its changes, and coarse cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckptflow.data.scan import Kind, Runs
from ckptflow.errors import ConfigError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.memory import Base, Memory, NamedRegion, RegionDiff
from ckptflow.store.planning import changes
from ckptflow.store.planning.changes import find_changes
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier

LINEAGE = LineageId("exp", "task")


class Saves:
    """Saves of one region, one after the other, each read back."""

    def __init__(self, chunk_bytes: int = 4096) -> None:
        self.tier, self.base = MemoryTier(), None
        self.chunk_bytes = chunk_bytes

    def save(self, data: np.ndarray, cell_bytes: int | None = None) -> Base:
        step = self.base.manifest.id.step + 1 if self.base else 0
        self.base = write_checkpoint(
            self.tier,
            LINEAGE,
            CheckpointId(step, 1),
            structure=None,
            regions=[NamedRegion("w", data.view(np.uint8).data)],
            base=self.base,
            chunk_bytes=self.chunk_bytes,
            cell_bytes=cell_bytes,
        )
        back = np.empty(data.nbytes, np.uint8)
        read_checkpoint([self.tier], self.base.manifest, [back.data])
        assert back.tobytes() == data.tobytes()
        return self.base

    @property
    def cell_bytes(self) -> int:
        assert self.base is not None
        return self.base.memory.regions["w"].cell_bytes

    @property
    def full(self) -> bool:
        assert self.base is not None
        policy = self.base.memory.regions["w"].policy
        return policy is not None and policy.full


def diffed(data: bytes, memory: Memory, **options: Any) -> RegionDiff:
    """One region against a memory, which stays as it was."""
    regions = [NamedRegion("w", memoryview(data))]
    (diff,) = find_changes(
        regions, memory, **{"chunk_bytes": 64, "cell_bytes": None, **options}
    )
    memory.rollback()
    return diff


def scattered(data: np.ndarray, rng: np.random.Generator, count: int) -> None:
    places = rng.integers(0, len(data), count)
    data[places] ^= rng.integers(1, 255, count, dtype=np.uint8)


# --- cells ---


def test_without_a_wish_small_regions_are_compared_in_chunks(rng: np.random.Generator) -> None:
    saves = Saves()
    data = rng.integers(0, 256, 200_000, dtype=np.uint8)
    for _ in range(5):
        scattered(data, rng, 5)
        saves.save(data)
        assert saves.cell_bytes == 4096
        assert not saves.full


def test_fixed_cells_stay(rng: np.random.Generator) -> None:
    saves = Saves()
    data = rng.integers(0, 256, 2 << 20, dtype=np.uint8)
    saves.save(data, 128)
    for _ in range(5):
        scattered(data, rng, 5)
        base = saves.save(data, 128)
        assert saves.cell_bytes == 128 == base.manifest.regions[0].cell_bytes
        own = sum(pack.plain_bytes for pack in base.manifest.own_packs)
        assert own <= 5 * 128


def test_cells_follow_scattered_changes_and_come_back(rng: np.random.Generator) -> None:
    """Single bytes all over the region, then all of it."""
    saves = Saves()
    data = rng.integers(0, 256, 4 << 20, dtype=np.uint8)
    saves.save(data)
    written = []
    for _ in range(8):
        scattered(data, rng, 200)
        base = saves.save(data)
        written.append(sum(pack.plain_bytes for pack in base.manifest.own_packs))
    fine = saves.cell_bytes
    assert fine < 4096
    assert written[-1] < written[0] / 4
    assert len(base.memory.regions["w"].cells) == len(data) // fine
    for _ in range(5):
        data = rng.integers(0, 256, 4 << 20, dtype=np.uint8)
        base = saves.save(data)
    assert saves.cell_bytes == 4096
    assert base.memory.regions["w"].cells is None


def test_where_all_changes_nothing_is_looked_up(rng: np.random.Generator) -> None:
    """And when less does, it is compared again."""
    saves = Saves()
    for _ in range(6):
        data = rng.integers(0, 256, 2 << 20, dtype=np.uint8)
        base = saves.save(data)
    assert saves.full
    diff = diffed(data[::-1].tobytes(), base.memory, chunk_bytes=4096)
    assert diff.seen is None
    assert set(diff.runs.kind.tolist()) == {Kind.NEW}
    for _ in range(6):
        data[:100] = rng.integers(0, 256, 100, dtype=np.uint8)
        base = saves.save(data)
    assert not saves.full
    assert sum(pack.plain_bytes for pack in base.manifest.own_packs) <= 4096


def test_cells_that_were_fixed_at_an_unusual_size_are_given_up(
    rng: np.random.Generator,
) -> None:
    saves = Saves()
    data = rng.integers(0, 256, 2 << 20, dtype=np.uint8)
    saves.save(data, 32)
    for cell_bytes in (None, None, 32, None):
        scattered(data, rng, 9)
        saves.save(data, cell_bytes)
        assert saves.cell_bytes == (cell_bytes or 4096)


@pytest.mark.parametrize("sizes", [(100, 164), (164, 100), (128, 129), (129, 128), (0, 50)])
@pytest.mark.parametrize("cell_bytes", [16, 32, 64])
def test_regions_that_grow_and_shrink(
    sizes: tuple[int, int], cell_bytes: int, rng: np.random.Generator
) -> None:
    whole = rng.integers(0, 256, 200, dtype=np.uint8)
    saves = Saves(chunk_bytes=64)
    for size in (*sizes, *sizes):
        base = saves.save(whole[:size].copy(), cell_bytes)
    if cell_bytes < 64:
        assert len(base.memory.regions["w"].cells) == -(-sizes[1] // cell_bytes)


@pytest.mark.parametrize(
    ("chunk_bytes", "cell_bytes"), [(12, None), (64, 24), (64, 8), (64, 40)]
)
def test_chunks_and_cells_that_cannot_be(chunk_bytes: int, cell_bytes: int | None) -> None:
    with pytest.raises(ConfigError):
        diffed(b"a" * 200, Memory(), chunk_bytes=chunk_bytes, cell_bytes=cell_bytes)


# --- coarse cells ---


def rows_of(runs: Runs) -> list[tuple[int, int, int, int]]:
    columns = (runs.kind, runs.start_bytes, runs.length_bytes, runs.ref)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def runs_of(*rows: tuple[int, int, int, int]) -> Runs:
    kind, start, length, ref = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = (np.array(c, np.uint64) for c in (start, length, ref))
    return Runs(np.array(kind, np.uint8), *columns)


NEW, FILLED = int(Kind.NEW), int(Kind.FILL)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),
        ([(NEW, 64, 64, 9)], [(NEW, 0, 256, 0)]),
        ([(NEW, 64, 64, 9), (NEW, 192, 64, 9)], [(NEW, 0, 256, 0)]),
        ([(NEW, 192, 128, 9), (NEW, 512, 64, 9)], [(NEW, 0, 768, 0)]),
        ([(NEW, 960, 40, 9)], [(NEW, 768, 232, 0)]),
        ([(FILLED, 0, 1000, 7)], [(FILLED, 0, 1000, 7)]),
        ([(FILLED, 64, 128, 7)], [(NEW, 0, 256, 0)]),
        ([(FILLED, 64, 704, 7)], [(NEW, 0, 256, 0), (FILLED, 256, 512, 7)]),
        (
            [(FILLED, 64, 400, 7), (NEW, 464, 64, 1), (FILLED, 528, 472, 8)],
            [(NEW, 0, 768, 0), (FILLED, 768, 232, 8)],
        ),
        (
            [(NEW, 0, 64, 1), (FILLED, 64, 448, 7), (FILLED, 512, 256, 8)],
            [(NEW, 0, 256, 0), (FILLED, 256, 256, 7), (FILLED, 512, 256, 8)],
        ),
    ],
)
def test_coarse_cells_are_whole(before: list[Any], after: list[Any]) -> None:
    """Cells of 256 bytes over chunks of 64, in a region of 1000."""
    assert rows_of(changes._coarsened(runs_of(*before), 256, 1000)) == after


@pytest.mark.parametrize("seed", range(20))
def test_coarse_cells_cover_every_change_and_tell_the_truth(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 1500))
    old = rng.integers(0, 3, size, dtype=np.uint8)
    saves = Saves(chunk_bytes=64)
    base = saves.save(old, 256)
    new = old.copy()
    for _ in range(3):
        start = int(rng.integers(0, size)) // 8 * 8
        length = int(rng.integers(1, 700))
        new[start : start + length] = rng.integers(0, 256) if seed % 2 else 1
    diff = diffed(new.tobytes(), base.memory, cell_bytes=256)
    assert diff.seen is None
    assert (diff.runs.start_bytes % np.uint64(256) == 0).all()
    same = np.ones(size, np.bool_)
    for kind, start, length, ref in rows_of(diff.runs):
        assert same[start : start + length].all()  # Nothing is said twice.
        same[start : start + length] = False
        if kind == FILLED:
            pattern = np.frombuffer(ref.to_bytes(8, "little") * 200, np.uint8)
            np.testing.assert_array_equal(new[start : start + length], pattern[:length])
    np.testing.assert_array_equal(new[same], old[same])
    saves.save(new, 256)
    saves.save(old, 256)
