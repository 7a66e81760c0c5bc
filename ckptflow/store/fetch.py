"""Bring the bytes of a checkpoint from its packs to where they belong.

Large raw extents are read straight into place. What is compressed, or lies in small pieces,
is read into scratch memory and scattered from there, one native call for all the pieces
of a frame. Reads run on several threads; a read that fails is tried on the next copy.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import digest
from ckptflow.data.addresses import Addresses
from ckptflow.data.codec import decode_frame
from ckptflow.data.deltas import apply_delta
from ckptflow.data.extents import U64, ramps, starts_of
from ckptflow.data.pack import FRAME_PLAIN_MAX, FrameTable
from ckptflow.data.ranges import fill_ranges, repeat_ranges
from ckptflow.errors import CorruptionError
from ckptflow.model import FILL, DeltaLayer, ExtentTable, Manifest
from ckptflow.store.copies import Pack
from ckptflow.tiers.tier import Tier
from ckptflow.units import KIB, MIB

# Raw stretches from this size on are read straight into place. One read of a frame and many
# native copies out of it are faster than as many reads, each with its own way through Python.
MAIN_DIRECT_BYTES, DIRECT_BYTES = 64 * KIB, 256 * KIB
GAP_BYTES = 32 * KIB  # What one read may read over: see `fill`.
TOGETHER_BYTES = 3 * MIB  # Of small stretches; with the rest of a frame it fits the scratch.
READ_BYTES = 8 * MIB  # The most that one read asks for, so that several threads share the work.

_Task: TypeAlias = "tuple[Pack, Callable[[Tier], None]]"


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Ranges of one pack's plain stream and where they belong, sorted by source."""

    region: NDArray[np.intp]
    start: U64  # First byte within the region.
    length: U64
    source: U64

    def rows(self, which: NDArray[np.generic] | slice) -> _Pieces:
        return _Pieces(
            self.region[which], self.start[which], self.length[which], self.source[which]
        )


def fill(
    manifest: Manifest,
    buffers: Sequence[memoryview],
    packs: Sequence[Pack],
    pool: ThreadPoolExecutor,
    *,
    check_frames: bool,
) -> None:
    """Fill ``buffers``, one per region, from ``packs``, in the order of the manifest.

    Args:
        manifest: which bytes belong where.
        buffers: writable flat buffers of the regions' sizes.
        packs: where the bytes lie.
        pool: runs the reads.
        check_frames: compare every frame with its digest, and take another copy if it differs.

    Raises:
        CorruptionError: some pack, or with ``check_frames`` some frame, has no sound copy.

    The packs that most of the state lies in come first. They are read in long stretches,
    straight into place, with what lies between two pieces if that is short: one read costs less
    than two. So stale bytes get into the gaps; what belongs there comes from other packs, and
    is written afterwards. No two of the first packs lie in one stretch of a region.
    """
    targets = Addresses(buffers)
    for depth in range(max((len(entry.row_counts) for entry in manifest.regions), default=0)):
        layer = _Layer.of(manifest, depth)
        first: list[_Task] = []
        then: list[_Task] = []
        for _ in pool.map(lambda number: packs[number].frames(), layer.packs()):
            pass  # Opened side by side: far away, each takes as long as all.
        main = set() if layer.deltas or check_frames else layer.main_packs(len(packs))
        for number, pack in enumerate(packs):
            pieces = layer.pieces_in(number)
            if not len(pieces.region):
                continue
            is_main = number in main
            way = _Way(
                GAP_BYTES if is_main else 0,
                MAIN_DIRECT_BYTES if is_main else DIRECT_BYTES,
                layer.deltas,
                check_frames,
            )
            direct, scattered = _tasks(pack, pieces, (buffers, targets), way)
            (first if number in main else then).extend(direct)
            then += scattered
        for tasks in (first, then):
            for _ in pool.map(lambda task: task[0].first_sound(task[1]), tasks):
                pass
        _fill_patterns(layer, buffers)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of every region that has so many.

    Attributes:
        region: number of the region of each row, intp [n].
        start: first byte of the row within it, uint64 [n].
        rows: the rows.
        deltas: how to combine what is read with what is there, by the number of the region;
            empty for the bottom, which is read into place.
    """

    region: NDArray[np.intp]
    start: U64
    rows: ExtentTable
    deltas: dict[int, DeltaLayer]

    @staticmethod
    def of(manifest: Manifest, depth: int) -> _Layer:
        heights = np.array([1 + len(entry.deltas) for entry in manifest.regions], np.intp)
        numbers = np.flatnonzero(heights > depth)
        layer = (np.cumsum(heights) - heights)[numbers] + depth
        edges = manifest.layer_edges()
        counts = edges[layer + 1] - edges[layer]
        of, row = ramps(edges[layer], counts)
        rows = manifest.extents.take(row)
        stream = np.append(starts_of(rows.length), np.uint64(0))
        start = stream[:-1] - stream[(np.cumsum(counts) - counts)][of]
        above = numbers.tolist() if depth else []
        deltas = {n: manifest.regions[n].deltas[depth - 1] for n in above}
        return _Layer(numbers[of], start, rows, deltas)

    def packs(self) -> list[int]:
        """Return the numbers of the packs that it needs."""
        return [int(number) for number in np.unique(self.rows.pack[self.rows.stored])]

    def main_packs(self, count: int) -> set[int]:
        """Return packs that hold most of the state, no two in one stretch of a region."""
        rows = np.flatnonzero(self.rows.pack < count)
        rows = rows[np.lexsort((self.region[rows], self.rows.pack[rows]))]
        pack, region = self.rows.pack[rows], self.region[rows]
        first, end = self.start[rows], self.start[rows] + self.rows.length[rows]
        begins = (np.diff(pack, prepend=count) != 0) | (np.diff(region, prepend=-1) != 0)
        heads = np.flatnonzero(begins)
        if not len(heads):
            return set()
        low, high = np.minimum.reduceat(first, heads), np.maximum.reduceat(end, heads)
        live = np.bincount(pack, weights=self.rows.extent[rows], minlength=count)
        main: set[int] = set()
        taken: dict[int, list[tuple[int, int]]] = {}
        for number in np.argsort(-live).tolist():
            spans = [
                (int(region[heads[i]]), int(low[i]), int(high[i]))
                for i in np.flatnonzero(pack[heads] == number)
            ]
            if all(h <= a or b <= low_ for r, low_, h in spans for a, b in taken.get(r, ())):
                main.add(number)
                for r, low_, h in spans:
                    taken.setdefault(r, []).append((low_, h))
        return main

    def pieces_in(self, pack: int) -> _Pieces:
        """Return what has to be read of one pack, sorted by where it lies there."""
        which = np.flatnonzero(self.rows.pack == pack)
        which = which[np.argsort(self.rows.source[which], kind="stable")]
        rows = self.rows.take(which)
        return _Pieces(self.region[which], self.start[which], rows.extent, rows.source)


def _fill_patterns(layer: _Layer, buffers: Sequence[memoryview]) -> None:
    """Write fills, and repeat the first periods, which are in place already."""
    rows = np.flatnonzero(layer.rows.pack == FILL)
    for group in _groups(layer.region[rows]):
        part = rows[group]
        target = buffers[int(layer.region[part[0]])]
        fill_ranges(target, layer.start[part], layer.rows.length[part], layer.rows.source[part])
    rows = np.flatnonzero(layer.rows.period)
    for group in _groups(layer.region[rows]):
        part = rows[group]
        target = buffers[int(layer.region[part[0]])]
        period, length = layer.rows.period[part], layer.rows.length[part]
        repeat_ranges(target, layer.start[part], period, length)


@dataclass(frozen=True, slots=True)
class _Way:
    """How pieces of a pack are brought to their places.

    Attributes:
        gap_bytes: what a direct read may read over.
        direct_bytes: stretches from this size on are read directly.
        deltas: as in `_Layer`.
        check_frames: as in `fill`.
    """

    gap_bytes: int
    direct_bytes: int
    deltas: Mapping[int, DeltaLayer]
    check_frames: bool


def _tasks(
    pack: Pack, pieces: _Pieces, into: tuple[Sequence[memoryview], Addresses], way: _Way
) -> tuple[list[_Task], list[_Task]]:
    """Return what brings pieces of one pack to where they belong: directly, and by scratch."""
    frames, (buffers, targets) = pack.frames(), into
    frame, pieces = _split_at_frames(pieces, frames)
    plain = np.flatnonzero(frames.is_plain[frame])
    if way.check_frames or way.deltas:
        plain = plain[:0]
    shift = (frames.offset - frames.plain_start)[frame[plain]]
    is_direct = np.zeros(len(frame), np.bool_)
    direct: list[_Task] = []
    for group, read in _joined_reads(pieces.rows(plain), shift, way):
        is_direct[plain[group]] = True
        region, start, offset, length = read
        for done in range(0, length, READ_BYTES):
            target = buffers[region][start + done : start + min(done + READ_BYTES, length)]
            direct.append((pack, _direct_read(pack, target, offset + done)))
    rest, frame = pieces.rows(~is_direct), frame[~is_direct]
    scattered: list[_Task] = []
    for group in _read_together(frame, frames, check_frames=way.check_frames):
        number, part = int(frame[group.start]), rest.rows(group)
        read_frame = _frame_read(pack, frames, number, check=way.check_frames)
        place = (
            partial(_place_deltas, part, buffers, deltas=way.deltas)
            if way.deltas
            else partial(_place, part, targets)
        )
        scattered.append((pack, partial(read_frame, part, place)))
    return direct, scattered


def _read_together(
    frame: NDArray[np.intp], frames: FrameTable, *, check_frames: bool
) -> list[slice]:
    """Return groups of pieces, given their frames, that one read brings.

    Those of one frame; and of neighbours, if these are stored as they are.
    """
    plain = frames.is_plain & (not check_frames)
    block = frames.plain_start[:-1] // TOGETHER_BYTES
    alone = ~(plain[1:] & plain[:-1]) | (block[1:] != block[:-1])
    together = np.cumsum(np.concatenate([[True], alone]))[frame]
    breaks = (np.diff(together) != 0) | (np.diff(frame) > 1)
    return _edges_to_slices(np.flatnonzero(breaks) + 1, len(frame))


def _split_at_frames(pieces: _Pieces, frames: FrameTable) -> tuple[NDArray[np.intp], _Pieces]:
    """Cut pieces where frames end; return the frame of each resulting piece."""
    edges = frames.plain_start.astype(np.uint64)
    end = pieces.source + pieces.length
    if len(end) and int(end.max()) > int(edges[-1]):
        raise CorruptionError("An extent reaches past the end of its pack.")
    first = np.searchsorted(edges, pieces.source, side="right") - 1
    last = np.searchsorted(edges, end, side="left")
    of, frame = ramps(first, last - first)
    begin: U64 = np.maximum(pieces.source[of], edges[frame])
    stop: U64 = np.minimum(end[of], edges[frame + 1])
    start: U64 = pieces.start[of] + (begin - pieces.source[of])
    return frame, _Pieces(pieces.region[of], start, stop - begin, begin)


def _joined_reads(
    pieces: _Pieces, shift: NDArray[np.int64], way: _Way
) -> Iterator[tuple[slice, tuple[int, int, int, int]]]:
    """Yield pieces for which one direct read pays, and that read.

    It is (region, start, offset in the object, length); pieces are sorted by source. No two
    reads have bytes in common: where they would, over gaps, no gap is read over.
    """
    start, length = pieces.start.astype(np.int64), pieces.length.astype(np.int64)
    offset, end = pieces.source.astype(np.int64) + shift, start + length
    gap = start[1:] - end[:-1]
    follows = (
        (pieces.region[1:] == pieces.region[:-1])
        & (offset[1:] - start[1:] == offset[:-1] - start[:-1])
        & (gap >= 0)
        & (gap <= way.gap_bytes)
    )
    heads = np.concatenate(
        [np.zeros(min(1, len(start)), np.intp), np.flatnonzero(~follows) + 1]
    )
    last = np.append(heads[1:], len(start))[: len(heads)] - 1
    total = end[last] - start[heads]
    pays = np.flatnonzero(total >= way.direct_bytes)
    if way.gap_bytes and _overlap(
        pieces.region[heads[pays]], start[heads[pays]], end[last[pays]]
    ):
        yield from _joined_reads(pieces, shift, replace(way, gap_bytes=0))
        return
    for i in pays.tolist():
        first = int(heads[i])
        read = int(pieces.region[first]), int(start[first]), int(offset[first]), int(total[i])
        yield slice(first, int(last[i]) + 1), read


def _overlap(
    region: NDArray[np.intp], start: NDArray[np.int64], end: NDArray[np.int64]
) -> bool:
    """Tell whether some stretches overlap: what one reads over, another may have to read."""
    order = np.lexsort((start, region))
    region, start, end = region[order], start[order], end[order]
    return bool(((region[1:] == region[:-1]) & (start[1:] < end[:-1])).any())


def _direct_read(pack: Pack, target: memoryview, offset: int) -> Callable[[Tier], None]:
    def read(tier: Tier) -> None:
        pack.read_into(tier, target, offset)

    return read


_Place: TypeAlias = "Callable[[bytes | memoryview, int], None]"


def _frame_read(
    pack: Pack, frames: FrameTable, frame: int, *, check: bool
) -> Callable[[_Pieces, _Place, Tier], None]:
    """Return what reads as much of one frame as some pieces need, and has it placed.

    Where frames are stored as they are, pieces may reach into the next ones, too.
    """
    begin, end = int(frames.offset[frame]), int(frames.offset[frame + 1])
    first, last = int(frames.plain_start[frame]), int(frames.plain_start[frame + 1])
    codec, is_plain = int(frames.codec[frame]), bool(frames.is_plain[frame])
    filter_, word = int(frames.filter[frame]), int(frames.word[frame])

    def read(pieces: _Pieces, place: _Place, tier: Tier) -> None:
        a, b, plain_first, plain_last = begin, end, first, last
        if is_plain and not check:  # Then a part will do.
            plain_first = int(pieces.source[0])
            plain_last = int((pieces.source + pieces.length).max())
            a, b = begin + plain_first - first, begin + plain_last - first
        where = f"{pack.key!r} on tier {tier.name!r}"
        stored = _scratch("stored", b - a)
        pack.read_into(tier, stored, a, anew=check)
        if check and digest.digest(stored) != frames.digest[frame].tobytes():
            raise CorruptionError(
                f"Frame {frame} of {where} (bytes {begin} to {end}) does not match its digest."
            )
        size_bytes = plain_last - plain_first
        out = None if is_plain else _scratch("plain", size_bytes)
        plain = decode_frame(
            codec, filter_, word, stored, plain_bytes=size_bytes, out=out, where=where
        )
        place(plain, plain_first)

    return read


def _place(pieces: _Pieces, targets: Addresses, plain: bytes | memoryview, first: int) -> None:
    """Copy pieces out of plain bytes, which begin at position ``first`` of the stream."""
    source = pieces.source - np.uint64(first)
    targets.scatter(plain, source, pieces.region, pieces.start, pieces.length)


def _place_deltas(
    pieces: _Pieces,
    buffers: Sequence[memoryview],
    plain: bytes | memoryview,
    first: int,
    *,
    deltas: Mapping[int, DeltaLayer],
) -> None:
    """Combine pieces with the bytes that are there.

    A piece is cut where a frame ends. Frames of deltas end between words, as a pack does.
    """
    source = pieces.source - np.uint64(first)
    for group in _groups(pieces.region):
        number = int(pieces.region[group.start])
        starts, lengths = pieces.start[group], pieces.length[group]
        op, word = deltas[number].op, deltas[number].word_bytes
        target = buffers[number]
        apply_delta(target, plain, starts, source[group], lengths, op=op, word_bytes=word)


_threads = threading.local()


def _scratch(what: str, size_bytes: int) -> memoryview:
    """Return memory of this thread for one frame; fresh pages would cost more than to read."""
    if not hasattr(_threads, what):
        setattr(_threads, what, np.empty(FRAME_PLAIN_MAX, np.uint8).data)
    scratch: memoryview = getattr(_threads, what)
    return (
        scratch[:size_bytes]
        if size_bytes <= len(scratch)
        else memoryview(bytearray(size_bytes))
    )


def _groups(keys: NDArray[np.intp]) -> list[slice]:
    """Return the runs of equal neighbours."""
    return _edges_to_slices(np.flatnonzero(np.diff(keys)) + 1, len(keys))


def _edges_to_slices(inner: NDArray[np.intp], count: int) -> list[slice]:
    if not count:
        return []
    edges = [0, *inner.tolist(), count]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]
