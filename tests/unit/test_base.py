"""What a process remembers of its lineage: settled by a commit only, bounded, and found again.

A restored process knows what the first one would, as far as it can be told from the checkpoint.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckptflow.errors import TierUnavailable
from ckptflow.model import CheckpointId, ExtentTable, LineageId
from ckptflow.store import memory as memory_module
from ckptflow.store.memory import Base, Memory, NamedRegion, remember
from ckptflow.store.planning.pieces import NOWHERE
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.save import write_checkpoint
from ckptflow.testing.faults import Crash, CrashingTier, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("exp", "task")
CELL = 64

State = dict[str, bytes]


def cells(*seeds: int, tail: int = 0) -> bytes:
    """A region of cells of noise; equal seeds are equal cells, and the last may be cut."""
    data = b"".join(np.random.default_rng(seed).bytes(CELL) for seed in seeds)
    return data[: len(data) - tail]


def write(tier: Tier, step: int, state: State, base: Base | None, **options: Any) -> Base:
    return write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(step, 1),
        structure=["dict"],
        regions=[NamedRegion(name, memoryview(data)) for name, data in state.items()],
        base=base,
        chunk_bytes=CELL,
        **options,
    )


def read(tier: Tier, base: Base) -> State:
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in base.manifest.regions]
    read_checkpoint([tier], base.manifest, buffers)
    entries = zip(base.manifest.regions, buffers, strict=True)
    return {entry.name: bytes(buffer) for entry, buffer in entries}


def restored(tier: Tier, base: Base) -> Base:
    buffers = [memoryview(bytearray(entry.size_bytes)) for entry in base.manifest.regions]
    chunks = read_checkpoint([tier], base.manifest, buffers)
    return remember(base.manifest, buffers, chunks)


def written(base: Base) -> int:
    return sum(pack.plain_bytes for pack in base.manifest.own_packs)


def places(memory: Memory) -> dict[int, list[tuple[int, int, str | None]]]:
    """Per size of cell: where its cells lie, as length, source and key of the pack."""
    result = {}
    for cell_bytes, seen in memory.seen.items():
        rows: ExtentTable = seen.extended(NOWHERE)
        keys = [memory.packs[n].key if n < NOWHERE else None for n in rows.pack.tolist()]
        rows_of = zip(rows.length.tolist(), rows.source.tolist(), keys, strict=True)
        result[cell_bytes] = list(rows_of)
    return result


def known(memory: Memory) -> dict[str, Any]:
    """Everything that a save that failed must leave as it was."""
    return {
        "digests": {size: seen.history.digests.tolist() for size, seen in memory.seen.items()},
        "first": {size: seen.history.first_id for size, seen in memory.seen.items()},
        "places": places(memory),
        "packs": list(memory.packs),
        "of": memory.of,
        "regions": {
            name: (region.chunks.tolist(), region.cell_bytes)
            for name, region in memory.regions.items()
        },
    }


@pytest.fixture
def disk() -> MemoryTier:
    return MemoryTier("disk")


# --- cells that come back ---


def test_cells_that_come_back_are_not_written_again(disk: MemoryTier) -> None:
    """At another place, in another region, after two checkpoints without them."""
    first = write(disk, 0, {"a": cells(1, 2, 3)}, None)
    write(disk, 1, {"a": cells(4, 5, 6)}, first)
    base = write(disk, 2, {"a": cells(7, 5, 6)}, _newest(first))
    base = write(disk, 3, {"a": cells(7, 5, 6), "b": cells(3, 1, 8)}, base)
    assert written(base) == CELL
    assert read(disk, base) == {"a": cells(7, 5, 6), "b": cells(3, 1, 8)}


def _newest(base: Base) -> Base:
    """The base that a memory belongs to now."""
    assert base.memory.of is not None
    return Base(base.memory.of, base.memory)


def test_a_cell_that_comes_twice_at_once_is_written_once(disk: MemoryTier) -> None:
    base = write(disk, 0, {"a": cells(1, 2, 1), "b": cells(2, 1)}, None)
    assert written(base) == 2 * CELL
    assert read(disk, base) == {"a": cells(1, 2, 1), "b": cells(2, 1)}


def test_a_short_last_cell_is_known_at_the_end_of_another_region(disk: MemoryTier) -> None:
    base = write(disk, 0, {"a": cells(1, 2, tail=9)}, None)
    base = write(disk, 1, {"a": cells(1, 2, tail=9), "b": cells(3, 2, tail=9)}, base)
    assert written(base) == CELL
    base = write(disk, 2, {"c": cells(2, tail=9), "d": cells(2, tail=10)}, base)
    assert written(base) == CELL - 10  # Another length is another cell.
    assert read(disk, base) == {"c": cells(2, tail=9), "d": cells(2, tail=10)}


def test_a_run_of_known_cells_goes_on_into_this_checkpoint(disk: MemoryTier) -> None:
    """Cells 3 and 4 have neighbouring numbers, but 4 is new in this save."""
    base = write(disk, 0, {"a": cells(1, 2, 3)}, None)
    base = write(disk, 1, {"a": cells(1, 2, 3), "b": cells(4, 5), "c": cells(2, 3, 4, 5)}, base)
    assert written(base) == 2 * CELL
    assert read(disk, base)["c"] == cells(2, 3, 4, 5)


# --- commit and rollback ---


@pytest.mark.parametrize("crash_at", [0, 1])
def test_a_save_that_fails_leaves_the_memory_as_it_was(disk: MemoryTier, crash_at: int) -> None:
    base = write(disk, 0, {"a": cells(1, 2, 3), "b": cells(4)}, None)
    before = known(base.memory)
    with pytest.raises(Crash):
        write(CrashingTier(disk, crash_at=crash_at), 1, {"a": cells(5, 1, 6)}, base)
    assert known(base.memory) == before
    base = write(disk, 2, {"a": cells(6, 5, 1)}, base)
    assert read(disk, base) == {"a": cells(6, 5, 1)}
    assert written(base) >= 2 * CELL


def test_a_tier_that_fails_while_packs_are_looked_for(disk: MemoryTier) -> None:
    base = write(disk, 0, {"a": cells(1, 2, 3)}, None)
    before = known(base.memory)

    def fail(operation: str, _key: str) -> None:
        if operation == "size":
            raise TierUnavailable("no answer")

    with pytest.raises(TierUnavailable):
        write(FaultyTier(disk, fail), 1, {"a": cells(1, 2, 4)}, base)
    assert known(base.memory) == before


def test_a_veto_leaves_the_memory_as_it_was(disk: MemoryTier) -> None:
    base = write(disk, 0, {"a": cells(1, 2, 3)}, None)
    before = known(base.memory)

    def veto() -> None:
        raise RuntimeError("not now")

    with pytest.raises(RuntimeError, match="not now"):
        write(disk, 1, {"a": cells(9, 8, 3)}, base, before_commit=veto)
    assert known(base.memory) == before


def test_a_tier_that_fails_right_after_the_commit(disk: MemoryTier) -> None:
    """Packs of older checkpoints are looked for once more then."""
    base = write(disk, 0, {"a": cells(1, 2, 3)}, None)
    base = write(disk, 1, {"a": cells(4, 5, 6)}, base)
    before, committed = known(base.memory), []

    def fail(operation: str, key: str) -> None:
        if operation == "put" and "/manifests/" in key:
            committed.append(key)
        if operation == "size" and committed:
            raise TierUnavailable("no answer")

    with pytest.raises(TierUnavailable):
        write(FaultyTier(disk, fail), 2, {"a": cells(1, 7, 3)}, base)
    assert committed
    assert known(base.memory) == before


def test_a_commit_that_breaks_off_leaves_no_base(
    disk: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of memory, say: half of one checkpoint and half of another make none."""
    other = {"a": cells(9, 1, 2), "b": cells(3, 4)}
    base = write(disk, 0, other, None)
    base = write(disk, 1, {"a": cells(5, 1, 2), "b": cells(3, 6)}, base)

    def fail(*_args: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(memory_module.Seen, "commit", fail)
        with pytest.raises(MemoryError):
            write(disk, 2, {"a": cells(11, 12, 13), "b": cells(14, 15)}, base)
    base = write(disk, 3, {"a": cells(5, 1, 2), "b": cells(3, 16)}, base)
    assert read(disk, base) == {"a": cells(5, 1, 2), "b": cells(3, 16)}
    assert base.manifest.kind == "full"


def test_a_step_that_is_saved_twice(disk: MemoryTier) -> None:
    """Packs of the first save have the step in their names, too, and are not new any more."""
    base = write(disk, 0, {"a": cells(1, 2)}, None)
    base = write(disk, 1, {"a": cells(1, 2), "b": cells(3, 4)}, base)
    base = write(disk, 1, {"a": cells(1, 2), "b": cells(3, 4), "c": cells(5, 6)}, base)
    base = write(disk, 2, {"a": cells(5, 3), "b": cells(6, 1)}, base)
    assert read(disk, base) == {"a": cells(5, 3), "b": cells(6, 1)}


# --- packs ---


def test_packs_of_older_checkpoints_serve_while_they_last(disk: MemoryTier) -> None:
    base = write(disk, 0, {"a": cells(1, 2, 3)}, None)
    old = base.manifest.packs[0]
    base = write(disk, 1, {"a": cells(4, 5, 6)}, base)
    assert old not in base.manifest.packs
    assert old in base.memory.packs
    disk.delete(f"{LINEAGE.prefix}/{old.key}")
    base = write(disk, 2, {"a": cells(4, 1, 2)}, base)
    assert written(base) == 2 * CELL
    assert read(disk, base) == {"a": cells(4, 1, 2)}
    base = write(disk, 3, {"a": cells(2, 1, 4)}, base)  # Found where they were written again.
    assert written(base) == 0
    assert read(disk, base) == {"a": cells(2, 1, 4)}


def test_so_many_packs_are_remembered(
    disk: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "SPARE_PACKS_MAX", 2)
    base: Base | None = None
    for step in range(6):
        base = write(disk, step, {"a": cells(10 + step, 20 + step)}, base)
        spare = [pack for pack in base.memory.packs if pack not in base.manifest.packs]
        assert len(spare) == min(step, 2)
    assert base is not None
    base = write(disk, 6, {"a": cells(14, 10)}, base)  # The one lies in a spare pack.
    assert written(base) == CELL
    assert read(disk, base) == {"a": cells(14, 10)}


def test_a_parent_that_lost_a_pack_is_given_up(disk: MemoryTier) -> None:
    base = write(disk, 0, {"a": cells(1, 2, 3)}, None)
    disk.delete(f"{LINEAGE.prefix}/{base.manifest.packs[0].key}")
    second = write(disk, 1, {"a": cells(1, 2, 4)}, base)
    assert second.manifest.kind == "full"
    assert second.memory is not base.memory
    assert read(disk, second) == {"a": cells(1, 2, 4)}


@pytest.mark.parametrize("verify", ["sample", "all"])
def test_verification_does_not_read_packs_that_are_gone(disk: MemoryTier, verify: str) -> None:
    base = write(disk, 0, {"a": cells(1, 2, 3)}, None)
    old = base.manifest.packs[0]
    base = write(disk, 1, {"a": cells(4, 5, 6)}, base)
    disk.delete(f"{LINEAGE.prefix}/{old.key}")
    base = write(disk, 2, {"a": cells(4, 1, 5)}, base, verify=verify)
    assert written(base) == CELL
    assert read(disk, base) == {"a": cells(4, 1, 5)}


# --- bounds ---


def test_the_oldest_cells_are_forgotten(
    disk: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is forgotten is new when it comes back."""
    monkeypatch.setattr(memory_module, "CELLS_MIN", 4)
    base = write(disk, 0, {"a": cells(1, 2, 3, 4)}, None)
    assert len(base.memory.seen[CELL].history) == 4
    base = write(disk, 1, {"a": cells(5, 6, 3, 4)}, base)
    seen = base.memory.seen[CELL]
    assert (len(seen.history), seen.history.first_id) == (3, 3)
    assert sum(length for length, _, _ in places(base.memory)[CELL]) == 3 * CELL
    base = write(disk, 2, {"a": cells(4, 1, 5, 6)}, base)
    assert written(base) == CELL
    assert read(disk, base) == {"a": cells(4, 1, 5, 6)}


def test_a_size_of_cells_that_nobody_has_any_more_is_forgotten(disk: MemoryTier) -> None:
    base = write(disk, 0, {"a": cells(1, 2)}, None, cell_bytes=16)
    assert set(base.memory.seen) == {16}
    base = write(disk, 1, {"a": cells(1, 3)}, base)
    assert set(base.memory.seen) <= {16, CELL}
    base = write(disk, 2, {"a": cells(2, 3)}, base, cell_bytes=32)
    assert set(base.memory.seen) == {32}
    assert read(disk, base) == {"a": cells(2, 3)}


# --- after a restore ---


@pytest.mark.parametrize("cell_bytes", [16, 32, None])
def test_a_restored_process_goes_on_as_the_first_would(
    disk: MemoryTier, cell_bytes: int | None
) -> None:
    """All cells of the state are known, wherever they come again."""
    state = {"a": cells(1, 2, 3, tail=5), "b": cells(3, 4), "zero": bytes(1000)}
    base = write(disk, 0, {"a": cells(9, 9)}, None, cell_bytes=cell_bytes)
    base = write(disk, 1, state, base, cell_bytes=cell_bytes)
    again = restored(disk, base)
    assert set(again.memory.regions) == set(base.memory.regions)
    for name, region in again.memory.regions.items():
        first = base.memory.regions[name]
        assert region.cell_bytes == first.cell_bytes
        np.testing.assert_array_equal(region.chunks, first.chunks)
        assert (region.cells is None) == (first.cells is None)
        if region.cells is not None:
            np.testing.assert_array_equal(region.cells, first.cells)
    ours, theirs = (
        {tuple(one) for one in memory.seen[cell_bytes or CELL].history.digests.tolist()}
        for memory in (again.memory, base.memory)
    )
    assert ours <= theirs
    after = {"a": cells(4, 3, 1), "b": cells(3, 4, 5), "c": cells(2)}
    first, second = (write(disk, 2, after, one, cell_bytes=cell_bytes) for one in (base, again))
    assert written(first) == written(second) == CELL
    assert read(disk, second) == after


def test_cells_under_deltas_and_of_patterns_are_new_after_a_restore(disk: MemoryTier) -> None:
    """Their bytes lie in no pack as they are; they are stored when they come."""
    rng = np.random.default_rng(3)
    old = rng.standard_normal(4000).astype("<f4")
    new = (old * np.float32(1 + 2**-20)).astype("<f4")
    base = write(disk, 0, {"a": old.tobytes()}, None, goal="small")
    base.memory.bytes_at_hand = {"a": memoryview(old.tobytes())}
    base = write(disk, 1, {"a": new.tobytes()}, base, goal="small")
    assert base.manifest.regions[0].deltas
    again = restored(disk, base)
    rows = again.memory.seen[CELL].extended(NOWHERE)
    assert (rows.pack == NOWHERE).all()
    state = {"a": new.tobytes(), "b": new.tobytes()}
    base = write(disk, 2, state, again)
    assert read(disk, base) == state


def test_verification_does_not_copy_from_packs_that_are_damaged(disk: MemoryTier) -> None:
    """Not even when they are so damaged that they cannot be decoded; and saves go on."""
    rng = np.random.default_rng(4)
    first, second = (rng.integers(0, 3, 5000, dtype=np.uint8).tobytes() for _ in range(2))
    base = write(disk, 0, {"a": first}, None, goal="small")
    key = f"{LINEAGE.prefix}/{base.manifest.packs[0].key}"
    assert base.manifest.written_bytes < len(first)  # Compressed.
    base = write(disk, 1, {"a": second}, base, goal="small")
    damaged = bytearray(disk.get(key))
    damaged[16:200] = bytes(184)
    disk.put(key, [damaged])
    for step in (2, 3):
        base = write(disk, step, {"a": first}, base, goal="small", verify="all")
        assert read(disk, base) == {"a": first}
