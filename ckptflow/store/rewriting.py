"""Read what new packs will hold, part by part, and encode it.

The regions of a checkpoint are not in memory, as they are when it is saved; so encodings are
chosen from samples, and a pack is filled by a few reads. ``tests/unit/test_consolidate.py``.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.codec import Codec
from ckptflow.data.encoding import Goal, choose, sample_ranges
from ckptflow.data.frames import Encoding, Scratch, encode_frame
from ckptflow.data.pack import PackPlan, StoredFrame
from ckptflow.data.regions import item_bytes_by_region
from ckptflow.model import Manifest
from ckptflow.store.packer import gather
from ckptflow.store.partial import PART_BYTES, PartialReader
from ckptflow.store.planning.drafting import GATHERED
from ckptflow.store.planning.plan import THREADS_MAX
from ckptflow.units import KIB

CHOSEN_FROM_BYTES = 64 * KIB  # Larger regions have an encoding; the others share frames.

_SHRUNK = 0.8  # A checkpoint stored in less than this was to be small, and stays so.


@dataclass(frozen=True, slots=True)
class Encodings:
    """How the regions of a checkpoint are stored.

    Attributes:
        encodings: the first is that of bytes gathered from several regions.
        of_region: number of the encoding of each region.
        reasons: why, by the number of the region.
    """

    encodings: list[Encoding]
    of_region: NDArray[np.intp]
    reasons: dict[int, str]


def choose_encodings(old: Manifest, reader: PartialReader) -> Encodings:
    """Choose encodings from samples of the regions."""
    chosen = Encodings(
        [Encoding(Codec.ZSTD, 1)], np.full(len(old.regions), GATHERED, np.intp), {}
    )
    stored = sum(pack.size_bytes for pack in old.packs)
    plain = sum(pack.plain_bytes for pack in old.packs)
    goal: Goal = "small" if stored < _SHRUNK * plain else "auto"
    item_bytes = item_bytes_by_region(old.structure)
    for number, entry in enumerate(old.regions):
        if entry.size_bytes <= CHOSEN_FROM_BYTES:
            continue
        item = item_bytes.get(number, 1)
        starts, sizes = np.array(sample_ranges(entry.size_bytes, item), np.uint64).T
        data, first = reader.read(np.full(len(starts), number), starts, sizes)
        ranges = zip(first.tolist(), sizes.tolist(), strict=True)
        samples = [data[number][a : a + size] for a, size in ranges]
        choice = choose(samples, None, item, sink_bytes_per_s=None, cores=_threads(), goal=goal)
        chosen.of_region[number] = len(chosen.encodings)
        chosen.encodings.append(choice.encoding)
        chosen.reasons[number] = " ".join([f"{choice.encoding}:", *choice.reasons])
    return chosen


def new_packs(
    plan: PackPlan, encodings: Sequence[Encoding], reader: PartialReader
) -> Iterator[list[StoredFrame]]:
    """Yield the frames of one new pack after the other; reads `PART_BYTES` at a time.

    Raises:
        CorruptionError: something that is needed has no sound copy.
    """
    with ThreadPoolExecutor(_threads(), "ckptflow-encode") as pool:
        for number in range(plan.pack_count):
            stored: list[StoredFrame] = []
            for frames in _parts(plan, plan.frames_of(number)):
                stored += pool.map(_Part(plan, encodings, reader, frames).encoded, frames)
            yield stored


class _Part:
    """The bytes of some neighbouring frames of a plan."""

    def __init__(
        self,
        plan: PackPlan,
        encodings: Sequence[Encoding],
        reader: PartialReader,
        frames: Sequence[slice],
    ) -> None:
        self._plan, self._encodings, self._first = plan, encodings, frames[0].start
        pieces = slice(self._first, frames[-1].stop)
        self._sources, self._start = reader.read(
            plan.region[pieces], plan.start[pieces], plan.length[pieces]
        )

    def encoded(self, frame: slice) -> StoredFrame:
        """Return one of the frames as it goes to its pack."""
        plan, first = self._plan, self._first
        start = self._start[frame.start - first : frame.stop - first]
        plain = gather(plan.region[frame], start, plan.length[frame], self._sources)
        encoding = self._encodings[int(plan.encoding[frame.start])]
        codec, filter_, word, data = encode_frame(plain, encoding, _scratch())
        return StoredFrame(data, len(plain), codec, filter_, word)


_threads_own = threading.local()


def _scratch() -> Scratch:
    if not hasattr(_threads_own, "scratch"):
        _threads_own.scratch = Scratch()
    scratch: Scratch = _threads_own.scratch
    return scratch


def _parts(plan: PackPlan, frames: Sequence[slice]) -> Iterator[list[slice]]:
    """Group frames so that each group has about `PART_BYTES`."""
    ends = itertools.accumulate(int(plan.length[frame].sum()) for frame in frames)
    groups = itertools.groupby(
        zip(frames, ends, strict=True), key=lambda one: (one[1] - 1) // PART_BYTES
    )
    for _, group in groups:
        yield [frame for frame, _ in group]


def _threads() -> int:
    return min(THREADS_MAX, len(os.sched_getaffinity(0)))
