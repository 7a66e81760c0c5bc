"""Encode the frames of a checkpoint and put them as packs.

A frame that is one piece of a region is a view of it, until it is encoded; smaller pieces are
gathered. A pack is put as a list of frames, never joined. ``tests/unit/test_save.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import digest
from ckptflow.data.addresses import Addresses
from ckptflow.data.deltas import make_delta
from ckptflow.data.extents import U64
from ckptflow.data.frames import RAW, Encoding, Scratch, encode_frame
from ckptflow.data.pack import HEAD, StoredFrame, encode_table
from ckptflow.data.ranges import copy_ranges
from ckptflow.errors import TierError
from ckptflow.model import LineageId, PackRef
from ckptflow.store.planning.plan import THREADS_MAX, Plan
from ckptflow.tiers.tier import Tier

RAW_TOGETHER = 16  # Raw frames that a thread takes at a time: they only have to be digested.
TELLING_BYTES = 16 << 20  # Less tells how long a sync takes, and not how fast a tier is.


class Packer:
    """Encodes and puts the packs of one checkpoint.

    Attributes:
        packs: those that were put.
        achieved: plain and stored bytes, by the number of the region, of frames of one region.
    """

    def __init__(self, tier: Tier, plan: Plan, lineage: LineageId) -> None:
        self._tier, self._layout, self._prefix = tier, plan.layout, lineage.prefix
        self.packs: list[PackRef] = []
        self._states = [diff.region.data for diff in plan.diffs]
        self._addresses = Addresses(self._states)
        at_hand, nothing = plan.memory.bytes_at_hand, memoryview(b"")
        self._parents = [at_hand.get(diff.region.name, nothing) for diff in plan.diffs]
        self._threads = min(THREADS_MAX, len(os.sched_getaffinity(0)))
        self._scratch = threading.local()
        self._lock = threading.Lock()
        self._put_bytes, self._put_s = 0, 0.0
        self.achieved: dict[int, tuple[int, int]] = {}

    @property
    def put_bytes_per_s(self) -> float | None:
        """How fast the tier took the packs; ``None`` if there was too little to tell."""
        return self._put_bytes / self._put_s if self._put_bytes >= TELLING_BYTES else None

    def put_all(self, keys: Sequence[str]) -> None:
        """Encode the frames of each pack and put it as a gather list, in order.

        The next pack is encoded while one is put. Never are those of a third in memory.

        Args:
            keys: of all packs.
        """
        count = len(keys)
        if count < 2:  # Nothing to be ahead of.
            for key in keys:
                self._put(*self._encoded(0, key))
            return
        with ThreadPoolExecutor(1, "ckptflow-pack") as ahead:
            coming = ahead.submit(self._encoded, 0, keys[0])
            for following in range(1, count + 1):
                pack, parts = coming.result()
                if following < count:
                    coming = ahead.submit(self._encoded, following, keys[following])
                self._put(pack, parts)

    def _encoded(self, number: int, key: str) -> tuple[PackRef, list[bytes | memoryview]]:
        all_pieces = self._layout.plan.frames_of(number)
        plan = self._layout.plan
        used = np.unique(plan.encoding[plan.pack == number]).tolist()
        is_raw = all(self._layout.encodings[one] == RAW for one in used)
        each = RAW_TOGETHER if is_raw else 1
        parts = [all_pieces[a : a + each] for a in range(0, len(all_pieces), each)]
        if len(parts) > 1:
            with ThreadPoolExecutor(self._threads, "ckptflow-encode") as pool:
                made = list(pool.map(self._frames, parts))
        else:
            made = [self._frames(part) for part in parts]
        frames = [frame for part in made for frame, _ in part]
        return joined(frames, [found for part in made for _, found in part], key)

    def _put(self, pack: PackRef, parts: list[bytes | memoryview]) -> None:
        began = time.monotonic()
        self._tier.put(f"{self._prefix}/{pack.key}", parts)
        self._put_s += max(time.monotonic() - began, 1e-9)
        self._put_bytes += pack.size_bytes
        self.packs.append(pack)

    def forget(self) -> None:
        """Delete the packs of a save that failed before its commit: a full disk needs the room.

        Not after a failed commit: the manifest may have arrived although its answer did not.
        """
        for pack in self.packs:
            with contextlib.suppress(TierError):  # What stays is garbage for the next prune.
                self._tier.delete(f"{self._prefix}/{pack.key}")

    def _frames(self, all_pieces: Sequence[slice]) -> list[tuple[StoredFrame, bytes]]:
        """Return some frames and the digests of what is stored of them."""
        frames = [self._frame(pieces) for pieces in all_pieces]
        return [(frame, digest.digest(frame.stored)) for frame in frames]

    def _frame(self, pieces: slice) -> StoredFrame:
        plan = self._layout.plan
        encoding = self._layout.encodings[int(plan.encoding[pieces.start])]
        region, places = plan.region[pieces], (plan.start[pieces], plan.length[pieces])
        if len(region) == 1:
            plain = gather(region, *places, self._states)
        else:
            plain = memoryview(bytearray(int(places[1].sum())))
            self._addresses.gather(region, *places, plain)
        if encoding.op is not None:
            plain = _delta(plain, gather(region, *places, self._parents), encoding)
        scratch = getattr(self._scratch, "own", None)
        if scratch is None:
            scratch = self._scratch.own = Scratch()
        codec, filter_, word, stored = encode_frame(plain, encoding, scratch)
        if region[0] == region[-1]:
            with self._lock:
                first = int(region[0])
                before = self.achieved.get(first, (0, 0))
                self.achieved[first] = before[0] + len(plain), before[1] + len(stored)
        return StoredFrame(stored, len(plain), codec, filter_, word)


def _delta(new: memoryview, old: memoryview, encoding: Encoding) -> memoryview:
    assert encoding.op is not None, "only deltas are made of deltas"
    out = memoryview(bytearray(len(new)))
    make_delta(new, old, out, op=encoding.op, word_bytes=encoding.op_word)
    return out


def joined(
    frames: Sequence[StoredFrame], digests: Sequence[bytes], key: str
) -> tuple[PackRef, list[bytes | memoryview]]:
    """Return a pack of some frames, as a manifest names it, and the parts that make it.

    Args:
        frames: all of the pack.
        digests: of what is stored of each.
        key: of the pack.
    """
    table, sealed = encode_table(frames, digests)
    parts: list[bytes | memoryview] = [HEAD, *(frame.stored for frame in frames), table]
    pack = PackRef(
        key=key,
        size_bytes=sum(len(part) for part in parts),
        plain_bytes=sum(frame.plain_bytes for frame in frames),
        frame_count=len(frames),
        table_seal=sealed,
    )
    return pack, parts


def gather(
    region: NDArray[np.intp],
    start: U64,
    length: U64,
    sources: Sequence[memoryview] | Mapping[int, memoryview],
) -> memoryview:
    """Return the plain bytes of a frame: a view where it is one piece, else a copy.

    Args:
        region: number of the region of each piece.
        start: where it begins in the bytes of that, uint64 [n].
        length: its bytes.
        sources: the bytes, by the number of the region.
    """
    if len(region) == 1:
        first = int(start[0])
        return sources[int(region[0])][first : first + int(length[0])]
    target = np.cumsum(length, dtype=np.uint64) - length
    plain = memoryview(bytearray(int(length.sum())))
    edges = np.flatnonzero(np.diff(region, prepend=-1, append=-1))
    for a, b in itertools.pairwise(edges.tolist()):
        source = sources[int(region[a])]
        copy_ranges(source, plain, start[a:b], target[a:b], length[a:b])
    return plain
