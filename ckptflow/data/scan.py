"""Which cells of a region changed since its parent checkpoint, and these as runs.

A *chunk* is the unit of digest. Where the parent has not its digest at the same place,
bytes are reused in *cells*, which divide chunks; a cell may be as large as a chunk. One pass
over the region digests each chunk, and the cells of changed chunks while they are in the
cache, so that an almost unchanged region costs one read at the speed of memory.

``tests/property/test_scan_laws.py`` compares every backend with plain Python over the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ckptflow.data.backend import CellColumns, kernels
from ckptflow.data.buffers import BufferLike, Bytes, U64s, byte_view
from ckptflow.data.digest import chunk_count
from ckptflow.errors import ConfigError, TornCapture

_NO_DIGESTS: U64s = np.empty((0, 2), np.uint64)


class Kind(IntEnum):
    """How a cell, or a run of cells, gets its bytes back."""

    SAME = 0  # from the parent, at the same place
    NEW = 1  # from this checkpoint, which has them first
    FILL = 2  # by repeating eight bytes
    KNOWN = 3  # from an earlier place in the history


class Scratch:
    """Columns that scans reuse: fresh pages cost more than the work.

    They have room for every cell of the largest region so far. Memory that was never written
    takes no pages, so that many cells cost little while few of them change. Not for two threads
    at once.
    """

    def __init__(self) -> None:
        self._columns = _columns(0)

    def columns(self, cells: int) -> CellColumns:
        """Return columns with room for ``cells`` cells: index, digest, kind, pattern."""
        if len(self._columns[0]) < cells:
            self._columns = _columns(cells)
        index, digest, kind, pattern = self._columns
        return index[:cells], digest[:cells], kind[:cells], pattern[:cells]


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What `scan` found.

    Attributes:
        size_bytes: length of the region.
        cell_bytes: size of its cells; the last may be shorter.
        chunks: digests of all its chunks, uint64 of shape ``(n, 2)``.
        index: numbers of the changed cells, rising, uint64 of shape ``(k,)``.
        digest: their digests, uint64 of shape ``(k, 2)``.
        kind: `Kind.FILL` where the bytes repeat with period 8, else `Kind.NEW`; uint8.
        pattern: FILL: the first eight bytes, little-endian; else 0; uint64.
    """

    size_bytes: int
    cell_bytes: int
    chunks: U64s
    index: U64s
    digest: U64s
    kind: Bytes
    pattern: U64s

    def __len__(self) -> int:
        return len(self.index)

    @property
    def changed_bytes(self) -> int:
        """Bytes in changed cells."""
        whole = len(self.index) * self.cell_bytes
        if len(self.index) == 0:
            return 0
        end = (int(self.index[-1]) + 1) * self.cell_bytes
        return whole - max(0, end - self.size_bytes)

    def cells(self, old_cells: U64s | None) -> U64s:
        """Return the digests of all cells, shape ``(m, 2)``, given those before the change.

        A new array; ``old_cells`` stays as it is.

        Raises:
            ValueError: cells did not change of which ``old_cells`` says nothing.
        """
        count = chunk_count(self.size_bytes, self.cell_bytes)
        old = _NO_DIGESTS if old_cells is None else old_cells[:count]
        told = len(self.index) - int(np.searchsorted(self.index, np.uint64(len(old))))
        if told != count - len(old):
            raise ValueError(
                f"{count - len(old) - told} unchanged cells have no digest: there are "
                f"{len(old)} old ones for {count} cells of {self.cell_bytes} bytes."
            )
        digests = np.empty((count, 2), np.uint64)
        digests[: len(old)] = old
        digests[self.index] = self.digest
        return digests


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Changed cells as runs, in order; no two neighbours could be one run.

    What they do not cover did not change.
    """

    kind: Bytes  # of each run, a `Kind` but SAME
    start_bytes: U64s
    length_bytes: U64s
    ref: U64s  # FILL: the eight bytes, little-endian; NEW and KNOWN: the id of the first cell

    def __len__(self) -> int:
        return len(self.kind)


def scan(
    data: BufferLike,
    *,
    chunk_bytes: int,
    cell_bytes: int,
    old_chunks: U64s | None = None,
    old_cells: U64s | None = None,
    given: U64s | None = None,
    scratch: Scratch | None = None,
) -> Changes:
    """Digest a region and find its changed cells.

    A chunk did not change where ``old_chunks`` has its digest at its place; then none of its
    cells did. A cell of a changed chunk did not change where ``old_cells`` has its digest at
    its place.

    Args:
        data: the region, C-contiguous.
        chunk_bytes: a multiple of 8, at least 16. Larger than the region is fine.
        cell_bytes: likewise; divides ``chunk_bytes``.
        old_chunks: digests of the chunks before, uint64 of shape ``(n, 2)``; the region may
            have been shorter or longer. None if there are none.
        old_cells: likewise of the cells.
        given: digests of the chunks, if they are known. Then only chunks that changed are
            read, and compared with theirs.
        scratch: where to put the columns of the result, which are good until its next use.

    Raises:
        ConfigError: there are no such chunks or cells.
        TornCapture: a chunk that changed has another digest than the given one.
        ValueError: ``data`` is not C-contiguous, or old digests have another shape.
    """
    region = byte_view(data)
    count = chunk_count(len(region), chunk_bytes)
    cell_count = _cell_count(len(region), cell_bytes, chunk_bytes)
    before = _checked(old_chunks, "old_chunks"), _checked(old_cells, "old_cells")
    chunks = np.empty((count, 2), np.uint64) if given is None else _checked(given, "given")
    if len(chunks) != count:
        raise ValueError(f"given has {len(chunks)} digests for {count} chunks.")
    columns = (Scratch() if scratch is None else scratch).columns(cell_count)
    found = kernels().scan(
        region, chunk_bytes, cell_bytes, *before, chunks, columns, given=given is not None
    )
    if found < 0:
        raise TornCapture(
            f"Bytes {(-1 - found) * chunk_bytes} and following of a region are not those that "
            f"were digested."
        )
    index, digest, kind, pattern = columns
    return Changes(
        len(region),
        cell_bytes,
        chunks,
        index[:found],
        digest[:found],
        kind[:found],
        pattern[:found],
    )


def collect_runs(changes: Changes, kinds: Bytes, ids: U64s, size_bytes: int) -> Runs:
    """Join changed cells that lie side by side and come from one place.

    Args:
        changes: the cells.
        kinds: what each became, `Kind.NEW`, `Kind.KNOWN` or `Kind.FILL`, uint8.
        ids: number of each, uint64; without meaning for fills.
        size_bytes: length of the region.

    Raises:
        ValueError: there is not one kind and one id for each cell, or a cell lies outside.
    """
    count = len(changes)
    if kinds.shape != (count,) or ids.shape != (count,):
        raise ValueError(
            f"{count} changed cells have {count} kinds and ids, "
            f"got {kinds.shape} and {ids.shape}."
        )
    if count and int(changes.index[-1]) >= chunk_count(size_bytes, changes.cell_bytes):
        raise ValueError(
            f"Cell {int(changes.index[-1])} of {changes.cell_bytes} bytes lies outside of a "
            f"region of {size_bytes} bytes."
        )
    kind = np.empty(count, np.uint8)
    start, length, ref = (np.empty(count, np.uint64) for _ in range(3))
    cells = (changes.index, kinds, changes.pattern, ids)
    found = kernels().collect_runs(
        cells, changes.cell_bytes, size_bytes, (kind, start, length, ref)
    )
    # Copies, because most runs have many cells: the room for one a cell is given back.
    return Runs(
        kind[:found].copy(), *(column[:found].copy() for column in (start, length, ref))
    )


def _columns(cells: int) -> CellColumns:
    return (
        np.empty(cells, np.uint64),
        np.empty((cells, 2), np.uint64),
        np.empty(cells, np.uint8),
        np.empty(cells, np.uint64),
    )


def _cell_count(size_bytes: int, cell_bytes: int, chunk_bytes: int) -> int:
    if cell_bytes < 16 or cell_bytes % 8 or chunk_bytes % cell_bytes:
        raise ConfigError(
            f"cell_bytes must be a multiple of 8, at least 16, and divide chunk_bytes, which "
            f"is {chunk_bytes}; got {cell_bytes}."
        )
    return -(-size_bytes // cell_bytes)


def _checked(digests: U64s | None, name: str) -> U64s:
    if digests is None:
        return _NO_DIGESTS
    if digests.ndim != 2 or digests.shape[1] != 2 or digests.dtype != np.uint64:
        raise ValueError(
            f"{name} must be uint64 of shape (n, 2), got {digests.dtype} {digests.shape}."
        )
    return np.require(digests, requirements=["C", "A"])
