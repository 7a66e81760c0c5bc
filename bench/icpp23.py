"""Checkpoints of graphlet counters, by ckptflow and by the methods of the ICPP 2023 paper.

The states are the counters of `workflows/graphlets.py`, 73 orbits by as many vertices, after
equal parts of the work, on the kinds of graphs that the paper had. Compared are, on each, the
published Full, Basic, List and Tree (`icpp23_methods.py`), zstd of each whole state, xdelta3
and Borg where they are installed, and ckptflow: told to store little (``ckptflow``), as it is
without settings (``default``), and the same without history (``full``).

One table a kind of graph, then a summary beside the published values. Columns:

* ``ratio``: bytes of all states over all bytes stored; ``ratio_later``: the same without the
  first checkpoint;
* ``payload``, ``metadata``: bytes stored, of all checkpoints;
* ``first_x``: seconds of the first checkpoint, and ``scan_x``, ``encode_x``, ``write_x``:
  seconds of the phases of a later one, the median, all as multiples of copying the state once
  in memory. Writes are durable, all to the same kind of tier. The published methods ran on a
  GPU, these are their decisions on a CPU: compare sizes with the paper, not speed;
* ``restore_2nd_x``, ``restore_last_x``: seconds to restore these checkpoints, as multiples of
  reading the last state as Full stored it, all in turn and from the page cache; ckptflow
  verifies what it reads;
* ``memory_x``: the most memory beside the state (`icpp23_memory.py`), as a multiple of it.

Checkpoints are restored and compared with the states: all of five; of more, the first five, one
in the middle and the last; of another program the second and the last. Needs numba.

What is left out is a row with the reason; the goal about zstd is about the levels that were
measured, which with ``--large`` are 1 and 3. bsdiff is left out everywhere: bsdiff4 took more
than 100 s for one pair of states of 38 MB.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from icpp23_memory import peak_over_state
from icpp23_rivals import PHASES, ROOM_BYTES, SMALL, Bytes, Keeper, Saved, Way, ways
from report import Claim, Row, Value, finish, parser, ratio, require, show, time_in_turn

# Behind this folder: both have a module `report`.
sys.path.append(str(Path(__file__).resolve().parents[1] / "workflows"))
from graphlets import snapshots

# Tree at 64 bytes, 5 checkpoints: with the first checkpoint, and without it. Their graphs are
# message_race, unstructured_mesh, asia_osm and hugebubbles-00000, 11 to 18 million vertices.
PUBLISHED = {
    "race": (37.7, 541.0),
    "mesh": (34.5, 248.0),
    "road": (22.1, 45.0),
    "honeycomb_holes": (25.9, 74.0),
}
GRAPHS = ("race", "mesh", "road", "honeycomb_holes", "delaunay", "honeycomb")
SIZES = (32, 64, 128, 256, 512, 1024, 4096)
CELL_BYTES = 64  # What the claims are about, as in the published values.
PROGRAMS = ("xdelta3 -9", "borg default", "borg fixed")
MEMORY_SIZES = (0, 64, 4096)
NOT_KNOWN = "-"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    vertices: int
    chunks_bytes: Sequence[int]
    counts: Sequence[int]  # Of checkpoints, the largest last; all divide it.
    memory_graphs: Sequence[str]
    rounds: int  # Of each restore; of one by another program always one.
    leave_out: Sequence[str] = ()
    left_out_by: str = ""
    memory_ways: Sequence[str] = ()  # Of which the memory is measured; none: of all.

    @classmethod
    def of(cls, given: Namespace) -> Plan:
        """Read it from the command line."""
        if given.quick:
            memory = ("Tree", "zstd-3", SMALL, "ckptflow default")
            return cls(131_072, (64, 4096), (5,), GRAPHS[:1], 3, PROGRAMS, "--quick", memory)
        if given.large:
            slow = ("Basic", "List", "zstd-19", *PROGRAMS)
            return cls(3_600_000, (64, 4096), (5,), GRAPHS[:1], 3, slow, "--large")
        return cls(131_072, SIZES, (5, 10, 20), GRAPHS, 5)

    def wants_memory(self, graph: str, way: Way) -> bool:
        """Whether to measure the memory that this takes."""
        return (
            graph in self.memory_graphs
            and way.name in (self.memory_ways or (way.name,))
            and way.chunk_bytes in MEMORY_SIZES
            and not way.program
        )

    def ways(self) -> list[Way]:
        """Return what to compare; what this run leaves out is missing, with the reason."""
        reason = f"not in {self.left_out_by}"
        return [
            replace(way, missing=reason) if way.name in self.leave_out else way
            for way in ways(self.chunks_bytes)
        ]


class Series:
    """The states of one graph, as files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    @classmethod
    def of_graph(cls, folder: Path, name: str, plan: Plan) -> Series:
        """Count the graphlets of a graph and keep the counters after each part."""
        paths = []
        for number, state in enumerate(snapshots(name, plan.vertices, plan.counts[-1])):
            paths.append(folder / f"{number}")
            state.tofile(paths[-1])
        return cls(paths)

    def every(self, count: int) -> Series:
        """Return ``count`` of them, in equal steps; the last one is the same."""
        step = len(self.paths) // count
        return Series(self.paths[step - 1 :: step])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Bytes:
        """Return a state, in memory of its own."""
        return np.fromfile(self.paths[number], np.uint8)

    def __iter__(self) -> Iterator[Bytes]:
        return (self[number] for number in range(len(self)))


@dataclass(slots=True)
class Measured:
    """What one way took for one series."""

    way: Way
    keeper: Keeper
    saved: list[Saved]
    copied_s: list[float]  # Of each state, in memory, right after it was saved.
    restored_s: dict[int, list[float]] = field(default_factory=dict)  # By checkpoint, by round.
    memory: float | None = None

    @property
    def stored_bytes(self) -> int:
        """All bytes of all checkpoints."""
        return sum(each.stored_bytes for each in self.saved)

    @property
    def later_bytes(self) -> int:
        """The same without the first one."""
        return self.stored_bytes - self.saved[0].stored_bytes

    def over_copy(self, phase: str) -> float:
        """Seconds of one phase of a later checkpoint, as a multiple of copying the state."""
        return ratio([each.seconds[phase] for each in self.saved[1:]], self.copied_s[1:])

    def first_over_copy(self) -> float:
        """Seconds of the first checkpoint, as a multiple of copying the state."""
        return sum(self.saved[0].seconds.values()) / statistics.median(self.copied_s)

    def restore_over(self, number: int, other: Measured, other_number: int) -> float:
        """Seconds to restore a checkpoint, as a multiple of restoring another one."""
        these, those = self.restored_s[number], other.restored_s[other_number]
        if len(these) == len(those):
            return ratio(these, those)
        return statistics.median(these) / statistics.median(those)


def main() -> None:
    arguments = parser(__doc__, quick="some 2 minutes on two idle cores")
    arguments.add_argument("--large", action="store_true", help="states of 1 GB, fewer ways")
    arguments.add_argument(
        "--graph", action="append", choices=GRAPHS, help="only this; may be repeated"
    )
    arguments.add_argument(
        "--saves", action="append", type=int, help="so many checkpoints; may be repeated"
    )
    arguments.add_argument(
        "--chunk", action="append", type=int, choices=SIZES, help="may be repeated; 64 is added"
    )
    given = arguments.parse_args()
    plan = Plan.of(given)
    if given.saves:
        plan = replace(plan, counts=tuple(sorted(given.saves)))
    if given.chunk:
        plan = replace(plan, chunks_bytes=tuple(sorted({CELL_BYTES, *given.chunk})))
    warm_up(plan)
    details: list[Row] = []
    summary: list[Row] = []
    of_graph: dict[str, list[Measured]] = {}
    for graph in given.graph or GRAPHS:
        with tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as folder:
            states = Series.of_graph(Path(folder), graph, plan)
            for count in plan.counts:
                part = states.every(count)
                rows, measured = compare(Path(folder), graph, part, plan)
                size_mb = part[0].nbytes / 1e6
                show(f"{graph}: {count} checkpoints of {size_mb:.0f} MB", rows)
                details += [{"graph": graph, "checkpoints": count, **row} for row in rows]
                summary.append(summary_row(graph, count, part[0].nbytes, measured))
                of_graph[graph] = measured
    title = f"Ratios with the first checkpoint, {plan.vertices} vertices"
    finish(title, summary, claims(of_graph, plan.counts[-1]), given.json, details=details)


# --- measure ------------------------------------------------------------------------------


def warm_up(plan: Plan) -> None:
    """Compile and import everything before a clock runs."""
    state = np.zeros(plan.chunks_bytes[-1] * 4, np.uint8)
    with tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as folder:
        for number, way in enumerate(plan.ways()):
            if not way.missing:
                keeper = way.make(Path(folder) / f"{number}")
                for _ in range(2):
                    keeper.save(state)
                keeper.restore(1, np.empty(len(state) + ROOM_BYTES, np.uint8))


def compare(
    folder: Path, graph: str, states: Series, plan: Plan
) -> tuple[list[Row], list[Measured]]:
    """Measure every way; return the table and what it is made of."""
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory(dir=folder) as tiers:
        for way in plan.ways():
            if not way.missing:
                measured.append(measure(way, Path(tiers) / f"{len(measured)}", states))
        restore_in_turn(measured, states, plan.rounds)
    for found in measured:
        if len(states) == plan.counts[0] and plan.wants_memory(graph, found.way):
            found.memory = peak_over_state(found.way, states.paths)
    full = measured[0]
    rows = [row(found, states[0].nbytes, full) for found in measured]
    missing = {way.name: missing_row(way) for way in plan.ways() if way.missing}
    return [*rows, *missing.values()], measured


def measure(way: Way, tier: Path, states: Series) -> Measured:
    """Save all states, restore them and compare."""
    found = Measured(way, way.make(tier), [], [])
    last = len(states) - 1
    into = np.zeros(states[last].nbytes + ROOM_BYTES, np.uint8)
    for state in states:
        found.saved.append(found.keeper.save(state))
        found.copied_s.append(time_copy(state, into[: len(state)]))
    # Of many checkpoints some are checked: those of a chain take as long as the chain.
    checked = {*range(min(last, 5)), last // 2, last}
    for number in sorted({1, last} if way.program else checked):
        into[:] = 0xA5
        began = time.perf_counter()
        restored = found.keeper.restore(number, into)
        if way.program:
            found.restored_s[number] = [time.perf_counter() - began]
        right = np.array_equal(restored, states[number])
        require(right, f"{way.name} did not give checkpoint {number} back")
    return found


def time_copy(state: Bytes, target: Bytes) -> float:
    """Return the seconds that copying the state into warm memory takes."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        np.copyto(target, state)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def restore_in_turn(measured: Sequence[Measured], states: Series, rounds: int) -> None:
    """Time how the second and the last checkpoint are restored, all ways in turn."""
    last = len(states) - 1
    into = np.zeros(states[last].nbytes + ROOM_BYTES, np.uint8)
    ways_and_numbers = {
        f"{index} {number}": (found, number)
        for index, found in enumerate(measured)
        for number in (1, last)
        if not found.way.program
    }
    seconds = time_in_turn(
        {
            key: partial(found.keeper.restore, number, into)
            for key, (found, number) in ways_and_numbers.items()
        },
        rounds=rounds,
    )
    for key, (found, number) in ways_and_numbers.items():
        found.restored_s[number] = seconds[key]


# --- tables -------------------------------------------------------------------------------


def row(found: Measured, state_bytes: int, full: Measured) -> Row:
    """Return one line of the table of a graph."""
    way, count = found.way, len(found.saved)
    parts: dict[str, Value] = {"payload": found.stored_bytes, "metadata": NOT_KNOWN}
    if not way.one_number:
        parts = {
            "payload": sum(each.payload_bytes for each in found.saved),
            "metadata": sum(each.metadata_bytes for each in found.saved),
        }
    return {
        "way": way.name,
        "chunk": way.chunk_bytes or NOT_KNOWN,
        "ratio": state_bytes * count / found.stored_bytes,
        "ratio_later": state_bytes * (count - 1) / found.later_bytes,
        **parts,
        "first_x": found.first_over_copy(),
        **{f"{phase}_x": found.over_copy(phase) for phase in PHASES},
        "restore_2nd_x": found.restore_over(1, full, count - 1),
        "restore_last_x": found.restore_over(count - 1, full, count - 1),
        "memory_x": NOT_KNOWN if found.memory is None else found.memory,
    }


def missing_row(way: Way) -> Row:
    """Return the line of what could not be measured, with the reason."""
    columns = ("chunk", "ratio", "ratio_later", "payload", "metadata", "first_x")
    columns += (*(f"{phase}_x" for phase in PHASES), "restore_2nd_x", "restore_last_x")
    empty = dict.fromkeys((*columns, "memory_x"), NOT_KNOWN)
    return {"way": f"{way.name}: {way.missing}", **empty}


def summary_row(graph: str, count: int, state_bytes: int, measured: Sequence[Measured]) -> Row:
    """Return the line of a graph in the summary."""
    total, later = state_bytes * count, state_bytes * (count - 1)
    tree, at_64 = at(measured, "Tree", CELL_BYTES), at(measured, "ckptflow", CELL_BYTES)
    mine, zstd = at(measured, SMALL, 0), best_zstd(measured)
    published = PUBLISHED.get(graph, (NOT_KNOWN, NOT_KNOWN)) if count == 5 else (NOT_KNOWN,) * 2
    xdelta = [each for each in measured if each.way.name.startswith("xdelta3")]
    return {
        "graph": graph,
        "saves": count,
        "Tree_64": total / tree.stored_bytes,
        "published": published[0],
        "Tree_64_later": later / tree.later_bytes,
        "published_later": published[1],
        "best_Tree": total / smallest(measured, "Tree").stored_bytes,
        "best_zstd": f"{total / zstd.stored_bytes:.3g} ({zstd.way.name})",
        "xdelta3": total / xdelta[0].stored_bytes if xdelta else NOT_KNOWN,
        "ckptflow_64": total / at_64.stored_bytes,
        "ckptflow_default": total / at(measured, "ckptflow default", 0).stored_bytes,
        "ckptflow_small": total / mine.stored_bytes,
        "ckptflow_small_later": later / mine.later_bytes,
    }


def claims(of_graph: dict[str, list[Measured]], count: int) -> list[Claim]:
    """Return the goals, over all graphs that were measured, with the most checkpoints."""

    def worst(rival: Measured, mine: Measured) -> float:
        return mine.stored_bytes / rival.stored_bytes

    mine = {graph: at(found, SMALL, 0) for graph, found in of_graph.items()}
    trees = {graph: smallest(found, "Tree") for graph, found in of_graph.items()}
    return [
        Claim("bytes_over_best_tree", max(worst(trees[g], mine[g]) for g in mine), "<=", 1.0),
        Claim(
            "bytes_over_best_zstd",
            max(worst(best_zstd(found), mine[g]) for g, found in of_graph.items()),
            "<=",
            1.0,
        ),
        *(
            Claim(
                f"tree_64_over_bytes_{graph}",
                at(of_graph[graph], "Tree", CELL_BYTES).stored_bytes / mine[graph].stored_bytes,
                ">=",
                50.0,
            )
            for graph in ("race", "honeycomb")
            if graph in of_graph
        ),
        *restore_claims(list(of_graph.values()), count, "default", ("ckptflow default", 0)),
        *restore_claims(list(of_graph.values()), count, "small", (SMALL, 0)),
    ]


def restore_claims(
    all_measured: Sequence[Sequence[Measured]], count: int, goal: str, way: tuple[str, int]
) -> list[Claim]:
    """Return the goals of one way about the last checkpoint; the slowest graph decides.

    The full checkpoint that it is compared with is that of the default settings. The states of
    this workload begin with zeros and fill up, so a second checkpoint has less to read than a
    last one, however it is stored; hence also both against full ones of their own states.
    """
    last = count - 1
    pairs = [(at(found, *way), at(found, "ckptflow full", 0)) for found in all_measured]
    over_full = max(mine.restore_over(last, full, last) for mine, full in pairs)
    over_2nd = max(mine.restore_over(last, mine, 1) for mine, _ in pairs)
    of_own_state = max(
        mine.restore_over(last, full, last) / mine.restore_over(1, full, 1)
        for mine, full in pairs
    )
    return [
        Claim(f"restore_{count}th_over_full_{goal}", over_full, "<=", 1.3),
        Claim(f"restore_{count}th_over_2nd_{goal}", over_2nd, "<=", 1.1),
        Claim(f"restore_{count}th_over_2nd_each_over_full_{goal}", of_own_state, "<=", 1.1),
    ]


def at(measured: Sequence[Measured], name: str, chunk_bytes: int) -> Measured:
    """Return one way with one size of chunks."""
    return next(
        each
        for each in measured
        if each.way.name == name and each.way.chunk_bytes == chunk_bytes
    )


def smallest(measured: Sequence[Measured], name: str) -> Measured:
    """Return one way with the size of chunks with which it is smallest."""
    named = [each for each in measured if each.way.name == name]
    return min(named, key=lambda each: each.stored_bytes)


def best_zstd(measured: Sequence[Measured]) -> Measured:
    """Return the level of zstd with which the checkpoints are smallest."""
    named = [each for each in measured if each.way.name.startswith("zstd-")]
    return min(named, key=lambda each: each.stored_bytes)


if __name__ == "__main__":
    main()
