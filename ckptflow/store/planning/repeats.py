"""Fold rows that come again and again into one row with a period.

States are often periodic: a lattice, an event graph, a padded batch. The cells of every period
but the first are known, so each costs only a row or a few; but there may be very many. Where a
sequence of rows repeats, its bytes are named once and repeated, as in an overlapping copy of
LZ77. ``tests/unit/test_repeats.py``, ``tests/property/test_layout_laws.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ckptflow.data.extents import U64, starts_of
from ckptflow.data.repeats import find_repeats
from ckptflow.model import FILL, ExtentTable
from ckptflow.store.planning.pieces import OWN

PERIOD_BYTES_MAX = 64 << 10  # So that a period is never cut into several frames.
ROW_BYTES = 16  # What a period may cost, stored once more, for every row that it spares.
ROWS_MIN = 3  # Fewer are not worth it.


def fold(rows: ExtentTable, again: Callable[[U64, U64], U64 | None]) -> ExtentTable:
    """Return rows that mean the same, with periods in the place of repeated sequences.

    Args:
        rows: cover a region.
        again: drafts the bytes that lie at some places of the region once more, given starts
            and lengths, uint64 [n], and returns their positions; ``None`` if it cannot.
    """
    if len(rows) < 1 + ROWS_MIN:
        return rows
    # A row that has a period itself, or keeps what is below, is like no other.
    source = np.where(
        rows.stored & (rows.period == 0) | ~rows.stored, rows.source, _unique(rows)
    )
    first, distance, count = find_repeats(rows.length, source, rows.pack)
    if not len(first):
        return rows
    ends = np.concatenate([np.zeros(1, np.uint64), np.cumsum(rows.length, dtype=np.uint64)])
    period = ends[first] - ends[first - distance]
    length = ends[first + count] - ends[first]
    single = distance == 1
    cheap = (period <= PERIOD_BYTES_MAX) & (period <= ROW_BYTES * count.astype(np.uint64))
    keep = np.where(single, period <= PERIOD_BYTES_MAX, cheap) & (period <= length)
    keep &= ~(single & (rows.pack[first] == FILL))  # These are one fill, without a period.
    if not (single & keep).all() and (keep & ~single).any():
        position = again(ends[first][keep & ~single], period[keep & ~single])
        if position is None:
            keep &= single
    first, distance, count = first[keep], distance[keep], count[keep]
    period, length, single = period[keep], length[keep], single[keep]
    source, pack = rows.source[first].copy(), rows.pack[first].copy()
    if not single.all():
        assert position is not None
        source[~single], pack[~single] = position, OWN
    folded = ExtentTable(length, source, pack, np.where(length > period, period, np.uint64(0)))
    gone = np.zeros(len(rows) + 1, np.int64)
    np.add.at(gone, first, 1)
    np.add.at(gone, first + count, -1)
    stays = np.cumsum(gone[:-1]) == 0
    start = np.concatenate([starts_of(rows.length)[stays], ends[first]])
    return ExtentTable.of([rows.take(stays), folded]).take(np.argsort(start))


def _unique(rows: ExtentTable) -> U64:
    return np.uint64(1 << 63) + np.arange(len(rows), dtype=np.uint64)
