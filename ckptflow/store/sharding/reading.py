"""Read a set: any bytes of any whole region, from whichever shards have them.

Wanted bytes and stored parts are both runs of a whole region in C order; a lookup says which
part has which of the wanted bytes. What is a region of a shard from its first byte to its last,
and lies together where it is wanted, is read into place and verified by its root; of
anything else only the frames that hold the wanted bytes are read, each checked by its digest.
``tests/unit/test_slices.py``, ``tests/property/test_reshard_laws.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.arrays import ArraySpec
from ckptflow.data.extents import U64, look_up, merge, starts_of
from ckptflow.data.runs import Runs, box_layout, common, runs_of
from ckptflow.data.tree import iter_arrays
from ckptflow.errors import CorruptionError, NotFoundError
from ckptflow.model import FILL, ExtentTable, Manifest
from ckptflow.store.arrays import parts_of, restrict
from ckptflow.store.catalog import Lineage
from ckptflow.store.partial import PartialReader, scatter
from ckptflow.store.rereading import consolidated
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.sharding.mapping import ShardMap, WholeRegion, read_map
from ckptflow.store.sharding.sets import FoundSet, ShardSets, lacking
from ckptflow.tiers.tier import Tier

Digests: TypeAlias = "NDArray[np.uint64]"


@dataclass(slots=True)
class StoredShard:
    """One shard of a set, as its manifest describes it."""

    lineage: Lineage
    tiers: Sequence[Tier]  # The preferred first.
    manifest: Manifest
    map: ShardMap
    specs: list[ArraySpec]  # Of its parts.

    @staticmethod
    def read(sets: ShardSets, found: FoundSet, rank: int) -> StoredShard:
        """Read the manifest of a rank.

        Raises:
            NotFoundError: its shard is not there.
            CorruptionError: no copy is sound, or it is no shard of this set.
            FormatError: it was written by a newer version.
        """
        shard = found.shards[rank]
        if shard is None:
            raise NotFoundError(f"{sets.id} {found}: {lacking(found)}.")
        lineage = sets.shard(rank, found.world)
        manifest = lineage.manifest(shard)
        where = f"{lineage.id} {manifest.id}"
        map_ = read_map(manifest.structure, where=where)
        specs = [spec for _, spec in iter_arrays(parts_of(manifest.structure)["state"])]
        if (map_.rank, map_.world) != (rank, found.world) or len(specs) != len(map_.parts):
            raise CorruptionError(f"{where} is not the shard of rank {rank} of {found.world}.")
        others = [tier for tier in lineage.tiers if tier not in shard.tiers]
        return StoredShard(lineage, [*shard.tiers, *others], manifest, map_, specs)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bytes of one whole region, and where they go.

    Attributes:
        region: which; of an own region, that of ``rank``.
        rank: whose own regions are meant.
        buffer: where they go, flat and writable.
        runs: the bytes, in the order in which they fill the buffer; ``None``: all of them.
    """

    region: WholeRegion
    rank: int
    buffer: memoryview
    runs: Runs | None = None


@dataclass(slots=True)
class _Reads:
    """What is to be read of one shard.

    Attributes:
        direct: by the number of the region in its manifest, where all of it goes.
        pieces: number of the region, start and length in it, the buffer, start in that.
    """

    direct: dict[int, memoryview] = field(default_factory=dict)
    pieces: list[tuple[int, U64, U64, memoryview, U64]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Source:
    """One part of a whole region: of which shard, and its number there."""

    rank: int
    part: int


class SetReader:
    """Reads one complete set.

    Args:
        sets: whose.
        found: which set.
        note: told, in a sentence, of every copy that was skipped and why.

    Raises:
        NotFoundError: a shard lacks.
        CorruptionError: some manifest has no sound copy, or shards contradict each other.
        FormatError: some manifest was written by a newer version.
    """

    def __init__(
        self,
        sets: ShardSets,
        found: FoundSet,
        *,
        note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.sets, self.found, self._note = sets, found, note
        self.shards = [StoredShard.read(sets, found, rank) for rank in range(found.world)]
        self._check_agreement()
        # What was read as a whole, by rank and number of the region in its manifest.
        self.whole: dict[tuple[int, int], memoryview] = {}
        self.digests: dict[tuple[int, int], Digests] = {}
        self.failed_tiers: set[str] = set()

    def _check_agreement(self) -> None:
        roots = {one.map.roots for one in self.shards if one.map.roots is not None}
        if len(roots) > 1:
            raise CorruptionError(
                f"{self.sets.id} {self.found}: the ranks held different replicated arrays, so "
                f"what is stored of them is no state that any rank had."
            )

    @cached_property
    def _sources(self) -> dict[tuple[int, str], list[_Source]]:
        """Return the parts of each region, by the rank it belongs to (-1: all) and its name."""
        found: dict[tuple[int, str], list[_Source]] = defaultdict(list)
        for rank, shard in enumerate(self.shards):
            for number, part in enumerate(shard.map.parts):
                region = shard.map.regions[part.region]
                found[_key(region, rank)].append(_Source(rank, number))
        return found

    def fill(
        self,
        wanted: Sequence[Wanted],
        *,
        also: Mapping[int, Mapping[int, memoryview]] | None = None,
    ) -> None:
        """Read bytes to where they are wanted.

        Args:
            wanted: of the whole regions.
            also: by rank and by the number of a region in its manifest, where all of that goes.

        Raises:
            CorruptionError: something has no sound copy, or no shard has it.
        """
        reads: dict[int, _Reads] = defaultdict(_Reads)
        for rank, regions in (also or {}).items():
            reads[rank].direct |= regions
        for one in wanted:
            self._plan(one, reads)
        for rank, planned in sorted(reads.items()):
            self._read(rank, planned)

    def _plan(self, wanted: Wanted, reads: dict[int, _Reads]) -> None:
        sources = self._sources.get(_key(wanted.region, wanted.rank), [])
        if wanted.runs is None and len(sources) == 1:
            source = sources[0]
            spec, region_bytes = self._stored(source)
            if (
                self.shards[source.rank].map.parts[source.part].lengths == wanted.region.shape
                and _is_whole(spec, region_bytes)
                and spec.region not in reads[source.rank].direct
            ):
                reads[source.rank].direct[spec.region] = wanted.buffer
                return
        for source, target, length, start in self._look_up(wanted, sources):
            spec, region_bytes = self._stored(source)
            planned = reads[source.rank]
            if (
                len(start) == 1
                and length[0] == region_bytes
                and spec.region not in planned.direct
            ):
                first = int(target[0])
                planned.direct[spec.region] = wanted.buffer[first : first + region_bytes]
            else:
                planned.pieces.append((spec.region, start, length, wanted.buffer, target))

    def _stored(self, source: _Source) -> tuple[ArraySpec, int]:
        shard = self.shards[source.rank]
        spec = shard.specs[source.part]
        return spec, shard.manifest.regions[spec.region].size_bytes

    def _look_up(
        self, wanted: Wanted, sources: Sequence[_Source]
    ) -> list[tuple[_Source, U64, U64, U64]]:
        """Return, per part, where its pieces go, their lengths, and where they begin."""
        region = wanted.region
        table = self._table(region, sources)
        runs = wanted.runs
        if runs is None:
            runs = Runs(np.zeros(min(1, region.size_bytes), np.int64), region.size_bytes)
        length = np.full(len(runs.start), runs.length, np.uint64)
        of, skipped, rows = look_up(table, runs.start.astype(np.uint64), length)
        if (rows.pack == FILL).any():
            raise CorruptionError(
                f"{self.sets.id} {self.found}: no shard has all of {region.name!r}."
            )
        target = starts_of(length)[of] + skipped
        target, rows = merge(target, rows)
        return [
            (source, target[mine], rows.length[mine], rows.source[mine])
            for number, source in enumerate(sources)
            if len(mine := np.flatnonzero(rows.pack == number))
        ]

    def _table(self, region: WholeRegion, sources: Sequence[_Source]) -> ExtentTable:
        """Return which part has each byte of a region; bytes that none has are fills."""
        starts, lengths, at, number = [], [], [], []
        for index, source in enumerate(sources):
            shard = self.shards[source.rank]
            part, spec = shard.map.parts[source.part], shard.specs[source.part]
            box = box_layout(region.shape, region.item_bytes, part.offset, part.lengths)
            there, here = common(runs_of(box), runs_of(spec.layout()))
            if len(there.start) != len(here.start):
                raise CorruptionError(
                    f"{shard.lineage.id} {shard.manifest.id}: a part of {region.name!r} has "
                    f"another size than its place."
                )
            starts.append(there.start)
            at.append(here.start)
            lengths.append(np.full(len(there.start), there.length, np.int64))
            number.append(np.full(len(there.start), index, np.uint32))
        if not starts:
            starts, lengths, at = ([np.empty(0, np.int64)] for _ in range(3))
            number = [np.empty(0, np.uint32)]
        return _covering(
            np.concatenate(starts),
            np.concatenate(lengths),
            np.concatenate(at),
            part=np.concatenate(number),
            size_bytes=region.size_bytes,
        )

    def _read(self, rank: int, planned: _Reads) -> None:
        shard = self.shards[rank]
        try:
            self._read_from(shard, rank, planned)
        except CorruptionError:  # Its packs may have gone with a consolidation.
            other = consolidated(shard.tiers, shard.manifest)
            if other is None:
                raise
            shard.manifest = other
            self._read_from(shard, rank, planned)

    def _read_from(self, shard: StoredShard, rank: int, planned: _Reads) -> None:
        if numbers := sorted(planned.direct):
            part = restrict(shard.manifest, *numbers)
            buffers = [planned.direct[number] for number in numbers]
            found = read_checkpoint(
                shard.tiers,
                part,
                buffers,
                note=self._note,
                on_failed=lambda tier: self.failed_tiers.add(tier.name),
            )
            self.digests |= {(rank, n): one for n, one in zip(numbers, found, strict=True)}
            self.whole |= {(rank, n): planned.direct[n] for n in numbers}
        if planned.pieces:
            with PartialReader(shard.tiers, shard.manifest, note=self._note) as reader:
                for number, start, length, buffer, target in planned.pieces:
                    scatter(reader, number, start, length, buffer=buffer, target=target)


def _covering(
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    at: NDArray[np.int64],
    *,
    part: NDArray[np.uint32],
    size_bytes: int,
) -> ExtentTable:
    """Return a table over a region; where parts overlap, the first one counts."""
    order = np.lexsort((part, start))
    order = order[length[order] > 0]
    start, length, at, part = start[order], length[order], at[order], part[order]
    end = start + length
    before = np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(end)])[: len(end)]
    first = np.minimum(np.maximum(start, before), end)
    at, length = at + (first - start), end - first
    gap_start = np.minimum(before, first)
    gap = first - gap_start
    rest = size_bytes - (int(end.max()) if len(end) else 0)
    columns = np.empty((2 * len(start) + 1, 3), np.uint64)
    columns[0:-1:2] = np.stack([gap, np.zeros_like(gap), np.full_like(gap, FILL)], axis=1)
    columns[1::2] = np.stack([length, at, part.astype(np.int64)], axis=1)
    columns[-1] = rest, 0, FILL
    some = columns[:, 0] > 0
    return ExtentTable(
        np.ascontiguousarray(columns[some, 0]),
        np.ascontiguousarray(columns[some, 1]),
        columns[some, 2].astype(np.uint32),
    )


def _key(region: WholeRegion, rank: int) -> tuple[int, str]:
    return (rank if region.kind == "own" else -1), region.name


def _is_whole(spec: ArraySpec, region_bytes: int) -> bool:
    """Tell whether an array is all of its region, in C order."""
    return (
        spec.offset_bytes == 0
        and spec.strides_bytes is None
        and spec.size_bytes == region_bytes
    )
