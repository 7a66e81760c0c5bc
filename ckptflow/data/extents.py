"""Interval arithmetic on extent tables, in NumPy: no loop over extents.

A table covers a region from byte 0 on; its rows lie back to back. ``tests/property/
test_extent_laws.py`` compares each function with a byte-by-byte model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ckptflow.model import FILL, ExtentTable

U64 = NDArray[np.uint64]


def starts_of(length: U64) -> U64:
    """Return where each of several pieces that lie back to back starts, uint64 [n]."""
    starts = np.zeros(len(length), np.uint64)
    np.cumsum(length[:-1], out=starts[1:])
    return starts


def cut(table: ExtentTable, start: U64, length: U64) -> tuple[U64, ExtentTable]:
    """Return the rows that cover some ranges of a region, and where each row starts.

    Args:
        table: covers the region.
        start: first byte of each range, uint64 [r], rising.
        length: bytes of each range, uint64 [r]; ranges do not overlap.
    """
    begin = starts_of(table.length)
    end = begin + table.length
    first = np.searchsorted(end, start, side="right")
    last = np.searchsorted(begin, start + length, side="left")
    count = np.maximum(last - first, 0)
    of_range, row = ramps(first, count)
    row_start = np.maximum(begin[row], start[of_range])
    row_end = np.minimum(end[row], (start + length)[of_range])
    skipped = row_start - begin[row]
    pack = table.pack[row]
    source = np.where(
        pack == FILL, _rotated(table.source[row], skipped), table.source[row] + skipped
    )
    return row_start, ExtentTable(row_end - row_start, source, pack)


def merge(start: U64, table: ExtentTable) -> tuple[U64, ExtentTable]:
    """Join neighbouring rows that continue each other; both sorted by ``start``."""
    if len(table) < 2:
        return start, table
    before, after = slice(None, -1), slice(1, None)
    length, source, pack = table.length, table.source, table.pack
    adjacent = (start[before] + length[before] == start[after]) & (pack[before] == pack[after])
    continues = np.where(
        pack[after] == FILL,
        (source[before] == source[after]) & (length[before] % np.uint64(8) == 0),
        source[before] + length[before] == source[after],
    )
    heads = np.flatnonzero(np.concatenate([[True], ~(adjacent & continues)]))
    return start[heads], ExtentTable(np.add.reduceat(length, heads), source[heads], pack[heads])


def split(position: U64, length: U64, every: int) -> tuple[NDArray[np.intp], U64, U64]:
    """Cut pieces where their position in a stream passes a multiple of ``every`` bytes.

    Args:
        position: where each piece lies in the stream, uint64 [n].
        length: its bytes, uint64 [n], all greater than 0.
        every: bytes between cuts.

    Returns:
        For each resulting piece: the number of the piece it is part of, how far into that
        it starts, and its bytes.
    """
    step = np.uint64(every)
    first = position // step
    last = (position + length - np.uint64(1)) // step
    count = (last - first).astype(np.intp) + 1
    piece, number = ramps(first.astype(np.intp), count)
    block = number.astype(np.uint64)
    begin = np.maximum(position[piece], block * step)
    end = np.minimum(position[piece] + length[piece], (block + np.uint64(1)) * step)
    return piece, begin - position[piece], end - begin


def ramps(
    first: NDArray[np.intp], count: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return, for ramps first[i], first[i] + 1, … of count[i] numbers: i, and the number."""
    of = np.repeat(np.arange(len(first)), count)
    within = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
    return of, within + first[of]


def _rotated(pattern: U64, skipped: U64) -> U64:
    """Return the 8-byte patterns as they look ``skipped`` bytes further on."""
    right = (skipped % np.uint64(8)) * np.uint64(8)
    left = (np.uint64(64) - right) % np.uint64(64)
    wrapped: U64 = np.where(right == 0, np.uint64(0), pattern << left)
    return (pattern >> right) | wrapped
