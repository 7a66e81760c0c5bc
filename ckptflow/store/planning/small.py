"""Diff all small regions of a state at once.

A state may have very many of them, and what `ckptflow.store.planning.changes` does for one
region costs more than its bytes do. One native call digests and compares the chunks of all, one
look-up numbers what is new. Each chunk is a cell. The result is that of diffing each by itself:
``tests/unit/test_small.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.backend import kernels
from ckptflow.data.buffers import Bytes, U64s
from ckptflow.data.digest import chunk_count
from ckptflow.data.extents import ramps
from ckptflow.data.scan import Changes, Kind, Runs, collect_runs
from ckptflow.errors import TornCapture
from ckptflow.store.memory import Memory, NamedRegion, RegionDiff, RegionMemory, Seen
from ckptflow.units import MIB

SMALL_BYTES_MAX = 1 * MIB  # What is larger has cells that suit its changes.


def is_small(region: NamedRegion, old: RegionMemory | None, chunk_bytes: int) -> bool:
    """Tell whether a region is small and has been compared in whole chunks so far.

    Args:
        region: the region.
        old: what is remembered of it.
        chunk_bytes: unit of digest.
    """
    return 0 < len(region.data) < SMALL_BYTES_MAX and (
        old is None or (old.cell_bytes == chunk_bytes and old.policy is None)
    )


def diff_small(
    regions: Sequence[NamedRegion], memory: Memory, chunk_bytes: int, state_bytes: int
) -> list[RegionDiff]:
    """Diff small regions; the log of cells of ``chunk_bytes`` is extended by what is new.

    Args:
        regions: for which `is_small` holds.
        memory: what they are compared with.
        chunk_bytes: unit of digest and of reuse.
        state_bytes: of all regions, also of those that are not small.

    Raises:
        ConfigError: there are no such chunks.
        TornCapture: bytes that changed do not have the digests they were captured with.
    """
    chunk_count(0, chunk_bytes)  # Refuses what no chunks can be.
    given = [region.digests is not None for region in regions]
    if any(given) and not all(given):
        parts = [
            iter(diff_small(part, memory, chunk_bytes, state_bytes))
            for part in ([one for one in regions if one.digests is None],
                         [one for one in regions if one.digests is not None])
        ]  # fmt: skip
        return [next(parts[one]) for one in given]
    if not regions:
        return []
    pieces = _Pieces(regions, chunk_bytes)
    digests, kind, pattern = pieces.scan(*pieces.before(memory))
    return pieces.diffs(digests, kind, pattern, memory.seen_of(chunk_bytes, state_bytes))


class _Pieces:
    """The chunks of some regions, as pieces of memory; all have digests given, or none."""

    def __init__(self, regions: Sequence[NamedRegion], chunk_bytes: int) -> None:
        data = [region.data for region in regions]
        self._regions, self._chunk_bytes = regions, chunk_bytes
        self._size = np.array(list(map(len, data)), np.int64)
        base = np.empty(len(data), np.int64)
        kernels().look_at(data, base)
        self._count = -(-self._size // chunk_bytes)
        self._first = np.cumsum(self._count) - self._count
        self._of, self._number = ramps(np.zeros(len(data), np.intp), self._count)
        start = self._number * chunk_bytes
        self._address = (base[self._of] + start).view(np.uint64)
        length = np.minimum(self._size[self._of] - start, chunk_bytes)
        self._length: U64s = length.view(np.uint64)

    def before(self, memory: Memory) -> tuple[U64s, Bytes]:
        """Return old digests of the pieces, and whether there is one of each."""
        old, known = np.zeros((len(self._of), 2), np.uint64), np.zeros(len(self._of), np.uint8)
        chunks, first, counts = [], [], []
        for region, a, count in zip(
            self._regions, self._first.tolist(), self._count.tolist(), strict=True
        ):
            found = memory.regions.get(region.name)
            if found is not None:
                chunks.append(
                    found.chunks if len(found.chunks) == count else found.chunks[:count]
                )
                first.append(a)
                counts.append(len(chunks[-1]))
        if chunks:
            _, there = ramps(np.array(first, np.intp), np.array(counts, np.intp))
            old[there], known[there] = np.concatenate(chunks), 1
        return old, known

    def scan(self, old: U64s, known: Bytes) -> tuple[U64s, Bytes, U64s]:
        """Return digest, kind and pattern of each piece."""
        count = len(self._of)
        own = [one.digests for one in self._regions if one.digests is not None]
        digests = np.concatenate(own) if own else np.empty((count, 2), np.uint64)
        kind, pattern = np.empty(count, np.uint8), np.empty(count, np.uint64)
        torn = kernels().scan_pieces(
            self._address,
            self._length,
            self._chunk_bytes,
            (old, known),
            digests,
            (kind, pattern),
            given=bool(own),
        )
        if torn < count:
            raise TornCapture(
                f"Bytes {int(self._number[torn]) * self._chunk_bytes} and following of a "
                f"region are not those that were digested.",
                (self._regions[int(self._of[torn])].name,),
            )
        return digests, kind, pattern

    def diffs(self, digests: U64s, kind: Bytes, pattern: U64s, seen: Seen) -> list[RegionDiff]:
        """Return the diff of each region, given what was found of the pieces."""
        chunk_bytes, changed = self._chunk_bytes, np.flatnonzero(kind != Kind.SAME)
        # A cell apart, so that no run goes from one region to the next.
        line = self._first + np.arange(len(self._first))
        of = self._of[changed]
        cells = Changes(
            int(line[-1] + self._count[-1]) * chunk_bytes,
            chunk_bytes,
            digests,
            (line[of] + self._number[changed]).astype(np.uint64),
            digests[changed],
            kind[changed],
            pattern[changed],
        )
        ids, kinds = seen.history.find_or_add(cells)
        runs = collect_runs(cells, kinds, ids, cells.size_bytes)
        begin = (line * chunk_bytes).astype(np.uint64)
        of_run = np.searchsorted(begin, runs.start_bytes, side="right") - 1
        start = runs.start_bytes - begin[of_run]
        length = np.minimum(runs.length_bytes, self._size[of_run].view(np.uint64) - start)
        index = self._number[changed].astype(np.uint64)
        cell_edges = np.searchsorted(of, np.arange(len(line) + 1)).tolist()
        run_edges = np.searchsorted(of_run, np.arange(len(line) + 1)).tolist()
        diffs = []
        for region, size, a, n, (c, d), (r, s) in zip(
            self._regions,
            self._size.tolist(),
            self._first.tolist(),
            self._count.tolist(),
            itertools.pairwise(cell_edges),
            itertools.pairwise(run_edges),
            strict=True,
        ):
            chunks = digests[a : a + n]
            if c == d:
                changes = Changes(size, chunk_bytes, chunks, *_NO_CELLS)
                diffs.append(RegionDiff(region, chunk_bytes, changes, _NO_RUNS, seen))
                continue
            changes = Changes(
                size,
                chunk_bytes,
                chunks,
                index[c:d],
                cells.digest[c:d],
                cells.kind[c:d],
                cells.pattern[c:d],
            )
            own = Runs(runs.kind[r:s], start[r:s], length[r:s], runs.ref[r:s])
            diffs.append(RegionDiff(region, chunk_bytes, changes, own, seen))
        return diffs


_NONE: NDArray[np.uint64] = np.empty(0, np.uint64)
_NO_KINDS = np.empty(0, np.uint8)
_NO_CELLS = (_NONE, np.empty((0, 2), np.uint64), _NO_KINDS, _NONE)
_NO_RUNS = Runs(_NO_KINDS, _NONE, _NONE, _NONE)
