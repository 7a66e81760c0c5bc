"""How finely the changes of a region are scattered, seen in a sample of its chunks.

What a smaller cell would save cannot be told from the digests of chunks. So the digests of
the finest cells are kept for a few chunks, and where such a chunk changes, the cells that
changed in it are counted for every size of cell at once. From the size of a chunk on no sample
is needed: the digests of the chunks tell which of them changed.

The sample follows the changes: it is drawn anew, evenly, from the chunks that changed, and only
filled up with chunks that were in it before. A small hot part of a large region is seen that
way. What a save saw counts once its checkpoint is committed. ``tests/unit/test_sparsity.py``
compares the counts with those of a plain loop over all cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.buffers import BufferLike, Bytes, Indices, U64s, byte_view
from ckptflow.data.digest import chunk_count, chunk_digests
from ckptflow.units import KIB, MIB

FINEST_CELL_BYTES = 64  # A cache line; below it the digests weigh as much as the data.
COARSEST_CELL_BYTES = 64 * KIB
SAMPLE_CHUNKS_MAX = 256
SAMPLE_BYTES_MAX = MIB  # Of state, digested a second time in each save.
SAMPLE_CHUNKS_MIN = 4
SAMPLE_FRACTION = 1 / 8  # Of a region's chunks, so digests for more than four take 1/32 of it.


class Count(NamedTuple):
    """Cells of one size that changed, and the runs of neighbours that they make."""

    cells: int
    runs: int


@dataclass(frozen=True, slots=True)
class Sparsity:
    """What changed in a region since the last committed checkpoint.

    Attributes:
        region_bytes: its size.
        chunk_bytes: of its chunks.
        changed_chunks: how many of them changed.
        sampled_chunks: how many of the changed ones were looked into.
        counts: by size of cell in bytes. Below the size of a chunk they are of the sampled
            chunks, from it on of the whole region.
    """

    region_bytes: int
    chunk_bytes: int
    changed_chunks: int
    sampled_chunks: int
    counts: Mapping[int, Count]


def cell_sizes(chunk_bytes: int) -> list[int]:
    """Return the sizes of cell that chunks of ``chunk_bytes`` allow, in bytes, rising.

    From 64 B on by doubling, as long as they divide the chunk; the chunk; its doubles up to
    64 KiB. A chunk that is no multiple of 64 B has no finer cells.
    """
    finer = []
    cell_bytes = FINEST_CELL_BYTES
    while cell_bytes < chunk_bytes and chunk_bytes % cell_bytes == 0:
        finer.append(cell_bytes)
        cell_bytes *= 2
    sizes = [*finer, chunk_bytes]
    while sizes[-1] * 2 <= COARSEST_CELL_BYTES:
        sizes.append(sizes[-1] * 2)
    return sizes


class Sampler:
    """The sample of one region from one save to the next.

    ``observe``, then ``commit`` when the checkpoint is committed, or ``rollback``; the region
    may have another length each time. A save costs the digests of at most twice
    `SAMPLE_BYTES_MAX`; between saves a quarter of that is kept.
    """

    def __init__(self, chunk_bytes: int) -> None:
        chunk_count(0, chunk_bytes)  # Refuses what no chunks can have.
        self.chunk_bytes = chunk_bytes
        self._sizes = cell_sizes(chunk_bytes)
        self._finer = [size for size in self._sizes if size < chunk_bytes]
        self._numbers: Indices = np.empty(0, np.intp)
        self._digests: U64s = np.empty((0, chunk_bytes // FINEST_CELL_BYTES, 2), np.uint64)
        self._next: tuple[Indices, U64s] | None = None

    def observe(
        self,
        data: BufferLike,
        changed: NDArray[np.bool_],
        held: NDArray[np.bool_] | None = None,
    ) -> Sparsity:
        """Look at the region as it is now.

        Args:
            data: all its bytes, C-contiguous.
            changed: which of its chunks are not as in the last committed checkpoint, by their
                digests; those that are new are.
            held: which chunks may be read; those that changed are among them. ``None``: all.

        Raises:
            ValueError: ``changed`` has not one entry for each chunk.
        """
        view = byte_view(data)
        count = chunk_count(len(view), self.chunk_bytes)
        if changed.shape != (count,):
            raise ValueError(
                f"changed must have one entry for each of {count} chunks, got {changed.shape}."
            )
        self._next = None
        changed_chunks = int(changed.sum())
        if not changed_chunks and len(self._numbers):
            return Sparsity(
                len(view), self.chunk_bytes, 0, 0, dict.fromkeys(self._sizes, Count(0, 0))
            )
        there = len(view) // self.chunk_bytes
        known = self._numbers < there  # The region may have shrunk.
        known[known] = changed[self._numbers[known]]
        seen, old = self._numbers[known], self._digests[known]
        now = self._cells(view, seen)
        counts = self._count_finer(seen, (now != old).any(axis=2), changed)
        marks = changed[np.newaxis]
        for size in self._sizes[len(self._finer) :]:
            counts[size] = _count(marks)
            marks = _halved(marks)
        if self._finer:
            drawn = self._draw(changed[:there], None if held is None else held[:there])
            self._next = drawn, self._digests_of(view, drawn, changed, (seen, now))
        return Sparsity(len(view), self.chunk_bytes, changed_chunks, len(seen), counts)

    def commit(self) -> None:
        """Compare with what was last observed from now on."""
        if self._next is not None:
            self._numbers, self._digests = self._next
            self._next = None

    def rollback(self) -> None:
        """Forget what was last observed."""
        self._next = None

    def _count_finer(
        self, seen: Indices, marks: NDArray[np.bool_], changed: NDArray[np.bool_]
    ) -> dict[int, Count]:
        """Count in sampled chunks, of which ``marks`` tells the finest cells that changed."""
        counts = {}
        after_changed = changed[seen - 1] & (seen > 0)
        for size in self._finer:
            counts[size] = _count(marks, after_changed & _ends_before(marks, seen))
            marks = _halved(marks)
        return counts

    def _digests_of(
        self,
        view: Bytes,
        drawn: Indices,
        changed: NDArray[np.bool_],
        seen: tuple[Indices, U64s],
    ) -> U64s:
        """Return the digests of the cells of drawn chunks; only those that are new are read."""
        numbers, now = seen
        kept = ~changed[drawn] & np.isin(drawn, self._numbers)
        again = np.isin(drawn, numbers)
        digests = np.empty((len(drawn), self.chunk_bytes // FINEST_CELL_BYTES, 2), np.uint64)
        digests[kept] = self._digests[np.searchsorted(self._numbers, drawn[kept])]
        digests[again] = now[np.searchsorted(numbers, drawn[again])]
        fresh = ~kept & ~again
        digests[fresh] = self._cells(view, drawn[fresh])
        return digests

    def _draw(self, changed: NDArray[np.bool_], held: NDArray[np.bool_] | None) -> Indices:
        """Return the numbers of the chunks to keep cell digests of, rising."""
        there = len(changed)
        most = min(SAMPLE_CHUNKS_MAX, SAMPLE_BYTES_MAX // self.chunk_bytes)
        wanted = min(there, max(SAMPLE_CHUNKS_MIN, min(most, int(there * SAMPLE_FRACTION))))
        drawn = _evenly(np.flatnonzero(changed), wanted)
        any_other = np.arange(there) if held is None else np.flatnonzero(held)
        for others in (self._numbers[self._numbers < there], any_other):
            if len(drawn) < wanted:
                left = np.setdiff1d(others, drawn, assume_unique=True)
                drawn = np.union1d(drawn, _evenly(left, wanted - len(drawn)))
        return drawn

    def _cells(self, view: Bytes, numbers: Indices) -> U64s:
        """Return the digests of the finest cells of whole chunks, (chunks, cells, 2)."""
        whole_chunks = len(view) // self.chunk_bytes
        chunks = view[: whole_chunks * self.chunk_bytes].reshape(-1, self.chunk_bytes)
        digests = chunk_digests(chunks[numbers], FINEST_CELL_BYTES)
        return digests.reshape(len(numbers), self.chunk_bytes // FINEST_CELL_BYTES, 2)


def _evenly(numbers: Indices, count: int) -> Indices:
    """Return ``count`` of the numbers, or all if there are fewer, spread evenly."""
    if len(numbers) <= count:
        return numbers
    return numbers[(np.arange(count) * len(numbers) + len(numbers) // 2) // count]


def _halved(marks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Join every two neighbours of each row in one, marked if either is."""
    rows, columns = marks.shape
    halved = np.zeros((rows, -(-columns // 2)), np.bool_)
    halved[:] = marks[:, ::2]
    halved[:, : columns // 2] |= marks[:, 1::2]
    return halved


def _ends_before(marks: NDArray[np.bool_], numbers: Indices) -> NDArray[np.bool_]:
    """Tell whether the last cell of the chunk before each of ``numbers`` is marked.

    Where that chunk is not in the sample its end is taken to be like that of the chunk itself.
    """
    ends = marks[:, -1].copy()
    neighbours = np.flatnonzero(numbers[1:] == numbers[:-1] + 1) + 1
    ends[neighbours] = marks[neighbours - 1, -1]
    return ends


def _count(marks: NDArray[np.bool_], begun: NDArray[np.bool_] | None = None) -> Count:
    """Count marks, and runs of them in each row; where ``begun``, a row goes on with one."""
    starts = marks.copy()
    starts[:, 1:] &= ~marks[:, :-1]
    if begun is not None:
        starts[:, 0] &= ~begun
    return Count(int(marks.sum()), int(starts.sum()))
