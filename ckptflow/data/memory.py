"""NumPy views on memory that somebody else owns, made from an address.

One way for every library: a torch tensor, a Fortran-ordered array and a column of a matrix
all become a view with the same shape and strides, whose *cells* are opaque: unsigned
integers or void of the item's size. Copying cells moves bits; no float is ever loaded as a
float, so that NaN payloads, bf16 and padding inside records survive. NumPy releases the GIL
while it copies them.

``tests/unit/test_arrays.py`` keeps it true.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Cells = NDArray[Any]


class Layout(NamedTuple):
    """Where the elements of one array lie: addresses and strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    itemsize: int


class _Borrowed:
    """What ``np.asarray`` needs to build a view, and the owner it has to keep alive."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def cells_at(layout: Layout, owner: object, *, writable: bool = False) -> Cells:
    """Return a view of ``layout`` with opaque cells; ``owner`` lives as long as the view."""
    size = layout.itemsize
    interface = {
        "version": 3,
        "typestr": f"<u{size}" if size in (1, 2, 4, 8) else f"|V{size}",
        "shape": layout.shape,
        "strides": layout.strides_bytes,
        "data": (layout.address, not writable),
    }
    return np.asarray(_Borrowed(interface, owner))


def bytes_at(address: int, nbytes: int, owner: object, *, writable: bool = False) -> Bytes:
    """Return ``nbytes`` of memory from ``address`` on, as a flat view."""
    return cells_at(Layout(address, (nbytes,), (1,), 1), owner, writable=writable)


def address_of(array: Cells) -> int:
    """Return the address of the first element."""
    return int(array.__array_interface__["data"][0])


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides, in bytes, of a C-contiguous array."""
    if len(shape) < 2:
        return (itemsize,) * len(shape)
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def same_strides(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Tell whether two strides mean the same: on an axis of length 1 they mean nothing."""
    return a == b or all(
        size <= 1 or x == y for size, x, y in zip(shape, a, b, strict=True)
    ) or 0 in shape  # fmt: skip
