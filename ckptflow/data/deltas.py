"""New bytes as differences from old ones, word by word, and back.

Where both are at hand and differ little, differences are mostly zeros and small numbers, which
compress several times better than the bytes. Words are little-endian and lie from the start of
each range; what is left behind the last whole word is xored. ``tests/unit/test_deltas.py``.
"""

from __future__ import annotations

from ckptflow.data.backend import kernels
from ckptflow.data.buffers import BufferLike, U64s, byte_view, writable_byte_view
from ckptflow.data.ranges import check_ranges
from ckptflow.model import DeltaOp

_CODES = {DeltaOp.XOR: 0, DeltaOp.SUB: 1}
WORDS = (1, 2, 4, 8)


def make_delta(
    new: BufferLike, old: BufferLike, out: BufferLike, *, op: DeltaOp, word_bytes: int
) -> None:
    """Set ``out`` to what makes ``new`` of ``old``; all have the same length.

    Raises:
        ValueError: they have not, or no words have ``word_bytes``.
    """
    fresh, before, target = byte_view(new), byte_view(old), writable_byte_view(out)
    if not len(fresh) == len(before) == len(target):
        raise ValueError(
            f"Lengths differ: {len(fresh)}, {len(before)} and {len(target)} bytes."
        )
    kernels().make_delta(fresh, before, target, _CODES[op], _word(word_bytes))


def apply_delta(
    dst: BufferLike,
    delta: BufferLike,
    start: U64s,
    delta_start: U64s,
    length: U64s,
    *,
    op: DeltaOp,
    word_bytes: int,
) -> None:
    """Combine ranges of ``dst`` in place with ranges of ``delta``, in order.

    Args:
        dst: C-contiguous, writable memory with the old bytes.
        delta: what `make_delta` gave.
        start: bytes into ``dst``, uint64 of shape ``(n,)``.
        delta_start: bytes into ``delta``, uint64 of shape ``(n,)``.
        length: bytes, uint64 of shape ``(n,)``.
        op: how they were made.
        word_bytes: 1, 2, 4 or 8.

    Raises:
        ValueError: a range lies outside of its buffer, or the columns do not fit each other.
            Nothing was written.
    """
    target, source = writable_byte_view(dst), byte_view(delta)
    starts, sources, sizes = check_ranges(target, source, start, delta_start, length)
    kernels().apply_delta(target, starts, source, sources, sizes, _CODES[op], _word(word_bytes))


def _word(word_bytes: int) -> int:
    if word_bytes not in WORDS:
        raise ValueError(f"Words of a delta have 1, 2, 4 or 8 bytes, got {word_bytes}.")
    return word_bytes
