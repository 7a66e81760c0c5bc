"""Find what changed in a state on the CPU, against copying the state once.

A state of 1 GiB (``--quick``: 256 MiB) of noise in chunks of 4 KiB, with cells of 4 KiB, 256
and 64 bytes; nothing known before (the first diff), or 0 to 100 % of the chunks changed in one
word, in runs of eight. Measured is all that a save does before it writes: *scan* digests and
compares the chunks, and the cells of those that changed; *tree* makes the root; *runs* looks
changed cells up in the history and joins them. Buffers are warm, as they are from the second
checkpoint on. The planted changes, and nothing else, must be found.

Then the history alone: digests that are all new, and the same ones again.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from report import Claim, Row, arguments, finish, ratio, require, show, time_in_turn

from ckptflow.data import digest, merkle
from ckptflow.data.history import History
from ckptflow.data.scan import Changes, Kind, Runs, Scratch, collect_runs, scan

CHUNK_BYTES = 4096
CELL_BYTES = (4096, 256, 64)
RUN_CHUNKS = 8
CHANGED_PCT = (0.0, 0.1, 1.0, 5.0, 20.0, 100.0)
FIRST = "first diff"
BYTES_PER_ENTRY = 256  # Of state for a cell remembered, as the store has it.


class Save:
    """The part of a save that finds changes, with a clock on each step."""

    def __init__(self, state: NDArray[np.uint64], cell_bytes: int, before: Changes | None):
        self._state = state
        self._sizes = {"chunk_bytes": CHUNK_BYTES, "cell_bytes": cell_bytes}
        self._old = {}
        self.history = History(cell_bytes, limit=state.nbytes // BYTES_PER_ENTRY)
        if before is not None:
            self._old = {"old_chunks": before.chunks, "old_cells": before.digest}
            self.history.find_or_add(before)
            self.history.commit()
        self._scratch = Scratch()
        self.steps_s: dict[str, list[float]] = {"scan": [], "tree": [], "runs": []}
        self.changes: Changes | None = None
        self.runs: Runs | None = None

    def __call__(self) -> None:
        """Compare the state with what it was at first."""
        clock = [time.perf_counter()]
        changes = scan(self._state, **self._sizes, **self._old, scratch=self._scratch)
        clock.append(time.perf_counter())
        merkle.root(changes.chunks)
        clock.append(time.perf_counter())
        ids, kinds = self.history.find_or_add(changes)
        self.runs = collect_runs(changes, kinds, ids, changes.size_bytes)
        clock.append(time.perf_counter())
        self.changes = changes
        for name, (start, end) in zip(self.steps_s, pairwise(clock), strict=True):
            self.steps_s[name].append(end - start)

    def check(self, cells: NDArray[np.integer]) -> None:
        """Require that exactly these cells were found, as new noise."""
        assert self.changes is not None
        assert self.runs is not None
        require(np.array_equal(self.changes.index, cells), "the cells are not the planted ones")
        found = self.runs.kind
        require(bool((found == Kind.NEW).all()), "new noise was taken for something else")
        covered = int(self.runs.length_bytes.sum())
        require(covered == self.changes.changed_bytes, "the runs are not the changed cells")


def plant(
    state: NDArray[np.uint64], changed_pct: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Change one word in each chunk of random runs; return the numbers of the words."""
    chunks = state.nbytes // CHUNK_BYTES
    runs = round(chunks * changed_pct / 100 / RUN_CHUNKS)
    first = rng.choice(chunks // RUN_CHUNKS, runs, replace=False) * RUN_CHUNKS
    changed = np.sort((first[:, np.newaxis] + np.arange(RUN_CHUNKS)).ravel())
    words = changed * (CHUNK_BYTES // 8) + rng.integers(0, CHUNK_BYTES // 8, changed.size)
    state[words] ^= np.uint64(1)
    return words


def measure(
    original: NDArray[np.uint64], cell_bytes: int, rng: np.random.Generator, rounds: int
) -> list[Row]:
    """Time diffs with one size of cells."""
    state, target = original.copy(), np.zeros_like(original)
    first = scan(original, chunk_bytes=CHUNK_BYTES, cell_bytes=cell_bytes)
    rows: list[Row] = []
    for changed_pct in (None, *CHANGED_PCT):
        np.copyto(state, original)
        cells = np.arange(len(first))
        if changed_pct is not None:
            cells = np.unique(plant(state, changed_pct, rng) * 8 // cell_bytes)
        save = Save(state, cell_bytes, None if changed_pct is None else first)
        actions = {
            "memcpy": lambda: np.copyto(target, state),
            # So that what is new is new in every round; it is no part of a diff.
            "forget": save.history.rollback,
            "diff": save,
        }
        seconds = time_in_turn(actions, rounds=rounds)
        save.check(cells)
        steps = {name: statistics.median(times[1:]) for name, times in save.steps_s.items()}
        rows.append(
            {
                "cell_bytes": cell_bytes,
                "changed_pct": FIRST if changed_pct is None else changed_pct,
                "cells_changed": len(cells),
                "memcpy_ms": 1e3 * statistics.median(seconds["memcpy"]),
                **{f"{name}_ms": 1e3 * step for name, step in steps.items()},
                "diff_ms": 1e3 * statistics.median(seconds["diff"]),
                "scan_over_memcpy": ratio(save.steps_s["scan"][1:], seconds["memcpy"]),
                "diff_over_memcpy": ratio(seconds["diff"], seconds["memcpy"]),
            }
        )
    return rows


def number_digests(entries: int, rng: np.random.Generator) -> Row:
    """Time a history on digests that are all new, then on the same ones in another order."""
    digests = rng.integers(0, 1 << 63, (entries, 2), dtype=np.uint64)
    changes = Changes(
        64 * entries,
        64,
        np.empty((0, 2), np.uint64),
        np.arange(entries, dtype=np.uint64),
        digests,
        np.full(entries, Kind.NEW, np.uint8),
        np.zeros(entries, np.uint64),
    )
    order = rng.permutation(entries)
    history = History(64, limit=1 << 31)
    start = time.perf_counter()
    new_ids, _ = history.find_or_add(changes)
    added = time.perf_counter()
    require(np.array_equal(new_ids, changes.index), "new digests are not numbered in order")
    shuffled = replace(changes, digest=digests[order])
    known = time.perf_counter()
    ids, kinds = history.find_or_add(shuffled)
    end = time.perf_counter()
    require(np.array_equal(ids, order.astype(np.uint64)), "known digests have other numbers")
    require(bool((kinds == Kind.KNOWN).all()), "known digests are new")
    return {
        "entries": entries,
        "new_ns_per_entry": 1e9 * (added - start) / entries,
        "known_ns_per_entry": 1e9 * (end - known) / entries,
        "bytes_per_entry": history.nbytes / entries,
    }


def main() -> None:
    args = arguments(__doc__)
    size_bytes, rounds = (256 << 20, 5) if args.quick else (1 << 30, 9)
    rng = np.random.default_rng(0)
    original = rng.integers(0, 1 << 63, size_bytes // 8, dtype=np.uint64)
    rows = [row for cell in CELL_BYTES for row in measure(original, cell, rng, rounds)]
    histories = [number_digests(entries, rng) for entries in (1 << 18, 1 << 21, 1 << 24)]

    def worst(what: str, cell_bytes: int, which: set[object]) -> float:
        return max(
            float(row[what])
            for row in rows
            if row["cell_bytes"] == cell_bytes and row["changed_pct"] in which
        )

    few: set[object] = {0.0, 0.1, 1.0, 5.0}
    show(f"History of cells by {digest.active()}", histories)
    finish(
        f"Diff of {size_bytes >> 20} MiB in 4 KiB chunks by {digest.active()}",
        rows,
        [
            Claim(
                "diff_over_memcpy_at_le_5pct", worst("diff_over_memcpy", 4096, few), "<=", 1.5
            ),
            Claim(
                "scan_over_memcpy_4096_le_5pct", worst("scan_over_memcpy", 4096, few), "<=", 1.2
            ),
            Claim(
                "scan_over_memcpy_256_le_5pct", worst("scan_over_memcpy", 256, few), "<=", 2.5
            ),
            Claim(
                "first_scan_over_memcpy_4096", worst("scan_over_memcpy", 4096, {FIRST}), "<=", 2
            ),
        ],
        args.json_path,
        details=histories,
    )


if __name__ == "__main__":
    main()
