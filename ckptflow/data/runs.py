"""Arrays in memory as runs of bytes that lie back to back, in the order of their elements.

With them any part of an array is mapped to any other form of it: a box of a global array to
what several ranks have stored, a slice to the bytes that have to be read. Runs are columns, and
nothing loops over them. ``tests/property/test_run_laws.py`` compares with NumPy's indexing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.memory import Layout, contiguous_strides
from ckptflow.errors import ConfigError

Index: TypeAlias = (
    "int | slice | EllipsisType | tuple[int | slice | EllipsisType | None, ...] | None"
)
"""What picks a part of an array: integers, slices, an ellipsis, new axes."""


class Runs(NamedTuple):
    """Stretches of equal length: where each starts, int64 [n]; and the bytes of each."""

    start: NDArray[np.int64]
    length: int

    def cut_to(self, length: int) -> Runs:
        """Return the same bytes in shorter runs; ``length`` divides that of these."""
        if length == self.length:
            return self
        steps = np.arange(self.length // length, dtype=np.int64) * length
        return Runs((self.start[:, None] + steps).reshape(-1), length)


def runs_of(layout: Layout) -> Runs:
    """Return where the elements of an array lie, in C order, as few runs as possible."""
    if 0 in layout.shape:
        return Runs(np.empty(0, np.int64), layout.itemsize)
    length, outer = layout.itemsize, list(zip(layout.shape, layout.strides_bytes, strict=True))
    while outer and (outer[-1][0] == 1 or outer[-1][1] == length):
        length *= outer.pop()[0]
    start = np.array([layout.address], np.int64)
    for size, stride in outer:
        start = (start[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return Runs(start, length)


def box_layout(
    shape: Sequence[int], itemsize: int, offset: Sequence[int], lengths: Sequence[int]
) -> Layout:
    """Return where a box lies in an array in C order that begins at address 0."""
    strides = contiguous_strides(tuple(shape), itemsize)
    address = sum(first * stride for first, stride in zip(offset, strides, strict=True))
    return Layout(address, tuple(lengths), strides, itemsize)


def common(a: Runs, b: Runs) -> tuple[Runs, Runs]:
    """Return runs of the same elements in two places, cut alike."""
    length = math.gcd(a.length, b.length)
    return a.cut_to(length), b.cut_to(length)


def select(layout: Layout, index: Index) -> Layout:
    """Return where the elements lie that ``index`` picks, by NumPy's basic indexing.

    Raises:
        ConfigError: it picks by lists or masks, or beyond the array.
    """
    picks = index if isinstance(index, tuple) else (index,)
    for pick in picks:
        if not (pick is None or pick is Ellipsis or isinstance(pick, slice) or _is_int(pick)):
            raise ConfigError(
                f"{pick!r:.80} picks no part that can be read by itself; use integers, slices "
                f"and ..., as in np.s_[10:20, :]."
            )
    # A view of no memory at all: only its address, shape and strides are looked at.
    virtual = np.lib.stride_tricks.as_strided(
        np.empty(1, np.dtype(f"V{layout.itemsize}")), layout.shape, layout.strides_bytes
    )
    if not any(pick is Ellipsis for pick in picks):
        picks = (*picks, Ellipsis)  # Else NumPy would read the element that integers pick.
    try:
        view: Any = virtual[picks]
    except IndexError as error:
        shape = list(layout.shape)
        raise ConfigError(
            f"The index does not fit an array of shape {shape}: {error}."
        ) from error
    shift = view.__array_interface__["data"][0] - virtual.__array_interface__["data"][0]
    return Layout(layout.address + shift, view.shape, view.strides, layout.itemsize)


def _is_int(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool | np.bool_ | np.ndarray)
