"""What the next checkpoint is diffed against: the last one, as this process remembers it.

A `Base` belongs to one lineage on one tier. It changes only when a checkpoint is committed, so
a save that fails leaves it, and the lineage, as they were. Besides the manifest it has, per
region, the digests of its chunks and of their cells; per size of cell, the log of all cells
seen (`ckptflow.data.history`), with the packs in which they lie; and, if somebody keeps them
alive, the very bytes. ``tests/property/test_layout_laws.py``, ``tests/unit/test_base.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.buffers import U64s
from ckptflow.data.digest import chunk_digests
from ckptflow.data.encoding import Chooser
from ckptflow.data.extents import U64, covered, look_up, merge, overlay, ramps, starts_of
from ckptflow.data.history import History
from ckptflow.data.scan import Changes, Kind, Runs
from ckptflow.data.sparsity import Sampler
from ckptflow.model import ExtentTable, Manifest, PackRef
from ckptflow.policy.cells import CellPolicy
from ckptflow.store.planning.pieces import NOWHERE, PACK_MAX

SPARE_PACKS_MAX = 32  # Packs that only older checkpoints name, remembered for their bytes.
CELLS_PER_BYTE = 1 / 256  # Cells remembered per byte of state; each takes about 32 bytes.
CELLS_MIN = 1 << 16


@dataclass(frozen=True, slots=True)
class NamedRegion:
    """A region to be saved.

    Attributes:
        name: of its first array.
        data: its bytes, flat; writable if some of them are not there.
        item_bytes: bytes of one element, for filters that work on words; 1 if not known.
        digests: of its chunks, as they were captured, uint64 [n, 2]; ``None``: to be computed.
        held: which of its chunks are there, bool [n]; ``None``: all are. Only with digests.
        cells: the size of cells in bytes, and the digests of all of them, uint64 [m, 2], where
            somebody who could read all bytes computed them.
    """

    name: str
    data: memoryview
    item_bytes: int = 1
    digests: U64s | None = None
    held: NDArray[np.bool_] | None = None
    cells: tuple[int, U64s] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all of its bytes are there."""
        return self.held is None or bool(self.held.all())


@dataclass(slots=True)
class RegionMemory:
    """What is remembered of one region."""

    chunks: U64s  # Digests of its chunks, (n, 2).
    cell_bytes: int
    cells: U64s | None = None  # Digests of its cells, (m, 2); None: as large as chunks.
    sampler: Sampler | None = None  # Of large regions: how their changes are scattered, and
    policy: CellPolicy | None = None  # what cells follow from that.


@dataclass(frozen=True, slots=True)
class RegionDiff:
    """One region against the base.

    Attributes:
        region: the new bytes.
        cell_bytes: unit of reuse.
        changes: digests, and which cells changed.
        runs: the changed cells as runs of equal treatment.
        seen: the log that numbers the runs; ``None`` if none was asked.
        whole: whether all of it is to be written as it is, in as few pieces as possible.
    """

    region: NamedRegion
    cell_bytes: int
    changes: Changes
    runs: Runs
    seen: Seen | None
    whole: bool = False


class Seen:
    """The cells of one size that this lineage has met, and where their bytes lie."""

    def __init__(self, cell_bytes: int, limit: int) -> None:
        self.cell_bytes = cell_bytes
        self.history = History(cell_bytes, limit)
        self._where = ExtentTable.of([])  # Covers the log; every cell takes cell_bytes of it.

    @property
    def committed(self) -> int:
        """Number of the first cell that is not committed."""
        return self.history.first_id + int(self._where.length.sum()) // self.cell_bytes

    def position(self, cell: U64) -> U64:
        """Return where cells lie in the log, uint64 [n]."""
        return (cell - np.uint64(self.history.first_id)) * np.uint64(self.cell_bytes)

    def extended(self, pack: int) -> ExtentTable:
        """Return where the cells of the log lie; those not yet committed, in ``pack``."""
        start = int(self._where.length.sum())
        new_bytes = (self.history.next_id - self.committed) * self.cell_bytes
        if not new_bytes:
            return self._where
        row = np.array([new_bytes], np.uint64)
        tail = ExtentTable(row, np.array([start], np.uint64), np.array([pack], np.uint32))
        return ExtentTable.of([self._where, tail])

    def commit(self, where: ExtentTable) -> None:
        """Settle what was met.

        Args:
            where: covers the log with its new cells; packs as in the memory from now on.
        """
        before = self.history.first_id
        self.history.commit()
        forgotten = np.uint64((self.history.first_id - before) * self.cell_bytes)
        if forgotten:
            total = where.length.sum(dtype=np.uint64)
            ends = np.array([forgotten], np.uint64), np.array([total - forgotten], np.uint64)
            where = look_up(where, *ends)[2]
        self._where = merge(starts_of(where.length), where)[1]

    def without(self, packs: NDArray[np.bool_]) -> None:
        """Forget that cells lie in some packs, bool, one for each of the memory's."""
        self._where = _renumbered(self._where, np.where(packs, NOWHERE, np.arange(len(packs))))

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken."""
        return self.history.nbytes + 28 * len(self._where)


@dataclass(slots=True)
class Memory:
    """What is remembered of a lineage on a tier, besides its newest manifest.

    Attributes:
        of: the checkpoint that it is the memory of; ``None`` before the first.
        regions: per region name.
        seen: per size of cell in bytes.
        packs: those of the manifest, then others whose bytes may be copied while they last.
        bytes_at_hand: per region name, the bytes themselves, if they are still in memory.
        put_bytes_per_s: how fast the tier took the last packs; ``None`` before the first.
    """

    of: Manifest | None = None
    regions: dict[str, RegionMemory] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)
    packs: list[PackRef] = field(default_factory=list)
    bytes_at_hand: Mapping[str, memoryview] = field(default_factory=dict)
    chooser: Chooser = field(default_factory=Chooser)
    put_bytes_per_s: float | None = None

    def seen_of(self, cell_bytes: int, state_bytes: int) -> Seen:
        """Return the log of cells of one size; it is made when it is first asked for."""
        if cell_bytes not in self.seen:
            limit = max(CELLS_MIN, int(state_bytes * CELLS_PER_BYTE))
            self.seen[cell_bytes] = Seen(cell_bytes, limit)
        return self.seen[cell_bytes]

    def rollback(self) -> None:
        """Forget what a save that failed has met."""
        for seen in self.seen.values():
            seen.history.rollback()
        for region in self.regions.values():
            if region.sampler:
                region.sampler.rollback()

    def forget(self, gone: Collection[PackRef]) -> None:
        """Do not copy from some packs any more."""
        packs = np.array([pack in gone for pack in self.packs], np.bool_)
        for seen in self.seen.values():
            seen.without(packs)

    def commit(self, manifest: Manifest, cells: Mapping[int, ExtentTable]) -> None:
        """Settle where the cells of the logs lie, and which packs there are.

        Args:
            manifest: what was committed.
            cells: per size of cell, a table that covers its log. Packs count through those of
                the memory so far, then through those that the checkpoint wrote.
        """
        self.of = None  # Of nothing, until all is settled: what breaks off is no base.
        # Not its own packs: those of a save before, of the same step, have the same name.
        known = [*self.packs, *(pack for pack in manifest.packs if pack not in self.packs)]
        used = {
            int(number)
            for table in cells.values()
            for number in np.unique(table.pack[table.pack < PACK_MAX])
        }
        named = set(manifest.packs)
        spare = [known[number] for number in sorted(used) if known[number] not in named]
        self.packs = [*manifest.packs, *spare[-SPARE_PACKS_MAX:]]
        place = {pack: number for number, pack in enumerate(self.packs)}
        numbers = np.array([place.get(pack, NOWHERE) for pack in known], np.int64)
        for cell_bytes in [size for size in self.seen if size not in cells]:
            del self.seen[cell_bytes]  # No region has cells of that size any more.
        for cell_bytes, table in cells.items():
            self.seen[cell_bytes].commit(_renumbered(table, numbers))
        self.of = manifest


def _renumbered(table: ExtentTable, numbers: NDArray[np.int64]) -> ExtentTable:
    pack = table.pack.astype(np.int64)
    in_pack = pack < PACK_MAX
    pack[in_pack] = numbers[pack[in_pack]]
    return ExtentTable(table.length, table.source, pack.astype(np.uint32), table.period)


class Base:
    """The last checkpoint of a lineage on a tier, and what is remembered of it.

    The memory moves on with the next checkpoint; a base of which it has moved on is none.

    Args:
        manifest: the checkpoint.
        memory: of it; or a function that makes it when it is first asked for.
        digests: of the chunks of its regions by their names, if they are at hand.
    """

    def __init__(
        self,
        manifest: Manifest,
        memory: Memory | Callable[[], Memory],
        digests: Mapping[str, U64s] | None = None,
    ) -> None:
        self.manifest, self._memory, self._lock = manifest, memory, threading.Lock()
        self.digests: Mapping[str, U64s] = digests or {}

    @property
    def memory(self) -> Memory:
        """What is remembered."""
        with self._lock:
            if not isinstance(self._memory, Memory):
                self._memory = self._memory()
            return self._memory


def remember(manifest: Manifest, buffers: Sequence[memoryview], chunks: Sequence[U64s]) -> Base:
    """Return the base for the checkpoint after one that was restored.

    Its logs begin with the cells of the restored state, so that increments go on, and find what
    they knew before, as if nothing had happened. The bytes are looked at now, and not later.

    Args:
        manifest: what was restored.
        buffers: its bytes, one flat buffer a region.
        chunks: digests of the chunks of each, uint64 [n, 2].
    """
    regions = {}
    for entry, data, digests in zip(manifest.regions, buffers, chunks, strict=True):
        cell_bytes = entry.cell_bytes or manifest.chunk_bytes
        small = cell_bytes < manifest.chunk_bytes
        cells = chunk_digests(data, cell_bytes) if small else None
        regions[entry.name] = RegionMemory(digests, cell_bytes, cells)
    of_regions = {name: region.chunks for name, region in regions.items()}
    return Base(manifest, partial(_remembered, manifest, regions), of_regions)


def _remembered(manifest: Manifest, regions: dict[str, RegionMemory]) -> Memory:
    """Return the memory of a checkpoint, given what is remembered of each region."""
    memory, state_bytes = Memory(packs=list(manifest.packs), regions=regions), 0
    of_size: dict[int, list[int]] = {}
    for number, (entry, region) in enumerate(
        zip(manifest.regions, regions.values(), strict=True)
    ):
        cell_bytes = min(region.cell_bytes, manifest.chunk_bytes)
        of_size.setdefault(cell_bytes, []).append(number)
        state_bytes += entry.size_bytes
    known, layers = list(regions.values()), manifest.region_layers()
    logs = {}
    for cell_bytes, numbers in of_size.items():
        seen = memory.seen_of(cell_bytes, state_bytes)
        own = [known[n].chunks if known[n].cells is None else known[n].cells for n in numbers]
        start, rows = _places(
            seen,
            np.concatenate([np.empty((0, 2), np.uint64), *own]),
            [manifest.regions[n].size_bytes for n in numbers],
            [_bytes_of(layers[n]) for n in numbers],
        )
        logs[cell_bytes] = overlay(seen.extended(NOWHERE), start, rows)
    memory.commit(manifest, logs)
    return memory


def _bytes_of(layers: Sequence[ExtentTable]) -> ExtentTable:
    """Return where the bytes of a region lie as they are; `_places` leaves patterns out."""
    bottom, *above = layers
    table = bottom
    for rows in above:
        changed = rows.stored
        length = rows.length[changed]
        nowhere = ExtentTable(
            length, np.zeros_like(length), np.full(len(length), NOWHERE, np.uint32)
        )
        table = overlay(table, starts_of(rows.length)[changed], nowhere)
    return table


def _places(
    seen: Seen, cells: U64s, sizes: Sequence[int], tables: Sequence[ExtentTable]
) -> tuple[U64, ExtentTable]:
    """Number cells of which all bytes lie in packs; return rows for the new ones in the log.

    Args:
        seen: the log.
        cells: digests of the cells of some regions, uint64 [m, 2].
        sizes: bytes of each region.
        tables: the rows of each.
    """
    step, size = np.uint64(seen.cell_bytes), np.array(sizes, np.uint64)
    counts = (size + step - np.uint64(1)) // step
    of, number = ramps(np.zeros(len(size), np.intp), counts.astype(np.intp))
    within = number.astype(np.uint64) * step
    start, length = starts_of(size)[of] + within, np.minimum(step, size[of] - within)
    table = ExtentTable.of(tables)
    as_is = (table.pack < PACK_MAX) & (table.period == 0)
    pack = np.where(as_is, table.pack, NOWHERE).astype(np.uint32)
    table = ExtentTable(table.length, table.source, pack)
    whole = covered(table, pack != NOWHERE, start, length) == length
    index = np.flatnonzero(whole).astype(np.uint64)
    kind = np.full(len(index), Kind.NEW, np.uint8)
    changes = Changes(
        int(size.sum()), seen.cell_bytes, cells, index, cells[whole], kind, np.zeros_like(index)
    )
    ids, kinds = seen.history.find_or_add(changes)
    new = kinds == Kind.NEW
    of, skipped, rows = look_up(table, start[whole][new], length[whole][new])
    return seen.position(ids[new])[of] + skipped, rows
