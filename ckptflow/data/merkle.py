"""Merkle trees over the digests of a region: one root to compare, few nodes to find changes.

Level 0 holds the leaves, each level above the digests of its pairs; an odd last node goes up
unchanged, so that any number of leaves makes a tree and none is padding. A tree of no leaves
has the digest of no bytes as its root. ``tests/unit/test_merkle.py`` compares with a tree
built by recursion in plain integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.backend import kernels
from ckptflow.data.buffers import U64s
from ckptflow.data.digest import digest, digest_bytes

NO_DIGESTS: U64s = np.empty((0, 2), np.uint64)


def root(leaves: U64s) -> bytes:
    """Return the root, 16 bytes, of the tree over ``leaves``, shape ``(n, 2)``."""
    return Tree.build(leaves).root


def pair_roots(left: U64s, right: U64s) -> U64s:
    """Return the roots of trees of two leaves each, uint64 of shape ``(n, 2)``, by one call."""
    leaves = np.stack([left, right], axis=1).reshape(-1, 2)
    roots = np.empty((len(left), 2), np.uint64)
    kernels().digest_parents(leaves, NO_DIGESTS, NO_DIGESTS, roots)
    return roots


def roots(leaves: U64s, edges: Sequence[int]) -> list[bytes]:
    """Return the roots of many trees: of leaves ``edges[i]`` to ``edges[i + 1]`` each.

    Small trees grow together, one call for a level of all of them.
    """
    bounds = np.array(edges, np.intp)
    counts = bounds[1:] - bounds[:-1]
    small = counts <= _TOGETHER_MAX
    leaf = np.repeat(small, counts)
    nodes, sizes = leaves[leaf], counts[small]
    while sizes.max(initial=0) > 1:
        start, parents = np.cumsum(sizes) - sizes, (sizes + 1) // 2
        of = np.repeat(np.arange(len(sizes)), parents)
        left = 2 * (np.arange(len(of)) - (np.cumsum(parents) - parents)[of])
        paired = left + 1 < sizes[of]  # An odd last node goes up unchanged.
        left += start[of]
        above = nodes[left]
        above[paired] = pair_roots(above[paired], nodes[left[paired] + 1])
        nodes, sizes = above, parents
    raw, empty = digest_bytes(nodes), digest(b"")
    ends = np.cumsum(sizes)
    grown = iter(
        [raw[16 * (b - n) : 16 * b] or empty for b, n in zip(ends, sizes, strict=True)]
    )
    return [
        next(grown) if together else root(leaves[a:b])
        for together, (a, b) in zip(small.tolist(), pairwise(edges), strict=True)
    ]


_TOGETHER_MAX = 256  # Leaves: of a larger tree the calls are few for what they do.


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """All digests of one region, leaves first; the top level has one node at most."""

    levels: tuple[U64s, ...]

    @classmethod
    def build(cls, leaves: U64s, previous: Tree | None = None) -> Tree:
        """Build the tree over ``leaves``, uint64 of shape ``(n, 2)``, which it keeps.

        Nodes whose children are as in ``previous`` are taken from there, so that an almost
        unchanged region costs one look at its leaves.

        Raises:
            ValueError: ``leaves`` has another shape or dtype.
        """
        if leaves.ndim != 2 or leaves.shape[1] != 2 or leaves.dtype != np.uint64:
            raise ValueError(
                f"Leaves are uint64 of shape (n, 2), got {leaves.dtype} {leaves.shape}."
            )
        levels = [np.require(leaves, requirements=["C", "A"])]
        old = previous.levels if previous else ()
        while len(levels[-1]) > 1:
            height = len(levels)
            known = height < len(old)
            parents = np.empty((-(-len(levels[-1]) // 2), 2), np.uint64)
            kernels().digest_parents(
                levels[-1],
                old[height - 1] if known else NO_DIGESTS,
                old[height] if known else NO_DIGESTS,
                parents,
            )
            levels.append(parents)
        return cls(tuple(levels))

    @property
    def leaves(self) -> U64s:
        """The digests of the chunks, shape ``(n, 2)``."""
        return self.levels[0]

    @property
    def root(self) -> bytes:
        """The digest of the whole tree, 16 bytes."""
        top = self.levels[-1]
        return digest_bytes(top[0]) if len(top) else digest(b"")

    def changed_leaves(self, other: Tree) -> NDArray[np.intp]:
        """Return the numbers of the leaves that differ or that only one tree has, in order.

        Descends only where nodes differ, so an unchanged region costs one comparison
        however large it is. Trees of different sizes are compared where nodes of both cover
        the same leaves.
        """
        small, large = sorted((self, other), key=lambda tree: len(tree.leaves))
        common, total = len(small.leaves), len(large.leaves)
        frontier = np.arange(len(small.levels[-1]), dtype=np.intp)
        for height in reversed(range(len(small.levels))):
            # The last node of the smaller tree may stand for fewer leaves than its twin.
            comparable = (common == total) | ((frontier + 1) << height <= common)
            equal = np.zeros(len(frontier), np.bool_)
            asked = frontier[comparable]
            equal[comparable] = (
                small.levels[height][asked] == large.levels[height][asked]
            ).all(axis=1)
            frontier = frontier[~equal]
            if height:
                children = np.stack([2 * frontier, 2 * frontier + 1], axis=1).ravel()
                frontier = children[children < len(small.levels[height - 1])]
        return np.concatenate([frontier, np.arange(common, total, dtype=np.intp)])
