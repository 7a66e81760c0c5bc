"""Compare the stored bytes of packs with their digests, each pack once however many need it.

A pack is read in pieces of whole frames, by several threads, and nothing of it is kept: what is
in memory at a time is a piece for each thread. ``tests/unit/test_verify.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import digest
from ckptflow.data.pack import HEAD, FrameTable, decode_table, table_bytes
from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError, TierError
from ckptflow.manifest import SEAL_BYTES
from ckptflow.model import LineageId, PackRef
from ckptflow.store.checking.sample import ALL, Sample
from ckptflow.store.copies import open_pack
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

_BATCH_BYTES = 16 * MIB  # One core's work; the others belong to the computation.
_CHUNK_BYTES_MIN = 16
_NO_FRAMES: NDArray[np.intp] = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class PackCheck:
    """What was found out about one pack on one tier.

    Attributes:
        checked_bytes: of its frames and its table that were compared with their digests.
        problems: what is wrong, a sentence each.
        failed: the pack is missing or damaged: no more than a sound copy can mend it. False
            where it could not be asked.
    """

    checked_bytes: int
    problems: tuple[str, ...]
    failed: bool

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.problems


class PackChecker:
    """Checks the packs of one lineage on one tier, and remembers what it found.

    Args:
        tier: where.
        lineage: whose.
        pool: runs the reads.
        piece_bytes: the most that one read asks for, but for a frame that is larger.
        sample: which frames; tables are always looked at.
    """

    def __init__(
        self,
        tier: Tier,
        lineage: LineageId,
        pool: ThreadPoolExecutor,
        *,
        piece_bytes: int,
        sample: Sample = ALL,
    ) -> None:
        self._tier, self._lineage, self._pool = tier, lineage, pool
        self._piece_bytes, self._sample = piece_bytes, sample
        self._checked: dict[PackRef, PackCheck] = {}

    def check(self, ref: PackRef) -> PackCheck:
        """Return what is known of a pack; reads it only the first time."""
        if ref not in self._checked:
            self._checked[ref] = self._check(ref)
        return self._checked[ref]

    def _check(self, ref: PackRef) -> PackCheck:
        try:
            frames = open_pack(self._tier, self._lineage, ref)
        except (CorruptionError, NotFoundError, TierError) as error:
            return _failure(0, error)
        chosen = self._sample.chosen(ref.key, len(frames))
        checked_bytes = len(HEAD) + table_bytes(len(frames))
        bad: list[NDArray[np.intp]] = []
        try:
            pieces = list(_pieces(frames, chosen, self._piece_bytes))
            for size_bytes, found in self._pool.map(
                lambda piece: self._check_frames(ref, frames, *piece), pieces
            ):
                checked_bytes += size_bytes
                bad.append(found)
        except (CorruptionError, NotFoundError, TierError) as error:
            return _failure(checked_bytes, error)
        key = f"{self._lineage.prefix}/{ref.key}"
        problems = tuple(
            f"Frame {frame} of pack {key!r} on tier {self._tier.name!r} does not match its "
            f"digest."
            for frame in np.concatenate([_NO_FRAMES, *bad]).tolist()
        )
        return PackCheck(checked_bytes, problems, failed=bool(problems))

    def _check_frames(
        self, ref: PackRef, frames: FrameTable, first: int, last: int
    ) -> tuple[int, NDArray[np.intp]]:
        """Read some neighbours; return how many bytes that were, and which are damaged."""
        begin, end = int(frames.offset[first]), int(frames.offset[last])
        stored = memoryview(bytearray(end - begin))
        self._tier.read_into(f"{self._lineage.prefix}/{ref.key}", stored, start_bytes=begin)
        return end - begin, first + _damaged(stored, frames, first, last)


def check_pack(
    stored: bytes | bytearray | memoryview, ref: PackRef, *, where: str
) -> FrameTable:
    """Compare the bytes of a whole pack with what its manifest says of it; return its table.

    Other threads go on meanwhile: digests are made without the lock of the interpreter, and
    nothing but the table is copied.

    Raises:
        CorruptionError: they are not those that were written.
    """
    if len(stored) != ref.size_bytes:
        raise CorruptionError(
            f"Pack {where} has {len(stored)} bytes instead of {ref.size_bytes}."
        )
    stored = memoryview(stored)
    frames = decode_table(
        bytes(stored[: len(HEAD)]),
        bytes(stored[-table_bytes(ref.frame_count) :]),
        size_bytes=ref.size_bytes,
        frame_count=ref.frame_count,
        sealed=ref.table_seal,
        where=where,
    )
    body = stored[int(frames.offset[0]) : int(frames.offset[-1])]
    for frame in _damaged(body, frames, 0, len(frames)).tolist():
        raise CorruptionError(f"Frame {frame} of pack {where} does not match its digest.")
    return frames


def read_ref(key: str, stored: bytes, *, where: str) -> PackRef:
    """Return what a manifest would say of a whole pack; its frames are compared with its table.

    Raises:
        CorruptionError: it is no pack, or damaged.
    """
    tail = stored[-table_bytes(0) :]
    sealed = tail[:SEAL_BYTES]
    count = int.from_bytes(tail[SEAL_BYTES : SEAL_BYTES + 8], "little")
    if len(stored) < len(HEAD) + table_bytes(0) or table_bytes(count) > len(stored):
        raise CorruptionError(f"{where} is no pack, or is cut short ({len(stored)} bytes).")
    ref = PackRef(key, len(stored), 0, count, sealed)
    frames = check_pack(stored, ref, where=where)
    return replace(ref, plain_bytes=int(frames.plain_start[-1]))


def _damaged(stored: memoryview, frames: FrameTable, first: int, last: int) -> NDArray[np.intp]:
    """Return which of some neighbouring frames do not match, counted from the first."""
    edges = (frames.offset[first : last + 1] - frames.offset[first]).tolist()
    made = b"".join(_digests(stored, edges))
    return np.flatnonzero(np.frombuffer(made, "V16") != frames.digest[first:last])


def _digests(stored: memoryview, edges: Sequence[int]) -> Iterator[bytes]:
    """Yield the digests of frames: of neighbours of one size at once.

    After each call this thread waits for the lock of the interpreter, and then a thread that
    computes waits until this one has a core.
    """
    sizes, first = [b - a for a, b in itertools.pairwise(edges)], 0
    while first < len(sizes):
        size, last = sizes[first], first + 1
        if size >= _CHUNK_BYTES_MIN and size % 8 == 0:
            end = min(len(sizes), first + max(1, _BATCH_BYTES // size))
            while last < end and sizes[last] == size:
                last += 1
        piece = stored[edges[first] : edges[last]]
        if last > first + 1:
            yield digest.digest_bytes(digest.chunk_digests(piece, size))
        else:
            yield digest.digest(piece)
        first = last


def _pieces(
    frames: FrameTable, chosen: NDArray[np.intp], piece_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yield runs of chosen neighbours, as first and last + 1, up to ``piece_bytes`` each."""
    first = last = -1
    for frame in chosen.tolist():
        if first >= 0 and (
            frame != last or frames.offset[frame + 1] - frames.offset[first] > piece_bytes
        ):
            yield first, last
            first = -1
        first, last = (frame if first < 0 else first), frame + 1
    if first >= 0:
        yield first, last


def _failure(checked_bytes: int, error: CheckpointError) -> PackCheck:
    unknown = isinstance(error, TierError)
    return PackCheck(checked_bytes, (str(error),), failed=not unknown)
