"""Rows of an extent table that repeat the rows some way before them.

Periodic states refer to the same places over and over; one row that says "these again, so many
times" takes the place of all. ``tests/property/test_repeat_laws.py``.
"""

from __future__ import annotations

import numpy as np

from ckptflow.data.backend import kernels
from ckptflow.data.buffers import I64s, U32s, U64s

LEAST_ROWS = 3  # A repeat of fewer rows saves nothing.


def find_repeats(length: U64s, source: U64s, pack: U32s) -> tuple[I64s, I64s, I64s]:
    """Find rows that equal the rows one period before, from left to right.

    At row ``i``, the period is the distance to the last row before it that is equal, if there
    is one. Where the rows from ``i`` on equal those one period before, as many as the period
    and at least three, they are a repeat, as long as it goes, and the search goes on behind
    it; else at the next row.

    Args:
        length: of each row, uint64 of shape ``(n,)``; rows lie back to back.
        source: likewise.
        pack: likewise, uint32.

    Returns:
        First row, period in rows and number of rows of each repeat, int64 of shape ``(r,)``.

    Raises:
        ValueError: the columns do not fit each other.
    """
    count = len(length)
    if (
        not length.shape == source.shape == pack.shape == (count,)
        or not length.dtype == source.dtype == np.uint64
        or pack.dtype != np.uint32
    ):
        raise ValueError(
            f"Rows are columns of uint64, uint64 and uint32, all of one length; got "
            f"{length.dtype} {length.shape}, {source.dtype} {source.shape} and "
            f"{pack.dtype} {pack.shape}."
        )
    room = count // LEAST_ROWS
    columns = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    lengths, sources = (np.require(c, requirements=["C", "A"]) for c in (length, source))
    packs: U32s = np.require(pack, requirements=["C", "A"])
    found = kernels().find_repeats(lengths, sources, packs, columns)
    row, period, rows = (column[:found].copy() for column in columns)
    return row, period, rows
