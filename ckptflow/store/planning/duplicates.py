"""Compare bytes that are to be stored as known with the bytes that they are known from.

A digest of 128 bits is trusted: two different cells agree with probability 2^-127. Who does not
trust it, or the memory of the machine, has some or all duplicates compared byte by byte before
the checkpoint is laid out. A region in which one differs, or cannot be read, is stored without
looking up any.
``tests/unit/test_duplicates.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.extents import U64, look_up, starts_of
from ckptflow.data.ranges import ranges_equal
from ckptflow.data.scan import Kind, Runs
from ckptflow.errors import CorruptionError
from ckptflow.model import ExtentTable, LineageId, RegionEntry
from ckptflow.store.copies import Pack
from ckptflow.store.fetch import fill
from ckptflow.store.memory import Memory, RegionDiff
from ckptflow.store.planning.pieces import LOG, PACK_MAX
from ckptflow.tiers.tier import Tier
from ckptflow.units import KIB

Verify: TypeAlias = Literal["off", "sample", "all"]

SAMPLE_RUNS = 64  # Of each region.
SAMPLE_BYTES = 64 * KIB  # Of each run.


def without_wrong_duplicates(
    diffs: Sequence[RegionDiff],
    memory: Memory,
    tier: Tier,
    lineage: LineageId,
    *,
    verify: Verify,
) -> tuple[list[RegionDiff], list[str]]:
    """Compare duplicates; return the diffs without those of regions where one is wrong.

    Args:
        diffs: all regions, against ``memory``.
        memory: says where bytes lie that were known before.
        tier: has them.
        lineage: whose they are.
        verify: which are compared: none, some of each region, or all.

    Returns:
        The diffs, and the names of regions where a duplicate was wrong, or cannot be read.
    """
    if verify == "off":
        return list(diffs), []
    check = _Check(diffs, memory, tier, lineage, verify)
    result, wrong = [], []
    for diff in diffs:
        if diff.seen is None or check.is_right(diff):
            result.append(diff)
            continue
        wrong.append(diff.region.name)
        kind = np.where(diff.runs.kind == Kind.KNOWN, Kind.NEW, diff.runs.kind).astype(np.uint8)
        runs = Runs(kind, diff.runs.start_bytes, diff.runs.length_bytes, diff.runs.ref)
        result.append(replace(diff, runs=runs, seen=None))
    return result, wrong


class _FirstPlaces:
    """Where cells lie that this state has first: number of the region, and position in it."""

    def __init__(self, diffs: Sequence[RegionDiff], cell_bytes: int) -> None:
        log, length, start, region = [], [], [], []
        for number, diff in enumerate(diffs):
            if diff.seen is None or diff.cell_bytes != cell_bytes:
                continue
            new = diff.runs.kind == Kind.NEW
            log.append(diff.seen.position(diff.runs.ref[new]))
            length.append(diff.runs.length_bytes[new])
            start.append(diff.runs.start_bytes[new])
            region.append(np.full(int(new.sum()), number, np.intp))
        # Small regions are numbered all together, before the others.
        order = np.argsort(np.concatenate(log), kind="stable")
        self._log, self._length, self._start, self._region = (
            np.concatenate(column)[order] for column in (log, length, start, region)
        )

    def find(
        self, log: U64, length: U64
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], U64, U64]:
        """Return, for each part of each range: its range, region, start there, and length."""
        # New runs follow each other in the log, each from a multiple of the size of cells on.
        edges = np.append(self._log, np.uint64(2**63))
        pieces = ExtentTable(np.diff(edges), self._log, self._region.astype(np.uint32))
        shift = self._log[0] if len(self._log) else np.uint64(0)
        of, _, rows = look_up(pieces, log - shift, length)
        first = np.searchsorted(self._log, rows.source, side="right") - 1
        start = self._start[first] + (rows.source - self._log[first])
        return of, rows.pack.astype(np.intp), start, rows.length


class _Check:
    """Compares the duplicates of one state."""

    def __init__(
        self,
        diffs: Sequence[RegionDiff],
        memory: Memory,
        tier: Tier,
        lineage: LineageId,
        verify: Verify,
    ) -> None:
        self._diffs, self._memory, self._verify = diffs, memory, verify
        self._tier, self._lineage = tier, lineage
        sizes = {diff.cell_bytes for diff in diffs if diff.seen}
        self._firsts = {cell_bytes: _FirstPlaces(diffs, cell_bytes) for cell_bytes in sizes}

    def is_right(self, diff: RegionDiff) -> bool:
        """Tell whether the known bytes of a region are those that they are known from."""
        seen, data = diff.seen, diff.region.data
        assert seen is not None, "only what was looked up can be wrong"
        known = np.flatnonzero(diff.runs.kind == Kind.KNOWN)
        length = diff.runs.length_bytes
        if self._verify == "sample":
            known = known[:: max(1, -(-len(known) // SAMPLE_RUNS))]
            most = SAMPLE_BYTES // seen.cell_bytes * seen.cell_bytes
            length = np.minimum(length, np.uint64(most))
        log = seen.position(diff.runs.ref[known])
        of, skipped, rows = look_up(seen.extended(LOG), log, length[known])
        start = diff.runs.start_bytes[known][of] + skipped
        older, own = rows.pack < PACK_MAX, rows.pack == LOG
        if older.any():
            table = rows.take(older)
            source = starts_of(table.length)
            try:
                stored = self._read(table)
            except CorruptionError:  # What cannot be read is no better than what differs.
                return False
            if not ranges_equal(data, stored, start[older], source, table.length).all():
                return False
        parts, region, source, size = self._firsts[diff.cell_bytes].find(
            rows.source[own], rows.length[own]
        )
        begin = start[own][parts] + _within(parts, size)
        for number in np.unique(region):
            here = region == number
            other = self._diffs[number].region.data
            if not ranges_equal(data, other, begin[here], source[here], size[here]).all():
                return False
        return True

    def _read(self, table: ExtentTable) -> memoryview:
        """Return what rows that lie in packs stand for, back to back."""
        assert self._memory.of is not None, "what was known before was committed"
        out = memoryview(bytearray(int(table.length.sum())))
        entry = RegionEntry("duplicates", len(out), b"", len(table))
        manifest = replace(
            self._memory.of, packs=tuple(self._memory.packs), regions=(entry,), extents=table
        )
        packs = [
            Pack([self._tier], self._lineage, ref, lambda _text: None)
            for ref in self._memory.packs
        ]
        with ThreadPoolExecutor(1, "ckptflow-verify") as pool:
            fill(manifest, [out], packs, pool, check_frames=False)
        return out


def _within(of: NDArray[np.intp], length: U64) -> U64:
    """Return how far into its range each part starts; parts of one lie back to back."""
    position = starts_of(length)
    first = np.searchsorted(of, of, side="left")
    return position - position[first] if len(of) else position
