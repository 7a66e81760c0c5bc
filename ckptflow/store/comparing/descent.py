"""Compare the values of two checkpoints, from the roots down, reading only what may differ.

==========  =====================================================================
looked at   what is equal there is done with
==========  =====================================================================
roots       regions of one root: nothing else is looked at
extents     ranges that both manifests take from the same place of the same pack
frames      ranges that lie in frames of one digest: two runs that stored alike
chunks      ranges that were read, by Merkle trees over both sides
elements    what is left: counted, measured, and held against the tolerance
==========  =====================================================================

So two checkpoints of one lineage cost what changed between them. What is read is read by
batches of bounded size, of many arrays together, since small arrays share frames. Regions
with delta layers, and arrays that lie in their regions otherwise on the left than on the right
or with gaps, are read region by region instead. ``tests/unit/test_descent.py``;
``tests/property/test_value_laws.py`` compares with NumPy on the whole arrays.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import digest
from ckptflow.data.arrays import ArraySpec, array_from
from ckptflow.data.extents import U64, cut, ramps, split, starts_of
from ckptflow.data.merkle import Tree
from ckptflow.data.order import Order, order_of
from ckptflow.data.overlap import span
from ckptflow.model import ExtentTable
from ckptflow.store.arrays import StoredArrays, restrict
from ckptflow.store.comparing.compare import (
    PlainChange,
    blocks_of,
    element_count,
    may_differ,
    plain_changes,
    type_of,
)
from ckptflow.store.comparing.spans import SpanReader
from ckptflow.store.comparing.tally import Differences, Tally, Tolerance, numbers_of
from ckptflow.store.comparing.unshared import (
    by_frames,
    pack_numbers,
    renumbered,
    to_elements,
    unshared,
)
from ckptflow.store.restore import read_checkpoint
from ckptflow.tiers.metered import MeteredTier
from ckptflow.units import KIB, MIB

BATCH_BYTES = 32 * MIB  # Read at once from each side; frames at its ends are read twice.
CHUNK_BYTES = 4 * KIB  # About what one leaf of the trees covers: whole elements.
LEAVES = 256  # Looked at together, so that temporaries stay small.

Verdict = Literal["same", "close", "changed", "retyped", "added", "removed"]
Range = tuple[U64, U64]  # Starts and lengths, rising.


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayValues:
    """What became of the values of one array.

    Attributes:
        name: its name.
        change: ``close`` says that all elements which differ are within the tolerance;
            ``retyped`` that dtype or shape is another one, and values were not compared.
        before: dtype and shape on the left; ``None`` where it is not.
        after: the same of the right.
        elements: how many it has, on the right if it is there.
        tolerance_holds: whether a tolerance was given and the elements are floating-point.
        differences: of elements; nothing in it unless both sides have the same type.
    """

    name: str
    change: Verdict
    before: str | None
    after: str | None
    elements: int
    tolerance_holds: bool
    differences: Differences


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueComparison:
    """All arrays, the plain leaves that differ, and what it took to find out.

    Attributes:
        arrays: those of the left in their order, then those that only the right has.
        plain: plain leaves that differ and are not close.
        plain_close: numbers with a point that differ within the tolerance.
        read_bytes: read from the tiers, as stored, frame tables and all.
        state_bytes: what the regions of both sides have in memory.
    """

    arrays: tuple[ArrayValues, ...]
    plain: tuple[PlainChange, ...]
    plain_close: tuple[PlainChange, ...]
    read_bytes: int
    state_bytes: int

    @property
    def same(self) -> bool:
        """Whether everything is equal: to the bit, or within the tolerance if one was given."""
        return not self.plain and all(a.change in ("same", "close") for a in self.arrays)

    @property
    def identical(self) -> bool:
        """Whether everything is equal to the bit."""
        return self.same and not self.plain_close and all(
            array.change == "same" for array in self.arrays
        )  # fmt: skip


def compare_values(
    left: StoredArrays,
    right: StoredArrays,
    *,
    tolerance: Tolerance | None = None,
    note: Callable[[str], None] = lambda _text: None,
    on_array: Callable[[str], None] = lambda _name: None,
) -> ValueComparison:
    """Compare the values of two checkpoints, of one lineage, or of two, or of two stores.

    Args:
        left: the checkpoint that is ``a`` in ``|a - b|``.
        right: the one that is ``b``.
        tolerance: for floating-point and complex arrays, and plain numbers with a point;
            all else, integers for instance, is always compared to the bit.
        note: told, in a sentence, of every copy that was skipped and why.
        on_array: told the name of each array when its verdict is known.

    Raises:
        CorruptionError: bytes that have to be read have no sound copy.
    """
    with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0))), "ckptflow-diff") as pool:
        sides = _Side(left, pool, note), _Side(right, pool, note)
        verdicts = _verdicts(*sides, tolerance, on_array)
    names = [*left, *(name for name in right if name not in left.specs)]
    plain: list[PlainChange] = []
    plain_close: list[PlainChange] = []
    for change in plain_changes(left.plain, right.plain):
        (plain_close if _is_close(change, tolerance) else plain).append(change)
    return ValueComparison(
        arrays=tuple(verdicts[name] for name in names),
        plain=tuple(plain),
        plain_close=tuple(plain_close),
        read_bytes=sum(side.read_bytes for side in sides),
        state_bytes=sum(side.state_bytes for side in sides),
    )


class _Side:
    """One of the two checkpoints, and the bytes that are read of it."""

    def __init__(
        self, stored: StoredArrays, pool: ThreadPoolExecutor, note: Callable[[str], None]
    ) -> None:
        self.stored, self._note = stored, note
        self._tiers = [MeteredTier(tier) for tier in stored.lineage.tiers]
        self.spans = SpanReader(self._tiers, stored.manifest, pool, note=note)
        self._kept: tuple[int, NDArray[np.uint8]] | None = None

    @property
    def read_bytes(self) -> int:
        return sum(tier.read_bytes for tier in self._tiers)

    @property
    def state_bytes(self) -> int:
        regions = {spec.region for spec in self.stored.specs.values()}
        return sum(self.stored.manifest.regions[number].size_bytes for number in regions)

    def has_deltas(self, spec: ArraySpec) -> bool:
        return bool(self.stored.manifest.regions[spec.region].deltas)

    def whole(self, spec: ArraySpec) -> NDArray[Any]:
        """Return an array, after a read of its region; the last region is kept."""
        if self._kept is None or self._kept[0] != spec.region:
            self._kept = None  # Two regions at once would double the memory.
            part = restrict(self.stored.manifest, spec.region)
            region = np.empty(part.regions[0].size_bytes, np.uint8)
            read_checkpoint(self._tiers, part, [region.data], note=self._note)
            self._kept = spec.region, region
        return array_from(spec, self._kept[1], as_bits=True)


# --- which ranges may differ -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An array that may differ, and where: ranges of its bytes, whole elements."""

    left: ArraySpec
    right: ArraySpec
    order: Order
    start: U64  # From the lowest byte of the array on.
    length: U64
    tally: Tally


def _verdicts(
    left: _Side,
    right: _Side,
    tolerance: Tolerance | None,
    on_array: Callable[[str], None],
) -> dict[str, ArrayValues]:
    verdicts: dict[str, ArrayValues] = {}
    twins: dict[tuple[ArraySpec, ArraySpec], str] = {}  # Tied arrays are compared once.
    tallies: dict[str, Tally] = {}
    suspects: list[_Suspect] = []
    numbers = pack_numbers(left.stored.manifest.packs, right.stored.manifest.packs)
    a, b = left.stored.specs, right.stored.specs
    for name in [*a, *(name for name in b if name not in a)]:
        verdicts[name] = _by_type(name, left.stored, right.stored, tolerance)
        if verdicts[name].change != "changed":
            on_array(name)
            continue
        pair = a[name], b[name]
        first = twins.setdefault(pair, name)
        if first != name:
            tallies[name] = tallies[first]
            continue
        tallies[name] = tally = Tally(b[name], tolerance)
        order = order_of(a[name])
        if left.has_deltas(a[name]) or right.has_deltas(b[name]):
            _compare_whole(tally, left.whole(a[name]), right.whole(b[name]))
        elif order is None or order != order_of(b[name]):
            if _spans_differ(left, right, pair, numbers):
                _compare_whole(tally, left.whole(a[name]), right.whole(b[name]))
        else:
            start, length = _unshared(left, right, pair, numbers)
            if len(start):
                suspects.append(_Suspect(*pair, order, start, length, tally))
    for batch in _batches(suspects):
        _compare_batch(batch, left, right)
    for name, tally in tallies.items():
        verdicts[name] = _by_tally(verdicts[name], tally)
        on_array(name)
    return verdicts


def _by_type(
    name: str, left: StoredArrays, right: StoredArrays, tolerance: Tolerance | None
) -> ArrayValues:
    """Return the verdict as far as names, types and roots tell; else ``changed`` for now."""
    before, after = type_of(left, name), type_of(right, name)
    change: Verdict = "changed"
    if before is None or after is None:
        change = "added" if before is None else "removed"
    elif before != after:
        change = "retyped"
    elif not may_differ(name, left, right):
        change = "same"
    stored = right if after else left
    is_real = tolerance is not None and numbers_of(stored.specs[name])[1] in (
        "float",
        "complex",
    )
    return ArrayValues(
        name=name,
        change=change,
        before=before,
        after=after,
        elements=element_count(stored, name),
        tolerance_holds=is_real,
        differences=Differences(beyond_elements=0 if is_real and change == "same" else None),
    )


def _by_tally(array: ArrayValues, tally: Tally) -> ArrayValues:
    found = tally.found
    change: Verdict = "changed"
    if not found.changed_elements:
        change = "same"
    elif found.beyond_elements == 0:
        change = "close"
    return replace(array, change=change, differences=found)


def _unshared(
    left: _Side,
    right: _Side,
    pair: tuple[ArraySpec, ArraySpec],
    numbers: Sequence[NDArray[np.uint32]],
) -> Range:
    """Return the ranges of an array that have to be read, as whole elements.

    First by packs, for no more than the manifests; then by frames, whose tables are needed
    to read anything.
    """
    specs, sides = pair, (left, right)
    zero, size = np.zeros(1, np.uint64), np.array([specs[0].size_bytes], np.uint64)
    if not size[0]:
        return zero[:0], zero[:0]
    whole = []
    for side, spec in zip(sides, specs, strict=True):
        spec.check(side.stored.manifest.regions[spec.region].size_bytes)
        low = np.array([span(spec.layout())[0]], np.uint64)
        whole.append(side.spans.rows(spec.region, low, size))
    start, length = unshared(*map(renumbered, whole, numbers))
    parts = [cut(rows, start, length)[1] for rows in whole]
    frames = [side.spans.frames(rows) for side, rows in zip(sides, parts, strict=True)]
    inner, inner_length = unshared(*by_frames(parts, frames))
    start, length = _back(start, length, inner, inner_length)
    return to_elements(start, length, specs[0].itemsize_bytes)


def _back(start: U64, length: U64, inner: U64, inner_length: U64) -> Range:
    """Return where ranges lie that count through the ranges ``start``, ``length``."""
    if not len(inner):
        return inner, inner_length
    begin = starts_of(length)
    edges: U64 = np.unique(np.concatenate([begin, inner, inner + inner_length]))
    piece_end: U64 = np.append(edges[1:], length.sum(dtype=np.uint64))
    of_inner = np.searchsorted(inner, edges, side="right") - 1
    inside = (of_inner >= 0) & (edges < (inner + inner_length)[of_inner])
    edges, piece_end = edges[inside], piece_end[inside]
    row = np.searchsorted(begin, edges, side="right") - 1
    first: U64 = start[row] + (edges - begin[row])
    return first, piece_end - edges


def _spans_differ(
    left: _Side,
    right: _Side,
    pair: tuple[ArraySpec, ArraySpec],
    numbers: Sequence[NDArray[np.uint32]],
) -> bool:
    """Tell whether an array with gaps has to be read; so it is in memory laid out otherwise."""
    strides = [spec.layout().strides_bytes for spec in pair]
    if strides[0] != strides[1] or 0 in pair[0].shape:
        return 0 not in pair[0].shape
    rows = []
    for side, spec in zip((left, right), pair, strict=True):
        spec.check(side.stored.manifest.regions[spec.region].size_bytes)
        low, high = span(spec.layout())
        wanted = np.array([low], np.uint64), np.array([high - low], np.uint64)
        rows.append(side.spans.rows(spec.region, *wanted))
    return len(unshared(*map(renumbered, rows, numbers))[0]) > 0


# --- what differs in them --------------------------------------------------------------


def _batches(
    suspects: Iterable[_Suspect],
) -> Iterator[list[tuple[_Suspect, U64, U64]]]:
    """Yield ranges of several arrays, in order, up to `BATCH_BYTES` at once."""
    batch: list[tuple[_Suspect, U64, U64]] = []
    size = 0
    for suspect in suspects:
        for start, length in _blocks(suspect):
            block_bytes = int(length.sum())
            if batch and size + block_bytes > BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((suspect, start, length))
            size += block_bytes
    if batch:
        yield batch


def _blocks(suspect: _Suspect) -> Iterator[Range]:
    """Cut the ranges of one array into blocks of up to `BATCH_BYTES`, or of one element."""
    itemsize = suspect.left.itemsize_bytes
    every = max(1, BATCH_BYTES // itemsize) * itemsize
    position = starts_of(suspect.length)
    piece, skipped, length = split(position, suspect.length, every)
    start = suspect.start[piece] + skipped
    block = (position[piece] + skipped) // np.uint64(every)
    heads = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(block)]
    for first, last in itertools.pairwise(heads):
        yield start[first:last], length[first:last]


def _compare_batch(
    batch: Sequence[tuple[_Suspect, U64, U64]], left: _Side, right: _Side
) -> None:
    buffers = []
    for side, which in ((left, "left"), (right, "right")):
        rows = []
        for suspect, start, length in batch:
            spec: ArraySpec = getattr(suspect, which)
            low = np.uint64(span(spec.layout())[0])
            rows.append(side.spans.rows(spec.region, low + start, length))
        buffers.append(side.spans.read(ExtentTable.of(rows)))
    done = 0
    for suspect, start, length in batch:
        size = int(length.sum())
        old, new = (buffer[done : done + size] for buffer in buffers)
        _compare_ranges(suspect, start, length, old, new)
        done += size


def _compare_ranges(
    suspect: _Suspect,
    start: U64,
    length: U64,
    old: NDArray[np.uint8],
    new: NDArray[np.uint8],
) -> None:
    """Compare some ranges of an array, whose bytes lie one after the other in both buffers."""
    itemsize = suspect.left.itemsize_bytes
    size = np.uint64(itemsize)
    first, begin = (start // size).astype(np.intp), (starts_of(length) // size).astype(np.intp)
    for place in _differing_elements(old, new, itemsize):
        row = np.searchsorted(begin, place, side="right") - 1
        index = suspect.order.in_c_order(first[row] + (place - begin[row]))
        a, b = (side.reshape(-1, itemsize)[place] for side in (old, new))
        suspect.tally.add(index, a, b)


def _differing_elements(
    old: NDArray[np.uint8], new: NDArray[np.uint8], itemsize: int
) -> Iterator[NDArray[np.intp]]:
    """Yield the numbers of the elements that differ in some bit, some at a time, rising.

    By Merkle trees over both sides, so that single bytes are compared only in chunks that
    differ. A chunk of the trees is a whole number of elements, and of words of 8 bytes.
    """
    unit = max(16, int(np.lcm(itemsize, 8)))
    chunk_bytes = unit * max(1, CHUNK_BYTES // unit)
    trees = [Tree.build(digest.chunk_digests(side, chunk_bytes)) for side in (old, new)]
    a, b = old.reshape(-1, itemsize), new.reshape(-1, itemsize)
    leaves = trees[0].changed_leaves(trees[1])
    each = chunk_bytes // itemsize
    at_once = max(1, LEAVES * CHUNK_BYTES // chunk_bytes)
    for done in range(0, len(leaves), at_once):
        some = leaves[done : done + at_once] * each
        _, place = ramps(some, np.minimum(each, len(a) - some))
        differs = (a[place] != b[place]).any(axis=1)
        yield place[differs]


def _compare_whole(tally: Tally, old: NDArray[Any], new: NDArray[Any]) -> None:
    """Compare two arrays in memory, of whatever strides, some elements at a time."""
    done = 0
    for a, b in zip(blocks_of(old), blocks_of(new), strict=True):
        x, y = (
            np.ascontiguousarray(side).view(np.uint8).reshape(len(side), -1) for side in (a, b)
        )
        place = np.flatnonzero((x != y).any(axis=1))
        tally.add(place + done, x[place], y[place])
        done += len(a)


def _is_close(change: PlainChange, tolerance: Tolerance | None) -> bool:
    """Tell whether a plain leaf is a number with a point that changed within the tolerance."""
    if tolerance is None or change.change != "changed":
        return False
    a, b = change.before, change.after
    if type(a) is not type(b) or not isinstance(a, float | complex | np.inexact):
        return False
    return bool(tolerance.close(a, b))
