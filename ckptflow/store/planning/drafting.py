"""Turn the runs of a diff into rows that cover each region, and pieces to be written.

New bytes become pieces of the draft, as they are or as deltas on the parent's. Known ones are
rows that name the bytes where they lie: in older packs, or in what this checkpoint writes
itself. Sequences of rows that come again and again are folded into one row with a period. What
no run covers is as it was, and its rows stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.codec import Codec
from ckptflow.data.extents import U64, covered, cut, gaps, look_up, overlay
from ckptflow.data.frames import Encoding
from ckptflow.data.scan import Kind, Runs
from ckptflow.model import FILL, KEEP, DeltaOp, ExtentTable
from ckptflow.store.memory import Memory, RegionDiff, Seen
from ckptflow.store.planning.lines import Layers, NumberLine, OldLayers, Scattered, joined
from ckptflow.store.planning.pieces import LOG, NOWHERE, OWN, PACK_MAX, Draft
from ckptflow.store.planning.repeats import fold
from ckptflow.store.planning.short_runs import NO_CELL, without_short_runs

GATHERED = 0  # Number of the encoding of pieces that come from several regions.


@dataclass(frozen=True, slots=True)
class DeltaBounds:
    """How many deltas a region may have, since a restore reads them besides what they change.

    Attributes:
        layers: how many on top of each other.
        plain_fraction: how long they may be, per byte of the region.
        stored_fraction: how much they may take in packs, for what the bottom takes there.
    """

    layers: int
    plain_fraction: float
    stored_fraction: float


@dataclass(frozen=True, slots=True)
class RegionEncoding:
    """How the new bytes of one region are stored, and why.

    Attributes:
        plain: as they are.
        delta: as deltas on the parent's bytes; ``None`` if that does not pay.
        reasons: a sentence for people; empty if nothing had to be chosen.
        ratio: plain over stored bytes, expected; of bytes as they are.
        delta_ratio: likewise of deltas.
    """

    plain: Encoding
    delta: Encoding | None = None
    reasons: str = ""
    ratio: float = 1.0
    delta_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class _NewDeltas:
    """Ranges of one region that are stored as deltas: where, and on which layer."""

    start: U64
    length: U64
    level: NDArray[np.intp]
    position: U64  # In the draft.


class Drafting:
    """The draft of one checkpoint, and the rows that refer to it.

    Attributes:
        draft: the pieces to be written.
        encodings: what their numbers mean.
        logs: per size of cell, where the cells of the log will lie.
    """

    def __init__(
        self,
        diffs: Sequence[RegionDiff],
        memory: Memory,
        encodings: Sequence[RegionEncoding],
        bounds: DeltaBounds,
    ) -> None:
        self.draft = Draft()
        # What comes from several regions may shrink or not; a frame that does not is raw.
        self.encodings = [Encoding(Codec.ZSTD, 1)]
        self.logs: dict[int, ExtentTable] = {}
        self._diffs, self._memory, self._bounds = diffs, memory, bounds
        self._stored_per_byte = np.array(
            [pack.size_bytes / max(pack.plain_bytes, 1) for pack in memory.packs]
        )
        self._region_encodings = encodings
        self._old = OldLayers(memory)
        self._line = NumberLine([len(diff.region.data) for diff in diffs])
        self._fresh = Scattered()  # Bottom rows in the place of old ones, on that line.
        self._deltas: dict[int, _NewDeltas] = {}
        self._met: dict[int, Scattered] = {}  # New places of cells, by position in the log.
        # Per size of cell: regions, where in them, and rows that say `LOG`.
        self._own: list[tuple[int, NDArray[np.intp], U64, ExtentTable]] = []
        self._seen = {diff.cell_bytes: diff.seen for diff in diffs if diff.seen is not None}
        self._take()
        self._settle()

    @property
    def with_deltas(self) -> frozenset[int]:
        """Numbers of the regions of which some bytes were drafted as deltas."""
        return frozenset(self._deltas)

    def layers(self) -> list[Layers]:
        """Return the layers of each region."""
        start, rows = self._fresh.sorted()
        edges = self._line.edges(start).tolist()
        layers: list[Layers] = []
        plain = []
        for number, (diff, a, b) in enumerate(zip(self._diffs, edges, edges[1:], strict=False)):
            name, old = diff.region.name, self._old.get(diff.region.name)
            if (
                a == b
                and number not in self._deltas
                and (self._old.size_of(name) == len(diff.region.data))
            ):
                layers.append(old)
            elif old.deltas or number in self._deltas:
                fresh = start[a:b] - self._line.start[number], rows.rows(a, b)
                layers.append(self._cover(number, diff, *fresh))
            else:
                layers.append(old)
                plain.append(number)
        for number, bottom in self._bottoms(plain, start, rows):
            layers[number] = Layers(fold(bottom, partial(self._again, number)))
        return layers

    def _take(self) -> None:
        """Draft what the runs of all regions ask for."""
        region, runs = self._runs()
        is_fill, is_known, is_new = (
            runs.kind == kind for kind in (Kind.FILL, Kind.KNOWN, Kind.NEW)
        )
        start = runs.start_bytes - self._line.start[region]
        rows = ExtentTable(
            runs.length_bytes[is_fill], runs.ref[is_fill], _all(is_fill.sum(), FILL)
        )
        self._fresh.add(runs.start_bytes[is_fill], rows)
        as_delta = self._take_deltas(region, start, runs.length_bytes, is_new)
        new = np.flatnonzero(is_new & ~as_delta)
        written = self._write(region[new], start[new], runs.length_bytes[new])
        cell_bytes = np.array([d.cell_bytes if d.seen else 0 for d in self._diffs], np.int64)
        of_run = cell_bytes[region]
        for size, seen in self._seen.items():
            here = (of_run[new] == size) & (runs.ref[new] != NO_CELL)
            self._met.setdefault(size, Scattered()).add(
                seen.position(runs.ref[new][here]), written.take(here)
            )
        # Known ones all at once, when it is known where what is new will lie.
        for size, seen in self._seen.items():
            known = np.flatnonzero(is_known & (of_run == size))
            log = seen.position(runs.ref[known])
            self._take_known(seen, region[known], start[known], log, runs.length_bytes[known])

    def _runs(self) -> tuple[NDArray[np.intp], Runs]:
        """Return the runs of all regions, on the number line, and the region of each."""
        some = [number for number, diff in enumerate(self._diffs) if len(diff.runs)]
        runs = [self._diffs[number].runs for number in some]
        counts = np.array([len(one) for one in runs], np.intp)
        region = np.repeat(np.array(some, np.intp), counts)
        start = joined([one.start_bytes for one in runs], np.uint64) + self._line.start[region]
        length = joined([one.length_bytes for one in runs], np.uint64)
        kind = joined([one.kind for one in runs], np.uint8)
        ref = joined([one.ref for one in runs], np.uint64)
        ratio = np.array([how.ratio for how in self._region_encodings], np.float64)
        return region, without_short_runs(Runs(kind, start, length, ref), ratio=ratio[region])

    def _take_known(
        self, seen: Seen, region: NDArray[np.intp], start: U64, log: U64, length: U64
    ) -> None:
        """Say where known cells of one size lie; those of this checkpoint wait for its log."""
        if not len(log):
            return
        of, skipped, rows = look_up(seen.extended(LOG), log, length)
        region, start, log = region[of], start[of] + skipped, log[of] + skipped
        there, own, lost = rows.pack < PACK_MAX, rows.pack == LOG, rows.pack == NOWHERE
        self._place(region[there], start[there], rows.take(there))
        self._own.append((seen.cell_bytes, region[own], start[own], rows.take(own)))
        # What is known but lies nowhere any more is written again, and found there from now on.
        written = self._write(region[lost], start[lost], rows.length[lost])
        self._met.setdefault(seen.cell_bytes, Scattered()).add(log[lost], written)

    def _place(self, region: NDArray[np.intp], start: U64, rows: ExtentTable) -> None:
        """Put rows of several regions in the place of old ones."""
        self._fresh.add(start + self._line.start[region], rows)

    def encoding_of(self, number: int, *, delta: bool = False) -> int:
        """Return the number of the encoding of a region; regions of one share frames."""
        how = self._region_encodings[number]
        encoding = how.delta if delta else how.plain
        assert encoding is not None, "only what has an encoding is drafted"
        if encoding not in self.encodings:
            self.encodings.append(encoding)
        return self.encodings.index(encoding)

    def _write(self, region: NDArray[np.intp], start: U64, length: U64) -> ExtentTable:
        """Draft pieces of regions as they are; return rows for them, which are in place."""
        if not len(start):
            return ExtentTable.of([])
        numbers, which = np.unique(region, return_inverse=True)
        encoding = np.array([self.encoding_of(number) for number in numbers.tolist()], np.intp)
        position = self.draft.add(region, start, length, encoding[which])
        rows = ExtentTable(length, position, _all(len(position), OWN))
        self._place(region, start, rows)
        return rows

    def _take_deltas(
        self, region: NDArray[np.intp], start: U64, length: U64, is_new: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Draft those of some new runs as deltas that can be; return which."""
        as_delta = np.zeros(len(region), np.bool_)
        for number, how in enumerate(self._region_encodings):
            if how.delta is not None:
                here = np.flatnonzero(is_new & (region == number))
                diff = self._diffs[number]
                as_delta[here] = self._deltas_of(number, diff, start[here], length[here])
        return as_delta

    def _deltas_of(
        self, number: int, diff: RegionDiff, start: U64, length: U64
    ) -> NDArray[np.bool_]:
        """Draft those of some ranges as deltas that can be; return which."""
        how, name = self._region_encodings[number], diff.region.name
        at_hand, old = self._memory.bytes_at_hand.get(name), self._old.get(name)
        if how.delta is None or at_hand is None or name not in self._old or diff.whole:
            return np.zeros(len(start), np.bool_)
        level = np.zeros(len(start), np.intp)
        for height, (_, _, rows) in enumerate(old.deltas, 1):
            level[covered(rows, rows.pack != KEEP, start, length) > 0] = height
        wanted = how.delta.op, how.delta.op_word
        fits = np.array([*((op, word) == wanted for op, word, _ in old.deltas), True])
        size, size_before = len(diff.region.data), int(old.bottom.length.sum())
        end = start + length
        in_reach = (end <= min(len(at_hand), size_before)) & (level < self._bounds.layers)
        # Where a region was cut off, so may be the last word of the deltas below.
        torn = (end == size) & (level > 0) & (size < size_before)
        possible: NDArray[np.bool_] = in_reach & fits[level] & ~torn
        if not self._within_bounds(old, size, int(length[possible].sum()), how.delta_ratio):
            possible[:] = False
        a, n = start[possible], length[possible]
        if len(a):
            position = self.draft.add(number, a, n, self.encoding_of(number, delta=True))
            self._deltas[number] = _NewDeltas(a, n, level[possible], position)
        return possible

    def _within_bounds(self, old: Layers, size: int, new_bytes: int, ratio: float) -> bool:
        """Tell whether a region may have some more bytes of deltas."""
        above = ExtentTable.of([rows.take(rows.stored) for _, _, rows in old.deltas])
        plain_bytes = int(above.length.sum()) + new_bytes
        stored_bytes = self._stored_bytes(above) + new_bytes / ratio
        bottom_bytes = self._stored_bytes(old.bottom.take(old.bottom.stored))
        return (
            plain_bytes <= self._bounds.plain_fraction * size
            and stored_bytes <= self._bounds.stored_fraction * bottom_bytes
        )

    def _stored_bytes(self, rows: ExtentTable) -> float:
        """Return about how much rows take in their packs."""
        return float((rows.extent * self._stored_per_byte[rows.pack]).sum())

    def _settle(self) -> None:
        """Say where the cells of each log lie, and resolve rows that refer to this draft."""
        for cell_bytes, seen in self._seen.items():
            self.logs[cell_bytes] = self._log(seen)
        for cell_bytes, numbers, begin, own in self._own:
            of, skipped, rows = look_up(self.logs[cell_bytes], own.source, own.length)
            region, start, is_there = numbers[of], begin[of] + skipped, rows.pack != NOWHERE
            self._place(region[is_there], start[is_there], rows.take(is_there))
            self._write(region[~is_there], start[~is_there], rows.length[~is_there])

    def _log(self, seen: Seen) -> ExtentTable:
        met = self._met.get(seen.cell_bytes, Scattered())
        start, rows = met.sorted()
        # The same lost cell may have been written twice; the first will do.
        end = np.maximum.accumulate(start + rows.length)
        first = np.maximum(
            start, np.concatenate([np.zeros(min(1, len(end)), np.uint64), end[:-1]])
        )
        cut_off = np.minimum(first - start, rows.length)
        rows = ExtentTable(rows.length - cut_off, rows.source + cut_off, rows.pack)
        some = rows.length > 0
        return overlay(seen.extended(NOWHERE), (start + cut_off)[some], rows.take(some))

    def _cover(self, number: int, diff: RegionDiff, start: U64, rows: ExtentTable) -> Layers:
        """Return the layers of one region with deltas, given its fresh rows."""
        size, old = len(diff.region.data), self._old.get(diff.region.name)
        kept_start, kept_length = gaps(start, rows.length, size)
        old_start, old_rows = cut(old.bottom, kept_start, kept_length)
        order = np.argsort(np.concatenate([old_start, start]))
        bottom = ExtentTable.of([old_rows, rows]).take(order)
        assert int(bottom.length.sum()) == size, "what is not covered is as it was"
        deltas = self._delta_layers(number, old, start, rows.length, size)
        whole = not any((table.pack != KEEP).any() for _, _, table in deltas)
        bottom = fold(bottom, partial(self._again, number) if whole else lambda _at, _n: None)
        return Layers(bottom, tuple(deltas))

    def _bottoms(
        self, numbers: Sequence[int], start: U64, rows: ExtentTable
    ) -> Iterator[tuple[int, ExtentTable]]:
        """Yield some regions without deltas, and the rows that cover each, given fresh ones."""
        if not numbers:
            return
        diffs = [self._diffs[number] for number in numbers]
        line = NumberLine([len(diff.region.data) for diff in diffs])
        old = self._old.bottoms([(diff.region.name, len(diff.region.data)) for diff in diffs])
        place = np.full(len(self._diffs), -1, np.intp)
        place[numbers] = np.arange(len(numbers))
        region = self._line.of(start)
        here = place[region] >= 0
        start = (start - self._line.start[region] + line.start[place[region]])[here]
        rows = rows.take(here)
        old_start, old_rows = cut(old, *gaps(start, rows.length, line.size_bytes))
        is_there = old_rows.pack != NOWHERE
        start = np.concatenate([old_start[is_there], start])
        order = np.argsort(start, kind="stable")
        bottom = ExtentTable.of([old_rows.take(is_there), rows]).take(order)
        edges = line.edges(start[order])
        covered_bytes = np.add.reduceat(np.append(bottom.length, np.uint64(0)), edges[:-1])
        covered_bytes[np.diff(edges) == 0] = 0
        assert (covered_bytes == line.length).all(), "what is not covered is as it was"
        for number, (a, b) in zip(numbers, itertools.pairwise(edges.tolist()), strict=True):
            yield number, bottom.rows(a, b)

    def _again(self, number: int, start: U64, length: U64) -> U64:
        """Draft what is in the state at some places, once more; return the positions."""
        return self.draft.add(number, start, length, self.encoding_of(number))

    def _delta_layers(
        self, number: int, old: Layers, start: U64, length: U64, size: int
    ) -> list[tuple[DeltaOp, int, ExtentTable]]:
        """Return the old delta layers without what is fresh, and with the new deltas."""
        how, new = self._region_encodings[number].delta, self._deltas.get(number)
        layers = list(old.deltas)
        if how is not None and new is not None and (new.level == len(layers)).any():
            assert how.op is not None, "an encoding of deltas says how they are made"
            layers.append((how.op, how.op_word, ExtentTable.of([])))
        result = []
        keep = ExtentTable(length, np.zeros_like(length), _all(len(length), KEEP))
        for height, (op, word, rows) in enumerate(layers):
            table = _resized(rows, size)
            table = overlay(table, start, keep)
            if new is not None and (here := new.level == height).any():
                delta = ExtentTable(new.length[here], new.position[here], _all(here.sum(), OWN))
                table = overlay(table, new.start[here], delta)
            result.append((op, word, table))
        return result


def _resized(rows: ExtentTable, size: int) -> ExtentTable:
    """Return a delta layer for a region of another size."""
    zero, whole = np.zeros(1, np.uint64), np.array([size], np.uint64)
    start, cut_rows = cut(rows, zero, whole)
    tail_start, tail = gaps(start, cut_rows.length, size)
    keep = ExtentTable(tail, np.zeros_like(tail), _all(len(tail), KEEP))
    return overlay(cut_rows, tail_start, keep)


def _all(count: int, pack: int) -> NDArray[np.uint32]:
    return np.full(int(count), pack, np.uint32)
