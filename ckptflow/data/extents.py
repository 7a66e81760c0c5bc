"""Interval arithmetic on extent tables, in NumPy: no loop over extents.

A table covers a region from byte 0 on; its rows lie back to back. ``tests/property/
test_extent_laws.py`` compares each function with a byte-by-byte model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ckptflow.model import FILL, KEEP, ExtentTable

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
    _, row_start, row, rows = _covering(table, start, length)
    if not rows.period.any():
        return row_start, rows
    return _in_phase(row_start, rows, row_start - starts_of(table.length)[row])


def look_up(
    table: ExtentTable, start: U64, length: U64
) -> tuple[NDArray[np.intp], U64, ExtentTable]:
    """Return the rows that cover some ranges, in any order and overlapping or not.

    Args:
        table: covers the region; without periods.
        start: first byte of each range, uint64 [r].
        length: bytes of each range, uint64 [r].

    Returns:
        For each resulting row: the number of its range, how far into that it starts, the row.
    """
    of, row_start, _, rows = _covering(table, start, length)
    return of, row_start - start[of], rows


def _covering(
    table: ExtentTable, start: U64, length: U64
) -> tuple[NDArray[np.intp], U64, NDArray[np.intp], ExtentTable]:
    """Return range, start, number and contents of each row; repeats are not yet in phase."""
    begin = starts_of(table.length)
    end = begin + table.length
    first = np.searchsorted(end, start, side="right")
    last = np.searchsorted(begin, start + length, side="left")
    count = np.maximum(last - first, 0)
    of, row = ramps(first, count)
    row_start = np.maximum(begin[row], start[of])
    row_end = np.minimum(end[row], (start + length)[of])
    skipped = row_start - begin[row]
    rows = table.take(row)
    is_data = rows.stored & (rows.period == 0)
    source = np.where(rows.pack == FILL, _rotated(rows.source, skipped), rows.source)
    source = np.where(is_data, source + skipped, source)
    return of, row_start, row, ExtentTable(row_end - row_start, source, rows.pack, rows.period)


def _in_phase(start: U64, rows: ExtentTable, skipped: U64) -> tuple[U64, ExtentTable]:
    """Cut repeats that begin ``skipped`` bytes into them, so that they begin with a period."""
    zero = np.uint64(0)
    phase = np.where(rows.period > 0, skipped % np.maximum(rows.period, np.uint64(1)), zero)
    head = np.where(phase > 0, np.minimum(rows.period - phase, rows.length), zero)
    heads = ExtentTable(head, rows.source + phase, rows.pack).take(head > 0)
    rest = rows.length - head
    period = np.where(rest > rows.period, rows.period, zero)  # One period is no repeat.
    rests = ExtentTable(rest, rows.source, rows.pack, period).take(rest > 0)
    starts = np.concatenate([start[head > 0], (start + head)[rest > 0]])
    order = np.argsort(starts, kind="stable")
    return starts[order], ExtentTable.of([heads, rests]).take(order)


def merge(start: U64, table: ExtentTable) -> tuple[U64, ExtentTable]:
    """Join neighbouring rows that continue each other; both sorted by ``start``."""
    if len(table) < 2:
        return start, table
    before, after = table.take(slice(None, -1)), table.take(slice(1, None))
    adjacent = (start[:-1] + before.length == start[1:]) & (before.pack == after.pack)
    one_period = np.where(before.pack == FILL, np.uint64(8), np.maximum(before.period, 1))
    again = (before.source == after.source) & (before.length % one_period == 0)
    goes_on = (before.source + before.length == after.source) & (after.period == 0)
    is_data = before.stored & (before.period == 0)
    continues = np.where(is_data, goes_on, again & (before.period == after.period))
    continues |= before.pack == KEEP
    heads = np.flatnonzero(np.concatenate([[True], ~(adjacent & continues)]))
    rows = table.take(heads)
    length = np.add.reduceat(table.length, heads)
    return start[heads], ExtentTable(length, rows.source, rows.pack, rows.period)


def gaps(start: U64, length: U64, size_bytes: int) -> tuple[U64, U64]:
    """Return start and length of what some ranges leave of a region.

    Args:
        start: first byte of each range, uint64 [r], rising; ranges do not overlap.
        length: bytes of each.
        size_bytes: length of the region.
    """
    begin = np.concatenate([np.zeros(1, np.uint64), start + length])
    end = np.append(start, np.uint64(size_bytes))
    some = end > begin
    return begin[some], (end - begin)[some]


def union(start: U64, end: U64) -> tuple[U64, U64]:
    """Return start and length of what some ranges cover together, rising and apart.

    Args:
        start: first byte of each range, uint64 [r], in any order; ranges may overlap.
        end: first byte behind each, uint64 [r].
    """
    order = np.argsort(start, kind="stable")
    order = order[start[order] < end[order]]
    begin, stop = start[order], np.maximum.accumulate(end[order])
    heads = np.flatnonzero(np.concatenate([[True], begin[1:] > stop[:-1]])[: len(begin)])
    last = np.append(heads[1:], len(begin))[: len(heads)] - 1
    return begin[heads], stop[last] - begin[heads]


def overlay(table: ExtentTable, start: U64, rows: ExtentTable) -> ExtentTable:
    """Return ``table`` with some rows in the place of what was there.

    Args:
        table: covers a region.
        start: where each row begins, uint64 [n], rising; rows do not overlap.
        rows: the rows, inside of the region or beyond its end, which then moves.
    """
    end = int((start + rows.length).max(initial=np.uint64(0)))
    size = max(int(table.length.sum()), end)
    old_start, old = cut(table, *gaps(start, rows.length, size))
    order = np.argsort(np.concatenate([old_start, start]), kind="stable")
    return ExtentTable.of([old, rows]).take(order)


def covered(table: ExtentTable, which: NDArray[np.bool_], start: U64, length: U64) -> U64:
    """Return how many bytes of each range some rows of a table cover, uint64 [r]."""
    edges = np.append(starts_of(table.length), table.length.sum(dtype=np.uint64))
    sums = np.zeros(len(edges), np.uint64)
    np.cumsum(np.where(which, table.length, np.uint64(0)), out=sums[1:])

    def up_to(position: U64) -> U64:
        row = np.maximum(np.searchsorted(edges, position, side="right"), 1) - 1
        row = np.minimum(row, len(table))
        inside = np.append(which, False)[row]
        within: U64 = np.where(inside, position - edges[row], np.uint64(0))
        total: U64 = sums[row] + within
        return total

    found: U64 = up_to(start + length) - up_to(start)
    return found


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
