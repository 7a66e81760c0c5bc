"""The graphlet workflow counts what there is, once, under the numbers that everybody uses.

Subgraphs are found again without a root, an order or a table: as all subsets of the vertices
of tiny graphs, and by growing sets of vertices in larger ones. Orbits are told by sums of
degrees around the vertices; that these tell 73 orbits, and that each is a class of vertices
which automorphisms map to each other, is shown with networkx's atlas of small graphs.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("numba", reason="graphlets are counted by compiled code")
nx = pytest.importorskip("networkx", reason="its atlas of small graphs is compared with")

NAMES = ("race", "mesh", "road", "honeycomb", "honeycomb_holes", "delaunay")


@pytest.fixture(scope="module")
def modules(repository) -> Iterator[dict[str, ModuleType]]:
    """Import the modules of ``workflows/``, as its tasks do."""
    names = ("graphs", "orbits", "graphlets")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repository / "workflows"))
        yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def graphs(modules):
    return modules["graphs"]


@pytest.fixture
def orbits(modules):
    return modules["orbits"]


@pytest.fixture
def graphlets(modules):
    pytest.importorskip("scipy", reason="one of the graphs is a triangulation")
    return modules["graphlets"]


# --- found another way -----------------------------------------------------------------


def adjacency(csr) -> list[set[int]]:
    return [set(some.tolist()) for some in np.split(csr.neighbours, csr.starts[1:-1])]


def signatures(members, near) -> list[tuple]:
    """What tells the orbit of each member: degrees summed around it, and around all."""
    inside = {vertex: near[vertex] & set(members) for vertex in members}
    around = {
        vertex: sum(len(inside[one]) for one in {vertex} | inside[vertex]) for vertex in members
    }
    whole = tuple(sorted(around.values()))
    return [(whole, around[vertex]) for vertex in members]


def is_connected(members, near) -> bool:
    reached, ring = set(), {members[0]}
    while ring:
        reached |= ring
        ring = set().union(*(near[one] for one in ring)) & set(members) - reached
    return len(reached) == len(members)


def all_subsets(near) -> set[frozenset[int]]:
    return {
        frozenset(members)
        for size in range(2, 6)
        for members in combinations(range(len(near)), size)
        if is_connected(members, near)
    }


def grown_sets(near) -> set[frozenset[int]]:
    found: set[frozenset[int]] = set()
    ring = {frozenset([vertex]) for vertex in range(len(near))}
    for _ in range(4):
        ring = {some | {new} for some in ring for one in some for new in near[one] - some}
        found |= ring
    return found


def orbit_of_signature(orbits) -> dict[tuple, int]:
    numbers = {}
    for edges, ours in orbits.GRAPHLETS:
        near = [set() for _ in ours]
        for one, other in (map(int, pair) for pair in edges.split()):
            near[one].add(other)
            near[other].add(one)
        numbers |= dict(zip(signatures(range(len(ours)), near), ours, strict=True))
    return numbers


def expected_counts(orbits, near, subgraphs) -> np.ndarray:
    numbers = orbit_of_signature(orbits)
    counts = np.zeros((73, len(near)), np.uint32)
    for members in map(sorted, subgraphs):
        for vertex, signature in zip(members, signatures(members, near), strict=True):
            counts[numbers[signature], vertex] += 1
    return counts


def counted(orbits, csr) -> np.ndarray:
    counts = orbits.zero_counts(csr.vertices)
    orbits.count(csr, counts, 0, csr.vertices)
    return counts


def csr_of(graphs, graph):
    return graphs.from_edges(len(graph), np.array(list(graph.edges), np.int64))


# --- counts ----------------------------------------------------------------------------


@pytest.mark.parametrize("density", [0.15, 0.3, 0.6, 1.0])
def test_counts_are_those_of_all_subsets(graphs, orbits, rng, density):
    for vertices in (1, 2, 5, 11):
        pairs = np.array(list(combinations(range(vertices), 2)), np.int64).reshape(-1, 2)
        csr = graphs.from_edges(vertices, pairs[rng.random(len(pairs)) < density])
        near = adjacency(csr)
        subgraphs = all_subsets(near)
        assert subgraphs == grown_sets(near)
        counts = orbits.zero_counts(vertices)
        assert orbits.count(csr, counts, 0, vertices) == len(subgraphs)
        assert (counts == expected_counts(orbits, near, subgraphs)).all()


def check_against_grown_sets(graphs, orbits, name: str, vertices: int) -> None:
    csr = graphs.GRAPHS[name](vertices, 1)
    near = adjacency(csr)
    subgraphs = grown_sets(near)
    counts = orbits.zero_counts(vertices)
    assert orbits.count(csr, counts, 0, vertices) == len(subgraphs)
    assert (counts == expected_counts(orbits, near, subgraphs)).all()
    assert sum(orbits.graphlet_totals(counts)) == len(subgraphs)
    roots = Counter(map(min, subgraphs))
    assert orbits.graphlets_per_root(csr).tolist() == [roots[v] for v in range(vertices)]


@pytest.mark.parametrize("name", NAMES)
def test_counts_of_every_kind_of_graph(graphlets, graphs, orbits, name):
    check_against_grown_sets(graphs, orbits, name, 50 if name == "delaunay" else 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_counts_of_larger_graphs(graphlets, graphs, orbits, name):
    check_against_grown_sets(graphs, orbits, name, 500 if name == "delaunay" else 3000)


def test_roots_may_be_counted_in_any_pieces(graphs, orbits, rng):
    csr = graphs.mesh(1500, 3)
    whole = counted(orbits, csr)
    counts = orbits.zero_counts(1500)
    bounds = [0, *sorted(rng.integers(0, 1501, 40).tolist()), 1500]
    found = [orbits.count(csr, counts, *pair) for pair in pairwise(bounds)]
    assert (counts == whole).all()
    assert sum(found) == sum(orbits.graphlet_totals(whole))


def test_a_root_changes_nothing_below_it(graphs, orbits):
    csr = graphs.road(400, 0)
    counts = orbits.zero_counts(400)
    orbits.count(csr, counts, 200, 400)
    assert not counts[:, :200].any()
    assert counts[:, 200:].any()


@pytest.mark.parametrize(
    "counts",
    [
        np.zeros((73, 9), np.uint32),
        np.zeros((72, 10), np.uint32),
        np.zeros((73, 10), np.int32),
        np.zeros((10, 73), np.uint32).T,
    ],
    ids=["vertices", "orbits", "dtype", "order"],
)
def test_counters_that_do_not_fit_are_refused(graphs, orbits, counts):
    with pytest.raises(ValueError, match=r"uint32 array of shape \(73, 10\)"):
        orbits.count(graphs.road(10, 0), counts, 0, 10)
    assert not counts.any()


@pytest.mark.parametrize("roots", [(-1, 5), (0, 11), (6, 5)])
def test_roots_outside_the_graph_are_refused(graphs, orbits, roots):
    with pytest.raises(ValueError, match="not a range of the 10 vertices"):
        orbits.count(graphs.road(10, 0), orbits.zero_counts(10), *roots)


# --- orbits ----------------------------------------------------------------------------


def automorphism_classes(graph) -> dict[int, frozenset[int]]:
    """The vertices that some relabelling without effect puts in the place of each vertex."""
    edges = {frozenset(edge) for edge in graph.edges}
    classes = {vertex: set() for vertex in graph}
    for image in permutations(graph):
        label = dict(zip(graph, image, strict=True))
        if {frozenset((label[one], label[other])) for one, other in edges} == edges:
            for vertex in graph:
                classes[vertex].add(label[vertex])
    return {vertex: frozenset(some) for vertex, some in classes.items()}


@pytest.fixture(scope="module")
def atlas() -> list:
    """All connected graphs of 2 to 5 vertices but for their labels."""
    found = [
        graph for graph in nx.graph_atlas_g() if 2 <= len(graph) <= 5 and nx.is_connected(graph)
    ]
    assert len(found) == 30
    return found


def test_orbits_are_the_classes_of_the_automorphisms(graphs, orbits, atlas):
    reached = set()
    for graph in atlas:
        counts = counted(orbits, csr_of(graphs, graph))
        # Only the whole graph makes a graphlet of its size; smaller ones come before it.
        first = {2: 0, 3: 1, 4: 4, 5: 15}[len(graph)]
        own = {vertex: np.flatnonzero(counts[first:, vertex]) + first for vertex in graph}
        assert all(len(some) == 1 for some in own.values())
        orbit = {vertex: int(some[0]) for vertex, some in own.items()}
        for vertex, others in automorphism_classes(graph).items():
            assert {one for one in graph if orbit[one] == orbit[vertex]} == others
        assert reached.isdisjoint(orbit.values())
        reached |= set(orbit.values())
    assert reached == set(range(73))


def test_sums_of_degrees_tell_all_orbits(orbits):
    assert sorted(orbit_of_signature(orbits).values()) == list(range(73))


def with_edges(graph, *edges):
    graph.add_edges_from(edges)
    return graph


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (nx.path_graph(2), (0, 0)),
        (nx.path_graph(3), (1, 2, 1)),
        (nx.cycle_graph(3), (3, 3, 3)),
        (nx.path_graph(4), (4, 5, 5, 4)),
        (nx.star_graph(3), (7, 6, 6, 6)),
        (nx.cycle_graph(4), (8, 8, 8, 8)),
        (nx.lollipop_graph(3, 1), (10, 10, 11, 9)),
        (nx.diamond_graph(), (12, 13, 13, 12)),
        (nx.complete_graph(4), (14, 14, 14, 14)),
        (nx.path_graph(5), (15, 16, 17, 16, 15)),
        (with_edges(nx.path_graph(4), (1, 4)), (19, 21, 20, 18, 19)),
        (nx.star_graph(4), (23, 22, 22, 22, 22)),
        (nx.bull_graph(), (25, 26, 26, 24, 24)),
        (nx.lollipop_graph(3, 2), (29, 29, 30, 28, 27)),
        (with_edges(nx.cycle_graph(3), (2, 3), (2, 4)), (32, 32, 33, 31, 31)),
        (nx.cycle_graph(5), (34, 34, 34, 34, 34)),
        (with_edges(nx.cycle_graph(4), (3, 4)), (37, 36, 37, 38, 35)),
        (with_edges(nx.diamond_graph(), (1, 4)), (40, 42, 41, 40, 39)),
        (nx.windmill_graph(2, 3), (44, 43, 43, 43, 43)),
        (with_edges(nx.diamond_graph(), (0, 4)), (47, 48, 48, 46, 45)),
        (nx.complete_bipartite_graph(2, 3), (50, 50, 49, 49, 49)),
        (nx.house_graph(), (51, 51, 53, 53, 52)),
        (nx.complete_multipartite_graph(1, 1, 3), (55, 55, 54, 54, 54)),
        (nx.lollipop_graph(4, 1), (57, 57, 57, 58, 56)),
        (
            with_edges(nx.path_graph(4), (0, 4), (1, 4), (2, 4), (3, 4)),
            (59, 60, 60, 59, 61),
        ),
        (with_edges(nx.diamond_graph(), (0, 4), (3, 4)), (63, 64, 64, 63, 62)),
        (with_edges(nx.complete_graph(4), (0, 4), (1, 4)), (67, 67, 66, 66, 65)),
        (nx.wheel_graph(5), (69, 68, 68, 68, 68)),
        (nx.complete_multipartite_graph(2, 1, 1, 1), (70, 70, 71, 71, 71)),
        (nx.complete_graph(5), (72, 72, 72, 72, 72)),
    ],
    ids=str,
)
def test_orbits_have_their_published_numbers(graphs, orbits, graph, expected):
    counts = counted(orbits, csr_of(graphs, graph))
    assert [int(np.flatnonzero(column)[-1]) for column in counts.T] == list(expected)


def test_the_table_knows_connected_graphs_only(orbits):
    table = orbits.orbit_table()
    for size in range(2, 6):
        pairs = list(combinations(range(size), 2))
        for bits in range(1 << len(pairs)):
            near = [set() for _ in range(size)]
            for one, other in pairs:
                if bits >> orbits.edge_bit(one, other) & 1:
                    near[one].add(other)
                    near[other].add(one)
            known = (table[size, bits, :size] >= 0).all()
            assert known == is_connected(range(size), near)


# --- totals ----------------------------------------------------------------------------


def test_totals_agree_with_the_degrees(graphlets, graphs, orbits):
    for name in NAMES:
        csr = graphs.GRAPHS[name](2000, 2)
        totals = orbits.graphlet_totals(counted(orbits, csr))
        degrees = np.diff(csr.starts)
        assert totals[0] == csr.edges
        assert totals[1] + 3 * totals[2] == (degrees * (degrees - 1) // 2).sum()


@pytest.mark.parametrize("orbit", [1, 2, 8, 17, 72])
def test_a_wrong_counter_shows_in_the_totals(graphs, orbits, orbit):
    counts = counted(orbits, graphs.road(500, 0))
    counts[orbit, 250] += 1
    with pytest.raises(ValueError, match=f"disagree on how many there are.*{orbit}: "):
        orbits.graphlet_totals(counts)


def test_the_top_orbits_are_those_with_the_largest_sums(orbits):
    counts = orbits.zero_counts(4)
    counts[7], counts[70], counts[3] = [0, 5, 1, 1], [9, 9, 10, 9], [1, 0, 0, 0]
    assert orbits.top_orbits(counts, 3) == [
        {"orbit": 70, "sum": 37, "vertex": 2},
        {"orbit": 7, "sum": 7, "vertex": 1},
        {"orbit": 3, "sum": 1, "vertex": 0},
    ]


# --- parts of the work -----------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parts", [1, 2, 7, 20])
def test_parts_of_the_work_are_equal_but_for_one_root(graphlets, graphs, orbits, name, parts):
    csr = graphs.GRAPHS[name](1500, 0)
    bounds = graphlets.quanta(csr, parts)
    assert len(bounds) == parts + 1
    assert (bounds[0], bounds[-1]) == (0, 1500)
    work = orbits.graphlets_per_root(csr)
    for part, bound in enumerate(bounds[1:-1].tolist(), start=1):
        goal = work.sum() * part // parts
        assert work[: bound - 1].sum() < goal <= work[:bound].sum()


def test_more_parts_than_roots_leave_some_empty(graphs, graphlets):
    bounds = graphlets.quanta(graphs.road(5, 0), 12)
    assert len(bounds) == 13
    assert (np.diff(bounds) >= 0).all()
    assert bounds[-1] == 5
    assert graphlets.quanta(graphs.from_edges(3, np.empty((0, 2), np.int64)), 2)[-1] == 3
    with pytest.raises(ValueError, match="at least 1 range, not 0"):
        graphlets.quanta(graphs.road(5, 0), 0)


def test_snapshots_grow_to_the_whole_count_in_one_array(graphs, orbits, graphlets):
    seen, before = [], np.zeros((73, 1200), np.uint32)
    for counts in graphlets.snapshots("honeycomb_holes", 1200, 4, seed=9):
        assert (counts >= before).all()
        seen.append(counts)
        before = counts.copy()
    assert len(seen) == 4
    assert all(counts is seen[0] for counts in seen)
    assert (before == counted(orbits, graphs.honeycomb_holes(1200, 9))).all()


# --- graphs ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("vertices", [3, 97, 2500])
def test_graphs_are_simple_sorted_and_undirected(graphlets, name, vertices):
    csr = graphlets.GRAPHS[name](vertices, 0)
    assert (csr.starts.dtype, csr.neighbours.dtype) == (np.int64, np.int32)
    assert csr.vertices == vertices
    assert csr.starts[-1] == len(csr.neighbours) == 2 * csr.edges
    near = adjacency(csr)
    for vertex, others in enumerate(near):
        some = csr.neighbours[csr.starts[vertex] : csr.starts[vertex + 1]].tolist()
        assert some == sorted(others)
        assert vertex not in others
        assert all(vertex in near[other] for other in others)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_makes_the_graph(graphlets, name):
    def bits(seed):
        csr = graphlets.GRAPHS[name](5000, seed)
        return csr.starts.tobytes() + csr.neighbours.tobytes()

    assert bits(4) == bits(4)
    assert (bits(4) == bits(5)) == (name in {"race", "honeycomb"})


@pytest.mark.parametrize("name", NAMES)
def test_neighbours_have_close_numbers(graphlets, name):
    csr = graphlets.GRAPHS[name](40_000, 0)
    sources = np.repeat(np.arange(csr.vertices), np.diff(csr.starts))
    assert np.abs(csr.neighbours - sources).mean() < 1200  # Random numbers: a third of 40,000.


def test_edges_outside_doubled_or_from_a_vertex_to_itself_are_left_out(graphs):
    edges = np.array([[0, 1], [1, 0], [2, 2], [1, 3], [-1, 1], [2, 1], [0, 1]])
    csr = graphs.from_edges(3, edges)
    assert adjacency(csr) == [{1}, {0, 2}, {1}]
    with pytest.raises(ValueError, match="got 0"):
        graphs.from_edges(0, edges)


def test_every_iteration_of_the_race_looks_the_same(graphs, orbits):
    period = 2 * 31 + 31 * 6
    counts = counted(orbits, graphs.race(8 * period, 0)).reshape(73, 8, period)
    for iteration in (3, 4, 5):  # A graphlet may see two iterations back, and so may the ends.
        assert (counts[:, iteration] == counts[:, 2]).all()
    assert (counts[:, 0] != counts[:, 2]).any()


def test_messages_of_a_shuffled_race_arrive_once_each(graphs):
    period, iterations = 2 * 31 + 31 * 6, 40
    plain = graphs.race(iterations * period, 0)
    shuffled = graphs.race(iterations * period, 0, shuffled=0.5)
    assert (np.diff(plain.starts) == np.diff(shuffled.starts)).all()
    near, moved = zip(adjacency(plain), adjacency(shuffled), strict=True), 0
    for vertex, (ours, theirs) in enumerate(near):
        receives = vertex % period < 62
        moved += receives and ours != theirs
        if receives:
            assert {one for one in ours if one % period < 62} == {
                one for one in theirs if one % period < 62
            }
    assert 0.3 < moved / (62 * iterations) < 0.7


def test_partners_of_the_mesh_stay_and_a_quarter_of_the_iterations_is_shuffled(graphs):
    period, iterations = 32 * 32, 200
    csr = graphs.mesh(period * iterations, 0)
    degrees = np.diff(csr.starts)
    assert (degrees[period:-period] == 3).all()
    near = adjacency(csr)
    partners, orders = set(), Counter()
    for iteration in range(iterations):
        base = iteration * period
        heard = []
        for event in range(16):  # What lane 0 sends.
            (receipt,) = (
                one - base
                for one in near[base + event]
                if one - base >= 32 and one < base + period
            )
            heard.append(receipt)
        partners.add(tuple(receipt // 32 for receipt in heard))
        orders[tuple(heard)] += 1
    assert len(partners) == 1
    assert 0.65 < orders.most_common(1)[0][1] / iterations < 0.85


def test_roads_are_long_and_the_honeycomb_is_full_of_hexagons(graphs):
    roads = graphs.road(50_000, 0)
    assert 2 * roads.edges / roads.vertices == pytest.approx(2.06, abs=0.02)
    whole, holes = graphs.honeycomb(40_000, 0), graphs.honeycomb_holes(40_000, 0)
    assert np.diff(whole.starts).max() == np.diff(holes.starts).max() == 3
    assert holes.edges / whole.edges == pytest.approx(0.96, abs=0.005)
    girth = nx.Graph(
        (vertex, other)
        for vertex, some in enumerate(adjacency(graphs.honeycomb(400, 0)))
        for other in some
    )
    assert nx.is_bipartite(girth)
    assert nx.girth(girth) == 6


def test_the_triangulation_has_the_edges_that_euler_asks_for(graphs, graphlets):
    from scipy.spatial import ConvexHull

    csr = graphs.delaunay(3000, 7)
    points = np.random.default_rng([7, 3000, 5]).random((3000, 2))
    assert csr.edges == 3 * 3000 - 3 - len(ConvexHull(points).vertices)
    with pytest.raises(ValueError, match="at least 3 vertices, got 2"):
        graphs.delaunay(2, 0)


# --- the extra -------------------------------------------------------------------------


def test_without_numba_it_says_what_to_install(repository):
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(repository / 'workflows')!r})\n"
        "sys.modules['numba'] = None\n"
        "import graphs, json\n"
        "print(json.dumps(graphs.road(9, 0).edges))\n"
        "import graphlets\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert json.loads(done.stdout) > 0
    assert "numba is not installed: pip install 'ckptflow[numba]'" in done.stderr
