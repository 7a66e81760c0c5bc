"""A snapshot of a state: all of it, or its digests and what changed since the one before.

Every region has its place in an arena that is as long as the state, whether its bytes are there
or not, and its chunks have their places in one table of digests. A *sparse* region has the
digests of all its chunks, but holds the bytes of those only that are not as in the parent
snapshot, the one before: `Snapshot.held` says which. They are held in *grains* of one chunk or
several, so that a larger unit of reuse is there as a whole or not at all.

`capture` does all regions in one native call, without the GIL: nothing here is a loop over
regions but what looks for their addresses. ``tests/property/test_snapshot_laws.py`` compares
every backend with plain Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.backend import kernels
from ckptflow.data.buffers import Bytes, I64s, U64s
from ckptflow.data.digest import chunk_digests
from ckptflow.data.division import ALIGNMENT_BYTES

PAGE_BYTES = 4096
PAGED_BYTES_MIN = 64 << 10  # Regions from here on begin with a page: a held chunk takes one.

Mask = NDArray[np.bool_]


# What is done with a region; the bits are those of ``native/capture.hpp``.
NOTHING = np.uint64(0)
WHOLE = np.uint64(1)  # All of it is copied,
DIGEST = np.uint64(
    2
)  # its chunks are digested and, unless WHOLE, compared: what changed is copied.
COMPARE = np.uint64(4)  # With DIGEST: nothing is copied, and what would be is marked.


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the regions of a state lie; arrays have one entry for each, uint64.

    Attributes:
        chunk_bytes: unit of digest.
        nbytes: of each region.
        offset: where it begins in the arena.
        first: number of its first chunk in the table of digests.
        arena_bytes: length of the arena.
        chunks: how many the table has.
    """

    chunk_bytes: int
    nbytes: U64s
    offset: U64s
    first: U64s
    arena_bytes: int
    chunks: int

    @staticmethod
    def of(sizes: Sequence[int] | I64s, chunk_bytes: int) -> Places:
        """Place regions of these sizes: the large ones first, each from a page on."""
        nbytes = np.asarray(sizes, np.int64).astype(np.uint64)
        large = nbytes >= PAGED_BYTES_MIN
        unit = np.where(large, np.uint64(PAGE_BYTES), np.uint64(ALIGNMENT_BYTES))
        room = (nbytes + unit - np.uint64(1)) // unit * unit
        order = np.argsort(~large, kind="stable")
        offset = np.empty_like(room)
        offset[order] = np.cumsum(room[order], dtype=np.uint64) - room[order]
        counts = _counts(nbytes, chunk_bytes)
        first = np.cumsum(counts, dtype=np.uint64) - counts
        return Places(chunk_bytes, nbytes, offset, first, int(room.sum()), int(counts.sum()))

    @property
    def counts(self) -> U64s:
        """Chunks of each region."""
        return _counts(self.nbytes, self.chunk_bytes)

    def chunks_of(self, number: int) -> slice:
        """Return the place of a region in the table of digests."""
        first = int(self.first[number])
        return slice(first, first + -(-int(self.nbytes[number]) // self.chunk_bytes))

    def bytes_of(self, number: int) -> slice:
        """Return the place of a region in the arena."""
        start = int(self.offset[number])
        return slice(start, start + int(self.nbytes[number]))


@dataclass(slots=True, eq=False)
class Snapshot:
    """What is known of the regions of a state at one instant, besides their bytes.

    Attributes:
        names: of the regions.
        places: where they lie.
        digests: of all chunks, uint64 [chunks, 2]; of those regions that have been digested.
        digested: of which regions the digests are known, bool [regions].
        held: which chunks lie in the arena, uint8 [chunks].
    """

    names: Sequence[str]
    places: Places
    digests: U64s = field(init=False)
    digested: Mask = field(init=False)
    held: Bytes = field(init=False)
    _numbers: dict[str, int] | None = None

    def __post_init__(self) -> None:
        self.digests = np.empty((self.places.chunks, 2), np.uint64)
        self.digested = np.zeros(len(self.names), np.bool_)
        self.held = np.zeros(self.places.chunks, np.uint8)

    def number(self, name: str) -> int | None:
        """Return the number of a region; ``None`` if there is none of that name."""
        if self._numbers is None:
            self._numbers = {name: number for number, name in enumerate(self.names)}
        return self._numbers.get(name)

    def digests_of(self, number: int) -> U64s:
        """Return the digests of the chunks of a region, a view."""
        return self.digests[self.places.chunks_of(number)]

    def held_of(self, number: int) -> Mask:
        """Return which chunks of a region are in the arena, a view."""
        return self.held[self.places.chunks_of(number)].view(np.bool_)

    def learn(self, number: int, digests: U64s) -> None:
        """Take over the digests of a region that was copied, from who computed them."""
        self.digests_of(number)[:] = digests
        self.digested[number] = True

    @property
    def held_bytes(self) -> int:
        """Bytes in the arena; a last chunk that is shorter counts as a whole one."""
        return int(np.count_nonzero(self.held)) * self.places.chunk_bytes

    def like(self, other: Snapshot) -> bool:
        """Whether both have the same regions at the same places."""
        if self.places is other.places and self.names is other.names:
            return True
        return (
            self.places.chunk_bytes == other.places.chunk_bytes
            and len(self.names) == len(other.names)
            and np.array_equal(self.places.nbytes, other.places.nbytes)
            and list(self.names) == list(other.names)
        )


class Parent:
    """The digests that a snapshot is compared with, at its own places.

    Attributes:
        digests: uint64 [chunks, 2].
        known: how many chunks of each region have one, uint64 [regions].
    """

    def __init__(self, of: Snapshot, before: Snapshot | None) -> None:
        self.known: U64s = np.zeros(len(of.names), np.uint64)
        if before is None or before.places.chunk_bytes != of.places.chunk_bytes:
            self.digests: U64s = np.empty((of.places.chunks, 2), np.uint64)
        elif of.like(before):
            self.digests = before.digests
            self.known = np.where(before.digested, of.places.counts, np.uint64(0))
        else:
            self.digests = np.empty((of.places.chunks, 2), np.uint64)
            self._take(
                {before.names[n]: before.digests_of(n) for n in _where(before.digested)}, of
            )

    @classmethod
    def of_digests(cls, of: Snapshot, digests: Mapping[str, U64s]) -> Parent:
        """Return the digests that are known of some regions, by name."""
        parent = cls(of, None)
        parent._take(digests, of)
        return parent

    def _take(self, digests: Mapping[str, U64s], of: Snapshot) -> None:
        for name, theirs in digests.items():
            if (number := of.number(name)) is not None:
                place = of.places.chunks_of(number)
                known = min(place.stop - place.start, len(theirs))
                self.digests[place.start : place.start + known] = theirs[:known]
                self.known[number] = known


def capture(
    snapshot: Snapshot,
    address: I64s,
    how: U64s,
    *,
    arena: Bytes,
    parent: Parent,
    grain: U64s,
    limit_bytes: int,
) -> int | None:
    """Digest regions where they lie, and copy what changed into an arena.

    The bytes must stay where they are until this returns: whoever calls keeps the arrays.

    Args:
        snapshot: its digests and what is held are set, for the regions that are done.
        address: of each region, int64 [n].
        how: bits for each, as `DIGEST`, uint64 [n].
        arena: writable, at least as long as the places say.
        parent: what is compared with.
        grain: chunks that are held together, at least 1, uint64 [n].
        limit_bytes: how much may be copied.

    Returns:
        The bytes copied; ``None`` if that would have been more than ``limit_bytes``.

    Raises:
        ValueError: the arena is too short.
    """
    places = snapshot.places
    which = np.flatnonzero((how != NOTHING) & (places.nbytes > 0))
    if not len(which):
        return 0
    if not (how[which] & COMPARE).all() and len(arena) < places.arena_bytes:
        raise ValueError(
            f"The arena has {len(arena)} bytes, the snapshot needs {places.arena_bytes}."
        )
    columns = (
        address.astype(np.uint64),
        places.nbytes,
        places.offset,
        places.first,
        parent.known,
        grain,
        how,
    )
    rows = np.stack([column[which] for column in columns], axis=1)
    taken = kernels().capture(
        rows,
        places.chunk_bytes,
        arena,
        parent.digests,
        snapshot.digests,
        snapshot.held,
        limit_bytes,
    )
    if taken < 0:
        return None
    digested = (how[which] & DIGEST) != 0
    snapshot.digested[which[digested]] = True
    return taken


def changed_fractions(snapshot: Snapshot, parent: Parent) -> dict[str, float]:
    """Return what fraction of its chunks changed, of each region that both have digests of."""
    places = snapshot.places
    counts = places.counts
    both = snapshot.digested & (parent.known == counts) & (counts > 0)
    if not both.any():
        return {}
    some = np.flatnonzero(counts)
    differs = (snapshot.digests != parent.digests).any(axis=1)
    changed = np.zeros(len(counts), np.int64)
    changed[some] = np.add.reduceat(differs, places.first[some].astype(np.intp), dtype=np.int64)
    return {snapshot.names[n]: int(changed[n]) / int(counts[n]) for n in _where(both)}


def torn(snapshot: Snapshot, address: I64s, which: Mask) -> list[int]:
    """Return the numbers of the regions whose bytes are not those that were digested.

    Args:
        snapshot: its digests are compared.
        address: of each region, int64 [n].
        which: regions to look at, all digested, bool [n].
    """
    again = Snapshot(snapshot.names, snapshot.places)
    how = np.where(which, DIGEST | COMPARE, NOTHING)
    grain = np.ones(len(how), np.uint64)
    parent = Parent(again, snapshot)
    capture(
        again,
        address,
        how,
        arena=np.empty(0, np.uint8),
        parent=parent,
        grain=grain,
        limit_bytes=0,
    )
    return [number for number in _where(which) if again.held_of(number).any()]


def digests_at(data: Bytes, numbers: NDArray[np.intp], chunk_bytes: int) -> U64s:
    """Return the digests of some chunks of a region, whose numbers rise, uint64 [n, 2]."""
    there = len(data) // chunk_bytes
    whole = numbers[numbers < there]
    chunks = data[: there * chunk_bytes].reshape(-1, chunk_bytes)
    parts = [
        chunk_digests(chunks[whole[at : at + _TOGETHER]], chunk_bytes)
        for at in range(0, len(whole), _TOGETHER)
    ]
    if len(whole) < len(numbers):
        parts.append(chunk_digests(data[there * chunk_bytes :], chunk_bytes))
    return np.concatenate([np.empty((0, 2), np.uint64), *parts])


_TOGETHER = 256  # Chunks gathered at a time.


def runs_of(marks: Mask) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where runs of marked entries begin and end."""
    edges = np.flatnonzero(np.diff(marks, prepend=False, append=False))
    return edges[::2], edges[1::2]


def _counts(nbytes: U64s, chunk_bytes: int) -> U64s:
    step = np.uint64(chunk_bytes)
    return (nbytes + step - np.uint64(1)) // step


def _where(mask: Mask) -> list[int]:
    return [int(number) for number in np.flatnonzero(mask)]
