"""Shares of replicated regions: every byte once, elements whole, and as even as may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data.shares import ALIGNMENT_BYTES, LARGE_BYTES, Piece, shares

ITEMS = st.sampled_from([1, 2, 4, 8, 16])
ELEMENTS = st.one_of(
    st.integers(0, 40),  # Many tiny ones,
    st.integers(1000, 300_000),
    st.integers(1 << 18, 1 << 24),
    st.integers(1 << 31, 1 << 36),  # and of more than 2 GiB.
)
REGIONS = st.lists(st.tuples(ELEMENTS, ITEMS), max_size=30)


def covered(taken: list[list[Piece]], sizes: list[int]) -> None:
    ends = [0] * len(sizes)
    pieces = sorted(piece for one in taken for piece in one)
    for region, start, length in pieces:
        assert length > 0
        assert start == ends[region]
        ends[region] += length
    assert ends == sizes


@given(regions=REGIONS, world=st.integers(1, 70))
def test_each_byte_has_one_rank_and_ranks_have_nearly_the_same(
    regions: list[tuple[int, int]], world: int
) -> None:
    sizes, items = [n * item for n, item in regions], [item for _, item in regions]
    taken = shares(sizes, items, world=world)
    assert len(taken) == world
    covered(taken, sizes)
    assert all(piece.start % items[piece.region] == 0 for one in taken for piece in one)
    bytes_ = [sum(piece.length for piece in one) for one in taken]
    mean = sum(bytes_) / world
    assert max(bytes_) <= max(1.05 * mean, mean + 16)  # An element is not cut.


@pytest.mark.parametrize(
    ("sizes", "world"),
    [
        ([3 << 30], 7),
        ([(2 << 30) + 4, 12], 2),
        ([5 << 40, 3], 48),
        ([4 * n for n in range(2000)], 9),
        ([4096] * 100_000, 64),
        ([LARGE_BYTES * 4 - 4] * 3, 4),
    ],
)
def test_max_over_mean_is_small(sizes: list[int], world: int) -> None:
    taken = shares(sizes, [4] * len(sizes), world=world)
    covered(taken, sizes)
    bytes_ = [sum(piece.length for piece in one) for one in taken]
    assert max(bytes_) / (sum(bytes_) / world) <= 1.05


def test_a_large_region_is_spread_over_all_ranks() -> None:
    size = 3 * LARGE_BYTES + 12
    taken = shares([size, 8], [4, 8], world=3)
    assert all(one[0].region == 0 for one in taken)
    assert [one[0].start % ALIGNMENT_BYTES for one in taken] == [0, 0, 0]


def test_a_rank_alone_takes_all() -> None:
    assert shares([5, 0, 7], [1, 4, 1], world=1) == [[Piece(0, 0, 5), Piece(2, 0, 7)]]
