"""Runs of bytes, and parts of arrays picked by an index, against NumPy's own indexing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ckptflow.data.memory import Layout
from ckptflow.data.runs import box_layout, common, runs_of, select
from ckptflow.errors import ConfigError

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def layout_of(array: np.ndarray, base: np.ndarray) -> Layout:
    address = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return Layout(address, array.shape, array.strides, array.itemsize)


def gathered(base: np.ndarray, layout: Layout) -> bytes:
    raw = base.tobytes()
    runs = runs_of(layout)
    return b"".join(raw[start : start + runs.length] for start in runs.start.tolist())


@given(data=st.data(), shape=SHAPES, order=st.sampled_from("CF"))
def test_what_an_index_picks(data: st.DataObject, shape: tuple[int, ...], order: str) -> None:
    base = np.arange(np.prod(shape, dtype=int), dtype="<u4")
    array = base.reshape(shape, order=order)
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    layout = select(layout_of(array, base), index)
    expected = np.asarray(array[index])
    assert layout.shape == expected.shape
    assert gathered(base, layout) == expected.tobytes()


@given(data=st.data(), shape=SHAPES)
def test_a_box(data: st.DataObject, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype="<u2").reshape(shape)
    cut = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape]
    layout = box_layout(shape, 2, [a for a, _ in cut], [b - a for a, b in cut])
    assert gathered(array, layout) == array[tuple(slice(a, b) for a, b in cut)].tobytes()


@given(shape=hnp.array_shapes(max_dims=3, max_side=6), data=st.data())
def test_runs_cut_alike_name_the_same_elements(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    array = np.arange(np.prod(shape), dtype="<u4").reshape(shape)
    other = np.asfortranarray(array) if data.draw(st.booleans()) else array[::-1].copy()[::-1]
    low = other if other.flags.f_contiguous else other[::-1]
    there = layout_of(other, low)
    a, b = common(runs_of(Layout(0, shape, array.strides, 4)), runs_of(there))
    assert a.length == b.length
    raw, raw_b = array.tobytes(), low.tobytes(order="A")
    for x, y in zip(a.start.tolist(), b.start.tolist(), strict=True):
        assert raw[x : x + a.length] == raw_b[y : y + a.length]


@pytest.mark.parametrize("index", [[0, 1], np.array([0]), True, "a", (0, 0, 0), 9, 1.5])
def test_other_indices_are_refused(index: object) -> None:
    with pytest.raises(ConfigError, match=r"picks no part|does not fit"):
        select(Layout(0, (3, 4), (16, 4), 4), index)  # type: ignore[arg-type]
