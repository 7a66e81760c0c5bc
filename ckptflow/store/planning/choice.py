"""How the new bytes of each region are best encoded, from samples of them.

What `ckptflow.data.encoding` decides for samples becomes an encoding for bytes as they are,
and, where the parent's are at hand, one for deltas. Little new data is not worth a sample.
``tests/unit/test_choice.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ckptflow.data.codec import Codec
from ckptflow.data.encoding import Goal, decide, sample_ranges
from ckptflow.data.extents import U64, look_up
from ckptflow.data.frames import Encoding
from ckptflow.data.scan import Kind
from ckptflow.model import ExtentTable
from ckptflow.policy.cells import Writing
from ckptflow.store.memory import Memory, RegionDiff
from ckptflow.store.planning.drafting import DeltaBounds, RegionEncoding
from ckptflow.units import KIB, MIB

# Less new data of a region than this is encoded as most data is best.
SAMPLED_BYTES_MIN: dict[Goal, int] = {"auto": 64 * KIB, "small": 1 * KIB}
HARD_BYTES_MAX = 16 * MIB  # Of new data that the slowest level of zstd is tried on.
USUAL = Encoding(Codec.ZSTD, 1)

# With the goal "auto" a restore reads a quarter more than that of a full checkpoint, at most;
# with "small" twice as much. Sparse deltas are long, but decoded at the speed of memory.
DELTA_BOUNDS: dict[Goal, DeltaBounds] = {
    "auto": DeltaBounds(layers=4, plain_fraction=1.0, stored_fraction=0.25),
    "small": DeltaBounds(layers=16, plain_fraction=16.0, stored_fraction=1.0),
}

_AS_USUAL = RegionEncoding(USUAL)

SMALL_BYTES_PER_S, FAST_BYTES_PER_S = 1e8, 1e9  # For who wants few bytes, storage is slow.


def choose_encodings(
    diffs: Sequence[RegionDiff], memory: Memory, *, goal: Goal, cores: int
) -> list[RegionEncoding]:
    """Return how the new bytes of each region are stored.

    Args:
        diffs: all regions.
        memory: has what was chosen before, the speed of the tier, and maybe the parent's bytes.
        goal: see `ckptflow.store.save.write_checkpoint`.
        cores: how many encode at a time.
    """
    return [_choose(diff, memory, goal=goal, cores=cores) for diff in diffs]


def _choose(diff: RegionDiff, memory: Memory, *, goal: Goal, cores: int) -> RegionEncoding:
    if len(diff.region.data) < SAMPLED_BYTES_MIN[goal]:  # Of these there may be very many.
        return _AS_USUAL
    new = diff.runs.kind == Kind.NEW
    start, length = diff.runs.start_bytes[new], diff.runs.length_bytes[new]
    new_bytes = int(length.sum())
    if new_bytes < SAMPLED_BYTES_MIN[goal]:
        return _AS_USUAL
    region, data = diff.region, diff.region.data
    parent = memory.bytes_at_hand.get(region.name)
    if parent is not None and len(parent) < len(data):
        parent = None

    def take() -> tuple[list[memoryview], list[memoryview] | None]:
        ranges = _samples(start, length, region.item_bytes)
        samples = [data[a:b] for a, b in ranges]
        return samples, None if parent is None else [parent[a:b] for a, b in ranges]

    choice = memory.chooser.choose(
        region.name,
        take,
        region.item_bytes,
        has_parent=parent is not None,
        sink_bytes_per_s=memory.put_bytes_per_s,
        cores=cores,
        goal=goal,
        hard=goal == "small" and new_bytes <= HARD_BYTES_MAX,
    )
    reasons = " ".join([f"{choice.encoding}:", *choice.reasons])
    if choice.encoding.op is None:
        return RegionEncoding(choice.encoding, None, reasons, choice.ratio)
    plain = decide(
        [candidate for candidate in choice.table if candidate.encoding.op is None],
        sink_bytes_per_s=memory.put_bytes_per_s,
        cores=cores,
        goal=goal,
    )
    return RegionEncoding(plain.encoding, choice.encoding, reasons, plain.ratio, choice.ratio)


def _samples(start: U64, length: U64, item_bytes: int) -> list[tuple[int, int]]:
    """Return ranges of the region, evenly spaced over all its new bytes."""
    ranges = sample_ranges(int(length.sum()), item_bytes)
    first = np.array([a for a, _ in ranges], np.uint64)
    size = np.array([n for _, n in ranges], np.uint64)
    # A sample may consist of many short runs.
    stream = ExtentTable(length, start, np.zeros(len(start), np.uint32))
    _, _, rows = look_up(stream, first, size)
    begin, end = rows.source.tolist(), (rows.source + rows.length).tolist()
    return list(zip(begin, end, strict=True))


def note_ratios(
    diffs: Sequence[RegionDiff], memory: Memory, achieved: Mapping[int, tuple[int, int]]
) -> None:
    """Tell what encodings made of the bytes, so that a choice that went wrong is made anew.

    Args:
        diffs: all regions.
        memory: remembers the choices.
        achieved: plain and stored bytes, by the number of the region.
    """
    for number, (plain_bytes, stored_bytes) in achieved.items():
        name = diffs[number].region.name
        has_parent = name in memory.bytes_at_hand
        memory.chooser.achieved(
            name, has_parent=has_parent, plain_bytes=plain_bytes, stored_bytes=stored_bytes
        )


def writings_of(
    count: int,
    with_deltas: Collection[int],
    memory: Memory,
    achieved: Mapping[int, tuple[int, int]],
    *,
    goal: Goal,
) -> list[Writing]:
    """Return how each region was written, for the choice of its cells.

    Args:
        count: of regions.
        with_deltas: numbers of those of which some bytes were stored as deltas.
        memory: knows how fast the tier is.
        achieved: plain and stored bytes, by the number of the region.
        goal: see `ckptflow.store.save.write_checkpoint`.
    """
    speed = memory.put_bytes_per_s or Writing().bytes_per_s
    # What is written must also be copied outward, and kept: no tier makes bytes free.
    speed = SMALL_BYTES_PER_S if goal == "small" else min(speed, FAST_BYTES_PER_S)
    writings = [Writing(ratio=1.0, delta_coded=False, bytes_per_s=speed)] * count
    for number in {*achieved, *with_deltas}:
        plain_bytes, stored_bytes = achieved.get(number, (1, 1))
        writings[number] = Writing(
            ratio=plain_bytes / stored_bytes,
            delta_coded=number in with_deltas,
            bytes_per_s=speed,
        )
    return writings
