"""What a new checkpoint has to write, while its layout is made.

Rows of extent tables name packs by number. While packs are still being planned they may also
say `OWN`: at this position of the *draft*, the stream of all pieces in the order in which they
were added. `Draft.plan` orders the pieces, plans packs, and says where each position ended up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.extents import U64, look_up, overlay, ramps, starts_of, union
from ckptflow.data.pack import PackPlan, plan_packs
from ckptflow.model import KEEP, ExtentTable

OWN = KEEP - 1  # In the pack column: a position in the draft.
NOWHERE = KEEP - 2  # Bytes that no pack has, or not any more.
LOG = KEEP - 3  # Bytes that this checkpoint met before: a position in the log of cells.
PACK_MAX = LOG  # Numbers of packs are less.


class Draft:
    """Pieces of regions to be written, each with the number of an encoding."""

    def __init__(self) -> None:
        self._region: list[NDArray[np.intp]] = []
        self._start: list[U64] = []
        self._length: list[U64] = []
        self._encoding: list[NDArray[np.intp]] = []
        self.size_bytes = 0

    def add(
        self,
        region: int | NDArray[np.intp],
        start: U64,
        length: U64,
        encoding: int | NDArray[np.intp],
    ) -> U64:
        """Add pieces and return their positions, uint64 [n].

        Args:
            region: number of the region, for all or for each.
            start: first byte within it, uint64 [n].
            length: bytes, uint64 [n].
            encoding: how they are stored, all or each. Pieces of one encoding that were added
                one after the other lie side by side in the end, too.
        """
        self._region.append(np.broadcast_to(np.asarray(region, np.intp), len(start)))
        self._start.append(start)
        self._length.append(length)
        self._encoding.append(np.broadcast_to(np.asarray(encoding, np.intp), len(start)))
        position = starts_of(length) + np.uint64(self.size_bytes)
        self.size_bytes += int(length.sum())
        return position

    def plan(self, needed: ExtentTable, *, raw: Collection[int]) -> tuple[PackPlan, Placed]:
        """Plan the packs.

        Args:
            needed: rows, of which some say `OWN`. What was drafted and none of them refers to
                is left out: a range may have been written anew after it had been drafted.
            raw: the encodings that store pieces as they are.
        """
        none, zero = np.empty(0, np.intp), np.empty(0, np.uint64)
        region = np.concatenate([none, *self._region])
        encoding = np.concatenate([none, *self._encoding])
        pieces = ExtentTable(
            np.concatenate([zero, *self._length]),
            np.concatenate([zero, *self._start]),
            np.arange(len(region), dtype=np.uint32),
        )
        own = needed.take(needed.pack == OWN)
        begin, length = union(own.source, own.source + own.extent)
        of, skipped, parts = look_up(pieces, begin, length)
        position = begin[of] + skipped
        region, encoding = region[parts.pack], encoding[parts.pack]
        order = np.argsort(encoding, kind="stable")
        plan = plan_packs(
            region[order], parts.source[order], parts.length[order], encoding[order], raw=raw
        )
        stream = np.empty(len(order), np.uint64)
        stream[order] = starts_of(parts.length[order])
        return plan, Placed(position, parts.length, stream, plan.pack_edges)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where positions of a draft ended up.

    Attributes:
        position: where each piece starts in the draft, uint64 [n], rising.
        length: its bytes, uint64 [n].
        stream: where it starts in the stream of all new packs, uint64 [n].
        pack_edges: where each new pack starts in that stream, uint64 [p + 1]; last, its end.
    """

    position: U64
    length: U64
    stream: U64
    pack_edges: U64

    def written(self, log: ExtentTable) -> ExtentTable:
        """Return where the cells of a log lie; nowhere if they were left out of the draft."""
        own = np.flatnonzero(log.pack == OWN)
        rows = log.take(own)
        size = np.array([int((rows.source + rows.length).max(initial=0))], np.uint64)
        nowhere = ExtentTable(size, np.zeros_like(size), np.array([NOWHERE], np.uint32))
        there = ExtentTable(
            self.length, self.position, np.full(len(self.length), OWN, np.uint32)
        )
        of, _, found = look_up(overlay(nowhere, self.position, there), rows.source, rows.length)
        others = np.flatnonzero(log.pack != OWN)
        order = np.argsort(np.concatenate([others, own[of]]), kind="stable")
        return ExtentTable.of([log.take(others), found]).take(order)

    def final(
        self, table: ExtentTable, first_pack: int
    ) -> tuple[NDArray[np.intp], ExtentTable]:
        """Put packs in the place of `OWN`; cut rows where a pack ends.

        Returns:
            For each resulting row, the number of the row it comes from; and the rows. New packs
            are numbered from ``first_pack`` on.
        """
        own = np.flatnonzero(table.pack == OWN)
        if not len(own):
            return np.arange(len(table)), table
        rows = table.take(own)
        piece = np.searchsorted(self.position, rows.source, side="right") - 1
        begin = self.stream[piece] + (rows.source - self.position[piece])
        end = begin + rows.extent
        first = np.searchsorted(self.pack_edges, begin, side="right") - 1
        last = np.searchsorted(self.pack_edges, end, side="left")
        if (torn := (rows.period > 0) & (last - first > 1)).any():
            origin, written_out = _written_out(table, own[torn])
            of, result = self.final(written_out, first_pack)
            return origin[of], result
        of, pack = ramps(first, last - first)
        a = np.maximum(begin[of], self.pack_edges[pack])
        b = np.minimum(end[of], self.pack_edges[pack + 1])
        period = rows.period[of]
        parts = ExtentTable(
            np.where(period > 0, rows.length[of], b - a),
            a - self.pack_edges[pack],
            (pack + first_pack).astype(np.uint32),
            period,
        )
        others = np.flatnonzero(table.pack != OWN)
        origin = np.concatenate([others, own[of]])
        order = np.argsort(origin, kind="stable")
        return origin[order], ExtentTable.of([table.take(others), parts]).take(order)


def _written_out(
    table: ExtentTable, which: NDArray[np.intp]
) -> tuple[NDArray[np.intp], ExtentTable]:
    """Write out the repeats of some rows: no repeat can have its period in two packs."""
    repeats = table.take(which)
    count = (repeats.length + repeats.period - np.uint64(1)) // repeats.period
    of, number = ramps(np.zeros(len(which), np.intp), count.astype(np.intp))
    done = number.astype(np.uint64) * repeats.period[of]
    length = np.minimum(repeats.length[of] - done, repeats.period[of])
    rows = ExtentTable(length, repeats.source[of], repeats.pack[of])
    others = np.setdiff1d(np.arange(len(table)), which)
    origin = np.concatenate([others, which[of]])
    order = np.argsort(origin, kind="stable")
    return origin[order], ExtentTable.of([table.take(others), rows]).take(order)
