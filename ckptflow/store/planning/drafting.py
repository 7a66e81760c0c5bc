"""Turn the runs of a diff into rows that cover each region, and pieces to be written.

New bytes become pieces of the draft, as they are or as deltas on the parent's. Known ones are
rows that name the bytes where they lie: in older packs, or in what this checkpoint writes
itself. Sequences of rows that come again and again are folded into one row with a period. What
no run covers is as it was, and its rows stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.codec import Codec
from ckptflow.data.extents import U64, covered, cut, gaps, look_up, overlay
from ckptflow.data.frames import Encoding
from ckptflow.data.scan import Kind
from ckptflow.model import FILL, KEEP, DeltaLayer, DeltaOp, ExtentTable
from ckptflow.store.memory import Memory, RegionDiff, Seen
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
class Layers:
    """The rows of one region: a bottom that gives bytes, and layers that change them."""

    bottom: ExtentTable
    deltas: tuple[tuple[DeltaOp, int, ExtentTable], ...] = ()  # Op and bytes of a word.

    @property
    def tables(self) -> list[ExtentTable]:
        """The rows of each layer, the bottom one first."""
        return [self.bottom, *(rows for _, _, rows in self.deltas)]

    def with_tables(self, tables: Sequence[ExtentTable]) -> Layers:
        """Return the same layers with other rows; those that change nothing are left out."""
        bottom, *above = tables
        deltas = [
            (op, word, rows)
            for (op, word, _), rows in zip(self.deltas, above, strict=True)
            if rows.stored.any()
        ]
        return Layers(bottom, tuple(deltas))

    @property
    def kinds(self) -> tuple[DeltaLayer, ...]:
        """The delta layers as a manifest lists them."""
        return tuple(DeltaLayer(len(rows), op, word) for op, word, rows in self.deltas)


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
        self._old = _old_layers(memory)
        self._fresh = [_Scattered() for _ in diffs]  # Bottom rows in the place of old ones.
        self._deltas: dict[int, _NewDeltas] = {}
        self._met: dict[int, _Scattered] = {}  # New places of cells, by position in the log.
        self._known: dict[int, _OfRegions] = {}  # Per size of cell.
        # Per size of cell: regions, where in them, and rows that say `LOG`.
        self._own: list[tuple[int, NDArray[np.intp], U64, ExtentTable]] = []
        for number, diff in enumerate(diffs):
            self._take(number, diff)
        for known in self._known.values():
            self._take_known(known)
        self._settle()

    @property
    def with_deltas(self) -> frozenset[int]:
        """Numbers of the regions of which some bytes were drafted as deltas."""
        return frozenset(self._deltas)

    def layers(self) -> list[Layers]:
        """Return the layers of each region."""
        return [self._cover(number, diff) for number, diff in enumerate(self._diffs)]

    def _take(self, number: int, diff: RegionDiff) -> None:
        """Draft what the runs of one region ask for; known ones come later, all at once."""
        if not len(diff.runs):
            return
        ratio, fresh = self._region_encodings[number].ratio, self._fresh[number]
        runs = without_short_runs(diff.runs, ratio=ratio)
        fill, known, new = (runs.kind == kind for kind in (Kind.FILL, Kind.KNOWN, Kind.NEW))
        rows = ExtentTable(runs.length_bytes[fill], runs.ref[fill], _all(fill.sum(), FILL))
        fresh.add(runs.start_bytes[fill], rows)
        start, length, ref = runs.start_bytes[new], runs.length_bytes[new], runs.ref[new]
        as_delta = self._deltas_of(number, diff, start, length)
        start, length, ref = start[~as_delta], length[~as_delta], ref[~as_delta]
        written, seen = self._write(number, start, length), diff.seen
        if seen is None:
            return
        has_cell = ref != NO_CELL
        met = self._met.setdefault(diff.cell_bytes, _Scattered())
        met.add(seen.position(ref[has_cell]), written.take(has_cell))
        if known.any():
            columns = runs.start_bytes[known], seen.position(runs.ref[known])
            of = self._known.setdefault(diff.cell_bytes, _OfRegions(seen))
            of.add(number, columns[0], columns[1], runs.length_bytes[known])

    def _take_known(self, known: _OfRegions) -> None:
        """Say where known cells of one size lie; those of this checkpoint wait for its log."""
        seen = known.seen
        region, start, log, length = known.columns()
        of, skipped, rows = look_up(seen.extended(LOG), log, length)
        region, start, log = region[of], start[of] + skipped, log[of] + skipped
        there, own, lost = rows.pack < PACK_MAX, rows.pack == LOG, rows.pack == NOWHERE
        self._place(region[there], start[there], rows.take(there))
        self._own.append((seen.cell_bytes, region[own], start[own], rows.take(own)))
        # What is known but lies nowhere any more is written again, and found there from now on.
        region, start, log, length = region[lost], start[lost], log[lost], rows.length[lost]
        for here in _groups(region):
            written = self._write(int(region[here.start]), start[here], length[here])
            self._met.setdefault(seen.cell_bytes, _Scattered()).add(log[here], written)

    def _place(self, region: NDArray[np.intp], start: U64, rows: ExtentTable) -> None:
        """Put rows of several regions, whose numbers rise, in the place of old ones."""
        for here in _groups(region):
            self._fresh[int(region[here.start])].add(start[here], rows.take(here))

    def encoding_of(self, number: int, *, delta: bool = False) -> int:
        """Return the number of the encoding of a region; regions of one share frames."""
        how = self._region_encodings[number]
        encoding = how.delta if delta else how.plain
        assert encoding is not None, "only what has an encoding is drafted"
        if encoding not in self.encodings:
            self.encodings.append(encoding)
        return self.encodings.index(encoding)

    def _write(self, number: int, start: U64, length: U64) -> ExtentTable:
        """Draft pieces of a region as they are; return rows for them, which are in place."""
        if not len(start):
            return ExtentTable.of([])
        position = self.draft.add(number, start, length, self.encoding_of(number))
        rows = ExtentTable(length, position, _all(len(position), OWN))
        self._fresh[number].add(start, rows)
        return rows

    def _deltas_of(
        self, number: int, diff: RegionDiff, start: U64, length: U64
    ) -> NDArray[np.bool_]:
        """Draft those of some ranges as deltas that can be; return which."""
        how, name = self._region_encodings[number], diff.region.name
        at_hand, old = self._memory.bytes_at_hand.get(name), self._old.get(name)
        if how.delta is None or at_hand is None or old is None or diff.whole:
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
        for diff in self._diffs:
            if diff.seen is not None and diff.cell_bytes not in self.logs:
                self.logs[diff.cell_bytes] = self._log(diff.seen)
        for cell_bytes, numbers, begin, own in self._own:
            of, skipped, rows = look_up(self.logs[cell_bytes], own.source, own.length)
            region, start, is_there = numbers[of], begin[of] + skipped, rows.pack != NOWHERE
            self._place(region[is_there], start[is_there], rows.take(is_there))
            region, start, length = region[~is_there], start[~is_there], rows.length[~is_there]
            for here in _groups(region):
                self._write(int(region[here.start]), start[here], length[here])

    def _log(self, seen: Seen) -> ExtentTable:
        met = self._met.get(seen.cell_bytes, _Scattered())
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

    def _cover(self, number: int, diff: RegionDiff) -> Layers:
        """Return the layers of one region."""
        size = len(diff.region.data)
        old = self._old.get(diff.region.name, Layers(ExtentTable.of([])))
        is_as_before = not self._fresh[number].start and number not in self._deltas
        if is_as_before and int(old.bottom.length.sum()) == size:
            return old
        start, rows = self._fresh[number].sorted()
        kept_start, kept_length = gaps(start, rows.length, size)
        old_start, old_rows = cut(old.bottom, kept_start, kept_length)
        order = np.argsort(np.concatenate([old_start, start]))
        bottom = ExtentTable.of([old_rows, rows]).take(order)
        assert int(bottom.length.sum()) == size, "what is not covered is as it was"
        deltas = self._delta_layers(number, old, start, rows.length, size)
        whole = not any((table.pack != KEEP).any() for _, _, table in deltas)
        bottom = fold(
            bottom, lambda at, length: self._again(number, at, length) if whole else None
        )
        return Layers(bottom, tuple(deltas))

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


@dataclass(slots=True)
class _Scattered:
    """Rows at places, in no order."""

    start: list[U64]
    rows: list[ExtentTable]

    def __init__(self) -> None:
        self.start, self.rows = [], []

    def add(self, start: U64, rows: ExtentTable) -> None:
        if len(start):
            self.start.append(start)
            self.rows.append(rows)

    def sorted(self) -> tuple[U64, ExtentTable]:
        start = np.concatenate([np.empty(0, np.uint64), *self.start])
        order = np.argsort(start, kind="stable")
        return start[order], ExtentTable.of(self.rows).take(order)


class _OfRegions:
    """Runs of known cells of one size, of all regions: one look-up serves them all."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self._region: list[NDArray[np.intp]] = []
        self._start: list[U64] = []
        self._log: list[U64] = []
        self._length: list[U64] = []

    def add(self, region: int, start: U64, log: U64, length: U64) -> None:
        """Add runs of a region: where they are, in it and in the log."""
        self._region.append(np.full(len(start), region, np.intp))
        self._start.append(start)
        self._log.append(log)
        self._length.append(length)

    def columns(self) -> tuple[NDArray[np.intp], U64, U64, U64]:
        """Return the region of each run, which rises, and what was told of it."""
        start, log, length = map(np.concatenate, (self._start, self._log, self._length))
        return np.concatenate(self._region), start, log, length


def _groups(region: NDArray[np.intp]) -> list[slice]:
    """Return the rows of each region."""
    edges = np.flatnonzero(np.diff(region, prepend=-1, append=-1))
    return [slice(a, b) for a, b in itertools.pairwise(edges.tolist())]


def _old_layers(memory: Memory) -> dict[str, Layers]:
    if memory.of is None:
        return {}
    result = {}
    for entry, tables in zip(memory.of.regions, memory.of.region_layers(), strict=True):
        deltas = [
            (layer.op, layer.word_bytes, rows)
            for layer, rows in zip(entry.deltas, tables[1:], strict=True)
        ]
        result[entry.name] = Layers(tables[0], tuple(deltas))
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
