"""Sparse graphs whose vertices are numbered along their neighbourhoods, in six kinds.

``race`` and ``mesh`` are event graphs of message-passing programs: what each process does is a
chain of events, and every message joins its sending with its receiving. ``road`` has long
paths, ``honeycomb`` is regular, ``honeycomb_holes`` nearly so, and ``delaunay`` triangulates
random points. The same number of vertices and the same seed give the same graph.

Close vertices have close numbers, as after a renumbering for locality: what happens around
one vertex then touches few places of an array that has an element for each.

``tests/unit/test_graphlets.py`` checks that they are simple, sorted and what they are called.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Edges: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Csr:
    """An undirected graph without loops: the neighbours of all vertices, one after the other.

    Attributes:
        starts: int64 (vertices + 1,); the neighbours of vertex ``v`` begin at ``starts[v]``
            and end before ``starts[v + 1]``.
        neighbours: int32 (2 * edges,), rising for each vertex.
    """

    starts: NDArray[np.int64]
    neighbours: NDArray[np.int32]

    @property
    def vertices(self) -> int:
        """How many vertices there are, with those that have no edge."""
        return len(self.starts) - 1

    @property
    def edges(self) -> int:
        """How many edges there are; each one joins two vertices."""
        return len(self.neighbours) // 2


def from_edges(vertices: int, edges: Edges) -> Csr:
    """Return the graph with these edges.

    Args:
        vertices: how many there are, at least 1.
        edges: integers (n, 2). The order of the two, loops and repetitions do not matter, and
            an edge whose ends are not both in ``range(vertices)`` is left out.

    Raises:
        ValueError: there is no vertex, or more than an int32 counts.
    """
    if not 1 <= vertices <= np.iinfo(np.int32).max:
        raise ValueError(f"A graph needs 1 to 2^31 - 1 vertices, got {vertices}.")
    edges = np.asarray(edges, np.int64).reshape(-1, 2)
    low, high = edges.min(axis=1), edges.max(axis=1)
    kept = (low >= 0) & (high < vertices) & (low != high)
    low, high = low[kept], high[kept]
    both = np.unique(np.concatenate([low * vertices + high, high * vertices + low]))
    sources, targets = np.divmod(both, vertices)
    starts = np.zeros(vertices + 1, np.int64)
    np.cumsum(np.bincount(sources, minlength=vertices), out=starts[1:])
    return Csr(starts, targets.astype(np.int32))


# --- events of message-passing programs ------------------------------------------------

RACE_LANES, RACE_EVENTS = 32, 6
MESH_LANES, MESH_PARTNERS, MESH_SHUFFLED = 32, 16, 0.25


def race(vertices: int, seed: int = 0, *, shuffled: float = 0.0) -> Csr:
    """Return the events of processes that all send to the first one, again and again.

    In every iteration each lane but the first has a chain of six events. The first two send
    a message each; lane 0 has one event for each message, in order of arrival. The events
    of an iteration have consecutive numbers, lane after lane, so that without shuffling every
    iteration looks like the one before.

    Args:
        vertices: how many events; the last iteration may be cut short.
        seed: of the shuffling.
        shuffled: part of the iterations, 0 to 1, in which the lanes' messages arrive in
            random order instead of the order of their lanes.
    """
    senders = RACE_LANES - 1
    blocks = [2 * senders] + [RACE_EVENTS] * senders
    first = np.concatenate([[0], np.cumsum(blocks)])  # of each lane, within an iteration
    period = int(first[-1])
    iterations = -(-vertices // period)
    rng = np.random.default_rng([seed, vertices, 1])
    arrival = np.tile(np.arange(senders), (iterations, 1))
    for iteration in np.flatnonzero(rng.random(iterations) < shuffled):
        rng.shuffle(arrival[iteration])
    base = period * np.arange(iterations)[:, None]
    messages = [
        np.stack([base + first[1:-1] + which, base + 2 * arrival + which], axis=-1)
        for which in (0, 1)
    ]
    return from_edges(vertices, _joined(_chains(first, iterations), *messages))


def mesh(vertices: int, seed: int = 0, *, shuffled: float = MESH_SHUFFLED) -> Csr:
    """Return the events of processes that exchange messages with fixed random partners.

    In every iteration each lane sends one message to each of its partners, in the same order
    each time, and then receives theirs. Numbers as in :func:`race`.

    Args:
        vertices: how many events; the last iteration may be cut short.
        seed: chooses the partners and shuffles.
        shuffled: part of the iterations, 0 to 1, in which every lane receives in random order.
    """
    rng = np.random.default_rng([seed, vertices, 2])
    lanes, count = MESH_LANES, MESH_PARTNERS
    partners = np.stack([_matching(lanes, rng) for _ in range(count)], axis=1)
    events = 2 * count
    period = lanes * events
    iterations = -(-vertices // period)
    arrival = np.tile(np.arange(count), (iterations, lanes, 1))
    for iteration in np.flatnonzero(rng.random(iterations) < shuffled):
        rng.permuted(arrival[iteration], axis=1, out=arrival[iteration])
    first = events * np.arange(lanes + 1)
    # Message ``which`` of a lane is message ``which`` of its partner, too.
    received = np.take_along_axis(arrival, np.broadcast_to(partners, arrival.shape), axis=1)
    base = period * np.arange(iterations)[:, None, None]
    sent = base + first[:-1, None] + np.arange(count)
    messages = np.stack([sent, base + first[partners] + count + received], axis=-1)
    return from_edges(vertices, _joined(_chains(first, iterations), messages))


def _chains(first: NDArray[np.int64], iterations: int) -> Edges:
    """Return the edges of lanes that go through all iterations.

    ``first`` holds the first event of each lane within an iteration, and the period.
    """
    period = int(first[-1])
    following = np.arange(1, period + 1)
    following[first[1:] - 1] = period + first[:-1]  # On to the next iteration.
    base = period * np.arange(iterations)[:, None]
    return np.stack([base + np.arange(period), base + following], axis=-1)


def _matching(lanes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a random partner for each of an even number of lanes, mutual."""
    order = rng.permutation(lanes)
    partner = np.empty(lanes, np.int64)
    partner[order[0::2]], partner[order[1::2]] = order[1::2], order[0::2]
    return partner


def _joined(*edges: Edges) -> Edges:
    return np.concatenate([some.reshape(-1, 2) for some in edges])


# --- in the plane ----------------------------------------------------------------------


def road(vertices: int, seed: int = 0) -> Csr:
    """Return long paths with few crossings: a mean degree of about 2.06.

    Of the steps to the next number 96 % are there, and 7 % of the vertices have an edge to one
    of the next 60 besides.
    """
    rng = np.random.default_rng([seed, vertices, 3])
    here = np.arange(vertices)
    on = here[rng.random(vertices) < 0.96]
    off = here[rng.random(vertices) < 0.07]
    steps = np.stack([on, on + 1], axis=1)
    chords = np.stack([off, off + rng.integers(1, 61, len(off))], axis=1)
    return from_edges(vertices, _joined(steps, chords))


def honeycomb(vertices: int, seed: int = 0) -> Csr:
    """Return a square piece of a honeycomb, row after row; ``seed`` changes nothing."""
    del seed
    return from_edges(vertices, _honeycomb_edges(vertices))


def honeycomb_holes(vertices: int, seed: int = 0) -> Csr:
    """Return a honeycomb from which 4 % of the edges were taken at random."""
    edges = _honeycomb_edges(vertices)
    rng = np.random.default_rng([seed, vertices, 4])
    return from_edges(vertices, edges[rng.random(len(edges)) >= 0.04])


def _honeycomb_edges(vertices: int) -> Edges:
    """Return the edges of a brick wall, which is a honeycomb drawn with right angles."""
    width = math.isqrt(vertices)
    here = np.arange(vertices)
    row, column = np.divmod(here, width)
    along, down = here[column + 1 < width], here[(row + column) % 2 == 0]
    edges = _joined(
        np.stack([along, along + 1], axis=1), np.stack([down, down + width], axis=1)
    )
    return edges[edges[:, 1] < vertices]


def delaunay(vertices: int, seed: int = 0) -> Csr:
    """Return the Delaunay triangulation of random points in a square, in Morton order.

    Raises:
        ValueError: fewer than 3 vertices make no triangle.
        ImportError: SciPy is missing, which scikit-learn in the extra ``demo`` brings along.
    """
    if vertices < 3:
        raise ValueError(f"A triangulation needs at least 3 vertices, got {vertices}.")
    from scipy.spatial import Delaunay

    points = np.random.default_rng([seed, vertices, 5]).random((vertices, 2))
    points = points[np.argsort(_morton(points), kind="stable")]
    corners = Delaunay(points).simplices.astype(np.int64)
    return from_edges(
        vertices, _joined(corners[:, [0, 1]], corners[:, [1, 2]], corners[:, ::2])
    )


def _morton(points: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return numbers along the Z-curve for points (n, 2) of the unit square."""
    codes = np.zeros(len(points), np.uint64)
    cells = (points * (1 << 31)).astype(np.uint64)
    for bit in range(31):
        for axis in (0, 1):
            shifted = (cells[:, axis] >> np.uint64(bit)) & np.uint64(1)
            codes |= shifted << np.uint64(2 * bit + axis)
    return codes


GRAPHS: dict[str, Callable[[int, int], Csr]] = {
    "race": race,
    "mesh": mesh,
    "road": road,
    "honeycomb": honeycomb,
    "honeycomb_holes": honeycomb_holes,
    "delaunay": delaunay,
}
"""Every kind of graph by name: a function of the number of vertices and the seed."""
