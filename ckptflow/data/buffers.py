"""See any contiguous memory as an array of bytes, without copying it."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

BufferLike: TypeAlias = Buffer | NDArray[Any]
"""Memory to read or write; before Python 3.12 arrays are no `Buffer` to a type checker."""

Bytes: TypeAlias = NDArray[np.uint8]
U32s: TypeAlias = NDArray[np.uint32]
U64s: TypeAlias = NDArray[np.uint64]
I64s: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.intp]


def byte_view(data: BufferLike) -> Bytes:
    """Return the bytes of ``data`` in memory order, shape ``(size,)``, sharing its memory.

    Arrays of every dtype are welcome, also of those that do not export a buffer.

    Raises:
        ValueError: the memory is not C-contiguous.
    """
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError(f"An array of strides {data.strides} is not C-contiguous.")
        return data.reshape(-1).view(np.uint8)
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError(f"A buffer of strides {view.strides} is not C-contiguous.")
    return np.frombuffer(view, np.uint8)


def writable_byte_view(data: BufferLike) -> Bytes:
    """Return `byte_view` of memory that may be written.

    Raises:
        ValueError: the memory is read-only or not C-contiguous.
    """
    view = byte_view(data)
    if not view.flags.writeable:
        raise ValueError("The target is read-only.")
    return view
