"""Find what changed in a state on the CPU, against copying the state once.

A state of 1 GiB (``--quick``: 256 MiB) of noise, in chunks of 4 KiB, of which 0 to 20 % change
in runs of eight. Measured is all that a save does before it writes: digest every chunk,
build the Merkle tree, make the runs. Buffers are warm, as they are from the second
checkpoint on. The planted changes, and nothing else, must be found.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from report import Claim, Row, arguments, finish, ratio, require, time_in_turn

from ckptflow.data import digest
from ckptflow.data.diff import Kind, Runs, diff_region
from ckptflow.data.merkle import Tree

CHUNK_BYTES = 4096
RUN_CHUNKS = 8
CHANGED_PCT = (0.0, 0.1, 1.0, 5.0, 20.0)


class Save:
    """The part of a save that finds changes, with a clock on each step."""

    def __init__(self, state: NDArray[np.uint64]) -> None:
        self.state = state
        self.parent = Tree.build(digest.chunk_digests(state, CHUNK_BYTES))
        self.leaves = np.zeros_like(self.parent.leaves)
        self.steps_s: dict[str, list[float]] = {"digest": [], "tree": [], "runs": []}
        self.tree = self.parent
        self.runs: Runs | None = None

    def __call__(self) -> None:
        """Digest the state and compare it with what it was at first."""
        clock = [time.perf_counter()]
        leaves = digest.chunk_digests(self.state, CHUNK_BYTES, out=self.leaves)
        clock.append(time.perf_counter())
        self.tree = Tree.build(leaves, self.parent)
        clock.append(time.perf_counter())
        self.runs = diff_region(
            self.state,
            leaves,
            self.parent.leaves,
            chunk_bytes=CHUNK_BYTES,
            parent_bytes=self.state.nbytes,
        )
        clock.append(time.perf_counter())
        for name, (start, end) in zip(self.steps_s, pairwise(clock), strict=True):
            self.steps_s[name].append(end - start)


def plant(
    state: NDArray[np.uint64], changed_pct: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Change one word in each chunk of random runs; return the numbers of the chunks."""
    chunks = state.nbytes // CHUNK_BYTES
    runs = round(chunks * changed_pct / 100 / RUN_CHUNKS)
    first = rng.choice(chunks // RUN_CHUNKS, runs, replace=False) * RUN_CHUNKS
    changed = np.sort((first[:, np.newaxis] + np.arange(RUN_CHUNKS)).ravel())
    words = CHUNK_BYTES // 8
    state[changed * words + rng.integers(0, words, changed.size)] ^= np.uint64(1)
    return changed


def check(save: Save, changed: NDArray[np.intp]) -> None:
    """Require that the runs and the tree found the planted chunks."""
    assert save.runs is not None
    runs = save.runs
    of_chunk = np.repeat(runs.kind, (runs.length_bytes // CHUNK_BYTES).astype(np.intp))
    found = np.flatnonzero(of_chunk == Kind.DATA)
    require(np.array_equal(found, changed), "the runs are not the planted changes")
    require(
        bool(np.isin(runs.kind, (Kind.SAME, Kind.DATA)).all()),
        "noise was taken for something else",
    )
    seen = save.tree.changed_leaves(save.parent)
    require(np.array_equal(seen, changed), "the tree does not see the planted changes")


def main() -> None:
    args = arguments(__doc__)
    size_bytes, rounds = (256 << 20, 7) if args.quick else (1 << 30, 9)
    rng = np.random.default_rng(0)
    state = rng.integers(0, 1 << 63, size_bytes // 8, dtype=np.uint64)
    original, target = state.copy(), np.zeros_like(state)

    rows: list[Row] = []
    for changed_pct in CHANGED_PCT:
        np.copyto(state, original)
        save = Save(state)
        changed = plant(state, changed_pct, rng)
        seconds = time_in_turn(
            {"memcpy": lambda: np.copyto(target, state), "diff": save}, rounds=rounds
        )
        check(save, changed)
        rows.append(
            {
                "changed_pct": changed_pct,
                "chunks_changed": int(changed.size),
                "memcpy_ms": 1e3 * statistics.median(seconds["memcpy"]),
                **{
                    f"{name}_ms": 1e3 * statistics.median(steps[1:])
                    for name, steps in save.steps_s.items()
                },
                "diff_ms": 1e3 * statistics.median(seconds["diff"]),
                "diff_over_memcpy": ratio(seconds["diff"], seconds["memcpy"]),
            }
        )

    few = [float(row["diff_over_memcpy"]) for row in rows if float(row["changed_pct"]) <= 5]
    finish(
        f"Diff of {size_bytes >> 20} MiB in 4 KiB chunks by {digest.active()}",
        rows,
        [Claim("diff_over_memcpy_at_le_5pct", max(few), "<=", 1.5)],
        args.json_path,
    )


if __name__ == "__main__":
    main()
