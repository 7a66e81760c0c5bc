"""The order of elements in memory, against addresses counted one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ckptflow.data.arrays import ArraySpec
from ckptflow.data.memory import address_of
from ckptflow.data.order import order_of


def spec_of(array: np.ndarray) -> ArraySpec:
    return ArraySpec(array.dtype.str, array.shape, array.strides, 0, 0, "numpy")


SHAPES = [(), (5,), (1,), (3, 4), (2, 3, 4), (2, 1, 3), (1, 1, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_dense_layout_against_addresses(shape: tuple[int, ...]) -> None:
    """Every order of axes, forwards and backwards."""
    for axes in itertools.permutations(range(len(shape))):
        for signs in itertools.product((1, -1), repeat=len(shape)):
            base = np.arange(int(np.prod(shape)), dtype=np.int64)
            array = base.reshape([shape[axis] for axis in axes])
            array = array.transpose(np.argsort(axes).astype(int).tolist() or None)
            array = array[tuple(slice(None, None, sign) for sign in signs)]
            assert array.shape == shape
            order = order_of(spec_of(array))
            assert order is not None
            # In memory the elements are 0, 1, 2, …: so the C order of values tells where.
            expected = np.argsort(array.ravel(), kind="stable")
            assert order.in_c_order(base.astype(np.intp)).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4)[:, 1],
        np.arange(12).reshape(3, 4)[:, :3],
        np.arange(12)[::2],
        np.broadcast_to(np.arange(3), (4, 3)),
        np.lib.stride_tricks.sliding_window_view(np.arange(6), 3),
    ],
    ids=["column", "part of rows", "every second", "repeated", "windows"],
)
def test_gaps_and_repetitions_are_no_order(array: np.ndarray) -> None:
    assert order_of(spec_of(array)) is None
    assert address_of(array)  # Each of them is a view, and copies would be dense.
    assert order_of(spec_of(array.copy())) is not None
