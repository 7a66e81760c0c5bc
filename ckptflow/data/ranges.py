"""Copy or fill many ranges of bytes in one call, without the GIL where compiled code is.

Packs are read into regions this way: a Python statement per range would cost more than the
bytes. All bounds are checked before the first byte moves. ``tests/unit/test_ranges.py``
compares with one slice per range.
"""

from __future__ import annotations

import numpy as np

from ckptflow.data.backend import kernels
from ckptflow.data.buffers import BufferLike, Bytes, U64s, byte_view, writable_byte_view


def copy_ranges(
    src: BufferLike, dst: BufferLike, src_start: U64s, dst_start: U64s, length: U64s
) -> None:
    """Copy ``length[i]`` bytes from ``src_start[i]`` to ``dst_start[i]``, in order.

    Args:
        src: C-contiguous memory.
        dst: C-contiguous, writable memory that does not overlap ``src``.
        src_start: bytes into ``src``, uint64 of shape ``(n,)``.
        dst_start: bytes into ``dst``, uint64 of shape ``(n,)``.
        length: bytes, uint64 of shape ``(n,)``.

    Raises:
        ValueError: a range lies outside of its buffer, the buffers overlap, the columns do
            not fit each other, or ``dst`` is read-only. Nothing was written.
    """
    source, target = byte_view(src), writable_byte_view(dst)
    if np.may_share_memory(source, target):
        raise ValueError("The source and the target of a copy overlap.")
    starts, ends, sizes = _columns(src_start=src_start, dst_start=dst_start, length=length)
    _check(source, starts, sizes, "source")
    _check(target, ends, sizes, "target")
    kernels().copy_ranges(source, target, starts, ends, sizes)


def fill_ranges(dst: BufferLike, start: U64s, length: U64s, pattern: U64s) -> None:
    """Repeat the eight bytes of ``pattern[i]``, lowest first, over each range, in order.

    Args:
        dst: C-contiguous, writable memory.
        start: bytes into ``dst``, uint64 of shape ``(n,)``.
        length: bytes, uint64 of shape ``(n,)``; need not be multiples of eight.
        pattern: uint64 of shape ``(n,)``.

    Raises:
        ValueError: a range lies outside of ``dst``, the columns do not fit each other, or
            ``dst`` is read-only. Nothing was written.
    """
    target = writable_byte_view(dst)
    starts, sizes, patterns = _columns(start=start, length=length, pattern=pattern)
    _check(target, starts, sizes, "target")
    kernels().fill_ranges(target, starts, sizes, patterns)


def _columns(**columns: U64s) -> list[U64s]:
    shapes = {column.shape for column in columns.values()}
    if len(shapes) > 1 or any(c.ndim != 1 or c.dtype != np.uint64 for c in columns.values()):
        got = ", ".join(f"{name} {c.dtype} {c.shape}" for name, c in columns.items())
        raise ValueError(f"Ranges are columns of uint64, all of one length; got {got}.")
    return [np.require(column, requirements=["C", "A"]) for column in columns.values()]


def _check(buffer: Bytes, start: U64s, length: U64s, what: str) -> None:
    size = np.uint64(len(buffer))
    # start + length could wrap around; this way nothing can.
    bad = (length > size) | (start > size - np.minimum(length, size))
    if bad.any():
        i = int(bad.argmax())
        raise ValueError(
            f"Range {i} of the {what}, {int(length[i])} bytes from {int(start[i])}, "
            f"lies outside of its {len(buffer)} bytes."
        )
