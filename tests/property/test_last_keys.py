"""The last names of a folder are found with few requests, whatever the names are like."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.tiers import lastkeys
from ckptflow.tiers.lastkeys import find_last

CHARACTERS = "+-.0123456789=ABZ_az"


class Listing:
    """Names in order, of which a page can be asked for."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names, self.requests = sorted(names), 0

    def page(self, after: str, limit: int) -> list[str]:
        self.requests += 1
        begin = bisect.bisect_right(self.names, after)
        return self.names[begin : begin + limit]

    def last(self, count: int) -> list[str]:
        return self.names[::-1][:count]


@given(
    names=st.sets(st.text(CHARACTERS, min_size=1, max_size=6), max_size=300),
    count=st.integers(0, 20),
    page_keys=st.integers(2, 30),
)
def test_they_are_the_last(names: set[str], count: int, page_keys: int) -> None:
    listing = Listing(names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lastkeys, "PAGE_KEYS", page_keys)
        assert find_last(listing.page, count) == listing.last(count)


def manifests(steps: Iterable[int], attempts: int = 1) -> Listing:
    return Listing(
        f"{step:012d}.{attempt:08d}.ckpt"
        for step in steps
        for attempt in range(1, attempts + 1)
    )


@pytest.mark.parametrize(
    ("listing", "requests_max"),
    [
        (manifests(range(0)), 1),
        (manifests(range(999)), 1),
        (manifests(range(1000)), 40),
        (manifests(range(100_000)), 40),
        (manifests(range(0, 10_000_000, 100)), 40),
        (manifests(range(5000), attempts=20), 40),
        (manifests([*range(50_000), 999_999_999_999]), 40),
        (manifests(int(1.0003**power) + power for power in range(80_000)), 80),
    ],
    ids=["none", "a page", "just full", "1e5", "each 100th", "attempts", "one far", "growing"],
)
@pytest.mark.parametrize("count", [1, 3, 50])
def test_manifests_take_few_requests(listing: Listing, requests_max: int, count: int) -> None:
    listing.requests = 0
    assert find_last(listing.page, count) == listing.last(count)
    assert listing.requests <= requests_max


def test_ten_times_as_many_take_a_few_more_requests() -> None:
    counts = []
    for keys in (10_000, 100_000, 1_000_000):
        listing = manifests(range(keys))
        find_last(listing.page, 1)
        counts.append(listing.requests)
    assert counts[2] - counts[1] <= 12
    assert counts[1] - counts[0] <= 12
