"""Scan a state for changes on the CPU, against copying the state once.

A state of 1 GiB (``--quick``: 256 MiB) of noise in chunks of 4 KiB, with cells of 4 KiB, 256
and 64 bytes; no chunk before (the first scan), or 0 to 100 % of the chunks changed in one word,
in runs of eight. Measured is all that a save does before it looks at the history: digest and
compare chunks, digest and compare the cells of changed ones. Buffers are warm, as they are
from the second checkpoint on. The planted changes, and nothing else, must be found.

Then the history: digests that are all new, and the same ones again.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from report import Claim, Row, arguments, finish, ratio, require, time_in_turn

from ckptflow.data import digest
from ckptflow.data.history import History
from ckptflow.data.scan import Changes, Kind, Scratch, scan

CHUNK_BYTES = 4096
CELL_BYTES = (4096, 256, 64)
RUN_CHUNKS = 8
CHANGED_PCT = (0.0, 1.0, 5.0, 100.0)


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
    """Time scans with one size of cells."""
    sizes = {"chunk_bytes": CHUNK_BYTES, "cell_bytes": cell_bytes}
    state, target, scratch = original.copy(), np.zeros_like(original), Scratch()
    first = scan(original, **sizes)
    rows: list[Row] = []
    for changed_pct in (None, *CHANGED_PCT):
        np.copyto(state, original)
        words = plant(state, changed_pct or 0, rng)
        before = {} if changed_pct is None else {
            "old_chunks": first.chunks, "old_cells": first.digest,
        }  # fmt: skip
        found: list[Changes] = []

        def action(before: dict[str, NDArray[np.uint64]] = before) -> None:
            found[:] = [scan(state, **sizes, **before, scratch=scratch)]  # noqa: B023

        seconds = time_in_turn(
            {"memcpy": lambda: np.copyto(target, state), "scan": action}, rounds=rounds
        )
        planted = np.unique(words * 8 // cell_bytes)
        expected = np.arange(len(first)) if changed_pct is None else planted
        require(np.array_equal(found[0].index, expected), "the cells are not the planted ones")
        require(bool((found[0].kind == Kind.NEW).all()), "noise was taken for a fill")
        rows.append(
            {
                "cell_bytes": cell_bytes,
                "changed_pct": "first scan" if changed_pct is None else changed_pct,
                "cells_changed": len(found[0]),
                "memcpy_ms": 1e3 * statistics.median(seconds["memcpy"]),
                "scan_ms": 1e3 * statistics.median(seconds["scan"]),
                "scan_over_memcpy": ratio(seconds["scan"], seconds["memcpy"]),
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
        "cell_bytes": 64,
        "changed_pct": "history",
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

    def worst(cell_bytes: int, which: set[object]) -> float:
        return max(
            float(row["scan_over_memcpy"])
            for row in rows
            if row["cell_bytes"] == cell_bytes and row["changed_pct"] in which
        )

    few: set[object] = {0.0, 1.0, 5.0}
    finish(f"History of cells by {digest.active()}", histories, [], None)
    finish(
        f"Scan of {size_bytes >> 20} MiB in 4 KiB chunks by {digest.active()}",
        rows,
        [
            Claim("scan_over_memcpy_4096_le_5pct", worst(4096, few), "<=", 1.2),
            Claim("scan_over_memcpy_256_le_5pct", worst(256, few), "<=", 2.5),
            Claim("first_scan_over_memcpy_4096", worst(4096, {"first scan"}), "<=", 2.0),
        ],
        args.json_path,
    )


if __name__ == "__main__":
    main()
