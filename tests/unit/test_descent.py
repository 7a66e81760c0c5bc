"""Values compared from the roots down: what is found, and how little is read for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ckptflow.data.regions import flatten
from ckptflow.errors import CorruptionError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.catalog import Lineage
from ckptflow.store.comparing import descent
from ckptflow.store.comparing.compare import PlainChange
from ckptflow.store.comparing.descent import ValueComparison, compare_values
from ckptflow.store.comparing.tally import Tolerance
from ckptflow.store.find import find_checkpoint
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.metered import MeteredTier
from ckptflow.units import KIB, MIB

SaveState = Callable[..., Lineage]
Compared = Callable[..., ValueComparison]


def stored(lineage: Lineage, step: int | None = None, tier: Any = None) -> StoredArrays:
    """Open one checkpoint of a lineage, through another tier if one is given."""
    if tier is not None:
        lineage = Lineage([tier], lineage.id)
    return StoredArrays(lineage, lineage.manifest(find_checkpoint(lineage, step=step)))


@pytest.fixture(params=["one lineage", "two lineages"])
def compared(save_state: SaveState, request: pytest.FixtureRequest) -> Compared:
    """Return a function that saves two states and compares the values of their checkpoints."""

    def run(left: Any, right: Any, tolerance: Tolerance | None = None) -> ValueComparison:
        tier = MemoryTier("left")
        old = stored(save_state(tier, "exp/a", 1, left), 1)
        if request.param == "one lineage":
            new = stored(save_state(tier, "exp/a", 2, right), 2)
        else:
            new = stored(save_state(MemoryTier("right"), "b/c", 9, right, chunk_bytes=128))
        return compare_values(old, new, tolerance=tolerance)

    return run


@pytest.fixture
def history() -> list[tuple[StoredArrays, Any]]:
    """Three checkpoints of one lineage and their states: counters, and a period that moves."""
    tier, rng, lineage = MemoryTier(), np.random.default_rng(0), LineageId("exp", "a")
    state = {"w": rng.integers(0, 1 << 30, 100_000).astype("<i4"), "p": np.zeros(20_000)}
    base: Base | None = None
    made = []
    for step in range(3):
        flat = flatten(state)
        views = flat.copy_into(memoryview(bytearray(flat.total_bytes)))
        base = write_checkpoint(
            tier,
            lineage,
            CheckpointId(step, 1),
            structure=flat.structure,
            regions=[
                NamedRegion(region.name, view, item_bytes)
                for region, view, item_bytes in zip(flat.regions, views, (4, 8), strict=True)
            ],
            base=base,
            chunk_bytes=4096,
            goal="small",
        )
        names = [region.name for region in flat.regions]
        base.memory.bytes_at_hand = dict(zip(names, views, strict=True))
        copy = {name: array.copy() for name, array in state.items()}
        made.append((StoredArrays(Lineage([tier], lineage), base.manifest), copy))
        state["w"] += rng.integers(0, 3, len(state["w"]), np.int32)
        state["p"][:] = np.tile(rng.standard_normal(20), 1000)
    return made


# --- what is found ---------------------------------------------------------------------


def test_the_same_state(compared: Compared, arrays: dict[str, np.ndarray]) -> None:
    found = compared(arrays, {name: array.copy() for name, array in arrays.items()})
    assert found.same
    assert found.identical
    assert [array.name for array in found.arrays] == list(arrays)
    assert {array.change for array in found.arrays} == {"same"}


def test_a_changed_array(compared: Compared) -> None:
    before = np.arange(6000.0).reshape(30, 20, 10)
    after = before.copy()
    after[3, 4, 5] += 0.5
    after[29, 19, 9] = -1.0
    found = compared({"w": before}, {"w": after}, Tolerance(atol=1.0))
    (array,) = found.arrays
    assert array.change == "changed"
    assert array.before == array.after == "<f8[30, 20, 10]"
    assert (array.elements, array.tolerance_holds) == (6000, True)
    differences = array.differences
    assert (differences.changed_elements, differences.beyond_elements) == (2, 1)
    assert differences.first_change is not None
    assert differences.first_change.index == (3, 4, 5)
    assert (differences.first_change.before, differences.first_change.after) == (645.0, 645.5)
    assert differences.first_beyond is not None
    assert differences.first_beyond.index == (29, 19, 9)
    assert differences.max_abs_difference == 6000.0
    assert (found.same, found.identical) == (False, False)


def test_close_is_the_same_but_not_identical(compared: Compared) -> None:
    before = {"w": np.ones(100), "lr": 0.1, "n": 3}
    after = {"w": np.ones(100) + 1e-9, "lr": 0.1 + 1e-12, "n": 3}
    found = compared(before, after, Tolerance(atol=1e-6))
    assert [array.change for array in found.arrays] == ["close"]
    assert (found.same, found.identical) == (True, False)
    assert found.plain == ()
    assert [leaf.name for leaf in found.plain_close] == ["lr"]
    found = compared(before, after)
    assert [array.change for array in found.arrays] == ["changed"]
    assert [leaf.name for leaf in found.plain] == ["lr"]


def test_plain_leaves_are_close_only_as_numbers_with_a_point(compared: Compared) -> None:
    left = {"i": 1, "f": 1.0, "c": 1j, "mixed": 1.0, "s": "a", "np": np.float32(1), "gone": 1.0}
    right = {"i": 2, "f": 1.5, "c": 1.5j, "mixed": 1, "s": "b", "np": np.float32(1.5)}
    found = compared(left, right, Tolerance(atol=1.0))
    assert {leaf.name for leaf in found.plain_close} == {"f", "c", "np"}
    assert [leaf.name for leaf in found.plain] == ["i", "mixed", "s", "gone"]
    assert found.plain[0] == PlainChange(name="i", change="changed", before=1, after=2)


def test_added_removed_and_retyped(compared: Compared) -> None:
    left = {"gone": np.arange(3), "w": np.zeros(4), "shape": np.zeros(4)}
    right = {"w": np.zeros(4, np.float32), "shape": np.zeros((2, 2)), "new": np.ones(5, bool)}
    found = compared(left, right, Tolerance(atol=1.0))
    assert {array.name: array.change for array in found.arrays} == {
        "gone": "removed",
        "w": "retyped",
        "shape": "retyped",
        "new": "added",
    }
    by_name = {array.name: array for array in found.arrays}
    assert (by_name["w"].before, by_name["w"].after) == ("<f8[4]", "<f4[4]")
    assert by_name["gone"].after is None
    assert by_name["new"].elements == 5
    assert not found.same


def test_no_tolerance_holds_for_integers(compared: Compared) -> None:
    (array,) = compared({"n": np.arange(9)}, {"n": np.arange(9) + 1}, Tolerance(9.0)).arrays
    assert (array.change, array.tolerance_holds) == ("changed", False)
    assert array.differences.max_abs_difference == 1


def test_every_layout(compared: Compared) -> None:
    """In Fortran's order, backwards, with gaps, shared, tied, empty, of no dimension."""

    def state(change: bool) -> dict[str, np.ndarray]:
        base = np.arange(600.0).reshape(20, 30)
        if change:
            base[7, 11] = -5.0
        tied = base.copy()
        return {
            "turned": np.asfortranarray(base),
            "back": base.copy()[::-1, ::-1],
            "gaps": np.repeat(base, 2, axis=1)[:, ::2],
            "all": tied,
            "part": tied[5:10],
            "column": tied[:, 11],
            "again": tied,
            "empty": np.empty((0, 3)),
            "scalar": np.array(float(change)),
        }

    found = {a.name: a for a in compared(state(False), state(True)).arrays}
    where = {
        "turned": (7, 11),
        "back": (12, 18),
        "gaps": (7, 11),
        "all": (7, 11),
        "part": (2, 11),
        "column": (7,),
        "again": (7, 11),
        "scalar": (),
    }
    for name, index in where.items():
        first = found[name].differences.first_change
        assert (name, found[name].differences.changed_elements) == (name, 1)
        assert (name, first.index if first else None) == (name, index)
    assert found["empty"].change == "same"


def test_other_layouts_of_the_same_values(compared: Compared) -> None:
    base = np.arange(600.0).reshape(20, 30)
    other = base.copy()
    other[19, 0] = 0.5
    found = compared(
        {"same": base.copy(), "w": base.copy()},
        {"same": np.asfortranarray(base), "w": np.asfortranarray(other)},
    )
    assert [array.change for array in found.arrays] == ["same", "changed"]
    assert found.arrays[1].differences.first_change.index == (19, 0)  # type: ignore[union-attr]


def test_rows_of_odd_sizes(compared: Compared) -> None:
    """Elements that no chunk is a multiple of, and one that is larger than a batch."""
    record = np.zeros(999, [("a", "i4"), ("b", "f8"), ("c", "S5")])
    changed = record.copy()
    changed[998]["c"] = b"x"
    long = np.zeros(3, "S5000")
    longer = long.copy()
    longer[1] = b"y" * 5000
    found = compared({"r": record, "s": long}, {"r": changed, "s": longer})
    assert [a.differences.changed_elements for a in found.arrays] == [1, 1]
    assert [a.differences.first_change.index for a in found.arrays] == [(998,), (1,)]  # type: ignore[union-attr]


def test_many_batches(compared: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent, "BATCH_BYTES", 1000)
    monkeypatch.setattr(descent, "CHUNK_BYTES", 64)
    monkeypatch.setattr(descent, "LEAVES", 3)
    rng = np.random.default_rng(0)
    before = {f"w{i}": rng.standard_normal(n) for i, n in enumerate((5, 700, 1, 30, 2000))}
    after = {name: array.copy() for name, array in before.items()}
    for array in after.values():
        array[::7] += 1.0
    found = compared(before, after)
    for array in found.arrays:
        assert array.differences.changed_elements == -(-array.elements // 7)
        assert array.differences.first_change.index == (0,)  # type: ignore[union-attr]


def test_each_array_is_told_once(save_state: SaveState) -> None:
    shared = np.arange(5.0)
    left = {"a": shared, "b": shared, "c": np.zeros(3), "gone": np.zeros(1)}
    right = {"a": shared + 1, "c": np.zeros(3), "new": np.zeros(2)}
    right["b"] = right["a"]
    seen: list[str] = []
    compare_values(
        stored(save_state(MemoryTier(), "a/b", 1, left)),
        stored(save_state(MemoryTier(), "c/d", 1, right)),
        on_array=seen.append,
    )
    assert sorted(seen) == ["a", "b", "c", "gone", "new"]


def test_delta_layers_and_repeats(history: list[tuple[StoredArrays, Any]]) -> None:
    """Written as a process writes that still has the bytes of the checkpoint before."""
    newest = history[-1][0].manifest
    assert any(region.deltas for region in newest.regions), "no delta, so nothing is tested"
    assert (newest.extents.period > 0).any(), "no repeat, so nothing is tested"
    for left, old in history:
        for right, new in history:
            found = compare_values(left, right)
            for array in found.arrays:
                changed = np.flatnonzero(old[array.name] != new[array.name])
                first = array.differences.first_change
                assert array.differences.changed_elements == len(changed)
                assert (first.index if first else ()) == tuple(changed[:1].tolist())
            if left is right:
                assert found.read_bytes == 0


# --- how much is read ------------------------------------------------------------------


def test_nothing_is_read_of_equal_roots(save_state: SaveState) -> None:
    """Not even a frame table: the packs may be gone."""
    tier = MemoryTier()
    state = {"w": np.random.default_rng(0).standard_normal(5000)}
    save_state(tier, "exp/a", 1, state)
    lineage = save_state(tier, "exp/a", 2, state)
    for key in list(tier.iter_keys(f"{lineage.id.prefix}/packs")):
        tier.delete(key)
    found = compare_values(stored(lineage, 1), stored(lineage, 2))
    assert (found.identical, found.read_bytes, found.state_bytes) == (True, 0, 80_000)


def test_only_frames_with_a_change_are_read_of_one_lineage(save_state: SaveState) -> None:
    tier, rng = MemoryTier(), np.random.default_rng(0)
    state = {"w": rng.standard_normal(3 * MIB), "v": rng.standard_normal(1 * MIB)}
    save_state(tier, "exp/a", 1, state, chunk_bytes=4096)
    state["w"][MIB + 7] += 1
    state["w"][3 * MIB - 1] += 1
    lineage = save_state(tier, "exp/a", 2, state, chunk_bytes=4096)
    meters = MeteredTier(tier), MeteredTier(tier)
    left, right = (stored(lineage, step, meter) for step, meter in enumerate(meters, 1))
    before = [meter.read_bytes for meter in meters]
    found = compare_values(left, right)
    read = [meter.read_bytes - start for meter, start in zip(meters, before, strict=True)]
    assert found.arrays[0].differences.changed_elements == 2
    assert found.state_bytes == 64 * MIB
    assert found.read_bytes == sum(read), "what it says it read is what was read"
    assert read[0] < 2 * MIB + 16 * KIB, "two frames of the first, and tables"
    assert read[1] < 2 * 4096 + 16 * KIB, "of the second what it wrote, and tables"


def test_frames_that_two_runs_stored_alike_are_not_read(save_state: SaveState) -> None:
    rng = np.random.default_rng(0)
    state = {"w": rng.standard_normal(1 * MIB)}
    left = stored(save_state(MemoryTier(), "exp/a", 1, state, chunk_bytes=4096))
    state["w"][300_000] = 0.0
    right = stored(save_state(MemoryTier(), "exp/b", 1, state, chunk_bytes=4096))
    found = compare_values(left, right)
    (array,) = found.arrays
    assert array.differences.first_change.index == (300_000,)  # type: ignore[union-attr]
    assert found.read_bytes < 2 * MIB + 16 * KIB, "one frame of each, and tables"


def test_a_copied_lineage_is_known_by_its_packs(save_state: SaveState) -> None:
    """In another store, under another name: the manifests alone tell that all is equal."""
    state = {"w": np.random.default_rng(0).standard_normal(5000)}
    left = stored(save_state(MemoryTier(), "exp/a", 1, state))
    right = stored(save_state(MemoryTier(), "exp/b", 1, state, chunk_bytes=128))
    assert left.manifest.regions[0].root != right.manifest.regions[0].root
    found = compare_values(left, right)
    assert (found.identical, found.read_bytes) == (True, 0)


def test_small_arrays_share_their_reads(save_state: SaveState) -> None:
    """Hundreds of them lie in one frame, which is read once."""
    rng = np.random.default_rng(0)
    state = {f"w{i:03}": rng.standard_normal(100) for i in range(300)}
    left = stored(save_state(MemoryTier(), "exp/a", 1, state))
    state = {name: array + 1 for name, array in state.items()}
    right = stored(save_state(MemoryTier(), "exp/b", 1, state))
    found = compare_values(left, right)
    assert all(array.differences.changed_elements == 100 for array in found.arrays)
    assert found.read_bytes < 1.1 * found.state_bytes


def test_memory_is_bounded(save_state: SaveState, monkeypatch: pytest.MonkeyPatch) -> None:
    """All differs, and no more than a batch of either side is there at once."""
    monkeypatch.setattr(descent, "BATCH_BYTES", 256 * KIB)
    sizes = []
    real = descent.SpanReader.read

    def read(self: Any, rows: Any) -> Any:
        sizes.append(int(rows.length.sum()))
        return real(self, rows)

    monkeypatch.setattr(descent.SpanReader, "read", read)
    rng = np.random.default_rng(0)
    left = stored(save_state(MemoryTier(), "a/b", 1, {"w": rng.standard_normal(MIB // 4)}))
    right = stored(save_state(MemoryTier(), "a/b", 2, {"w": rng.standard_normal(MIB // 4)}))
    (array,) = compare_values(left, right).arrays
    assert array.differences.changed_elements == MIB // 4
    assert sum(sizes) == 4 * MIB
    assert max(sizes) <= 256 * KIB


# --- damage ----------------------------------------------------------------------------


def test_what_differs_and_is_damaged_is_an_error(save_state: SaveState) -> None:
    tier, rng = MemoryTier(), np.random.default_rng(0)
    state = {"big": rng.standard_normal(5000), "small": np.zeros(10)}
    save_state(tier, "exp/a", 1, state)
    state["big"][0] = 1.5
    lineage = save_state(tier, "exp/a", 2, state)
    for key in list(tier.iter_keys(f"{lineage.id.prefix}/packs")):
        tier.delete(key)
    notes: list[str] = []
    with pytest.raises(CorruptionError, match="no sound copy"):
        compare_values(stored(lineage, 1), stored(lineage, 2), note=notes.append)
    assert notes
