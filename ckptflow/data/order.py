"""In which order the elements of an array lie in memory, and what number they have in C order.

A Fortran-ordered array, or one that runs backwards, is compared as it lies in its region, and
what is found there gets its index in the array. ``tests/unit/test_order.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.arrays import ArraySpec
from ckptflow.data.memory import contiguous_strides


@dataclass(frozen=True, slots=True)
class Order:
    """In which order the elements of a dense array lie in memory.

    ``axes`` are those longer than 1, that of the greatest stride first; ``turned`` those of
    them that run backwards.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    turned: tuple[bool, ...]

    def in_c_order(self, place: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return for elements, counted as they lie in memory, their numbers in C order."""
        if self.axes == tuple(sorted(self.axes)) and not any(self.turned):
            return place
        sizes = [self.shape[axis] for axis in self.axes]
        index = [np.zeros(len(place), np.intp) for _ in self.shape]
        for axis, turned, along in zip(
            self.axes, self.turned, np.unravel_index(place, sizes), strict=True
        ):
            index[axis] = self.shape[axis] - 1 - along if turned else along
        return np.ravel_multi_index(index, self.shape)


def order_of(spec: ArraySpec) -> Order | None:
    """Return how an array lies in its region; ``None`` where it leaves gaps, or repeats."""
    layout = spec.layout()
    strides, long = layout.strides_bytes, [i for i, n in enumerate(spec.shape) if n > 1]
    axes = tuple(sorted(long, key=lambda axis: -abs(strides[axis])))
    dense = contiguous_strides(tuple(spec.shape[axis] for axis in axes), layout.itemsize)
    if tuple(abs(strides[axis]) for axis in axes) != dense:
        return None
    return Order(spec.shape, axes, tuple(strides[axis] < 0 for axis in axes))
