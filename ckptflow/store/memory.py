"""What the next checkpoint is diffed against: the last one, as this process remembers it.

A `Base` belongs to one lineage on one tier. It changes only when a checkpoint is committed, so
a save that fails leaves it, and the lineage, as they were. Besides the manifest it has, per
region, the digests of its chunks and of their cells; per size of cell, the log of all cells
seen (`ckptflow.data.history`), with the packs in which they lie; and, if somebody keeps them
alive, the very bytes. ``tests/property/test_layout_laws.py``, ``tests/unit/test_base.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.buffers import U64s
from ckptflow.data.digest import chunk_digests
from ckptflow.data.encoding import Chooser
from ckptflow.data.extents import U64, covered, look_up, merge, overlay, starts_of
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
    """

    name: str
    data: memoryview
    item_bytes: int = 1
    digests: U64s | None = None
    held: NDArray[np.bool_] | None = None

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


@dataclass(frozen=True, slots=True)
class Base:
    """The last checkpoint of a lineage on a tier, and what is remembered of it.

    The memory moves on with the next checkpoint; a base of which it has moved on is none.
    """

    manifest: Manifest
    memory: Memory


def remember(manifest: Manifest, buffers: Sequence[memoryview], chunks: Sequence[U64s]) -> Base:
    """Return the base for the checkpoint after one that was restored.

    Its logs begin with the cells of the restored state, so that increments go on, and find what
    they knew before, as if nothing had happened.

    Args:
        manifest: what was restored.
        buffers: its bytes, one flat buffer a region.
        chunks: digests of the chunks of each, uint64 [n, 2].
    """
    memory, state_bytes = Memory(packs=list(manifest.packs)), manifest.state_bytes
    places: dict[int, list[tuple[U64, ExtentTable]]] = {}
    for entry, layers, data, digests in zip(
        manifest.regions, manifest.region_layers(), buffers, chunks, strict=True
    ):
        cell_bytes = entry.cell_bytes or manifest.chunk_bytes
        small = cell_bytes < manifest.chunk_bytes
        region = RegionMemory(
            digests, cell_bytes, chunk_digests(data, cell_bytes) if small else None
        )
        memory.regions[entry.name] = region
        seen = memory.seen_of(min(cell_bytes, manifest.chunk_bytes), state_bytes)
        own = digests if region.cells is None else region.cells
        places.setdefault(seen.cell_bytes, []).append(_places(seen, own, _bytes_of(layers)))
    memory.commit(
        manifest,
        {
            cell_bytes: overlay(
                memory.seen[cell_bytes].extended(NOWHERE),
                np.concatenate([start for start, _ in of_regions]),
                ExtentTable.of([rows for _, rows in of_regions]),
            )
            for cell_bytes, of_regions in places.items()
        },
    )
    return Base(manifest, memory)


def _bytes_of(layers: Sequence[ExtentTable]) -> ExtentTable:
    """Return where the bytes of a region lie as they are; those of patterns lie nowhere."""
    bottom, *above = layers
    as_is = (bottom.pack < PACK_MAX) & (bottom.period == 0)
    pack = np.where(as_is, bottom.pack, NOWHERE).astype(np.uint32)
    table = ExtentTable(bottom.length, bottom.source, pack)
    for rows in above:
        changed = rows.stored
        length = rows.length[changed]
        nowhere = ExtentTable(
            length, np.zeros_like(length), np.full(len(length), NOWHERE, np.uint32)
        )
        table = overlay(table, starts_of(rows.length)[changed], nowhere)
    return table


def _places(seen: Seen, cells: U64s, table: ExtentTable) -> tuple[U64, ExtentTable]:
    """Number cells of which all bytes lie in packs; return rows for the new ones in the log."""
    size_bytes = int(table.length.sum())
    step = np.uint64(seen.cell_bytes)
    start = np.arange(len(cells), dtype=np.uint64) * step
    length = np.minimum(step, np.uint64(size_bytes) - start)
    whole = covered(table, table.pack != NOWHERE, start, length) == length
    index = np.flatnonzero(whole).astype(np.uint64)
    kind = np.full(len(index), Kind.NEW, np.uint8)
    changes = Changes(
        size_bytes, seen.cell_bytes, cells, index, cells[whole], kind, np.zeros_like(index)
    )
    ids, kinds = seen.history.find_or_add(changes)
    new = kinds == Kind.NEW
    of, skipped, rows = look_up(table, start[whole][new], length[whole][new])
    return seen.position(ids[new])[of] + skipped, rows
