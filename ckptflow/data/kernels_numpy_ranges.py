"""Work on many ranges of bytes in NumPy, one slice per range.

An index per byte, the way without a loop, would move eight times as much as the ranges hold.
``tests/unit/test_ranges.py``, ``tests/property/test_delta_laws.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ckptflow.data.buffers import Bytes, U64s

_SUBTRACT = 1


def copy_ranges(
    source: Bytes, target: Bytes, source_start: U64s, target_start: U64s, length: U64s
) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    for here, there, size in _rows(source_start, target_start, length):
        target[there : there + size] = source[here : here + size]


def fill_ranges(target: Bytes, start: U64s, length: U64s, pattern: U64s) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    eights = pattern.astype("<u8").view(np.uint8).reshape(-1, 8)
    for here, size, eight in zip(start.tolist(), length.tolist(), eights, strict=True):
        whole = here + size // 8 * 8
        target[here:whole].reshape(-1, 8)[:] = eight
        target[whole : here + size] = eight[: size % 8]


def repeat_ranges(target: Bytes, start: U64s, period: U64s, length: U64s) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    for here, step, size in _rows(start, period, length):
        span = target[here : here + size]
        if step < size:
            whole = size // step * step
            span[:whole].reshape(-1, step)[1:] = span[:step]
            span[whole:] = span[: size - whole]


def ranges_equal(
    a: Bytes, b: Bytes, start_a: U64s, start_b: U64s, length: U64s, out: Bytes
) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    for i, (here, there, size) in enumerate(_rows(start_a, start_b, length)):
        out[i] = np.array_equal(a[here : here + size], b[there : there + size])


def make_delta(new: Bytes, old: Bytes, out: Bytes, op: int, word_bytes: int) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    words = len(out) // word_bytes * word_bytes
    fresh, before = _words(new[:words], word_bytes), _words(old[:words], word_bytes)
    target = _words(out[:words], word_bytes)
    if op == _SUBTRACT:
        difference = fresh - before
        sign = (difference >> (8 * word_bytes - 1)) * np.iinfo(difference.dtype).max
        target[:] = (difference << 1) ^ sign
    else:
        target[:] = fresh ^ before
    out[words:] = new[words:] ^ old[words:]


def apply_delta(
    target: Bytes,
    start: U64s,
    delta: Bytes,
    delta_start: U64s,
    length: U64s,
    op: int,
    word_bytes: int,
) -> None:
    """See :class:`ckptflow.data.backend.Kernels`."""
    for here, there, size in _rows(start, delta_start, length):
        end = size // word_bytes * word_bytes
        stored = _words(delta[there : there + end], word_bytes)
        words = _words(target[here : here + end], word_bytes)
        if op == _SUBTRACT:
            words += (stored >> 1) ^ (stored & 1) * np.iinfo(stored.dtype).max
        else:
            words ^= stored
        target[here + end : here + size] ^= delta[there + end : there + size]


def _rows(*columns: U64s) -> Iterator[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _words(data: Bytes, word_bytes: int) -> U64s:
    return data.view(f"<u{word_bytes}")
