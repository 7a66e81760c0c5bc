"""The arrays of a state divided into regions, and the snapshot of these.

A :class:`Division` follows from where arrays lie, and from what they are; never from values.
It holds no array, so that it can be used again for the next snapshot: as long as arrays that
overlap moved together, and nothing else moved into them, their regions are the same.

A :class:`Flattened` is one division of a live state. Its table tells a native call all that it
has to copy; regions as objects are made only for whoever asks. ``tests/unit/test_regions.py``,
``tests/property/test_recorded_laws.py``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ckptflow.data.arrays import ArraySpec, LiveArray, read_into
from ckptflow.data.backend import kernels
from ckptflow.data.buffers import I64s
from ckptflow.data.dtypes import itemsize_bytes
from ckptflow.data.leaves import Node
from ckptflow.data.memory import Bytes, bytes_at, contiguous_strides, same_strides
from ckptflow.data.overlap import Block, Form, resolve, span, without_repeats
from ckptflow.data.tree import array_node
from ckptflow.data.walk import Found

ALIGNMENT_BYTES = 64  # Of regions in an arena: a cache line, and any vector instruction.


class Piece(NamedTuple):
    """One array to copy, and where its elements go in the region."""

    live: LiveArray
    spec: ArraySpec


@dataclass(frozen=True, slots=True)
class Region:
    """One stretch of state memory, of one array or of several that share it.

    ``data`` is a read-only view, uint8, of the live memory if that can be stored as it is;
    None if elements have to be gathered, or lie on a device. ``copy_into`` does either.
    """

    name: str  # Of its first array.
    nbytes: int
    data: Bytes | None
    pieces: tuple[Piece, ...]
    has_gaps: bool = False  # Bytes that belong to no piece; they are stored as zeros.
    item_bytes: int = 1  # Of one number of its first array, for filters that work on words.

    def copy_into(self, out: Bytes) -> None:
        """Copy the region's bytes to ``out``, uint8 of exactly ``nbytes``."""
        if self.data is not None:
            np.copyto(out, self.data)
            return
        if self.has_gaps:
            out.fill(0)
        for live, spec in self.pieces:
            read_into(live, out, spec)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The regions of a state as columns, for native calls.

    Attributes:
        address: where the bytes lie as they are stored, int64 [n]; 0 where that is nowhere on
            the host: they have to be gathered.
        device_address: where they lie on a device as they are stored, int64 [n]; 0 elsewhere.
        nbytes: of each, int64 [n].
        offset: where each starts in an arena, int64 [n].
        total_bytes: how long the arena is.
    """

    address: I64s
    device_address: I64s
    nbytes: I64s
    offset: I64s
    total_bytes: int


class _Gathered(NamedTuple):
    """A region that no memory is as it is stored: its arrays, by number, and their places."""

    members: list[int]
    lives: list[LiveArray]  # Without owners and addresses.
    specs: list[ArraySpec]
    has_gaps: bool


class Division:
    """How the arrays of a state become regions.

    Args:
        found: all of them; their nodes get what they lack, the region and the place in it.

    Attributes:
        names: of the regions, each that of its first array.
        item_bytes: of one number of the first array of each.
        on_devices: numbers of those that lie on a device as they are stored, by its name;
            none is empty.
    """

    def __init__(self, found: Sequence[Found]) -> None:
        self._clusters = _Clusters(found)
        self._members: list[tuple[int, ...]] = []
        self._gathered: dict[int, _Gathered] = {}
        self.names: list[str] = []
        self.item_bytes: list[int] = []
        self.on_devices: dict[str, list[int]] = {}
        starts, sizes = [], []
        for index, block in enumerate(self._clusters.blocks(found)):
            lives = [found[i].live for i in block.members]
            if len(lives) == 1 and self._clusters.is_dense[block.members[0]]:
                kind, dtype, shape = lives[0].kind, lives[0].dtype, lives[0].layout.shape
                specs = [ArraySpec(dtype, shape, None, 0, index, kind)]
            else:
                specs = [_place(live, block, index) for live in lives]
            for i, spec in zip(block.members, specs, strict=True):
                found[i].node.extend(array_node(spec))
            if block.form is not Form.WHOLE or not lives[0].on_host:
                self._gathered[index] = _gathered(block, lives, specs)
                if block.form is Form.WHOLE and block.nbytes:
                    self.on_devices.setdefault(lives[0].place, []).append(index)
            self._members.append(block.members)
            self.names.append(found[block.members[0]].name)
            self.item_bytes.append(item_bytes_of(specs[0]))
            starts.append(block.start)
            sizes.append(block.nbytes)
        self._first = np.array([members[0] for members in self._members], np.intp)
        self._shift = np.array(starts, np.int64) - self._clusters.addresses[self._first]
        self._nbytes = np.array(sizes, np.int64)
        ends = np.cumsum(-(-self._nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        self._offset = np.concatenate([np.zeros(1, np.int64), ends])

    def __len__(self) -> int:
        return len(self.names)

    @property
    def addresses(self) -> I64s:
        """Where the arrays lay that it was made for."""
        return self._clusters.addresses

    def holds(self, addresses: I64s) -> bool:
        """Tell whether it is the division of the same arrays at other addresses, too."""
        return self._clusters.moved_apart(addresses)

    def table(self, addresses: I64s) -> Table:
        """Return the regions of arrays that lie at these addresses, int64 [n]."""
        start = addresses[self._first] + self._shift
        on_device = np.zeros_like(start)
        for numbers in self.on_devices.values():
            on_device[numbers] = start[numbers]
        start[list(self._gathered)] = 0
        total_bytes = int(self._offset[-1])
        return Table(start, on_device, self._nbytes, self._offset[:-1], total_bytes)

    def region(
        self, number: int, table: Table, addresses: I64s, owners: Sequence[Any]
    ) -> Region:
        """Return one region.

        Args:
            number: which.
            table: made by `table` of the same addresses.
            addresses: of all arrays.
            owners: what keeps the memory of each array.
        """
        name, nbytes = self.names[number], int(self._nbytes[number])
        gathered, item_bytes = self._gathered.get(number), self.item_bytes[number]
        if gathered is None:
            owned = self.owners_of(number, owners)
            data = bytes_at(int(table.address[number]), nbytes, owned)
            return Region(name, nbytes, data, (), item_bytes=item_bytes)
        pieces = [
            Piece(
                live._replace(
                    layout=live.layout._replace(address=int(addresses[i])), owner=owners[i]
                ),
                spec,
            )
            for i, live, spec in zip(*gathered[:3], strict=True)
        ]
        return Region(name, nbytes, None, tuple(pieces), gathered.has_gaps, item_bytes)

    def owners_of(self, number: int, owners: Sequence[Any]) -> list[Any]:
        """Return those of the owners of all arrays that are owners of a region's."""
        return [owners[i] for i in self._members[number]]

    @property
    def gathered(self) -> list[int]:
        """Numbers of the regions whose bytes have to be gathered."""
        return list(self._gathered)


@dataclass(slots=True, eq=False)
class Flattened:
    """A state's structure and its regions, which are still the live memory.

    Attributes:
        structure: how the regions make the state; not to be changed.
        table: the regions as columns.
        division: how the arrays became regions.
        owners: of the arrays, in the order of the structure: what keeps the memory of each.
        leaves: the arrays as they lie in the state, in the same order.
    """

    structure: Node
    table: Table
    division: Division
    _addresses: I64s
    owners: Sequence[Any]
    leaves: Sequence[Any]
    _regions: list[Region] | None = field(default=None, init=False)

    @property
    def names(self) -> list[str]:
        """The name of each region."""
        return self.division.names

    @property
    def item_bytes(self) -> list[int]:
        """Bytes of one number of each region's first array."""
        return self.division.item_bytes

    @property
    def regions(self) -> list[Region]:
        """The regions as objects, made when they are first asked for."""
        if self._regions is None:
            self._regions = [self.region(number) for number in range(len(self.division))]
        return self._regions

    @property
    def offsets(self) -> list[int]:
        """Where each region starts in an arena, and, last, how long the arena is."""
        return [*self.table.offset.tolist(), self.table.total_bytes]

    @property
    def total_bytes(self) -> int:
        """Bytes that ``copy_into`` needs."""
        return self.table.total_bytes

    @property
    def gathered(self) -> list[int]:
        """Numbers of the regions that ``copy_gathered`` copies, and no address tells."""
        return self.division.gathered

    @property
    def on_devices(self) -> Mapping[str, list[int]]:
        """Numbers of the regions that lie on a device as they are stored, by its name."""
        return self.division.on_devices

    def owners_of(self, number: int) -> list[Any]:
        """Return what keeps the memory of the arrays of a region: these, or copies of them."""
        return self.division.owners_of(number, self.owners)

    def region(self, number: int) -> Region:
        """Return one region; it keeps the memory of its arrays."""
        return self.division.region(number, self.table, self._addresses, self.owners)

    def copy_into(self, arena: memoryview | Bytes) -> list[memoryview]:
        """Copy all regions, the snapshot, and return one flat view of the copy for each.

        One call, with the GIL released, for all regions that lie somewhere as they are stored;
        the others are gathered, straight to their places. After it the state may change. The
        arena is the caller's, to be used again: fresh memory would cost more than the copy.

        Args:
            arena: writable, uint8, at least ``total_bytes``; best aligned to 64 bytes.

        Raises:
            ValueError: the arena is too small, or read-only.
        """
        flat, table = np.frombuffer(arena, dtype=np.uint8), self.table
        if flat.nbytes < table.total_bytes or not flat.flags.writeable:
            raise ValueError(
                f"The arena has {flat.nbytes} bytes (writable: {flat.flags.writeable}), "
                f"the snapshot needs {table.total_bytes} writable ones."
            )
        there = table.address != 0
        columns = (
            column[there].view(np.uint64)
            for column in (table.address, table.nbytes, table.offset)
        )
        address, nbytes, offset = columns
        kernels().copy_memory(address, nbytes, flat, offset)
        self.copy_gathered(flat)
        return self.views(flat)

    def copy_gathered(self, flat: Bytes) -> None:
        """Copy the regions that no memory is as they are stored to their places in an arena."""
        for number in self.gathered:
            region, start = self.region(number), int(self.table.offset[number])
            region.copy_into(flat[start : start + region.nbytes])

    def views(self, flat: Bytes) -> list[memoryview]:
        """Return the place of each region in an arena, flat."""
        start = self.table.offset
        ends = (start + self.table.nbytes).tolist()
        return list(map(flat.data.__getitem__, map(slice, start.tolist(), ends)))


class _Clusters:
    """Arrays whose spans of addresses hang together; no byte is shared between clusters."""

    def __init__(self, found: Sequence[Found]) -> None:
        layouts = [one.live.layout for one in found]
        self.addresses = np.array([layout.address for layout in layouts], np.int64)
        self.is_dense = [
            layout.strides_bytes == contiguous_strides(layout.shape, layout.itemsize)
            for layout in layouts
        ]
        self._ends = [
            (layout.address, layout.address + math.prod(layout.shape) * layout.itemsize)
            if is_dense
            else span(layout)
            for layout, is_dense in zip(layouts, self.is_dense, strict=True)
        ]
        low, high = np.array(self._ends, np.int64).reshape(-1, 2).T
        names: dict[str, int] = {}
        place = np.array(
            [names.setdefault(one.live.place, len(names)) for one in found], np.intp
        )
        some = np.flatnonzero(low < high)  # What is empty is in nobody's way.
        self._order = some[np.lexsort((high[some], low[some], place[some]))]
        low, high, place = low[self._order], high[self._order], place[self._order]
        begins = np.ones(len(low), np.bool_)
        for number in range(len(names)):
            here = np.flatnonzero(place == number)
            reach = np.maximum.accumulate(high[here])
            begins[here[1:]] = low[here[1:]] >= reach[:-1]
        self._heads = np.flatnonzero(begins)
        self._cluster = np.cumsum(begins) - 1
        self._low, self._place = low[self._heads], place[self._heads]
        self._high = np.maximum.reduceat(high, self._heads) if len(high) else high

    def blocks(self, found: Sequence[Found]) -> list[Block]:
        """Return the blocks of all memories, in the order of their first members."""
        layouts, order = [one.live.layout for one in found], self._order.tolist()
        result = [
            Block(low, 0, Form.WHOLE, (number,))
            for number, (low, high) in enumerate(self._ends)
            if low == high
        ]
        for a, b in pairwise([*self._heads.tolist(), len(order)]):
            number = order[a]
            if b - a == 1 and self.is_dense[number]:  # As nearly all are.
                low, high = self._ends[number]
                result.append(Block(low, high - low, Form.WHOLE, (number,)))
            else:
                result.extend(resolve(order[a:b], layouts))
        return sorted(result, key=lambda block: block.members[0])

    def moved_apart(self, addresses: I64s) -> bool:
        """Tell whether each cluster moved as one, and none into another."""
        moved = (addresses - self.addresses)[self._order]
        if not moved.any():
            return True
        by = moved[self._heads]
        if (moved != by[self._cluster]).any():
            return False
        low, high = self._low + by, self._high + by
        order = np.lexsort((low, self._place))
        low, high, place = low[order], high[order], self._place[order]
        return not ((low[1:] < high[:-1]) & (place[1:] == place[:-1])).any()


def _place(live: LiveArray, block: Block, region: int) -> ArraySpec:
    """Return where an array lies in the region that a block becomes."""
    layout = live.layout
    contiguous = contiguous_strides(layout.shape, layout.itemsize)
    strides, offset = layout.strides_bytes, layout.address - block.start
    if block.form is Form.PACKED:
        packed = without_repeats(layout)
        steps = contiguous_strides(packed.shape, layout.itemsize)
        pairs = zip(steps, layout.strides_bytes, strict=True)
        strides, offset = tuple(step if stride else 0 for step, stride in pairs), 0
    plain = same_strides(layout.shape, strides, contiguous)
    return ArraySpec(
        live.dtype, layout.shape, None if plain else strides, offset, region, live.kind
    )


def _gathered(block: Block, lives: list[LiveArray], specs: list[ArraySpec]) -> _Gathered:
    pieces = list(zip(block.members, lives, specs, strict=True))
    if block.form is Form.PACKED:
        pieces = [(block.members[0], *_without_repeats(lives[0], specs[0]))]
    elif not lives[0].on_host:
        ends = (block.start, block.start + block.nbytes)
        pieces = [piece for piece in pieces if span(piece[1].layout) == ends][:1] or pieces
    members, lives, specs = (list(column) for column in zip(*pieces, strict=True))
    lives = [live._replace(owner=None) for live in lives]
    return _Gathered(members, lives, specs, block.form is Form.SPARSE)


def _without_repeats(live: LiveArray, spec: ArraySpec) -> tuple[LiveArray, ArraySpec]:
    """Gather a broadcast array once. A device's array is copied by its library, as it is."""
    if not live.on_host:
        return live, spec
    layout = without_repeats(live.layout)
    return live._replace(layout=layout), replace(spec, shape=layout.shape, strides_bytes=None)


def item_bytes_of(spec: ArraySpec) -> int:
    """Return the bytes of one number of an array; of a complex one, of a part."""
    return _item_bytes(spec.dtype)


@functools.lru_cache(maxsize=1024)
def _item_bytes(dtype: str) -> int:
    is_complex = dtype.lstrip("<>=|").startswith("c")
    return itemsize_bytes(dtype) // 2 if is_complex else itemsize_bytes(dtype)
