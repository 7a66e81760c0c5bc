"""Bring bytes into a snapshot that it left to those before it.

A sparse snapshot has what changed since the snapshot before. What a checkpoint is written
against may be an older one, on another tier; or old packs are to be left behind, and what is
needed of them written anew. Then bytes lack. They are taken from snapshots that were never
committed, else read back from checkpoints. Each chunk has to have the digest that it was
captured with, so that it does not matter where it comes from.
``tests/unit/test_completion.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.buffers import writable_byte_view
from ckptflow.data.extents import U64
from ckptflow.data.ranges import copy_ranges
from ckptflow.data.snapshot import digests_at, runs_of
from ckptflow.errors import CorruptionError, IncompleteSnapshot, NotFoundError, TierError
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.partial import PART_BYTES, PartialReader
from ckptflow.tiers.tier import Tier
from ckptflow.units import format_bytes

Mask = NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Lack:
    """Chunks of one region that are wanted and not there; fewer as they are found."""

    region: NamedRegion
    chunks: Mask

    @staticmethod
    def of(region: NamedRegion, wanted: Mask | np.bool_) -> Lack | None:
        """Return what lacks of the wanted chunks of a region, if anything does."""
        if region.held is None:
            return None
        lacking = wanted & ~region.held
        return Lack(region, lacking) if lacking.any() else None


@dataclass(frozen=True, slots=True)
class Sources:
    """Where bytes may be had that a snapshot has not.

    Attributes:
        snapshots: that were not committed, the newest first: their regions.
        checkpoints: with the tiers that have them, the preferred first.
        completed: told how many bytes were added to the snapshot.
    """

    snapshots: Sequence[Sequence[NamedRegion]] = ()
    checkpoints: Sequence[tuple[Base, Sequence[Tier]]] = ()
    completed: Callable[[int], None] = field(default=lambda _bytes: None)

    def complete(self, lacks: Sequence[Lack], chunk_bytes: int) -> None:
        """Fill in what lacks, and mark it as held.

        Raises:
            IncompleteSnapshot: something is nowhere to be had; what was found is filled in.
        """
        for regions in self.snapshots:
            _from_snapshot(_left(lacks), regions, chunk_bytes, self.completed)
        problems = []
        for base, tiers in self.checkpoints:
            try:
                _from_checkpoint(_left(lacks), base, tiers, chunk_bytes, self.completed)
            except (CorruptionError, NotFoundError, TierError) as error:
                problems.append(error)
        if left := _left(lacks):
            raise _incomplete(left, chunk_bytes, problems)


NO_SOURCES = Sources()


def absorb(
    regions: Sequence[NamedRegion], earlier: Sequence[NamedRegion], chunk_bytes: int
) -> int:
    """Take over what an earlier snapshot holds that is still as it was; return the bytes."""
    taken: list[int] = []
    lacks = [Lack.of(region, np.True_) for region in regions]
    _from_snapshot([lack for lack in lacks if lack], earlier, chunk_bytes, taken.append)
    return sum(taken)


def _left(lacks: Sequence[Lack]) -> list[Lack]:
    return [lack for lack in lacks if lack.chunks.any()]


def _from_snapshot(
    lacks: Sequence[Lack],
    regions: Sequence[NamedRegion],
    chunk_bytes: int,
    completed: Callable[[int], None],
) -> None:
    if not lacks:
        return
    by_name = {region.name: region for region in regions}
    for lack in lacks:
        source = by_name.get(lack.region.name)
        if source is None:
            continue
        count = min(len(lack.chunks), -(-len(source.data) // chunk_bytes))
        there = lack.chunks.copy()
        there[count:] = False
        if source.held is not None:
            there[:count] &= source.held[:count]
        if len(source.data) != len(lack.region.data):
            there[count - 1 :] = False  # The last chunk of either is another piece.
        start, length = _ranges(there, chunk_bytes, len(lack.region.data))
        copy_ranges(source.data, lack.region.data, start, start, length)
        completed(_take(lack, there, chunk_bytes))


def _from_checkpoint(
    lacks: Sequence[Lack],
    base: Base,
    tiers: Sequence[Tier],
    chunk_bytes: int,
    completed: Callable[[int], None],
) -> None:
    if base.manifest.chunk_bytes != chunk_bytes or base.memory.of is not base.manifest:
        return
    numbers = {entry.name: n for n, entry in enumerate(base.manifest.regions)}
    wanted = [(lack, found) for lack in lacks if (found := _same_there(lack, base)).any()]
    if not wanted:
        return
    with PartialReader(tiers, base.manifest) as reader:
        for lack, found in wanted:
            for there in _parts(found, max(1, PART_BYTES // chunk_bytes)):
                start, length = _ranges(there, chunk_bytes, len(lack.region.data))
                number = numbers[lack.region.name]
                data, shifted = reader.read(np.full(len(start), number, np.intp), start, length)
                copy_ranges(data[number], lack.region.data, shifted, start, length)
                completed(_take(lack, there, chunk_bytes))


def _same_there(lack: Lack, base: Base) -> Mask:
    """Return which lacking chunks a checkpoint has, by their digests."""
    found = np.zeros_like(lack.chunks)
    theirs = base.memory.regions.get(lack.region.name)
    assert lack.region.digests is not None, "only what has digests can lack bytes"
    if theirs is not None:
        count = min(len(found), len(theirs.chunks))
        same = (theirs.chunks[:count] == lack.region.digests[:count]).all(axis=1)
        found[:count] = lack.chunks[:count] & same
    return found


def _parts(marks: Mask, most: int) -> list[Mask]:
    numbers = np.flatnonzero(marks)
    parts = []
    for at in range(0, len(numbers), most):
        part = np.zeros_like(marks)
        part[numbers[at : at + most]] = True
        parts.append(part)
    return parts


def _ranges(marks: Mask, chunk_bytes: int, size_bytes: int) -> tuple[U64, U64]:
    first, end = runs_of(marks)
    start = first.astype(np.uint64) * np.uint64(chunk_bytes)
    stop = np.minimum(end.astype(np.uint64) * np.uint64(chunk_bytes), np.uint64(size_bytes))
    return start, stop - start


def _take(lack: Lack, marks: Mask, chunk_bytes: int) -> int:
    """Mark those of some chunks as held that have their digest; return how many bytes."""
    region, numbers = lack.region, np.flatnonzero(marks)
    assert region.digests is not None, "only what has digests can lack bytes"
    assert region.held is not None, "it lacked some"
    found = digests_at(writable_byte_view(region.data), numbers, chunk_bytes)
    right = numbers[(found == region.digests[numbers]).all(axis=1)]
    region.held[right] = True
    lack.chunks[right] = False
    return len(right) * chunk_bytes


def _incomplete(
    lacks: Sequence[Lack], chunk_bytes: int, problems: Sequence[Exception]
) -> IncompleteSnapshot:
    lacking_bytes = sum(int(lack.chunks.sum()) for lack in lacks) * chunk_bytes
    names = ", ".join(repr(lack.region.name) for lack in lacks[:3])
    more = f" and {len(lacks) - 3} more" if len(lacks) > 3 else ""
    error = IncompleteSnapshot(
        f"The snapshot has only what changed, and {format_bytes(lacking_bytes)} of regions "
        f"{names}{more} that it left to an earlier one are not to be had any more. Nothing of "
        f"this save is stored there; the next one is captured as a whole."
    )
    for problem in problems:
        error.add_note(str(problem))
    return error
