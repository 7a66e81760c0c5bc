"""A diff of digests is a diff of bytes, and every backend makes the same one.

Regions grow, shrink, get noise and fills anywhere. What is expected comes from comparing
plain bytes chunk by chunk; the last law rebuilds the region from its parent and its runs.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import digest, merkle
from ckptflow.data.diff import Kind, Runs, diff_region
from ckptflow.data.ranges import copy_ranges, fill_ranges

BACKENDS = digest.available()
CHUNK_BYTES = st.sampled_from([16, 24, 48, 1040])

pieces = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda seed, size: np.random.default_rng(seed).bytes(size),
        st.integers(0, 9),
        st.integers(0, 3000),
    ),
    st.builds(
        lambda pattern, times: pattern * times,
        st.sampled_from([bytes(8), b"\1", b"\0\1\2\3\4\5\6\7", b"abc"]),
        st.integers(0, 300),
    ),
)
regions = st.lists(pieces, max_size=5).map(b"".join)


@st.composite
def parents_and_children(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A region and what an application may have made of it."""
    parent = draw(regions)
    child = bytearray(parent)
    for _ in range(draw(st.integers(0, 4))):
        piece = draw(pieces)
        start = draw(st.integers(0, len(child)))
        child[start : start + len(piece)] = piece
    if draw(st.booleans()):
        del child[draw(st.integers(0, len(child))) :]
    return parent, bytes(child)


def every_backend():
    for backend in BACKENDS:
        with digest.use(backend.name, backend.detail):
            yield backend


def rows(runs: Runs) -> list[tuple[int, ...]]:
    columns = (runs.kind, runs.start_bytes, runs.length_bytes, runs.pattern)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def expected_rows(child: bytes, parent: bytes, chunk_bytes: int) -> list[tuple[int, ...]]:
    def describe(start: int) -> tuple[int, int, int]:
        chunk = child[start : start + chunk_bytes]
        if chunk == parent[start : start + chunk_bytes]:
            return Kind.SAME, 0, len(chunk)
        if len(chunk) % 8 == 0 and chunk == chunk[:8] * (len(chunk) // 8):
            return Kind.FILL, int.from_bytes(chunk[:8], "little"), len(chunk)
        return Kind.DATA, 0, len(chunk)

    chunks = [describe(start) for start in range(0, len(child), chunk_bytes)]
    found, start = [], 0
    for (kind, pattern), members in groupby(chunks, key=lambda chunk: chunk[:2]):
        length = sum(size for *_, size in members)
        found.append((kind, start, length, pattern))
        start += length
    return found


@given(parents_and_children(), CHUNK_BYTES, st.booleans())
def test_runs_are_what_comparing_bytes_gives(
    pair: tuple[bytes, bytes], chunk_bytes: int, told_length: bool
) -> None:
    parent, child = pair
    expected = expected_rows(child, parent, chunk_bytes)
    for _ in every_backend():
        runs = diff_region(
            child,
            digest.chunk_digests(child, chunk_bytes),
            digest.chunk_digests(parent, chunk_bytes),
            chunk_bytes=chunk_bytes,
            parent_bytes=len(parent) if told_length else None,
        )
        assert rows(runs) == expected


@given(parents_and_children(), CHUNK_BYTES)
def test_parent_and_runs_give_the_region_back(
    pair: tuple[bytes, bytes], chunk_bytes: int
) -> None:
    parent, child = pair
    for _ in every_backend():
        runs = diff_region(
            child,
            digest.chunk_digests(child, chunk_bytes),
            digest.chunk_digests(parent, chunk_bytes),
            chunk_bytes=chunk_bytes,
        )
        rebuilt = bytearray(len(child))
        for kind, source in ((Kind.SAME, parent), (Kind.DATA, child)):
            of_kind = runs.kind == kind
            start, length = runs.start_bytes[of_kind], runs.length_bytes[of_kind]
            copy_ranges(source, rebuilt, start, start, length)
        fills = runs.kind == Kind.FILL
        fill_ranges(
            rebuilt, runs.start_bytes[fills], runs.length_bytes[fills], runs.pattern[fills]
        )
        assert rebuilt == child


@given(regions, st.integers(0, 63), CHUNK_BYTES)
def test_a_chunk_digest_is_the_digest_of_the_chunk_wherever_it_lies(
    region: bytes, offset: int, chunk_bytes: int
) -> None:
    moved = memoryview(bytes(offset) + region)[offset:]
    expected = [
        digest.digest(region[start : start + chunk_bytes])
        for start in range(0, len(region), chunk_bytes)
    ]
    for _ in every_backend():
        found = digest.chunk_digests(moved, chunk_bytes)
        assert [digest.digest_bytes(row) for row in found] == expected


@given(st.binary(min_size=1, max_size=3000), st.integers(0), st.integers(0, 7))
def test_any_flipped_bit_changes_the_digest(message: bytes, where: int, bit: int) -> None:
    flipped = bytearray(message)
    flipped[where % len(message)] ^= 1 << bit
    assert digest.digest(flipped) != digest.digest(message)


leaf_sets = st.integers(0, 70).flatmap(
    lambda count: st.lists(st.integers(0, 3), min_size=count, max_size=count)
)


def leaves_from(numbers: list[int]) -> np.ndarray:
    return np.array([(n, n) for n in numbers], np.uint64).reshape(-1, 2)


@given(leaf_sets, leaf_sets, st.booleans())
def test_trees_find_the_leaves_that_comparing_leaves_finds(
    ours: list[int], theirs: list[int], related: bool
) -> None:
    if related:  # Else most leaves differ, and little is left to skip.
        theirs = ours[: len(theirs)] + theirs[len(ours) :]
    common, total = sorted((len(ours), len(theirs)))
    expected = [i for i in range(common) if ours[i] != theirs[i]] + list(range(common, total))
    for _ in every_backend():
        tree = merkle.Tree.build(leaves_from(ours))
        other = merkle.Tree.build(leaves_from(theirs), tree)
        assert tree.changed_leaves(other).tolist() == expected
        assert other.root == merkle.root(leaves_from(theirs))
        assert (tree.root == other.root) == (ours == theirs)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(2101, 70_000), st.integers(0, 63))
def test_backends_agree_on_long_messages(seed: int, size: int, offset: int) -> None:
    message = memoryview(np.random.default_rng(seed).bytes(size + offset))[offset:]
    assert len({digest.digest(message) for _ in every_backend()}) == 1
