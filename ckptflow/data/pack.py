"""Packs: many frames in one object, with a table at its end.

Two halves. *Planning* decides, before a byte is touched, which pieces of which regions go
into which frame and pack. *The table* is written behind the frames and read back before them.
Byte layout: ``docs/reference/format-v1.md``.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.extents import U64, split, starts_of
from ckptflow.errors import CorruptionError
from ckptflow.manifest import SEAL_BYTES, seal
from ckptflow.units import KIB, MIB

FRAME_BYTES = 1 * MIB
PACK_BYTES = 256 * MIB
GATHER_BYTES = 64 * KIB  # Pieces from this size on make frames of their own, uncopied.

HEAD = b"CKFPACK1" + bytes(8)
TAIL_MAGIC = b"CKFPEND1"
FRAME_PLAIN_MAX = 4 * MIB

_TAIL = struct.Struct(f"<{SEAL_BYTES}sQ8s")
_RECORD = np.dtype(
    [("stored", "<u4"), ("plain", "<u4"), ("codec", "u1"), ("zero", "V3"), ("digest", "V16")]
)


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Where pieces of regions will lie. All arrays are per piece, in stream order.

    Attributes:
        region: number of the region, intp [p].
        start: first byte within the region, uint64 [p].
        length: bytes, uint64 [p].
        frame: number of the frame, counted over all packs, intp [p].
        pack: number of the pack, from 0, intp [p].
        source: position in the plain stream of that pack, uint64 [p].
    """

    region: NDArray[np.intp]
    start: U64
    length: U64
    frame: NDArray[np.intp]
    pack: NDArray[np.intp]
    source: U64

    @property
    def pack_count(self) -> int:
        """Number of packs."""
        return int(self.pack[-1]) + 1 if len(self.pack) else 0

    def frames_of(self, pack: int) -> list[slice]:
        """Return, for each frame of a pack, its pieces."""
        first, last = np.searchsorted(self.pack, [pack, pack + 1])
        bounds = first + 1 + np.flatnonzero(np.diff(self.frame[first:last]))
        edges = [int(first), *bounds.tolist(), int(last)]
        return [slice(a, b) for a, b in itertools.pairwise(edges)]


def plan_packs(region: NDArray[np.intp], start: U64, length: U64) -> PackPlan:
    """Lay out pieces of regions, given in stream order.

    A piece of `GATHER_BYTES` or more becomes frames of its own, which are views on the region;
    runs of smaller ones share frames, into which they are gathered. Frames hold up to
    `FRAME_BYTES`, packs about `PACK_BYTES`.
    """
    if not len(length):
        none, zero = np.empty(0, np.intp), np.empty(0, np.uint64)
        return PackPlan(none, zero, zero, none, none, zero)
    large = length >= GATHER_BYTES
    new_segment = np.concatenate([[True], large[1:] | large[:-1]])
    heads = np.flatnonzero(new_segment)
    segment = np.cumsum(new_segment) - 1
    stream = starts_of(length)
    position = stream - stream[heads][segment]
    piece, skipped, size = split(position, length, FRAME_BYTES)
    block = (position[piece] + skipped) // np.uint64(FRAME_BYTES)
    changes = (segment[piece][1:] != segment[piece][:-1]) | (block[1:] != block[:-1])
    frame_heads = np.concatenate([[True], changes])
    frame = np.cumsum(frame_heads) - 1
    stream = starts_of(size)
    frame_start = stream[np.flatnonzero(frame_heads)]
    pack_of_frame = (frame_start // np.uint64(PACK_BYTES)).astype(np.intp)
    pack_of_frame = np.unique(pack_of_frame, return_inverse=True)[1].astype(np.intp)
    pack = pack_of_frame[frame]
    pack_start = stream[np.searchsorted(pack, np.arange(int(pack[-1]) + 1))]
    return PackPlan(
        region=region[piece],
        start=start[piece] + skipped,
        length=size,
        frame=frame,
        pack=pack,
        source=stream - pack_start[pack],
    )


@dataclass(frozen=True, slots=True)
class FrameTable:
    """The frames of one pack.

    Attributes:
        offset: where the stored bytes start in the object, int64 [n + 1]; last, their end.
        plain_start: where the plain bytes start in the plain stream, int64 [n + 1].
        codec: uint8 [n].
        digest: 16 bytes each, V16 [n].
    """

    offset: NDArray[np.int64]
    plain_start: NDArray[np.int64]
    codec: NDArray[np.uint8]
    digest: NDArray[np.void]

    def __len__(self) -> int:
        return len(self.codec)


def encode_table(
    stored: Sequence[int], plain: Sequence[int], codec: Sequence[int], digest: Sequence[bytes]
) -> tuple[bytes, bytes]:
    """Return what goes behind the frames, and the seal of the table."""
    records = np.zeros(len(stored), _RECORD)
    records["stored"], records["plain"], records["codec"] = stored, plain, codec
    records["digest"] = np.frombuffer(b"".join(digest), "V16")
    table = records.tobytes()
    sealed = seal(table)
    return table + _TAIL.pack(sealed, len(stored), TAIL_MAGIC), sealed


def table_bytes(frame_count: int) -> int:
    """Return how many bytes lie behind the frames of a pack."""
    return frame_count * _RECORD.itemsize + _TAIL.size


def decode_table(
    head: bytes, tail: bytes, *, size_bytes: int, frame_count: int, sealed: bytes, where: str
) -> FrameTable:
    """Read the table of a pack and check everything that its manifest says about it.

    Args:
        head: the first bytes of the object, as many as `HEAD` has.
        tail: its last `table_bytes` (frame_count) bytes.
        size_bytes: size of the object according to the manifest.
        frame_count: number of frames according to the manifest.
        sealed: seal of the table according to the manifest.
        where: tier and key, for messages.

    Raises:
        CorruptionError: something does not agree.
    """
    table = tail[: frame_count * _RECORD.itemsize]
    expected = _TAIL.pack(sealed, frame_count, TAIL_MAGIC)
    if head != HEAD or tail[len(table) :] != expected or seal(table) != sealed:
        raise CorruptionError(f"The pack {where} does not match its manifest: it is damaged.")
    records = np.frombuffer(table, _RECORD)
    offset = np.full(frame_count + 1, len(HEAD), np.int64)
    offset[1:] += np.cumsum(records["stored"], dtype=np.int64)
    plain_start = np.zeros(frame_count + 1, np.int64)
    np.cumsum(records["plain"], out=plain_start[1:])
    too_big = records["plain"].max(initial=0) > FRAME_PLAIN_MAX
    if offset[-1] + len(tail) != size_bytes or too_big:
        raise CorruptionError(f"The frames of pack {where} do not fill it: it is damaged.")
    return FrameTable(offset, plain_start, records["codec"].copy(), records["digest"].copy())
