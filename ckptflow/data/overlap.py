"""Which arrays share memory, and what has to be stored so that each byte is stored once.

Arrays whose spans of addresses do not touch one another, nearly all of them, cost one sort.
Only where spans overlap is it asked whether elements do. The answer is a list of *blocks*,
each becoming one region:

* ``WHOLE``: every byte of the span belongs to an array, so the memory itself is the region.
  One dense array (any order of axes), views into it, or views that together fill it, such as
  the real and imaginary halves of one buffer.
* ``PACKED``: one array with gaps between its elements; they are gathered, the gaps are not
  stored.
* ``SPARSE``: arrays that share elements *and* leave gaps. They keep their strides, so that
  they still share after a restore; the bytes of the gaps are stored as zeros.

Only addresses are looked at, never what lies there, so it works for device memory too.
``tests/unit/test_overlap.py`` compares it with brute force over sets of byte addresses.
"""

from __future__ import annotations

import bisect
import enum
import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np

from ckptflow.data.memory import Layout, cells_at, contiguous_strides

_PAIRS_UP_TO = 32  # Arrays in one cluster that are compared two by two; more use a bitmap.
_FIRST = 4096  # Stands for address 0, which NumPy takes for no address.
_MAX_WORK = 100_000  # Steps of NumPy's exact solver before we assume that memory is shared.


class Form(enum.Enum):
    """How the bytes of a block come from the memory of its members."""

    WHOLE = "whole"
    PACKED = "packed"
    SPARSE = "sparse"


class Block(NamedTuple):
    """One region to be: ``nbytes`` bytes that hold the arrays numbered ``members``."""

    start: int  # The lowest address.
    nbytes: int
    form: Form
    members: tuple[int, ...]


class _Part(NamedTuple):
    block: Block
    layout: Layout  # The bytes it occupies.
    own_bytes: int | None  # How many these are; None where that takes counting.


def span(layout: Layout) -> tuple[int, int]:
    """Return the lowest address and one past the highest; equal for an empty array."""
    if layout.strides_bytes == contiguous_strides(layout.shape, layout.itemsize):
        end = layout.address + math.prod(layout.shape) * layout.itemsize
        return layout.address, end
    low = high = layout.address
    for size, stride in zip(layout.shape, layout.strides_bytes, strict=True):
        if size == 0:
            return layout.address, layout.address
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low, high + layout.itemsize


def form_of(layout: Layout) -> Form:
    """Return the form of an array that is alone.

    Axis by axis, from the smallest stride up: a stride no longer than what is covered so far
    extends it without a gap, and a shorter one overlaps it.
    """
    if layout.strides_bytes == contiguous_strides(layout.shape, layout.itemsize):
        return Form.WHOLE
    covered, gaps, overlaps = layout.itemsize, False, False
    axes = zip(layout.shape, layout.strides_bytes, strict=True)
    for stride, size in sorted((abs(stride), size) for size, stride in axes if size > 1):
        gaps |= stride > covered
        overlaps |= 0 < stride < covered
        covered += (size - 1) * stride
    if not gaps:
        return Form.WHOLE
    return Form.SPARSE if overlaps else Form.PACKED


def without_repeats(layout: Layout) -> Layout:
    """Return the layout with its broadcast axes, those of stride 0, cut to length 1."""
    if 0 not in layout.strides_bytes:
        return layout
    axes = zip(layout.shape, layout.strides_bytes, strict=True)
    return layout._replace(
        shape=tuple(size if stride else min(size, 1) for size, stride in axes)
    )


def blocks(layouts: Sequence[Layout]) -> list[Block]:
    """Group arrays by the memory they share.

    Args:
        layouts: of one memory (the host's, or one device's), in any order.

    Returns:
        Blocks in the order of their first members; each array is in exactly one.
    """
    spans = [span(layout) for layout in layouts]
    found: list[Block] = []
    cluster: list[int] = []
    end = -1
    for index in sorted(range(len(layouts)), key=spans.__getitem__):
        low, high = spans[index]
        if low == high:
            found.append(Block(low, 0, Form.WHOLE, (index,)))
        elif low < end:
            cluster.append(index)
            end = max(end, high)
        else:
            found.extend(resolve(cluster, layouts))
            cluster, end = [index], high
    found.extend(resolve(cluster, layouts))
    return sorted(found, key=lambda block: block.members[0])


def share_memory(a: Layout, b: Layout) -> bool:
    """Tell whether two arrays have a byte in common; exact but for the oddest strides."""
    try:
        work: Any = _MAX_WORK  # NumPy's own annotation allows only its two special values.
        return np.shares_memory(cells_at(a, None), cells_at(b, None), max_work=work)
    except np.exceptions.TooHardError:
        return True


def resolve(cluster: Sequence[int], layouts: Sequence[Layout]) -> list[Block]:
    """Return the blocks of arrays whose spans hang together.

    Args:
        cluster: their numbers, in the order of their spans.
        layouts: of all arrays.
    """
    if not cluster:
        return []
    if len(cluster) == 1:
        layout = without_repeats(layouts[cluster[0]])
        return [_part(layout, form_of(layout), list(cluster)).block]
    parts = _parts(cluster, layouts)
    if len(parts) == 1:
        return [parts[0].block]
    ends = [span(part.layout) for part in parts]
    start = min(low for low, _ in ends)
    nbytes = max(high for _, high in ends) - start
    members = tuple(sorted(i for part in parts for i in part.block.members))
    owned = [part.own_bytes for part in parts if part.own_bytes is not None]
    known = sum(owned) if len(owned) == len(parts) else None
    occupied = known if _are_apart(parts) else None
    if occupied is None:
        occupied = _count_occupied(parts, start, nbytes)
    if occupied == nbytes:
        return [Block(start, nbytes, Form.WHOLE, members)]
    if occupied == known:
        return [part.block for part in parts]
    return [Block(start, nbytes, Form.SPARSE, members)]


def _parts(cluster: Sequence[int], layouts: Sequence[Layout]) -> list[_Part]:
    """Merge what is easy: equal layouts, dense arrays that overlap, views inside those."""
    same: dict[Layout, list[int]] = {}
    for index in cluster:
        same.setdefault(without_repeats(layouts[index]), []).append(index)
    if len(same) == 1:
        ((layout, members),) = same.items()
        return [_part(layout, form_of(layout), sorted(members))]
    forms = {layout: form_of(layout) for layout in same}
    runs: list[tuple[int, int, list[int]]] = []
    for layout, members in same.items():  # In the order of addresses, as the cluster is.
        if forms[layout] is not Form.WHOLE:
            continue
        low, high = span(layout)
        if runs and low < runs[-1][1]:
            start, end, others = runs[-1]
            runs[-1] = (start, max(end, high), others + members)
        else:
            runs.append((low, high, list(members)))
    starts = [start for start, _, _ in runs]
    rest: list[_Part] = []
    for layout, members in same.items():
        if forms[layout] is Form.WHOLE:
            continue
        low, high = span(layout)
        nearest = bisect.bisect_right(starts, low) - 1
        if nearest >= 0 and high <= runs[nearest][1]:
            runs[nearest][2].extend(members)
        else:
            rest.append(_part(layout, forms[layout], sorted(members)))
    dense = [
        _part(Layout(low, (high - low,), (1,), 1), Form.WHOLE, sorted(members))
        for low, high, members in runs
    ]
    return dense + rest


def _part(layout: Layout, form: Form, members: list[int]) -> _Part:
    low, high = span(layout)
    packed_bytes = math.prod(layout.shape) * layout.itemsize
    if form is Form.PACKED:
        return _Part(Block(low, packed_bytes, form, tuple(members)), layout, packed_bytes)
    own_bytes = high - low if form is Form.WHOLE else None
    return _Part(Block(low, high - low, form, tuple(members)), layout, own_bytes)


def _are_apart(parts: Sequence[_Part]) -> bool:
    if len(parts) > _PAIRS_UP_TO or any(part.own_bytes is None for part in parts):
        return False
    return not any(share_memory(a.layout, b.layout) for a, b in combinations(parts, 2))


def _count_occupied(parts: Sequence[_Part], start: int, nbytes: int) -> int:
    """Return how many bytes of the span belong to a part, from a bitmap of its grains."""
    grain = nbytes
    for part in parts:
        layout = part.layout
        grain = math.gcd(grain, layout.address - start, layout.itemsize, *layout.strides_bytes)
    bitmap = np.zeros(nbytes // grain, dtype=np.bool_)
    for address, shape, strides, itemsize in (part.layout for part in parts):
        marks = np.ndarray(
            (*shape, itemsize // grain),
            np.bool_,
            bitmap,
            (address - start) // grain,
            (*(stride // grain for stride in strides), 1),
        )
        marks[...] = True
    return int(np.count_nonzero(bitmap)) * grain


def covers(layouts: Sequence[Layout], nbytes: int) -> bool:
    """Tell whether arrays, at addresses from 0 on, occupy every byte of ``[0, nbytes)``."""
    if nbytes == 0:
        return True
    if len(layouts) == 1:
        return span(layouts[0]) == (0, nbytes) and form_of(layouts[0]) is Form.WHOLE
    moved = [layout._replace(address=layout.address + _FIRST) for layout in layouts]
    found = [block for block in blocks(moved) if block.nbytes]
    ends = sorted((block.start, block.start + block.nbytes) for block in found)
    return (
        bool(ends)
        and all(block.form is Form.WHOLE for block in found)
        and (ends[0][0], ends[-1][1]) == (_FIRST, _FIRST + nbytes)
        and all(before[1] == after[0] for before, after in pairwise(ends))
    )
