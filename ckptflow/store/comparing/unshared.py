"""Which ranges of two regions may differ, told from extent tables alone: nothing is read.

Two rows are the same bytes when they name the same place of the same pack, or the same
pattern. What is left can be looked at once more by frames: a pack says in its table which
digest each frame has, so frames that two lineages stored alike are the same bytes, too.
All in NumPy, no loop over extents. ``tests/property/test_unshared_laws.py`` compares with a
model that gives every byte a meaning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.extents import U64, ramps, starts_of, union
from ckptflow.data.pack import FrameTable
from ckptflow.errors import CorruptionError
from ckptflow.model import FILL, ExtentTable, PackRef

_ZERO, _ONE, _WORD = np.uint64(0), np.uint64(1), np.uint64(8)


def unshared(left: ExtentTable, right: ExtentTable) -> tuple[U64, U64]:
    """Return start and length of the ranges of which the tables do not name the same bytes.

    Args:
        left: covers the bytes from 0 on.
        right: covers as many; a pack has the same number in both.

    Returns:
        uint64 [r] each, rising; no two ranges touch.
    """
    edges: U64 = np.union1d(starts_of(left.length), starts_of(right.length))
    differ = np.zeros(len(edges), np.bool_)
    for a, b in zip(_meaning(left, edges), _meaning(right, edges), strict=True):
        differ |= a != b
    ends = np.append(edges[1:], left.length.sum(dtype=np.uint64))[: len(edges)]
    return union(edges[differ], ends[differ])


def to_elements(start: U64, length: U64, itemsize: int) -> tuple[U64, U64]:
    """Widen ranges of bytes to whole elements of ``itemsize`` bytes each."""
    size = np.uint64(itemsize)
    end = (start + length + size - _ONE) // size * size
    return union(start // size * size, end)


def pack_numbers(*lists: Sequence[PackRef]) -> list[NDArray[np.uint32]]:
    """Number the packs of several manifests so that equal numbers mean equal bytes.

    The seal of a frame table covers the digests of all frames, so packs of equal seal hold
    the same stream, whatever they are called and wherever they lie.
    """
    known: dict[tuple[bytes, int], int] = {}
    return [
        np.array(
            [known.setdefault((ref.table_seal, ref.size_bytes), len(known)) for ref in refs],
            np.uint32,
        )
        for refs in lists
    ]


def renumbered(table: ExtentTable, numbers: NDArray[np.uint32]) -> ExtentTable:
    """Return ``table`` with pack ``i`` called ``numbers[i]``; fills stay fills."""
    pack = table.pack.copy()
    stored = table.stored
    pack[stored] = numbers[pack[stored]]
    return ExtentTable(table.length, table.source, pack, table.period)


def by_frames(
    tables: Sequence[ExtentTable], frames: Sequence[Mapping[int, FrameTable]]
) -> list[ExtentTable]:
    """Return tables whose rows name frames instead of packs, equal frames by one number.

    Args:
        tables: rows of several manifests, each with pack numbers of its own manifest.
        frames: for each of them the frame tables of all packs that it names.

    Returns:
        The same bytes, cut where frames end; ``source`` counts from the start of the frame.
        Only `unshared` can make sense of them. Repeats are given a number of their own, since
        what they repeat may pass from one frame into another.

    Raises:
        CorruptionError: a row reaches past the end of its pack.
    """
    opened = [list(of.items()) for of in frames]
    records = [_records(table) for of in opened for _, table in of]
    if not records:
        return list(tables)
    _, which = np.unique(np.concatenate(records), axis=0, return_inverse=True)
    number: NDArray[np.uint32] = which.reshape(-1).astype(np.uint32)
    done, result = 0, []
    for side, (table, of) in enumerate(zip(tables, opened, strict=True)):
        count = sum(len(one) for _, one in of)
        lone = np.uint32(len(number) + side)
        result.append(_cut_at_frames(table, of, number[done : done + count], lone))
        done += count
    return result


def _meaning(table: ExtentTable, at: U64) -> tuple[NDArray[np.generic], ...]:
    """Return columns that are equal where tables mean the same bytes from ``at`` on."""
    begin = starts_of(table.length)
    row = np.searchsorted(begin, at, side="right") - 1
    rows, skipped = table.take(row), at - begin[row]
    turn = skipped % _WORD * _WORD
    turned = (rows.source >> turn) | (rows.source << ((np.uint64(64) - turn) % np.uint64(64)))
    repeats = rows.period > _ZERO
    place = np.where(rows.stored & ~repeats, rows.source + skipped, rows.source)
    place = np.where(rows.pack == FILL, turned, place)
    phase = np.where(repeats, skipped % np.maximum(rows.period, _ONE), _ZERO)
    return rows.pack, place, rows.period, phase


def _records(table: FrameTable) -> U64:
    """Return all that decides what a frame's plain bytes are, uint64 [frames, columns]."""
    columns = [np.diff(table.offset), np.diff(table.plain_start)]
    for field in dataclasses.fields(table):
        column = getattr(table, field.name)
        if field.name not in ("offset", "plain_start", "digest"):
            columns.append(column)  # The codec, and whatever else tells how to decode.
    halves = np.ascontiguousarray(table.digest).view(np.uint64).reshape(len(table), 2)
    return np.column_stack([*(column.astype(np.uint64) for column in columns), halves])


def _cut_at_frames(
    table: ExtentTable,
    opened: Sequence[tuple[int, FrameTable]],
    number: NDArray[np.uint32],
    lone: np.uint32,
) -> ExtentTable:
    """Cut the rows of one manifest; ``number`` has a number for each of its frames in turn."""
    if not opened:
        return table
    # All packs are seen as one long stream, so that one search finds the frames of all rows.
    sizes = np.array([one.plain_start[-1] for _, one in opened], np.uint64)
    base = starts_of(sizes)
    of_pack = np.zeros(1 + max(pack for pack, _ in opened), np.intp)
    of_pack[[pack for pack, _ in opened]] = np.arange(len(opened))
    edges = np.concatenate(
        [first + one.plain_start[:-1].astype(np.uint64)
         for first, (_, one) in zip(base, opened, strict=True)]
        + [sizes.sum(dtype=np.uint64)[np.newaxis]]
    )  # fmt: skip
    data = table.stored & (table.period == _ZERO)
    place = of_pack[np.where(data, table.pack, np.uint32(opened[0][0]))]
    if (data & (table.source + table.length > sizes[place])).any():
        raise CorruptionError("An extent reaches past the end of its pack.")
    begin = np.where(data, base[place] + table.source, _ZERO)
    end = np.where(data, begin + table.length, _ONE)
    first = np.searchsorted(edges, begin, side="right") - 1
    count = np.where(data, np.searchsorted(edges, end, side="left") - first, 1)
    of, frame = ramps(first, count)
    is_data, rows = data[of], table.take(of)
    start = np.maximum(begin[of], edges[frame])
    length = np.minimum(end[of], edges[frame + 1]) - start
    repeated = rows.stored & ~is_data
    return ExtentTable(
        np.where(is_data, length, rows.length),
        np.where(is_data, start - edges[frame], rows.source),
        np.where(is_data, number[frame], np.where(repeated, lone, rows.pack)),
        rows.period,
    )
