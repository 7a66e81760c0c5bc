"""What differs between two checkpoints: which arrays, how much, and what values they have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ckptflow.errors import CorruptionError
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.catalog import Lineage
from ckptflow.store.comparing.compare import Comparison, PlainChange, Values, compare
from ckptflow.store.find import find_checkpoint
from ckptflow.tiers.memory import MemoryTier

SaveState = Callable[..., Lineage]


@pytest.fixture
def compared(save_state: SaveState) -> Callable[[Any, Any], Comparison]:
    """Return a function that saves two states and compares their checkpoints."""

    def run(left: Any, right: Any) -> Comparison:
        return compare(
            stored(save_state(MemoryTier("left"), "exp/a", 1, left)),
            stored(save_state(MemoryTier("right"), "other/b", 9, right, chunk_bytes=128)),
        )

    return run


def stored(lineage: Lineage) -> StoredArrays:
    return StoredArrays(lineage, lineage.manifest(find_checkpoint(lineage)))


def test_the_same_state(
    compared: Callable[[Any, Any], Comparison], arrays: dict[str, np.ndarray]
) -> None:
    found = compared(arrays, {name: array.copy() for name, array in arrays.items()})
    assert found.same
    assert {array.change for array in found.arrays} == {"same"}
    assert [array.name for array in found.arrays] == list(arrays)


def test_a_changed_array(compared: Callable[[Any, Any], Comparison]) -> None:
    before = np.array([1.0, 2.0, 3.0, np.nan])
    after = np.array([1.0, 2.5, -1.0, np.nan])
    (change,) = compared({"w": before}, {"w": after}).arrays
    assert (change.change, change.before, change.after) == ("changed", "<f8[4]", "<f8[4]")
    assert (change.elements, change.changed_elements) == (4, 2)
    assert change.max_abs_difference == 4.0
    assert change.values_before == Values(min=1.0, max=3.0, mean=2.0, nan_count=1)
    assert change.values_after == Values(min=-1.0, max=2.5, mean=2.5 / 3, nan_count=1)


def test_bits_count(compared: Callable[[Any, Any], Comparison]) -> None:
    """-0.0 equals 0.0 and NaN equals nothing, but a checkpoint is about bits."""
    quiet = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
    (zero,) = compared({"w": np.array([0.0])}, {"w": np.array([-0.0])}).arrays
    assert (zero.change, zero.changed_elements, zero.max_abs_difference) == ("changed", 1, 0.0)
    (payload,) = compared({"w": quiet}, {"w": np.array([np.nan])}).arrays
    assert (payload.changed_elements, payload.max_abs_difference) == (1, None)
    assert compared({"w": quiet}, {"w": quiet.copy()}).same


def test_infinities_do_not_hide_the_rest(compared: Callable[[Any, Any], Comparison]) -> None:
    (change,) = compared({"w": np.array([np.inf, 1.0])}, {"w": np.array([np.inf, 3.0])}).arrays
    assert change.max_abs_difference == 2.0
    (change,) = compared({"w": np.array([np.inf, 1.0])}, {"w": np.array([0.0, 3.0])}).arrays
    assert change.max_abs_difference == math.inf


def test_added_removed_and_retyped(compared: Callable[[Any, Any], Comparison]) -> None:
    left = {"gone": np.arange(3), "w": np.zeros(4), "shape": np.zeros(4)}
    right = {"w": np.zeros(4, np.float32), "shape": np.zeros((2, 2)), "new": np.ones(5, bool)}
    changes = {change.name: change for change in compared(left, right).arrays}
    assert {name: change.change for name, change in changes.items()} == {
        "gone": "removed",
        "w": "retyped",
        "shape": "retyped",
        "new": "added",
    }
    assert (changes["w"].before, changes["w"].after) == ("<f8[4]", "<f4[4]")
    assert changes["shape"].after == "<f8[2, 2]"
    assert changes["gone"].after is None
    assert changes["gone"].values_after is None
    assert changes["new"].before is None
    assert changes["new"].values_after == Values(1.0, 1.0, 1.0, 0)
    assert changes["new"].changed_elements == 5


def test_plain_leaves(compared: Callable[[Any, Any], Comparison]) -> None:
    left = {
        "step": 1,
        "lr": 0.1,
        "nan": math.nan,
        "one": 1,
        "zero": 0.0,
        "tags": {1},
        "old": "x",
    }
    right = {
        "step": 2,
        "lr": 0.1,
        "nan": math.nan,
        "one": True,
        "zero": -0.0,
        "tags": {2},
        "new": 3,
    }
    found = compared(left, right)
    assert found.plain == (
        PlainChange(name="step", change="changed", before=1, after=2),
        PlainChange(name="one", change="changed", before=1, after=True),
        PlainChange(name="zero", change="changed", before=0.0, after=-0.0),
        PlainChange(name="tags", change="changed", before={1}, after={2}),
        PlainChange(name="old", change="removed", before="x", after=None),
        PlainChange(name="new", change="added", before=None, after=3),
    )
    assert not found.same


@pytest.mark.parametrize(
    "dtype", ["?", "<i8", ">i4", "<u2", "<f2", ">f8", "bfloat16", "float8_e4m3fn"]
)
def test_numbers_of_every_kind(compared: Callable[[Any, Any], Comparison], dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    before = np.zeros(6).astype(kind)
    after = before.copy()
    after[2] = 1
    (change,) = compared({"w": before}, {"w": after}).arrays
    assert (change.changed_elements, change.max_abs_difference) == (1, 1.0)
    assert change.values_after == Values(0.0, 1.0, pytest.approx(1 / 6), 0)


def test_complex_numbers_have_a_distance_only(
    compared: Callable[[Any, Any], Comparison],
) -> None:
    (change,) = compared({"w": np.array([3 + 4j])}, {"w": np.array([0j])}).arrays
    assert change.max_abs_difference == 5.0
    assert change.values_before is None


def test_what_has_no_numbers_is_compared_as_bytes(
    compared: Callable[[Any, Any], Comparison],
) -> None:
    left = {
        "when": np.array(["2024-01-01", "2025-01-01"], "M8[D]"),
        "text": np.array(["a", "b"]),
    }
    right = {
        "when": np.array(["2024-01-01", "2026-01-01"], "M8[D]"),
        "text": np.array(["a", "c"]),
    }
    for change in compared(left, right).arrays:
        assert (change.changed_elements, change.max_abs_difference) == (1, None)
        assert change.values_after is None


def test_odd_shapes(compared: Callable[[Any, Any], Comparison]) -> None:
    base = np.arange(12.0).reshape(3, 4)
    left = {
        "scalar": np.array(1.0),
        "empty": np.empty((0, 3)),
        "column": base[:, 1],
        "turned": base.T,
    }
    right = {
        "scalar": np.array(2.0),
        "empty": np.empty((0, 3)),
        "column": base[:, 1].copy(),
        "turned": base.T.copy(),
    }
    changes = {change.name: change for change in compared(left, right).arrays}
    assert changes["scalar"].change == "changed"
    assert {changes[name].change for name in ("empty", "column", "turned")} == {"same"}


def test_large_arrays_are_compared_in_blocks(
    compared: Callable[[Any, Any], Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptflow.store.comparing.compare.BLOCK_ELEMENTS", 7)
    before = np.arange(100.0)
    after = before.copy()
    after[[0, 6, 7, 99]] += [1.0, 2.0, 5.0, 3.0]
    for turn in (lambda array: array, lambda array: array.reshape(10, 10).T):
        (change,) = compared({"w": turn(before)}, {"w": turn(after)}).arrays
        assert (change.changed_elements, change.max_abs_difference) == (4, 5.0)
        assert change.values_after == Values(1.0, 102.0, pytest.approx(after.mean()), 0)


def test_arrays_in_regions_of_equal_root_are_not_read(save_state: SaveState) -> None:
    """So a damaged pack does not matter, unless it holds something that differs."""
    tier, rng = MemoryTier(), np.random.default_rng(0)
    state = {"big": rng.standard_normal(5000), "small": np.zeros(10)}
    save_state(tier, "exp/a", 1, state)
    state["small"][0] = 1.5
    lineage = save_state(tier, "exp/a", 2, state)
    old, new = (
        StoredArrays(lineage, lineage.manifest(find_checkpoint(lineage, step=step)))
        for step in (1, 2)
    )
    seen: list[str] = []
    for key in list(tier.iter_keys(f"{lineage.id.prefix}/packs")):
        tier.delete(key)
    changes = compare(old, old, on_array=seen.append)
    assert changes.same
    assert seen == ["big", "small"]
    with pytest.raises(CorruptionError, match="no sound copy"):
        compare(old, new)
