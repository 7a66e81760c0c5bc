"""Trees have the roots that the definition says, and find what changed.

Roots come from the golden file, which an oracle in plain integers has written
(``test_digest.py``); every other fact follows from comparing leaves one by one.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ckptflow.data import digest, merkle

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "ckh128.json"
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 100]


@pytest.fixture(
    params=digest.available(), ids=lambda backend: f"{backend.name}-{backend.detail}"
)
def backend(request: pytest.FixtureRequest):
    with digest.use(request.param.name, request.param.detail) as chosen:
        yield chosen


def splitmix64(start: int, i: int) -> int:
    m64 = (1 << 64) - 1
    z = (start + 0x9E3779B97F4A7C15 * (i + 1)) & m64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & m64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & m64
    return z ^ (z >> 31)


def golden_leaves(count: int) -> np.ndarray:
    rows = [(splitmix64(1, i), splitmix64(2, i)) for i in range(count)]
    return np.array(rows, np.uint64).reshape(-1, 2)


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 63, (count, 2), dtype=np.uint64)


def test_golden_roots(backend: digest.Backend) -> None:
    golden = json.loads(GOLDEN.read_text())["roots"]
    assert {n: merkle.root(golden_leaves(int(n))).hex() for n in golden} == golden


def test_one_leaf_is_its_own_root_and_none_has_the_digest_of_nothing() -> None:
    leaf = noise(1)
    assert merkle.root(leaf) == leaf.astype("<u8").tobytes()
    assert merkle.root(leaf[:0]) == digest.digest(b"")


def test_an_odd_last_node_goes_up_unchanged() -> None:
    tree = merkle.Tree.build(noise(5))
    assert [len(level) for level in tree.levels] == [5, 3, 2, 1]
    assert (tree.levels[1][2] == tree.leaves[4]).all()
    assert (tree.levels[2][1] == tree.leaves[4]).all()


@pytest.mark.parametrize("count", SIZES)
def test_building_from_a_previous_tree_changes_nothing(
    backend: digest.Backend, count: int
) -> None:
    for old_count in SIZES:
        old = noise(old_count)
        new = np.concatenate([old, noise(count, seed=1)])[:count]
        new[::7] ^= np.uint64(1)
        built = merkle.Tree.build(new, merkle.Tree.build(old)).levels
        fresh = merkle.Tree.build(new).levels
        assert [level.tolist() for level in built] == [level.tolist() for level in fresh]


def test_building_takes_unchanged_nodes_from_the_previous_tree(
    backend: digest.Backend,
) -> None:
    """Told by a previous tree that is wrong in a node whose children are unchanged."""
    leaves = noise(8)
    levels = merkle.Tree.build(leaves).levels
    marked = levels[1].copy()
    marked[3] = 7
    new = leaves.copy()
    new[0] ^= np.uint64(1)
    tree = merkle.Tree.build(new, merkle.Tree((levels[0], marked, *levels[2:])))
    assert tree.levels[1][3].tolist() == [7, 7]
    assert (tree.levels[1][0] != levels[1][0]).any()


@pytest.mark.parametrize("count", SIZES)
def test_changed_leaves_of_trees_of_any_two_sizes(count: int) -> None:
    tree = merkle.Tree.build(noise(count))
    for other_count in SIZES:
        others = noise(other_count)
        others[2::5] ^= np.uint64(1)
        other = merkle.Tree.build(others)
        common = min(count, other_count)
        differ = (tree.leaves[:common] != others[:common]).any(axis=1)
        expected = [*np.flatnonzero(differ), *range(common, max(count, other_count))]
        assert tree.changed_leaves(other).tolist() == expected
        assert other.changed_leaves(tree).tolist() == expected


def test_only_differing_subtrees_are_entered() -> None:
    """A leaf that differs below equal nodes stays unseen: nobody looked there."""
    tree = merkle.Tree.build(noise(16))
    tampered = tree.leaves.copy()
    tampered[3] ^= np.uint64(1)
    other = merkle.Tree((tampered, *tree.levels[1:]))
    assert tree.changed_leaves(other).size == 0


@pytest.mark.parametrize(
    "leaves",
    [np.zeros(4, np.uint64), np.zeros((4, 3), np.uint64), np.zeros((4, 2), np.int64)],
    ids=["flat", "wide", "signed"],
)
def test_leaves_are_pairs_of_uint64(leaves: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"Leaves are uint64 of shape \(n, 2\), got"):
        merkle.Tree.build(leaves)
