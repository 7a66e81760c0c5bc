"""Bring the bytes of a checkpoint from its packs to where they belong.

Large raw extents are read straight into place. What is compressed, or lies in small pieces,
is read into scratch memory and scattered from there, one native call for all the pieces
of a frame. Reads run on several threads; a read that fails is tried on the next copy.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import digest
from ckptflow.data.codec import Codec, decode
from ckptflow.data.extents import U64, ramps, starts_of
from ckptflow.data.pack import FRAME_PLAIN_MAX, HEAD, FrameTable, decode_table, table_bytes
from ckptflow.data.ranges import copy_ranges, fill_ranges
from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError, TierError
from ckptflow.model import FILL, LineageId, Manifest, PackRef
from ckptflow.tiers.tier import Tier
from ckptflow.units import KIB, MIB

DIRECT_BYTES = 64 * KIB  # Raw extents from this size on are read straight into place.
GAP_BYTES = 32 * KIB  # Smaller than any direct extent: see `fill`.
READ_BYTES = 8 * MIB  # The most that one read asks for, so that several threads share the work.

_Task: TypeAlias = "tuple[Pack, Callable[[Tier], None]]"

_COPY_FAILED = (NotFoundError, TierError, CorruptionError)


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

    Direct reads come first. They also read what lies between two extents of a pack, if that
    is short: one read costs less than two. So stale bytes get into short gaps, which belong
    to small pieces and patterns; those are written afterwards. No gap is as long as the
    extents that are read directly, so none of these is ever overwritten.
    """
    counts = [entry.extent_count for entry in manifest.regions]
    region = np.repeat(np.arange(len(counts)), np.array(counts, np.intp))
    table = manifest.extents
    sizes = np.array([entry.size_bytes for entry in manifest.regions], np.uint64)
    start = starts_of(table.length) - starts_of(sizes)[region]
    direct: list[_Task] = []
    scattered: list[_Task] = []
    for number, pack in enumerate(packs):
        rows = np.flatnonzero(table.pack == number)
        rows = rows[np.argsort(table.source[rows], kind="stable")]
        pieces = _Pieces(region[rows], start[rows], table.length[rows], table.source[rows])
        tasks = _tasks(pack, pieces, buffers, check_frames=check_frames)
        direct += tasks[0]
        scattered += tasks[1]
    for tasks_of_a_kind in (direct, scattered):
        for _ in pool.map(lambda task: task[0].first_sound(task[1]), tasks_of_a_kind):
            pass
    _fill_patterns(manifest, buffers, region, start)


def _fill_patterns(
    manifest: Manifest,
    buffers: Sequence[memoryview],
    region: NDArray[np.intp],
    start: U64,
) -> None:
    table = manifest.extents
    rows = np.flatnonzero(table.pack == FILL)
    for group in _groups(region[rows]):
        part = rows[group]
        target = buffers[int(region[part[0]])]
        fill_ranges(target, start[part], table.length[part], table.source[part])


def _tasks(
    pack: Pack, pieces: _Pieces, buffers: Sequence[memoryview], *, check_frames: bool
) -> tuple[list[_Task], list[_Task]]:
    """Return what copies pieces of one pack to where they belong: directly, and by scratch."""
    frames = pack.frames()
    frame, pieces = _split_at_frames(pieces, frames)
    is_direct = (
        (frames.codec[frame] == Codec.RAW)
        & (pieces.length >= np.uint64(DIRECT_BYTES))
        & (not check_frames)
    )
    shift = (frames.offset - frames.plain_start)[frame[is_direct]]
    direct: list[_Task] = [
        (pack, _direct_read(pack, buffers[region][start : start + length], offset))
        for region, start, offset, length in _joined_reads(pieces.rows(is_direct), shift)
    ]
    rest, frame = pieces.rows(~is_direct), frame[~is_direct]
    scattered: list[_Task] = []
    for group in _groups(frame):
        number, part = int(frame[group.start]), rest.rows(group)
        read = _frame_read(pack, frames, number, part, buffers=buffers, check=check_frames)
        scattered.append((pack, read))
    return direct, scattered


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
    pieces: _Pieces, shift: NDArray[np.int64]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (region, start, offset in the object, length) of reads up to `READ_BYTES`."""
    start, length = pieces.start.astype(np.int64), pieces.length.astype(np.int64)
    offset, end = pieces.source.astype(np.int64) + shift, start + length
    gap = start[1:] - end[:-1]
    follows = (
        (pieces.region[1:] == pieces.region[:-1])
        & (offset[1:] - start[1:] == offset[:-1] - start[:-1])
        & (gap >= 0)
        & (gap <= GAP_BYTES)
    )
    for group in _edges_to_slices(np.flatnonzero(~follows) + 1, len(length)):
        first, total = int(start[group.start]), int(end[group.stop - 1] - start[group.start])
        for done in range(0, total, READ_BYTES):
            yield (
                int(pieces.region[group.start]),
                first + done,
                int(offset[group.start]) + done,
                min(READ_BYTES, total - done),
            )


def _direct_read(pack: Pack, target: memoryview, offset: int) -> Callable[[Tier], None]:
    def read(tier: Tier) -> None:
        tier.read_into(pack.key, target, start_bytes=offset)

    return read


def _frame_read(
    pack: Pack,
    frames: FrameTable,
    frame: int,
    pieces: _Pieces,
    *,
    buffers: Sequence[memoryview],
    check: bool,
) -> Callable[[Tier], None]:
    """Return a task that reads what ``pieces`` need of one frame, and scatters it."""
    codec = int(frames.codec[frame])
    begin, end = int(frames.offset[frame]), int(frames.offset[frame + 1])
    first, last = int(frames.plain_start[frame]), int(frames.plain_start[frame + 1])
    if codec == Codec.RAW and not check:  # Then a part will do.
        need_first, need_last = (
            int(pieces.source[0]),
            int((pieces.source + pieces.length).max()),
        )
        begin, end = begin + need_first - first, begin + need_last - first
        first, last = need_first, need_last

    def read(tier: Tier) -> None:
        where = f"{pack.key!r} on tier {tier.name!r}"
        stored = _scratch(end - begin)
        tier.read_into(pack.key, stored, start_bytes=begin)
        if check and digest.digest(stored) != frames.digest[frame].tobytes():
            raise CorruptionError(
                f"Frame {frame} of {where} (bytes {begin} to {end}) does not match its digest."
            )
        plain = decode(codec, stored, plain_bytes=last - first, where=where)
        source = pieces.source - np.uint64(first)
        for group in _groups(pieces.region):
            target, start = buffers[int(pieces.region[group.start])], pieces.start[group]
            copy_ranges(plain, target, source[group], start, pieces.length[group])

    return read


_threads = threading.local()


def _scratch(size_bytes: int) -> memoryview:
    """Return memory of this thread for one frame; fresh pages would cost more than to read."""
    if not hasattr(_threads, "scratch"):
        _threads.scratch = np.empty(FRAME_PLAIN_MAX, np.uint8).data
    scratch: memoryview = _threads.scratch
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


def open_pack(tier: Tier, lineage: LineageId, ref: PackRef) -> FrameTable:
    """Read the frame table of a pack on one tier, checked against its manifest.

    Raises:
        NotFoundError: the pack is not there.
        CorruptionError: it is damaged, too short or too long.
    """
    key = f"{lineage.prefix}/{ref.key}"
    where = f"{key!r} on tier {tier.name!r}"
    if (size_bytes := tier.size(key)) != ref.size_bytes:
        raise CorruptionError(
            f"Pack {where} has {size_bytes} bytes instead of {ref.size_bytes}."
        )
    tail_bytes = table_bytes(ref.frame_count)
    return decode_table(
        tier.get(key, size_bytes=len(HEAD)),
        tier.get(key, start_bytes=max(0, ref.size_bytes - tail_bytes), size_bytes=tail_bytes),
        size_bytes=ref.size_bytes,
        frame_count=ref.frame_count,
        sealed=ref.table_seal,
        where=where,
    )


class Pack:
    """The copies of one pack, the preferred tier first."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        lineage: LineageId,
        ref: PackRef,
        note: Callable[[str], None],
    ) -> None:
        self.key = f"{lineage.prefix}/{ref.key}"
        self._tiers, self._lineage, self._ref, self._note = list(tiers), lineage, ref, note

    def frames(self) -> FrameTable:
        """Read the frame table from the first copy whose table is sound."""
        found: list[FrameTable] = []

        def read(tier: Tier) -> None:
            found.append(open_pack(tier, self._lineage, self._ref))

        self.first_sound(read)
        return found[0]

    def first_sound(self, read: Callable[[Tier], None]) -> None:
        """Call ``read`` with one tier after the other until it succeeds.

        Raises:
            CorruptionError: it failed with every tier; the notes tell how.
        """
        failures: list[CheckpointError] = []
        for tier in self._tiers:
            try:
                read(tier)
            except _COPY_FAILED as error:
                failures.append(error)
                self._note(str(error))
                if isinstance(error, NotFoundError):  # It will not come; do not ask again.
                    self._tiers = [left for left in self._tiers if left is not tier]
            else:
                return
        names = ", ".join(repr(tier.name) for tier in self._tiers)
        failed = CorruptionError(f"Pack {self.key!r} has no sound copy on tier {names}.")
        for failure in failures:
            failed.add_note(str(failure))
        raise failed
