"""Read parts of a checkpoint, each frame checked, in memory that does not grow with the state.

A part is a small checkpoint of its own: the rows that cover it, cut out of the manifest, are
filled as those of a whole one are. ``tests/unit/test_consolidate.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import merkle
from ckptflow.data.digest import chunk_digests
from ckptflow.data.extents import U64, cut, ramps, starts_of, union
from ckptflow.data.ranges import copy_ranges
from ckptflow.errors import CorruptionError, FormatError
from ckptflow.model import DeltaLayer, ExtentTable, Manifest, RegionEntry
from ckptflow.store.copies import Pack
from ckptflow.store.fetch import fill
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

PART_BYTES = 64 * MIB  # What is read at a time.
_THREADS_MAX = 4
_ROUNDS_MAX = 64  # Of widening a range; those of our own deltas take one.


class PartialReader:
    """Reads ranges of the regions of a checkpoint. Use it as a context manager.

    Args:
        tiers: where copies of its packs may lie, the preferred first.
        manifest: the checkpoint.
        note: told, in a sentence, of every copy that was skipped and why.
        before_read: called with the bytes of each part before it is read.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        manifest: Manifest,
        *,
        note: Callable[[str], None] = lambda _text: None,
        before_read: Callable[[int], None] = lambda _bytes: None,
    ) -> None:
        self._before_read = before_read
        self.manifest, self._layers = manifest, manifest.region_layers()
        self._packs = [Pack(tiers, manifest.lineage, ref, note) for ref in manifest.packs]
        threads = min(_THREADS_MAX, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(threads, "ckptflow-read-parts")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown()

    def read(
        self, region: NDArray[np.intp], start: U64, length: U64
    ) -> tuple[dict[int, memoryview], U64]:
        """Read pieces, in any order and of any regions.

        Args:
            region: number of the region of each piece, intp [n].
            start: where it begins in that, uint64 [n].
            length: its bytes, uint64 [n].

        Returns:
            Bytes by the number of the region; and where in those each piece begins.

        Raises:
            CorruptionError: some frame has no sound copy.
        """
        self._before_read(int(length.sum()))
        shifted, tables, entries = np.empty(len(start), np.uint64), [], []
        numbers = np.unique(region).tolist()
        for number in numbers:
            of = np.flatnonzero(region == number)
            begin, size = self._whole_words(number, *union(start[of], start[of] + length[of]))
            range_ = np.searchsorted(begin, start[of], side="right") - 1
            shifted[of] = starts_of(size)[range_] + (start[of] - begin[range_])
            rows = [cut(layer, begin, size)[1] for layer in self._layers[number]]
            tables += rows
            entries.append(_entry(self.manifest.regions[number], int(size.sum()), rows))
        part = replace(self.manifest, regions=tuple(entries), extents=ExtentTable.of(tables))
        buffers = [np.empty(entry.size_bytes, np.uint8).data for entry in entries]
        fill(part, buffers, self._packs, self._pool, check_frames=True)
        return dict(zip(numbers, buffers, strict=True)), shifted

    def check_roots(self) -> None:
        """Read all of it, part by part, and compare the roots of the regions.

        Raises:
            CorruptionError: some root differs, or some frame has no sound copy.
        """
        for number, entry in enumerate(self.manifest.regions):
            if self._root(number, entry) != entry.root:
                raise CorruptionError(
                    f"Region {entry.name!r} of {self.manifest.lineage} {self.manifest.id} does "
                    f"not have the root that the manifest names, although all frames are sound."
                )

    def _root(self, number: int, entry: RegionEntry) -> bytes:
        # A power of two of chunks at a time: the root of each part is a node of the tree.
        chunk_bytes = self.manifest.chunk_bytes
        part_bytes = chunk_bytes << max(0, (PART_BYTES // chunk_bytes).bit_length() - 1)
        nodes = []
        for begin in range(0, entry.size_bytes, part_bytes):
            size_bytes = min(part_bytes, entry.size_bytes - begin)
            place = np.array([begin], np.uint64), np.array([size_bytes], np.uint64)
            data, shifted = self.read(np.array([number]), *place)
            first = int(shifted[0])
            piece = data[number][first : first + size_bytes]
            nodes.append(merkle.root(chunk_digests(piece, chunk_bytes)))
        return merkle.root(np.frombuffer(b"".join(nodes), "<u8").reshape(-1, 2))

    def _whole_words(self, number: int, start: U64, length: U64) -> tuple[U64, U64]:
        """Widen ranges until no word of a delta is cut: words count from where a row begins."""
        kinds, above = self.manifest.regions[number].deltas, self._layers[number][1:]
        for _ in range(_ROUNDS_MAX):
            begin, end = start, start + length
            for kind, rows in zip(kinds, above, strict=True):
                begin, end = _widened(begin, end, rows, kind)
            wider = union(begin, end)
            if np.array_equal(wider[0], start) and np.array_equal(wider[1], length):
                return wider
            start, length = wider
        raise FormatError(
            f"The deltas of region {self.manifest.regions[number].name!r} of "
            f"{self.manifest.lineage} {self.manifest.id} cannot be read in parts: their words "
            f"lie across each other. Another program wrote it?"
        )


def scatter(
    reader: PartialReader,
    region: int,
    start: U64,
    length: U64,
    *,
    buffer: memoryview,
    target: U64,
) -> None:
    """Read pieces of a region and copy each to its place, some at a time.

    Args:
        reader: of the checkpoint.
        region: number of the region.
        start: first byte of each piece in it, uint64 [n].
        length: bytes of each, uint64 [n].
        buffer: where they go.
        target: first byte of each there, uint64 [n].
    """
    start, length, target = _bounded(start, length, target)
    ends = np.cumsum(length)
    first = 0
    while first < len(start):
        done = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + PART_BYTES, side="right")))
        some = slice(first, last)
        numbers = np.full(last - first, region, np.intp)
        data, shifted = reader.read(numbers, start[some], length[some])
        copy_ranges(data[region], buffer, shifted, target[some], length[some])
        first = last


def _bounded(start: U64, length: U64, target: U64) -> tuple[U64, U64, U64]:
    """Cut pieces that are longer than what is read at a time."""
    count = (length + np.uint64(PART_BYTES - 1)) // np.uint64(PART_BYTES)
    if not len(count) or count.max() <= 1:
        return start, length, target
    of, nth = ramps(np.zeros(len(start), np.intp), count.astype(np.intp))
    skip = nth.astype(np.uint64) * np.uint64(PART_BYTES)
    rest = np.minimum(length[of] - skip, np.uint64(PART_BYTES))
    return start[of] + skip, rest, target[of] + skip


def _entry(entry: RegionEntry, size_bytes: int, rows: Sequence[ExtentTable]) -> RegionEntry:
    bottom, *above = rows
    deltas = tuple(
        DeltaLayer(len(table), kind.op, kind.word_bytes)
        for kind, table in zip(entry.deltas, above, strict=True)
    )
    return replace(entry, size_bytes=size_bytes, extent_count=len(bottom), deltas=deltas)


def _widened(begin: U64, end: U64, rows: ExtentTable, kind: DeltaLayer) -> tuple[U64, U64]:
    """Move the ends of ranges outward to where words of one layer begin and end."""
    word, zero = np.uint64(kind.word_bytes), np.uint64(0)
    row_start = starts_of(rows.length)
    first = np.searchsorted(row_start, begin, side="right") - 1
    begin = begin - np.where(rows.stored[first], (begin - row_start[first]) % word, zero)
    last = np.searchsorted(row_start, end - np.uint64(1), side="right") - 1
    row_end = row_start[last] + rows.length[last]
    rest = (word - (end - row_start[last]) % word) % word
    end = np.where(rows.stored[last], np.minimum(end + rest, row_end), end)
    return begin, end
