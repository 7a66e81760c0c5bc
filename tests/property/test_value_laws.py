"""A comparison of stored values says what NumPy says of the whole arrays.

States of arrays of every type and layout are saved, edited, and saved again, in the same
lineage or in another one; batches and chunks are made small, so that each example has many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data.regions import flatten
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.store.arrays import StoredArrays
from ckptflow.store.catalog import Lineage
from ckptflow.store.comparing import descent
from ckptflow.store.comparing.descent import ArrayValues, compare_values
from ckptflow.store.comparing.tally import Tolerance
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-300, 1e300]
DTYPES = ["<f8", ">f4", "<f2", "<c8", "<i8", "<u2", "|b1", "|S3"]


def save(tier: Tier, name: str, step: int, state: Any, base: Base | None) -> Base:
    ensure_store(tier)
    flat = flatten(state)
    arena = memoryview(bytearray(flat.total_bytes))
    views = flat.copy_into(arena)
    return write_checkpoint(
        tier,
        LineageId(*name.split("/")),
        CheckpointId(step, 1),
        structure=flat.structure,
        regions=[NamedRegion(r.name, v) for r, v in zip(flat.regions, views, strict=True)],
        base=base,
        chunk_bytes=32,
    )


def stored(tier: Tier, manifest: Manifest) -> StoredArrays:
    return StoredArrays(Lineage([tier], manifest.lineage), manifest)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """An array, and the same with some elements changed."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from([(), (1,), (37,), (200,), (6, 35), (3, 4, 5), (0, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))

    def values(count: int) -> np.ndarray:
        numbers = rng.standard_normal(count) * draw(st.sampled_from([1.0, 1e-6, 100.0]))
        special = rng.random(count) < 0.3
        numbers[special] = rng.choice(SPECIAL, int(special.sum()))
        if dtype.kind == "S":
            return numbers.astype(dtype)
        if dtype.kind in "iub":
            return rng.integers(0, 256, (count, dtype.itemsize), np.uint8).view(dtype).ravel() \
                if dtype.kind != "b" else rng.random(count) < 0.5  # fmt: skip
        with np.errstate(over="ignore"):
            return numbers.astype(dtype)

    count = int(np.prod(shape))
    before = values(count)
    if draw(st.booleans()):
        before[count // 3 :] = before[:1].repeat(count - count // 3) if count else 0
    after = before.copy()
    which = rng.random(count) < draw(st.sampled_from([0.0, 0.02, 0.3, 1.0]))
    after[which] = values(count)[which]
    if dtype.kind == "f" and draw(st.booleans()):
        with np.errstate(over="ignore", invalid="ignore"):
            after = (after * np.float64(1 + 1e-3)).astype(dtype)
    before, after = before.reshape(shape), after.reshape(shape)
    match draw(st.sampled_from(["as is", "turned", "one turned", "back", "gaps"])):
        case "turned" if shape:
            return np.asfortranarray(before), np.asfortranarray(after)
        case "one turned" if shape:
            return before, np.asfortranarray(after)
        case "back" if shape:
            return before[::-1].copy()[::-1], after[::-1].copy()[::-1]
        case "gaps" if shape:
            return np.repeat(before, 2, 0)[::2], np.repeat(after, 2, 0)[::2]
    return before, after


def bits(array: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(array.size, array.dtype.itemsize)


def check(found: ArrayValues, a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> None:
    """Compare what was found of one array with what NumPy says."""
    changed = (bits(a) != bits(b)).any(axis=1).reshape(a.shape)
    differences = found.differences
    assert differences.changed_elements == changed.sum()
    if not changed.any():
        assert found.change == "same"
        assert differences.first_change is None
        return
    first = tuple(int(i) for i in np.argwhere(changed)[0])
    assert differences.first_change is not None
    assert differences.first_change.index == first
    order = slice(None) if a.dtype.byteorder == ">" else slice(None, None, -1)
    assert differences.first_change.bits_before in (a[first].tobytes()[order].hex(), None)
    if a.dtype.kind not in "fc":
        assert (found.change, differences.beyond_elements) == ("changed", None)
        if a.dtype.kind in "iub":
            x, y = a.astype(object), b.astype(object)
            expected = max(abs(int(p) - int(q)) for p, q in zip(x.flat, y.flat, strict=True))
            assert differences.max_abs_difference == expected
        return
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        far = changed & ~np.isclose(
            x, y, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True
        )
        distance = np.abs(x - y)[changed]
    assert differences.beyond_elements == far.sum()
    assert found.change == ("changed" if far.any() else "close")
    if far.any():
        assert differences.first_beyond is not None
        assert differences.first_beyond.index == tuple(int(i) for i in np.argwhere(far)[0])
    known = distance[~np.isnan(distance)]
    assert differences.max_abs_difference == (known.max() if known.size else None)
    with np.errstate(all="ignore"):
        ratio = np.where(np.isinf(distance), np.inf, distance / np.abs(y)[changed])
    ratio = np.where(distance == 0, 0.0, ratio)[~np.isnan(distance)]
    assert differences.max_rel_difference == (ratio.max() if ratio.size else None)
    assert differences.unmatched_nans == (np.isnan(x) != np.isnan(y)).sum()


@given(
    state=st.lists(pairs(), min_size=1, max_size=4),
    two_lineages=st.booleans(),
    deltas=st.sampled_from([False, False, True]),
    atol=st.sampled_from([0.0, 1e-6, 0.5]),
    rtol=st.sampled_from([0.0, 1e-2]),
)
def test_what_is_found_is_what_numpy_finds(
    state: list[tuple[np.ndarray, np.ndarray]],
    two_lineages: bool,
    deltas: bool,
    atol: float,
    rtol: float,
) -> None:
    """With ``deltas`` regions are read as those with delta layers are: each as a whole."""
    before = {f"w{number}": a for number, (a, _) in enumerate(state)}
    after = {f"w{number}": b for number, (_, b) in enumerate(state)}
    tier, other = MemoryTier("one"), MemoryTier("two")
    base = save(tier, "exp/a", 1, before, None)
    left = base.manifest
    if two_lineages:
        # What the other run saved before does not matter, but gives it more packs.
        base = save(other, "exp/b", 3, before, None)
        right, home = save(other, "exp/b", 4, after, base).manifest, other
    else:
        right, home = save(tier, "exp/a", 2, after, base).manifest, tier
    tolerance = Tolerance(atol, rtol)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descent, "BATCH_BYTES", 256)
        patch.setattr(descent, "CHUNK_BYTES", 64)
        patch.setattr(descent, "LEAVES", 2)
        if deltas:
            patch.setattr(descent._Side, "has_deltas", lambda _side, _spec: True)
        found = compare_values(stored(tier, left), stored(home, right), tolerance=tolerance)
    assert [array.name for array in found.arrays] == list(before)
    for array in found.arrays:
        check(array, before[array.name], after[array.name], tolerance)


@given(size=st.integers(0, 300), changes=st.sets(st.integers(0, 299), max_size=6))
def test_little_is_read_where_little_differs(size: int, changes: set[int]) -> None:
    """Of one lineage: no range is read that both checkpoints take from one place."""
    before = np.frombuffer(np.random.default_rng(1).bytes(8 * size), "<u8").copy()
    after = before.copy()
    changes = {place for place in changes if place < size}
    for place in changes:
        after[place] ^= 1
    tier = MemoryTier()
    base = save(tier, "exp/a", 1, {"w": before}, None)
    left = base.manifest
    right = save(tier, "exp/a", 2, {"w": after}, base).manifest
    read: list[int] = []
    real = descent.SpanReader.read

    def counted(self: Any, rows: Any) -> Any:
        read.append(int(rows.length.sum()))
        return real(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descent.SpanReader, "read", counted)
        (found,) = compare_values(stored(tier, left), stored(tier, right)).arrays
    assert found.differences.changed_elements == len(changes)
    chunks = {place * 8 // 32 for place in changes}
    assert sum(read) <= 2 * 32 * len(chunks)
