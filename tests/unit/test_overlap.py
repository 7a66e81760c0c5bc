"""Blocks of shared memory against brute force: sets of byte addresses, array by array.

Method: carve random views out of one buffer, list every byte address each view touches, and
check the three promises a block makes (whole, packed, sparse) on these sets.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data.memory import Layout
from ckptflow.data.overlap import (
    Form,
    blocks,
    covers,
    form_of,
    share_memory,
    span,
    without_repeats,
)


def touched(layout: Layout) -> set[int]:
    found: set[int] = set()
    for index in itertools.product(*(range(size) for size in layout.shape)):
        steps = zip(index, layout.strides_bytes, strict=True)
        start = layout.address + sum(i * stride for i, stride in steps)
        found.update(range(start, start + layout.itemsize))
    return found


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = [
        draw(st.integers(-6, 6)) * draw(st.sampled_from([1, 2, itemsize])) for _ in shape
    ]
    return Layout(draw(st.integers(1000, 1060)), tuple(shape), tuple(strides), itemsize)


@given(layouts())
def test_span_and_form_of_one_array(layout: Layout) -> None:
    bytes_ = touched(layout)
    low, high = span(layout)
    assert (not bytes_ and low == high) or (low, high) == (min(bytes_), max(bytes_) + 1)
    packed = without_repeats(layout)
    if form_of(layout) is Form.WHOLE:
        assert len(bytes_) == high - low or not bytes_
    elif form_of(layout) is Form.PACKED:
        assert len(bytes_) == math.prod(packed.shape) * layout.itemsize


@given(st.lists(layouts(), max_size=7))
def test_blocks_keep_their_promises(items: list[Layout]) -> None:
    found = blocks(items)
    assert sorted(i for block in found for i in block.members) == list(range(len(items)))
    assert [block.members[0] for block in found] == sorted(b.members[0] for b in found)
    union = [set().union(*(touched(items[i]) for i in block.members)) for block in found]
    for block, bytes_ in zip(found, union, strict=True):
        inside = set(range(block.start, block.start + block.nbytes))
        if block.form is Form.WHOLE:
            assert bytes_ == inside
        elif block.form is Form.PACKED:
            assert len(bytes_) == block.nbytes
        else:
            assert bytes_ <= inside
    for a, b in itertools.combinations(union, 2):
        assert not a & b, "one byte in two regions"


@given(st.lists(layouts(), min_size=40, max_size=60))
def test_many_arrays_in_one_cluster_take_the_bitmap(items: list[Layout]) -> None:
    found = blocks(items)
    union = [set().union(*(touched(items[i]) for i in block.members)) for block in found]
    assert sum(map(len, union)) == len(set().union(*union, set()))


@given(layouts(), layouts())
def test_share_memory(a: Layout, b: Layout) -> None:
    assert share_memory(a, b) == bool(touched(a) & touched(b))


@given(st.lists(layouts(), max_size=4), st.integers(0, 40))
def test_covers(items: list[Layout], nbytes: int) -> None:
    moved = [item._replace(address=item.address - 1000) for item in items]
    bytes_ = set().union(*(touched(item) for item in moved), set())
    if covers(moved, nbytes):
        assert bytes_ >= set(range(nbytes))


def test_interleaved_halves_are_one_whole_block() -> None:
    both = np.zeros((50, 2))
    halves = [_layout(both[:, 0]), _layout(both[:, 1])]
    assert [(b.form, b.nbytes, b.members) for b in blocks(halves)] == [
        (Form.WHOLE, 800, (0, 1))
    ]


def test_columns_that_share_nothing_stay_apart_and_store_no_gap() -> None:
    table = np.zeros((50, 9))
    columns = [_layout(table[:, i]) for i in (1, 4, 7)]
    assert [(b.form, b.nbytes) for b in blocks(columns)] == [(Form.PACKED, 400)] * 3


def test_a_hundred_columns_do_so_too() -> None:
    table = np.zeros((20, 200))
    columns = [_layout(table[:, i]) for i in range(0, 200, 2)]
    assert {(b.form, b.nbytes) for b in blocks(columns)} == {(Form.PACKED, 160)}


def test_gapped_views_that_share_elements_keep_their_gaps() -> None:
    row = np.zeros(40)
    views = [_layout(row[::4]), _layout(row[8::2])]
    (block,) = blocks(views)
    assert (block.form, block.members) == (Form.SPARSE, (0, 1))


def test_neighbours_that_only_touch_are_apart() -> None:
    row = np.zeros(20)
    assert len(blocks([_layout(row[:10]), _layout(row[10:])])) == 2
    assert covers([Layout(0, (8,), (1,), 1), Layout(8, (8,), (1,), 1)], 16)


@pytest.mark.parametrize(
    ("view", "form"),
    [
        (np.zeros((3, 4)).T, Form.WHOLE),
        (np.zeros((3, 4), order="F"), Form.WHOLE),
        (np.zeros(9)[::-1], Form.WHOLE),
        (np.broadcast_to(np.zeros(3), (5, 3)), Form.WHOLE),
        (np.lib.stride_tricks.sliding_window_view(np.zeros(9), 3), Form.WHOLE),
        (np.zeros((1, 7, 1))[:, :, :], Form.WHOLE),
        (np.zeros(9)[::2], Form.PACKED),
        (np.zeros((4, 4))[:, :2], Form.PACKED),
        (np.broadcast_to(np.zeros(9)[::2], (3, 5)), Form.PACKED),
        (np.lib.stride_tricks.sliding_window_view(np.zeros(9)[::2], 3), Form.SPARSE),
    ],
)
def test_form(view: np.ndarray[tuple[int, ...], np.dtype[np.float64]], form: Form) -> None:
    assert form_of(_layout(view)) is form


def _layout(array: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Layout:
    address = array.__array_interface__["data"][0]
    return Layout(address, array.shape, array.strides, array.itemsize)
