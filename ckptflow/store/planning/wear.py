"""Leave old packs behind when little of them is needed, so that restores stay short.

Which ones: those of which less than a quarter is still needed, and, where more than `PACKS_MAX`
remains of less than `LARGE_BYTES` would be left, the smallest together. What is needed of them
is written anew, once, however many rows refer to it; this bounds the objects that a restore
opens, and the dead bytes that old packs carry. Larger ones are not counted: a large state has
many, and to write them anew would not make them fewer. ``tests/unit/test_wear.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.extents import U64, look_up, merge, overlay, starts_of, union
from ckptflow.model import KEEP, ExtentTable
from ckptflow.store.planning.drafting import GATHERED
from ckptflow.store.planning.lines import Layers
from ckptflow.store.planning.pieces import NOWHERE, OWN, Draft
from ckptflow.units import MIB

PACKS_MAX = 32  # A manifest names at most this many older packs that are not large.
LARGE_BYTES = 128 * MIB  # Needed of one: half of the largest pack.
LIVE_FRACTION_MIN = 0.25  # A pack of which less than this is still needed is left behind.


def outworn(regions: Sequence[Layers], plain_bytes: U64) -> NDArray[np.bool_]:
    """Tell, for each older pack, whether what is left of it is better written anew.

    Args:
        regions: the rows of every region.
        plain_bytes: length of the plain stream of each pack, uint64 [p].
    """
    live = live_bytes(regions, len(plain_bytes))
    worn = (live < LIVE_FRACTION_MIN * plain_bytes) & (live > 0)
    counts = (live > 0) & ~worn & (live < LARGE_BYTES)
    left = int(counts.sum())
    if left > PACKS_MAX:
        fewest_first = np.argsort(np.where(counts, live, np.inf), kind="stable")[:left]
        moved = np.cumsum(live[fewest_first])
        surplus = left - PACKS_MAX
        # If only the surplus moved, every save would write a whole small pack again, and those
        # grow with each. Where a pack goes with all that together are as large, its bytes move
        # once per doubling.
        while surplus < left and live[fewest_first[surplus]] <= moved[surplus - 1]:
            surplus += 1
        worn[fewest_first[:surplus]] = True
    return worn


def live_bytes(regions: Sequence[Layers], count: int) -> NDArray[np.float64]:
    """Return how many bytes of the plain stream of each of ``count`` packs are needed."""
    rows = ExtentTable.of([table for region in regions for table in region.tables])
    rows = rows.take(rows.pack < count)
    order, _, new = _first_cover(rows)
    live = np.bincount(rows.pack[order], weights=new.astype(np.float64), minlength=count)
    return live.astype(np.float64)


class Worn:
    """Moves what is needed of outworn packs to the draft.

    Args:
        worn: which packs are left behind, bool [p].
        plain_bytes: length of the plain stream of each pack, uint64 [p].
        draft: where the bytes go.
        regions: the rows of every region.
        encoding: number of the encoding of what is moved, by region; `GATHERED` if not given.
    """

    def __init__(
        self,
        worn: NDArray[np.bool_],
        plain_bytes: U64,
        draft: Draft,
        regions: Sequence[Layers],
        encoding: NDArray[np.intp] | None = None,
    ) -> None:
        self._worn, self._draft = worn, draft
        self._encoding = np.full(len(regions), GATHERED) if encoding is None else encoding
        # Under deltas the bytes of the bottom are not those of the state, which alone are at
        # hand: such ranges are written as they are now, each for itself.
        simple = [n for n, region in enumerate(regions) if not region.deltas]
        tables = [regions[n].bottom for n in simple]
        region = np.repeat(np.array(simple, np.intp), [len(table) for table in tables])
        start = np.concatenate([np.empty(0, np.uint64), *(starts_of(t.length) for t in tables)])
        rows = ExtentTable.of(tables)
        touched = self._is_worn(rows)
        region, start, rows = region[touched], start[touched], rows.take(touched)
        order, begin, new = _first_cover(rows)
        # In the order of the packs, so that what was contiguous stays so.
        order, begin, new = order[new > 0], begin[new > 0], new[new > 0]
        source, pack = rows.source[order], rows.pack[order]
        of = region[order]
        position = draft.add(of, start[order] + (begin - source), new, self._encoding[of])
        self._moved: dict[int, ExtentTable] = {}
        for number in np.flatnonzero(worn).tolist():
            theirs = pack == number
            rows = ExtentTable(new[theirs], position[theirs], _own(theirs))
            moved = overlay(_nowhere(int(plain_bytes[number])), begin[theirs], rows)
            self._moved[number] = merge(starts_of(moved.length), moved)[1]

    def replace(self, number: int, region: Layers) -> Layers:
        """Return the layers of a region without the packs that are left behind."""
        if not region.deltas:
            return region.with_tables([self._follow_rows(region.bottom)])
        start, length = self._ranges(region)
        position = self._draft.add(number, start, length, int(self._encoding[number]))
        fresh = ExtentTable(length, position, _own(np.ones(len(start), np.bool_)))
        keep = ExtentTable(length, np.zeros_like(length), np.full(len(start), KEEP, np.uint32))
        above = [overlay(rows, start, keep) for rows in region.tables[1:]]
        return region.with_tables([overlay(region.bottom, start, fresh), *above])

    def follow(self, log: ExtentTable) -> ExtentTable:
        """Return where the cells of a log lie now."""
        return self._follow_rows(log)

    def _is_worn(self, rows: ExtentTable) -> NDArray[np.bool_]:
        older = rows.pack < len(self._worn)
        result = np.zeros(len(rows), np.bool_)
        result[older] = self._worn[rows.pack[older]]
        return result

    def _ranges(self, region: Layers) -> tuple[U64, U64]:
        """Return what of a region lies in outworn packs, on any layer."""
        starts = [starts_of(rows.length)[self._is_worn(rows)] for rows in region.tables]
        lengths = [rows.length[self._is_worn(rows)] for rows in region.tables]
        start, length = np.concatenate(starts), np.concatenate(lengths)
        return union(start, start + length)

    def _follow_rows(self, rows: ExtentTable) -> ExtentTable:
        for number, moved in self._moved.items():
            here = np.flatnonzero(rows.pack == number)
            if not len(here):
                continue
            theirs = rows.take(here)
            of, _, found = look_up(moved, theirs.source, theirs.extent)
            # A period was moved in one piece with its row, so that it is found in one.
            whole = theirs.period[of] > 0
            length = np.where(whole, theirs.length[of], found.length)
            found = ExtentTable(length, found.source, found.pack, theirs.period[of])
            others = np.flatnonzero(rows.pack != number)
            order = np.argsort(np.concatenate([others, here[of]]), kind="stable")
            rows = ExtentTable.of([rows.take(others), found]).take(order)
        return rows


def _first_cover(rows: ExtentTable) -> tuple[NDArray[np.intp], U64, U64]:
    """Return rows in the order of their bytes, and what each is the first to cover.

    Returns:
        The order; and for each row in it, where in the pack its new bytes begin, and how many
        they are, maybe none.
    """
    order = np.lexsort((rows.source, rows.pack))
    pack, source = rows.pack[order].astype(np.uint64), rows.source[order]
    end = source + rows.extent[order]
    # One number line for all packs, so that one running maximum serves them all.
    stride = end.max(initial=np.uint64(0)) + np.uint64(1)
    reached = np.maximum.accumulate(end + pack * stride)
    before = np.concatenate([np.zeros(min(1, len(end)), np.uint64), reached[:-1]])
    before = np.maximum(before, pack * stride) - pack * stride
    begin = np.maximum(source, before)
    new = np.where(end > begin, end - begin, np.uint64(0))
    return order, begin, new


def _nowhere(size_bytes: int) -> ExtentTable:
    row = np.array([size_bytes], np.uint64)
    return ExtentTable(row, np.zeros_like(row), np.array([NOWHERE], np.uint32))


def _own(which: NDArray[np.bool_]) -> NDArray[np.uint32]:
    return np.full(int(which.sum()), OWN, np.uint32)
