"""Many buffers at once, by their addresses: for a native call, a table in the place of objects.

A Python object and a call for each of many thousand buffers would cost more than their bytes.
Whoever makes such a table keeps the buffers alive, and says so by holding them in it.
``tests/unit/test_memory_kernels.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.backend import kernels
from ckptflow.data.buffers import BufferLike, I64s, U64s, byte_view, writable_byte_view


class Addresses:
    """Where some flat buffers lie.

    Args:
        buffers: of bytes, contiguous; they are kept.
    """

    def __init__(self, buffers: Sequence[Any]) -> None:
        self._buffers = list(buffers)
        self._length: U64s = np.array(list(map(len, self._buffers)), np.uint64)
        address: I64s = np.zeros(len(self._buffers), np.int64)
        kernels().look_at(self._buffers, address)
        self._address: U64s = address.view(np.uint64)

    def gather(
        self, number: NDArray[np.intp], start: U64s, length: U64s, dst: BufferLike
    ) -> None:
        """Copy ranges of the buffers to ``dst``, one behind the other.

        Args:
            number: of the buffer, for each range.
            start: first byte in it, uint64 [n].
            length: bytes, uint64 [n].
            dst: writable, as long as all together.

        Raises:
            ValueError: a range lies outside of its buffer. Nothing was written.
        """
        ends = np.cumsum(length, dtype=np.uint64)
        address = self._checked(number, start, length)
        kernels().copy_memory(address, length, writable_byte_view(dst), ends - length)

    def scatter(
        self,
        src: BufferLike,
        src_start: U64s,
        number: NDArray[np.intp],
        start: U64s,
        length: U64s,
    ) -> None:
        """Copy ranges of ``src`` to the buffers, which are writable.

        Args:
            src: contiguous memory, apart from all buffers.
            src_start: first byte of each range in it, uint64 [n].
            number: of the buffer that it goes to.
            start: first byte there, uint64 [n].
            length: bytes, uint64 [n].

        Raises:
            ValueError: a range lies outside of its buffer. Nothing was written.
        """
        source, size = byte_view(src), np.uint64(len(byte_view(src)))
        if ((length > size) | (src_start > size - np.minimum(length, size))).any():
            raise ValueError(f"A range lies outside of the {len(source)} bytes of the source.")
        address = self._checked(number, start, length)
        kernels().place_memory(source, np.ascontiguousarray(src_start), address, length)

    def _checked(self, number: NDArray[np.intp], start: U64s, length: U64s) -> U64s:
        size = self._length[number]
        bad = (length > size) | (start > size - np.minimum(length, size))
        if bad.any():
            i = int(bad.argmax())
            raise ValueError(
                f"Range {i}, {int(length[i])} bytes from {int(start[i])}, lies outside of the "
                f"{int(size[i])} bytes of buffer {int(number[i])}."
            )
        return self._address[number] + start
