"""Packs: many frames in one object, with a table at its end.

Two halves. *Planning* decides, before a byte is touched, which pieces of which regions go
into which frame and pack. *The table* is written behind the frames and read back before them.
Byte layout: ``docs/reference/format-v1.md``.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.extents import U64, split, starts_of
from ckptflow.errors import CorruptionError
from ckptflow.manifest import SEAL_BYTES, seal
from ckptflow.units import KIB, MIB

FRAME_BYTES = 1 * MIB
PACK_BYTES = 256 * MIB
ENCODED_PACK_BYTES_MIN, ENCODED_PACKS = 32 * MIB, 4  # See `_pack_bytes`.
GATHER_BYTES = 256 * KIB  # Pieces from this size on make frames of their own, uncopied.

HEAD = b"CKFPACK1" + bytes(8)
TAIL_MAGIC = b"CKFPEND1"
FRAME_PLAIN_MAX = 4 * MIB
FRAME_STORED_MAX = (
    8 * MIB
)  # Held in memory to be digested; writers never store more than plain.

_TAIL = struct.Struct(f"<{SEAL_BYTES}sQ8s")
_RECORD = np.dtype(
    [
        ("stored", "<u4"),
        ("plain", "<u4"),
        ("codec", "u1"),
        ("filter", "u1"),
        ("word", "u1"),
        ("zero", "V1"),
        ("digest", "V16"),
    ]
)


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Where pieces of regions will lie. All arrays but the last are per piece, in stream order.

    Attributes:
        region: number of the region, intp [p].
        start: first byte within the region, uint64 [p].
        length: bytes, uint64 [p].
        encoding: number of the encoding, one and the same within a frame, intp [p].
        frame: number of the frame, counted over all packs, intp [p].
        pack: number of the pack, from 0, intp [p].
        pack_edges: where each pack starts in the stream of all, uint64 [packs + 1]; last, its
            end.
    """

    region: NDArray[np.intp]
    start: U64
    length: U64
    encoding: NDArray[np.intp]
    frame: NDArray[np.intp]
    pack: NDArray[np.intp]
    pack_edges: U64

    @property
    def pack_count(self) -> int:
        """Number of packs."""
        return len(self.pack_edges) - 1

    def frames_of(self, pack: int) -> list[slice]:
        """Return, for each frame of a pack, its pieces."""
        first, last = np.searchsorted(self.pack, [pack, pack + 1])
        bounds = first + 1 + np.flatnonzero(np.diff(self.frame[first:last]))
        edges = [int(first), *bounds.tolist(), int(last)]
        return [slice(a, b) for a, b in itertools.pairwise(edges)]


def plan_packs(
    region: NDArray[np.intp],
    start: U64,
    length: U64,
    encoding: NDArray[np.intp],
    *,
    raw: Collection[int],
) -> PackPlan:
    """Lay out pieces of regions, given in stream order, those of one encoding together.

    A piece of `GATHER_BYTES` or more that is stored as it is, with an encoding of ``raw``,
    becomes frames of its own, which are views on the region; others share frames, into which
    they are gathered. Frames hold up to
    `FRAME_BYTES`, packs about `PACK_BYTES`. A frame begins after a piece whose length is no
    multiple of 8, so that cuts never go through a word; a pack begins, with a frame, where a
    piece does, so that no small piece is cut by it.
    """
    if not len(length):
        none, zero = np.empty(0, np.intp), np.empty(0, np.uint64)
        return PackPlan(none, zero, zero, none, none, none, np.zeros(1, np.uint64))
    is_raw = np.isin(encoding, np.array(list(raw), np.intp))
    large, odd = length >= GATHER_BYTES, length % np.uint64(8) != 0
    alone = large & is_raw
    stream, pack_bytes = starts_of(length), _pack_bytes(length, is_raw)
    full = stream[1:] // pack_bytes != stream[:-1] // pack_bytes
    breaks = alone[1:] | alone[:-1] | odd[:-1] | full | (encoding[1:] != encoding[:-1])
    new_segment = np.concatenate([[True], breaks])
    heads = np.flatnonzero(new_segment)
    segment = np.cumsum(new_segment) - 1
    position = stream - stream[heads][segment]
    piece, skipped, size = split(position, length, FRAME_BYTES)
    block = (position[piece] + skipped) // np.uint64(FRAME_BYTES)
    changes = (segment[piece][1:] != segment[piece][:-1]) | (block[1:] != block[:-1])
    frame_heads = np.concatenate([[True], changes])
    frame = np.cumsum(frame_heads) - 1
    stream = starts_of(size)
    # A pack ends with the last frame that starts before a multiple of its size.
    may_end = frame_heads & ((skipped == 0) | large[piece])
    pack = stream // pack_bytes
    pack = np.maximum.accumulate(np.where(may_end, pack, np.uint64(0)))
    pack = np.unique(pack, return_inverse=True)[1].astype(np.intp)
    first = np.searchsorted(pack, np.arange(int(pack[-1]) + 1))
    return PackPlan(
        region=region[piece],
        start=start[piece] + skipped,
        length=size,
        encoding=encoding[piece],
        frame=frame,
        pack=pack,
        pack_edges=np.append(stream[first], stream[-1] + size[-1]),
    )


def _pack_bytes(length: U64, is_raw: NDArray[np.bool_]) -> np.uint64:
    """Return how large packs are: smaller where one is encoded while another is put.

    One pack would have to be encoded whole before the first byte is written. Nothing of raw
    bytes has to be waited for, and each pack costs a sync.
    """
    if is_raw.all():
        return np.uint64(PACK_BYTES)
    share = -(-int(length.sum()) // ENCODED_PACKS)
    return np.uint64(min(PACK_BYTES, max(ENCODED_PACK_BYTES_MIN, share)))


@dataclass(frozen=True, slots=True)
class FrameTable:
    """The frames of one pack.

    Attributes:
        offset: where the stored bytes start in the object, int64 [n + 1]; last, their end.
        plain_start: where the plain bytes start in the plain stream, int64 [n + 1].
        codec: uint8 [n].
        filter: what the plain bytes went through before the codec, uint8 [n].
        word: bytes of the words of that filter, uint8 [n].
        digest: 16 bytes each, V16 [n].
    """

    offset: NDArray[np.int64]
    plain_start: NDArray[np.int64]
    codec: NDArray[np.uint8]
    filter: NDArray[np.uint8]
    word: NDArray[np.uint8]
    digest: NDArray[np.void]

    def __len__(self) -> int:
        return len(self.codec)

    @property
    def is_plain(self) -> NDArray[np.bool_]:
        """Which frames are stored as they are, so that a part of one can be read, bool [n]."""
        plain: NDArray[np.bool_] = (self.codec == 0) & (self.filter == 0)
        return plain


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """One frame as it goes to a pack."""

    stored: bytes | memoryview
    plain_bytes: int
    codec: int
    filter: int
    word: int


def encode_table(
    frames: Sequence[StoredFrame], digests: Sequence[bytes]
) -> tuple[bytes, bytes]:
    """Return what goes behind the frames, and the seal of the table.

    Args:
        frames: all frames of the pack, in order.
        digests: of their stored bytes.
    """
    records = np.zeros(len(frames), _RECORD)
    records["stored"] = [len(frame.stored) for frame in frames]
    records["plain"] = [frame.plain_bytes for frame in frames]
    for column in ("codec", "filter", "word"):
        records[column] = [getattr(frame, column) for frame in frames]
    records["digest"] = np.frombuffer(b"".join(digests), "V16")
    table = records.tobytes()
    sealed = seal(table)
    return table + _TAIL.pack(sealed, len(frames), TAIL_MAGIC), sealed


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
    sizes = records["plain"]
    as_it_is = (records["codec"] == 0) & (records["filter"] == 0)
    impossible = (
        sizes.max(initial=0) > FRAME_PLAIN_MAX
        or sizes.min(initial=1) == 0
        or records["stored"].max(initial=0) > FRAME_STORED_MAX
        or (records["stored"] != sizes)[as_it_is].any()
    )
    if offset[-1] + len(tail) != size_bytes or impossible:
        raise CorruptionError(f"The frames of pack {where} do not fill it: it is damaged.")
    columns = (records[name].copy() for name in ("codec", "filter", "word", "digest"))
    return FrameTable(offset, plain_start, *columns)
