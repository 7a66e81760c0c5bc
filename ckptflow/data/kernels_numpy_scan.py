"""Scans, histories, runs and repeats in NumPy, for the backends that are not compiled.

No loops over cells but the look-ups of one dictionary: slow, and a check of the compiled core
that shares nothing with it. ``tests/property/test_scan_laws.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.backend import CellColumns, RepeatColumns, RunColumns
from ckptflow.data.buffers import Bytes, I64s, Indices, U32s, U64s

_NEW, _FILL, _KNOWN = 1, 2, 3
_PIECE_BYTES = 256 << 10
_LEAST_ROWS = 3

DigestChunks: TypeAlias = Callable[[Bytes, int, U64s], None]
Mask: TypeAlias = NDArray[np.bool_]


def scan(
    digest_chunks: DigestChunks,
    data: Bytes,
    sizes: tuple[int, int],
    old: tuple[U64s, U64s],
    chunks: U64s,
    columns: CellColumns,
    *,
    given: bool,
) -> int:
    """Do what :class:`ckptflow.data.backend.Kernels` says, with digests of any backend.

    ``sizes`` are those of chunks and cells, ``old`` has the digests of both.
    """
    chunk_bytes, _ = sizes
    old_chunks, old_cells = old
    if not len(data):
        return 0
    if not given:
        digest_chunks(data, chunk_bytes, chunks)
    changed = np.flatnonzero(_differ(chunks, old_chunks, np.arange(len(chunks))))
    found = 0
    rows = max(1, _PIECE_BYTES // chunk_bytes)
    full = len(data) // chunk_bytes
    whole = data[: full * chunk_bytes].reshape(full, chunk_bytes)
    inner = changed[changed < full]
    if given and (torn := _torn(digest_chunks, data, chunk_bytes, chunks, changed)) >= 0:
        return -1 - torn
    for first in range(0, len(inner), rows):
        piece = inner[first : first + rows]
        found = _append_cells(
            digest_chunks, whole[piece].reshape(-1), piece, sizes, old_cells, columns, found
        )
    if len(inner) < len(changed):
        tail = data[full * chunk_bytes :]
        found = _append_cells(
            digest_chunks, tail, changed[-1:], sizes, old_cells, columns, found
        )
    return found


def _torn(
    digest_chunks: DigestChunks, data: Bytes, chunk_bytes: int, chunks: U64s, which: Indices
) -> int:
    """Return the first of some chunks that has another digest than was given, or -1."""
    found = np.empty((1, 2), np.uint64)
    for number in which.tolist():
        digest_chunks(
            data[number * chunk_bytes : (number + 1) * chunk_bytes], chunk_bytes, found
        )
        if (found[0] != chunks[number]).any():
            return int(number)
    return -1


def _append_cells(
    digest_chunks: DigestChunks,
    data: Bytes,
    chunks: Indices,
    sizes: tuple[int, int],
    old_cells: U64s,
    columns: CellColumns,
    found: int,
) -> int:
    """Append the changed cells of changed chunks, whose bytes ``data`` has back to back."""
    chunk_bytes, cell_bytes = sizes
    count = -(-len(data) // cell_bytes)
    digests = np.empty((count, 2), np.uint64)
    digest_chunks(data, cell_bytes, digests)
    per_chunk = chunk_bytes // cell_bytes
    numbers = (chunks[:, np.newaxis] * per_chunk + np.arange(per_chunk)).reshape(-1)[:count]
    changed = np.flatnonzero(_differ(digests, old_cells, numbers))
    is_fill, patterns = _fills(data, cell_bytes)
    rows = slice(found, found + len(changed))
    index, digest, kind, pattern = columns
    index[rows] = numbers[changed]
    digest[rows] = digests[changed]
    kind[rows] = np.where(is_fill[changed], _FILL, _NEW)
    pattern[rows] = np.where(is_fill[changed], patterns[changed], 0)
    return rows.stop


def _differ(digests: U64s, old: U64s, numbers: Indices) -> Mask:
    """Return for each digest whether the old one of its number is another, or is not there."""
    differ = np.ones(len(numbers), np.bool_)
    told = np.flatnonzero(numbers < len(old))
    differ[told] = (digests[told] != old[numbers[told]]).any(axis=1)
    return differ


def _fills(data: Bytes, cell_bytes: int) -> tuple[Mask, U64s]:
    """Return for each cell whether it is a fill, and if so its first eight bytes."""
    full = len(data) // cell_bytes
    words = data[: full * cell_bytes].view("<u8").reshape(full, cell_bytes // 8)
    is_fill = (words == words[:, :1]).all(axis=1)
    patterns = words[:, 0].astype(np.uint64)
    tail = data[full * cell_bytes :]
    if len(tail):
        pairs = tail[: len(tail) // 8 * 8].view("<u8")
        repeats = len(tail) % 8 == 0 and bool((pairs == pairs[0]).all())
        is_fill = np.append(is_fill, repeats)
        patterns = np.append(patterns, pairs[0] if repeats else np.uint64(0))
    return is_fill, patterns


class DictTable:
    """Rows of digests, by their bytes, in a dictionary."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}

    @property
    def nbytes(self) -> int:
        """See :class:`ckptflow.data.backend.DigestTable`."""
        entry_bytes = sys.getsizeof(bytes(16)) + sys.getsizeof(1 << 20)
        return sys.getsizeof(self._rows) + entry_bytes * len(self._rows)

    def find_or_add(
        self, digests: U64s, kinds: Bytes, ids: U64s, log: U64s, count: int, first_id: int
    ) -> int:
        """See :class:`ckptflow.data.backend.DigestTable`."""
        ids[:] = 0
        cells = np.flatnonzero(kinds == _NEW)
        keys = _keys(digests[cells])
        rows = [self._rows.setdefault(key, len(self._rows)) for key in keys]
        row = np.array(rows, np.int64)
        # Of those that were not there, the first with each row brought it.
        _, first = np.unique(row, return_index=True)
        is_new = np.zeros(len(row), np.bool_)
        is_new[first] = row[first] >= count
        ids[cells] = row.astype(np.uint64) + np.uint64(first_id)
        kinds[cells] = np.where(is_new, _NEW, _KNOWN)
        added = int(np.count_nonzero(is_new))
        log[count : count + added] = digests[cells[is_new]]
        return count + added

    def rebuild(self, log: U64s) -> None:
        """See :class:`ckptflow.data.backend.DigestTable`."""
        self._rows = {key: row for row, key in enumerate(_keys(log))}


def _keys(digests: U64s) -> list[bytes]:
    text = digests.tobytes()
    return [text[start : start + 16] for start in range(0, len(text), 16)]


def collect_runs(
    cells: tuple[U64s, Bytes, U64s, U64s], cell_bytes: int, size_bytes: int, columns: RunColumns
) -> int:
    """See :class:`ckptflow.data.backend.Kernels`."""
    index, kinds, pattern, ids = cells
    if not len(index):
        return 0
    ref = np.where(kinds == _FILL, pattern, ids)
    step = (kinds != _FILL).astype(np.uint64)
    begins = np.ones(len(index), np.bool_)
    begins[1:] = (
        (index[1:] != index[:-1] + np.uint64(1))
        | (kinds[1:] != kinds[:-1])
        | (ref[1:] != ref[:-1] + step[1:])
    )
    first = np.flatnonzero(begins)
    starts = index * np.uint64(cell_bytes)
    sizes = np.minimum(np.uint64(size_bytes) - starts, np.uint64(cell_bytes))
    kind, start, length, out_ref = columns
    runs = slice(0, len(first))
    kind[runs] = kinds[first]
    start[runs] = starts[first]
    length[runs] = np.add.reduceat(sizes, first)
    out_ref[runs] = ref[first]
    return len(first)


def find_repeats(length: U64s, source: U64s, pack: U32s, columns: RepeatColumns) -> int:
    """See :class:`ckptflow.data.backend.Kernels`."""
    value, distance = _values_and_distances(length, source, pack)
    stops: dict[int, int] = {}
    found = i = 0
    row, periods, counts = columns
    for candidate in np.flatnonzero(distance).tolist():
        if candidate < i:
            continue
        period = int(distance[candidate])
        if candidate < stops.get(period, 0):
            continue
        end = _end_of_match(value, candidate, period)
        if end - candidate < max(period, _LEAST_ROWS):
            stops[period] = end
            continue
        row[found], periods[found], counts[found] = candidate, period, end - candidate
        found += 1
        i = end
    return found


def _values_and_distances(length: U64s, source: U64s, pack: U32s) -> tuple[I64s, I64s]:
    """Number equal rows alike; return also how far before each row the last equal one is."""
    order = np.lexsort((length, source, pack))  # Stable: equal rows stay in order.
    equal = np.zeros(len(order), np.bool_)
    if len(order):
        here, before = order[1:], order[:-1]
        equal[1:] = np.logical_and.reduce(
            [column[here] == column[before] for column in (length, source, pack)]
        )
    value, distance = np.empty(len(order), np.int64), np.zeros(len(order), np.int64)
    value[order] = np.cumsum(~equal)
    distance[order[equal]] = order[equal] - order[np.flatnonzero(equal) - 1]
    return value, distance


def _end_of_match(value: I64s, start: int, period: int) -> int:
    """Return the first row from ``start`` on that is not the one ``period`` before it."""
    size = 64
    while start < len(value):
        differ = (
            value[start : start + size]
            != value[start - period : start - period + size][: len(value) - start]
        )
        if differ.any():
            return start + int(differ.argmax())
        start += size
        size *= 2
    return len(value)
