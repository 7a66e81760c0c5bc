"""Cut regions that all ranks hold alike, so that each stores a share of equal size.

A large region is cut into as many pieces as there are ranks, and each takes one, so that what
changes in one large array is spread over all of them. The small ones are laid end to end, and
cut where that evens out what the large ones have left. So a rank has at most two pieces of
small regions that it does not store whole, and all shares differ by less than `ALIGNMENT_BYTES`
for each large region, or by an element if there is none.
``tests/property/test_share_laws.py``.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

ALIGNMENT_BYTES = 4096  # Pieces of large regions begin at a multiple, so at whole chunks.
LARGE_BYTES = (
    256 * ALIGNMENT_BYTES
)  # For each rank: then aligning costs a fraction of a percent.


class Piece(NamedTuple):
    """Bytes of one region that one rank stores."""

    region: int
    start: int
    length: int


def shares(sizes: Sequence[int], items: Sequence[int], *, world: int) -> list[list[Piece]]:
    """Return what each rank stores, in the order of the regions.

    Args:
        sizes: bytes of each region.
        items: bytes of an element of each, which is never cut, and divides its size.
        world: number of ranks.
    """
    if world == 1:
        return [[Piece(region, 0, size) for region, size in enumerate(sizes) if size]]
    taken: list[list[Piece]] = [[] for _ in range(world)]
    small: list[int] = []
    for region, (size, item) in enumerate(zip(sizes, items, strict=True)):
        unit = item if ALIGNMENT_BYTES % item else ALIGNMENT_BYTES
        if size < LARGE_BYTES * world or size < 256 * unit * world:
            small.append(region)
            continue
        edges = [size * rank // world // unit * unit for rank in range(world)]
        for rank, (first, end) in enumerate(zip(edges, [*edges[1:], size], strict=True)):
            taken[rank].append(Piece(region, first, end - first))
    _fill_up(taken, small, sizes, items)
    return [sorted(pieces) for pieces in taken]


def _fill_up(
    taken: list[list[Piece]], small: Sequence[int], sizes: Sequence[int], items: Sequence[int]
) -> None:
    """Give the small regions, end to end, to ranks that have less than their share."""
    starts = [*accumulate((sizes[region] for region in small), initial=0)]
    have = [sum(piece.length for piece in pieces) for pieces in taken]
    total = starts[-1] + sum(have)
    edges, given = [0], 0
    for rank in range(len(taken) - 1):
        wanted = total * (rank + 1) // len(taken) - sum(have[: rank + 1])
        given = min(max(wanted, given), starts[-1])
        edges.append(_at_element(given, small, starts, items))
    edges.append(starts[-1])
    for rank, pieces in enumerate(taken):
        first, end = edges[rank], edges[rank + 1]
        number = max(0, bisect.bisect_right(starts, first) - 1)
        while first < end:
            stop = min(end, starts[number + 1])
            if stop > first:
                start = first - starts[number]
                pieces.append(Piece(small[number], start, stop - first))
            first, number = max(first, stop), number + 1


def _at_element(
    position: int, small: Sequence[int], starts: Sequence[int], items: Sequence[int]
) -> int:
    """Return the beginning of the element nearest to a position."""
    number = bisect.bisect_right(starts, position) - 1
    if number >= len(small):
        return position
    item = items[small[number]]
    inside = position - starts[number]
    return starts[number] + (inside + item // 2) // item * item
