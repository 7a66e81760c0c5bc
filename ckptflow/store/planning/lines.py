"""Regions on one number line, so that one step of NumPy serves all of them.

A state may have very many small regions; a few calls for each would cost more than its bytes.
On the line they lie one after the other, a byte apart, so that nothing joins two of them.
``tests/property/test_layout_laws.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ckptflow.data.extents import U64, cut
from ckptflow.model import DeltaLayer, DeltaOp, ExtentTable, RegionEntry
from ckptflow.store.memory import Memory
from ckptflow.store.planning.pieces import NOWHERE


@dataclass(frozen=True, slots=True)
class Layers:
    """The rows of one region: a bottom that gives bytes, and layers that change them."""

    bottom: ExtentTable
    deltas: tuple[tuple[DeltaOp, int, ExtentTable], ...] = ()  # Op and bytes of a word.

    @property
    def tables(self) -> list[ExtentTable]:
        """The rows of each layer, the bottom one first."""
        if not self.deltas:
            return [self.bottom]
        return [self.bottom, *(rows for _, _, rows in self.deltas)]

    def with_tables(self, tables: Sequence[ExtentTable]) -> Layers:
        """Return the same layers with other rows; those that change nothing are left out."""
        if not self.deltas:
            return Layers(tables[0])
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


class NumberLine:
    """Where each of several regions begins on the line.

    Attributes:
        start: uint64 [n].
        length: bytes of each, uint64 [n].
        size_bytes: of the whole line.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.length: U64 = np.array(sizes, np.uint64)
        ends = np.cumsum(self.length + np.uint64(1), dtype=np.uint64)
        self.start: U64 = ends - self.length - np.uint64(1)
        self.size_bytes = int(ends[-1]) if len(ends) else 0

    def of(self, position: U64) -> NDArray[np.intp]:
        """Return the number of the region that each position is in."""
        return np.searchsorted(self.start, position, side="right") - 1

    def edges(self, position: U64) -> NDArray[np.intp]:
        """Return where the positions in each region begin, intp [n + 1], given rising ones."""
        return np.append(np.searchsorted(position, self.start), len(position))


class Scattered:
    """Rows at places, in no order."""

    def __init__(self) -> None:
        self._start: list[U64] = []
        self._rows: list[ExtentTable] = []

    def add(self, start: U64, rows: ExtentTable) -> None:
        """Add rows, given the place of each."""
        if len(start):
            self._start.append(start)
            self._rows.append(rows)

    def sorted(self) -> tuple[U64, ExtentTable]:
        """Return all of them by place."""
        start = joined(self._start, np.uint64)
        order = np.argsort(start, kind="stable")
        return start[order], ExtentTable.of(self._rows).take(order)


class OldLayers:
    """The layers of the regions of the checkpoint before."""

    def __init__(self, memory: Memory) -> None:
        self._entries: dict[str, tuple[RegionEntry, int]] = {}
        if memory.of is None:
            return
        self._rows, self._edges = memory.of.extents, memory.of.layer_edges().tolist()
        layer = 0  # Number of the first one of a region, among those of all.
        for entry in memory.of.regions:
            self._entries[entry.name] = entry, layer
            layer += 1 + len(entry.deltas)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def size_of(self, name: str) -> int:
        """Return the length of a region, in bytes; 0 if there was none of that name."""
        found = self._entries.get(name)
        return found[0].size_bytes if found else 0

    def get(self, name: str) -> Layers:
        """Return the layers of a region; none at all if there was none of that name."""
        found = self._entries.get(name)
        if found is None:
            return _NO_LAYERS
        entry, first = found
        deltas = [
            (layer.op, layer.word_bytes, self._table(first + height))
            for height, layer in enumerate(entry.deltas, 1)
        ]
        return Layers(self._table(first), tuple(deltas))

    def bottoms(self, regions: Sequence[tuple[str, int]]) -> ExtentTable:
        """Return the bottom rows of some regions on a line, given name and length of each.

        What a region did not have, and the byte behind each, lies nowhere.
        """
        tables, lacking_bytes = [], 0
        for name, size_bytes in regions:
            entry, first = self._entries.get(name, _NONE)
            kept = min(entry.size_bytes, size_bytes)
            if kept:
                rows = self._table(first)
                tables += [_nowhere(lacking_bytes)] if lacking_bytes else []
                tables.append(rows if kept == entry.size_bytes else _head(rows, kept))
                lacking_bytes = 0
            lacking_bytes += size_bytes - kept + 1
        return ExtentTable.of([*tables, _nowhere(lacking_bytes)])

    def _table(self, layer: int) -> ExtentTable:
        return self._rows.rows(self._edges[layer], self._edges[layer + 1])


_NO_LAYERS = Layers(ExtentTable.of([]))
_NONE = RegionEntry("", 0, b"", 0), 0


def _head(rows: ExtentTable, size_bytes: int) -> ExtentTable:
    """Return the rows for the first bytes of a region."""
    return cut(rows, np.zeros(1, np.uint64), np.array([size_bytes], np.uint64))[1]


def _nowhere(size_bytes: int) -> ExtentTable:
    row = np.full(1, size_bytes, np.uint64)
    return ExtentTable(row, np.zeros_like(row), np.full(1, NOWHERE, np.uint32))


def joined(columns: Sequence[NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
    """Return columns one after the other; an empty one of ``dtype`` if there are none."""
    return np.concatenate(columns) if columns else np.empty(0, dtype)
