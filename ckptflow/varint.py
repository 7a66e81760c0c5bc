"""Columns of integers in few bytes: LEB128 and zigzag, in NumPy, without a loop over values.

Seven bits a byte, the lowest first; the top bit says that more follow. Small numbers of either
sign become small through zigzag: 0, -1, 1, -2, … are 0, 1, 2, 3, ….
``tests/unit/test_varint.py``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

BYTES_MAX = 10  # Of one value of 64 bits.

_ONE, _SIGN = np.uint64(1), np.uint64(63)


def encode(values: U64) -> bytes:
    """Return the LEB128 codes of ``values``, uint64 [n], one behind the other."""
    size = np.ones(len(values), np.intp)
    for k in range(1, BYTES_MAX):
        size += values >= np.uint64(1 << (7 * k))
    start = np.cumsum(size) - size
    out = np.empty(int(size.sum()), np.uint8)
    for k in range(int(size.max(initial=0))):
        here = size > k
        bits = (values[here] >> np.uint64(7 * k)) & np.uint64(0x7F)
        out[start[here] + k] = bits | np.where(
            size[here] > k + 1, np.uint64(0x80), np.uint64(0)
        )
    return out.tobytes()


def decode(data: bytes | memoryview) -> U64:
    """Return the values, uint64 [n], of LEB128 codes that fill ``data``.

    Raises:
        ValueError: the last code is cut short, or one has more than 64 bits.
    """
    codes = np.frombuffer(data, np.uint8)
    end = np.flatnonzero(codes < 0x80)
    if len(codes) and (not len(end) or end[-1] != len(codes) - 1):
        raise ValueError("a column of integers is cut short")
    start = np.concatenate([np.zeros(min(1, len(end)), np.intp), end[:-1] + 1])
    size = end - start + 1
    longest = int(size.max(initial=0))
    if longest > BYTES_MAX or (
        longest == BYTES_MAX and codes[end[size == BYTES_MAX]].max() > 1
    ):
        raise ValueError("an integer has more than 64 bits")
    values = np.zeros(len(end), np.uint64)
    for k in range(longest):
        here = size > k
        bits = (codes[start[here] + k] & 0x7F).astype(np.uint64)
        values[here] |= bits << np.uint64(7 * k)
    return values


def zigzag(differences: U64) -> U64:
    """Return small numbers for small differences, which are modulo 2^64."""
    signs = np.where(differences >> _SIGN != 0, ~np.uint64(0), np.uint64(0))
    return (differences << _ONE) ^ signs


def unzigzag(codes: U64) -> U64:
    """Undo `zigzag`."""
    return (codes >> _ONE) ^ (~(codes & _ONE) + _ONE)
