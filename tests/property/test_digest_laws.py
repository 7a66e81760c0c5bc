"""Digests and trees of them: every backend gives the same ones, wherever the bytes lie.

Expected digests come from digesting chunk by chunk, expected differences of trees from
comparing leaf by leaf.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import digest, merkle

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


def every_backend():
    for backend in BACKENDS:
        with digest.use(backend.name, backend.detail):
            yield backend


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
