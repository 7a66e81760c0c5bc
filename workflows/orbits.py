"""Which orbits the vertices of small connected subgraphs are on, and how often, counted.

A graphlet is a connected induced subgraph of 2 to 5 vertices. There are 30, and by their
symmetries their vertices fall into 73 orbits, numbered 0 to 72 as by Przulj (Bioinformatics
23, 2007): `GRAPHLETS`. How many graphlets touch a vertex on each orbit is the vertex's
graphlet degree vector.

The subgraphs are enumerated by ESU (Wernicke, IEEE/ACM TCBB 3, 2006). One grows from its
vertex of the least number, the root, and takes in vertices of greater numbers only: those
next to the newest vertex, but to no earlier one, and those that were left over before. So
each subgraph comes up once, at its root. Which edges it has, as bits of a number, is looked up
in a table of orbits, which all relabellings of the 30 graphlets fill. The loops are compiled
by numba and run without the GIL.

``tests/unit/test_graphlets.py`` compares counts with all subsets of vertices of small graphs,
and orbits with the automorphisms of every small graph.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

try:
    import numba
except ImportError as missing:
    raise ImportError(
        "Graphlets are counted by code that numba compiles, and numba is not installed: "
        "pip install 'ckptflow[numba]'"
    ) from missing

if TYPE_CHECKING:
    from graphs import Csr

Counts: TypeAlias = NDArray[np.uint32]

ORBITS = 73
"""How many orbits there are."""

GRAPHLETS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("01", (0, 0)),
    ("02 12", (1, 1, 2)),
    ("01 02 12", (3, 3, 3)),
    ("03 12 23", (4, 4, 5, 5)),
    ("03 13 23", (6, 6, 6, 7)),
    ("01 03 12 23", (8, 8, 8, 8)),
    ("03 12 13 23", (9, 10, 10, 11)),
    ("02 03 12 13 23", (12, 12, 13, 13)),
    ("01 02 03 12 13 23", (14, 14, 14, 14)),
    ("03 12 24 34", (15, 15, 16, 16, 17)),
    ("03 14 24 34", (18, 19, 19, 20, 21)),
    ("04 14 24 34", (22, 22, 22, 22, 23)),
    ("04 13 23 24 34", (24, 24, 25, 26, 26)),
    ("01 14 23 24 34", (27, 28, 29, 29, 30)),
    ("04 14 23 24 34", (31, 31, 32, 32, 33)),
    ("01 04 12 23 34", (34, 34, 34, 34, 34)),
    ("04 12 13 24 34", (35, 36, 37, 37, 38)),
    ("04 13 14 23 24 34", (39, 40, 40, 41, 42)),
    ("01 04 14 23 24 34", (43, 43, 43, 43, 44)),
    ("02 13 14 23 24 34", (45, 46, 47, 48, 48)),
    ("03 04 13 14 23 24", (49, 49, 49, 50, 50)),
    ("01 03 14 23 24 34", (51, 51, 52, 53, 53)),
    ("03 04 13 14 23 24 34", (54, 54, 54, 55, 55)),
    ("04 12 13 14 23 24 34", (56, 57, 57, 57, 58)),
    ("03 04 12 14 23 24 34", (59, 59, 60, 60, 61)),
    ("01 02 13 14 23 24 34", (62, 63, 63, 64, 64)),
    ("03 04 12 13 14 23 24 34", (65, 66, 66, 67, 67)),
    ("01 03 04 12 14 23 24 34", (68, 68, 68, 68, 69)),
    ("02 03 04 12 13 14 23 24 34", (70, 70, 71, 71, 71)),
    ("01 02 03 04 12 13 14 23 24 34", (72, 72, 72, 72, 72)),
)
"""The edges of each graphlet, as pairs of its vertices, and the orbit of each vertex."""

_OUTSIDE, _SEEN = -1, 5  # What a vertex is: neither in the subgraph nor next to it; next to it.


def edge_bit(low: int, high: int) -> int:
    """Return the bit that says whether vertices ``low`` < ``high`` of a subgraph are joined.

    The upper triangle is taken column after column, so that a further vertex adds bits above
    those that are there.
    """
    return high * (high - 1) // 2 + low


def orbit_table() -> NDArray[np.int8]:
    """Return the orbits of every labelled connected graph of 2 to 5 vertices.

    Returns:
        int8 (6, 1024, 5): by number of vertices, edges as bits (`edge_bit`) and vertex. -1
        where there is no vertex, or the graph is not connected.
    """
    table = np.full((6, 1024, 5), -1, np.int8)
    for edges, orbits in GRAPHLETS:
        pairs = [(int(pair[0]), int(pair[1])) for pair in edges.split()]
        size = len(orbits)
        for label in permutations(range(size)):
            bits = sum(
                1 << edge_bit(*sorted((label[one], label[other]))) for one, other in pairs
            )
            table[size, bits, list(label)] = orbits
    return table


_TABLE = orbit_table()


def zero_counts(vertices: int) -> Counts:
    """Return the counters to begin with, uint32 (73, vertices).

    Element ``(o, v)`` will be how many graphlets touch vertex ``v`` on orbit ``o``.
    """
    return np.zeros((ORBITS, vertices), np.uint32)


def count(csr: Csr, counts: Counts, first_root: int, last_root: int) -> int:
    """Add the graphlets whose least vertex is in ``range(first_root, last_root)``, in place.

    Args:
        csr: the graph.
        counts: of `zero_counts`, with what was added to it. Beyond 2^32 - 1 it begins at 0.
        first_root: the first root.
        last_root: the one after the last.

    Returns:
        How many graphlets were added.

    Raises:
        ValueError: the counters do not fit the graph, or the roots are not in it.
    """
    expected = (ORBITS, csr.vertices)
    if counts.shape != expected or counts.dtype != np.uint32 or not counts.flags.c_contiguous:
        raise ValueError(
            f"Counters of this graph are a C-contiguous uint32 array of shape {expected}, got "
            f"{counts.dtype} of shape {counts.shape} and strides {counts.strides} bytes."
        )
    if not 0 <= first_root <= last_root <= csr.vertices:
        raise ValueError(
            f"Roots from {first_root} to before {last_root} are not a range of the "
            f"{csr.vertices} vertices."
        )
    return int(_add((csr.starts, csr.neighbours), _TABLE, counts, first_root, last_root))


def graphlets_per_root(csr: Csr) -> NDArray[np.int64]:
    """Return how many graphlets have each vertex as their root, int64 (vertices,)."""
    found = np.zeros(csr.vertices, np.int64)
    _weigh((csr.starts, csr.neighbours), found)
    return found


def quanta(csr: Csr, n: int) -> NDArray[np.int64]:
    """Split the roots into ``n`` ranges with about the same number of graphlets.

    Returns:
        int64 (n + 1,), from 0 to the number of vertices, not falling: range ``i`` begins at
        root ``quanta[i]`` and ends before ``quanta[i + 1]``. Where one root has more than
        its share, a range may be empty.

    Raises:
        ValueError: ``n`` is less than 1.
    """
    if n < 1:
        raise ValueError(f"Roots are split into at least 1 range, not {n}.")
    done = np.cumsum(graphlets_per_root(csr))
    goals = [int(done[-1]) * part // n for part in range(1, n)]
    inner = np.searchsorted(done, np.array(goals, np.int64), side="left") + 1
    return np.concatenate([[0], inner, [csr.vertices]])


def graphlet_totals(counts: Counts) -> list[int]:
    """Return how many of each of the 30 graphlets were counted.

    Every graphlet is counted at each of its vertices, so all its orbits have to tell the same.

    Raises:
        ValueError: they do not, so that the counters cannot be right.
    """
    sums = counts.sum(axis=1, dtype=np.uint64).tolist()
    totals = []
    for graphlet, (_, orbits) in enumerate(GRAPHLETS):
        told = {orbit: divmod(sums[orbit], orbits.count(orbit)) for orbit in orbits}
        if len(set(told.values())) != 1 or any(rest for _, rest in told.values()):
            heard = {orbit: (sums[orbit], orbits.count(orbit)) for orbit in told}
            raise ValueError(
                f"The orbits of graphlet {graphlet} disagree on how many there are. By "
                f"orbit, the sum of its counters and how often it is on one graphlet: {heard}."
            )
        totals.append(told[orbits[0]][0])
    return totals


def top_orbits(counts: Counts, n: int = 5) -> list[dict[str, int]]:
    """Return the ``n`` orbits with the largest sums, largest first, and who is on them most."""
    sums = counts.sum(axis=1, dtype=np.uint64)
    return [
        {"orbit": int(orbit), "sum": int(sums[orbit]), "vertex": int(counts[orbit].argmax())}
        for orbit in np.argsort(sums, kind="stable")[::-1][:n]
    ]


def _compiled(function: Any) -> Any:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # Numba found no writable place for its cache.
        return numba.njit(nogil=True)(function)


class _Walk(NamedTuple):
    """Where an enumeration is; the rows and elements of all but ``place`` are by depth.

    Depth 0 is the root, and depth d has d + 1 members.
    """

    place: Any  # int8 (vertices,): the depth of a member, `_SEEN`, or -1.
    members: Any  # int64 (5,)
    candidates: Any  # int64 (5, n): vertices to go on with, `listed` of them.
    kept: Any  # int64 (5,): so many of them come from the depth before.
    listed: Any
    left: Any  # int64 (5,): so many of them were not tried yet.


@_compiled
def _walk(starts):
    most = 0
    for vertex in range(len(starts) - 1):
        most = max(most, starts[vertex + 1] - starts[vertex])
    place = np.full(len(starts) - 1, _OUTSIDE, np.int8)
    candidates = np.empty((5, 4 * most + 1), np.int64)
    none = np.zeros((4, 5), np.int64)
    return _Walk(place, none[0], candidates, none[1], none[2], none[3])


@_compiled
def _enter(graph, walk, vertex, depth):
    """Make ``vertex`` the member at ``depth``; return its edges to the others as bits."""
    starts, neighbours = graph
    bits = 0
    kept = walk.left[depth - 1] if depth else 0
    if depth:
        walk.candidates[depth, :kept] = walk.candidates[depth - 1, :kept]
    walk.members[depth] = vertex
    walk.place[vertex] = depth
    found = kept
    for at in range(starts[vertex], starts[vertex + 1]):
        other = neighbours[at]
        where = walk.place[other]
        if where == _OUTSIDE:
            if other > walk.members[0]:
                walk.place[other] = _SEEN
                walk.candidates[depth, found] = other
                found += 1
        elif where < _SEEN:
            bits |= 1 << (depth * (depth - 1) // 2 + where)
    walk.kept[depth], walk.listed[depth], walk.left[depth] = kept, found, found
    return bits


@_compiled
def _leave(walk, depth):
    """Forget the member at ``depth`` and what only it was next to."""
    for at in range(walk.kept[depth], walk.listed[depth]):
        walk.place[walk.candidates[depth, at]] = _OUTSIDE
    walk.place[walk.members[depth]] = _SEEN if depth else _OUTSIDE


@_compiled
def _bits(graph, walk, vertex):
    """Return the edges of a fifth vertex to the members as bits."""
    starts, neighbours = graph
    bits = 0
    for at in range(starts[vertex], starts[vertex + 1]):
        where = walk.place[neighbours[at]]
        if _OUTSIDE < where < _SEEN:
            bits |= 1 << (6 + where)
    return bits


@_compiled
def _add(graph, table, counts, first_root, last_root):
    walk = _walk(graph[0])
    codes = np.zeros(5, np.int64)
    found = 0
    for root in range(first_root, last_root):
        _enter(graph, walk, root, 0)
        depth = 0
        while depth >= 0:
            if walk.left[depth] == 0:
                _leave(walk, depth)
                depth -= 1
                continue
            walk.left[depth] -= 1
            vertex = walk.candidates[depth, walk.left[depth]]
            newest = depth + 1
            if newest < 4:
                codes[newest] = codes[depth] | _enter(graph, walk, vertex, newest)
                depth = newest
            else:
                walk.members[4] = vertex
                codes[4] = codes[3] | _bits(graph, walk, vertex)
            for member in range(newest + 1):
                orbit = table[newest + 1, codes[newest], member]
                counts[orbit, walk.members[member]] += np.uint32(1)
            found += 1
    return found


@_compiled
def _weigh(graph, found):
    walk = _walk(graph[0])
    for root in range(len(found)):
        _enter(graph, walk, root, 0)
        depth = 0
        while depth >= 0:
            # Each candidate makes one graphlet more, so that nobody has to try the fifth ones.
            if depth == 3 or walk.left[depth] == 0:
                found[root] += walk.listed[depth]
                _leave(walk, depth)
                depth -= 1
                continue
            walk.left[depth] -= 1
            depth += 1
            _enter(graph, walk, walk.candidates[depth - 1, walk.left[depth - 1]], depth)
