"""Copy or fill many ranges of bytes in one call, without the GIL where compiled code is.

Packs are read into regions this way: a Python statement per range would cost more than the
bytes. All bounds are checked before the first byte moves. ``tests/unit/test_ranges.py``
compares with one slice per range.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.backend import kernels
from ckptflow.data.buffers import (
    BufferLike,
    Bytes,
    U64s,
    byte_view,
    writable_byte_view,
)


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


def repeat_ranges(dst: BufferLike, start: U64s, period: U64s, length: U64s) -> None:
    """Repeat the first ``period[i]`` bytes of each range over the rest of it, in order.

    Args:
        dst: C-contiguous, writable memory.
        start: bytes into ``dst``, uint64 of shape ``(n,)``.
        period: bytes, uint64 of shape ``(n,)``; at least 1, at most the length.
        length: bytes, uint64 of shape ``(n,)``; need not be multiples of the period.

    Raises:
        ValueError: a range lies outside of ``dst``, a period does not lie inside its range,
            the columns do not fit each other, or ``dst`` is read-only. Nothing was written.
    """
    target = writable_byte_view(dst)
    starts, periods, sizes = _columns(start=start, period=period, length=length)
    _check(target, starts, sizes, "target")
    if ((periods == 0) | (periods > sizes)).any():
        raise ValueError(
            "A period is empty, or longer than the range that it is repeated over."
        )
    kernels().repeat_ranges(target, starts, periods, sizes)


def ranges_equal(
    a: BufferLike, b: BufferLike, start_a: U64s, start_b: U64s, length: U64s
) -> NDArray[np.bool_]:
    """Return for each range whether both buffers have the same bytes in it, shape ``(n,)``.

    Args:
        a: C-contiguous memory.
        b: C-contiguous memory, possibly the same.
        start_a: bytes into ``a``, uint64 of shape ``(n,)``.
        start_b: bytes into ``b``, uint64 of shape ``(n,)``.
        length: bytes, uint64 of shape ``(n,)``.

    Raises:
        ValueError: a range lies outside of its buffer, or the columns do not fit each other.
    """
    ours, theirs = byte_view(a), byte_view(b)
    starts, others, sizes = check_ranges(ours, theirs, start_a, start_b, length)
    equal = np.empty(len(sizes), np.uint8)
    kernels().ranges_equal(ours, theirs, starts, others, sizes, equal)
    return equal.view(np.bool_)


def check_ranges(
    target: Bytes, source: Bytes, start: U64s, source_start: U64s, length: U64s
) -> list[U64s]:
    """Return the three columns, aligned.

    Raises:
        ValueError: they do not fit each other, or a range lies outside of its buffer.
    """
    starts, sources, sizes = _columns(start=start, source_start=source_start, length=length)
    _check(target, starts, sizes, "target")
    _check(source, sources, sizes, "source")
    return [starts, sources, sizes]


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
