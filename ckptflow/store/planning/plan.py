"""Plan one checkpoint: diff the state, choose encodings, lay it out, against what is there.

Nothing is written. The memory's logs are extended; who gives up must roll them back.
``tests/unit/test_save.py``.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import merkle
from ckptflow.data.buffers import byte_view
from ckptflow.data.encoding import Goal
from ckptflow.data.snapshot import digests_at
from ckptflow.errors import NotFoundError
from ckptflow.model import CheckpointId, ExtentTable, LineageId, PackRef, RegionEntry
from ckptflow.store.completion import Lack, Sources
from ckptflow.store.guards import read_notices
from ckptflow.store.memory import Base, Memory, NamedRegion, RegionDiff
from ckptflow.store.planning.changes import changed_chunks, find_changes, torn_capture
from ckptflow.store.planning.choice import DELTA_BOUNDS, choose_encodings
from ckptflow.store.planning.drafting import RegionEncoding
from ckptflow.store.planning.duplicates import Verify, without_wrong_duplicates
from ckptflow.store.planning.layout import Layout, lay_out
from ckptflow.tiers.tier import Tier

THREADS_MAX = 4  # Cores that one save uses; the others belong to the application.

_log = logging.getLogger("ckptflow")


@dataclass(frozen=True, slots=True)
class Plan:
    """What one checkpoint will be.

    Attributes:
        diffs: its regions against the memory.
        encodings: how the new bytes of each are stored.
        layout: where every byte will lie.
        memory: what it goes by.
        chunk_bytes: unit of digest.
    """

    diffs: list[RegionDiff]
    encodings: list[RegionEncoding]
    layout: Layout
    memory: Memory
    chunk_bytes: int

    @property
    def entries(self) -> tuple[RegionEntry, ...]:
        """The regions as the manifest names them."""
        chunks = [diff.changes.chunks for diff in self.diffs]
        edges = [0, *itertools.accumulate(map(len, chunks))]
        roots = merkle.roots(np.concatenate([merkle.NO_DIGESTS, *chunks]), edges)
        return tuple(
            RegionEntry(
                name=diff.region.name,
                size_bytes=len(diff.region.data),
                root=root,
                extent_count=len(layers.bottom),
                deltas=layers.kinds,
                encoding=encoding.reasons,
                cell_bytes=0 if diff.cell_bytes == self.chunk_bytes else diff.cell_bytes,
            )
            for diff, root, encoding, layers in zip(
                self.diffs, roots, self.encodings, self.layout.regions, strict=True
            )
        )

    @property
    def shared(self) -> list[PackRef]:
        """The older packs that it needs."""
        return [self.memory.packs[number] for number in self.layout.shared]

    @property
    def parent(self) -> CheckpointId | None:
        """What it is a delta on; ``None`` if it is full."""
        return self.memory.of.id if self.memory.of and self.layout.shared else None

    @property
    def extents(self) -> ExtentTable:
        """The rows of all regions, as the manifest has them."""
        return ExtentTable.of([rows for one in self.layout.regions for rows in one.tables])


@dataclass(frozen=True, slots=True)
class Planner:
    """Diffs a state and lays it out, against what is still there."""

    tier: Tier
    lineage: LineageId
    regions: Sequence[NamedRegion]
    chunk_bytes: int
    cell_bytes: int | None
    goal: Goal
    verify: Verify
    sources: Sources

    def plan(self, memory: Memory) -> Plan:
        """Return the plan, and the memory that it goes by; a new one if the parent is broken.

        Scratch disks are cleaned behind our back, the oldest files first. A delta that names
        what is gone would be durable and worthless.

        Raises:
            TornCapture: a region does not have the digests it was captured with.
            IncompleteSnapshot: bytes that it left to an earlier one are not to be had.
        """
        if self.verify != "off":  # What is compared is read, so it has to be there.
            memory.forget(self._gone(memory.packs))
        while True:
            try:
                plan = self._plan(memory)
                gone = self._gone(plan.shared)
            except BaseException:
                memory.rollback()
                raise
            if not gone:
                return plan
            memory.rollback()
            if memory.of and not set(gone).isdisjoint(memory.of.packs):
                memory = Memory()
            else:
                memory.forget(gone)

    def lost(self, plan: Plan) -> list[PackRef]:
        """Return older packs of a plan that are gone now, or will be; asked after the commit.

        Between the plan and the commit a prune elsewhere may have found that nobody named
        them: those of older checkpoints, and if the parent was consolidated or deleted
        meanwhile, those of the parent, too.
        """
        return self._gone(plan.shared)

    def _gone(self, packs: Sequence[PackRef]) -> list[PackRef]:
        if not packs:
            return []
        # First who is about to delete some, then what is there: see the format page.
        doomed = read_notices(self.tier, self.lineage).announced
        return [
            pack
            for pack in packs
            if pack.key in doomed or not _is_there(self.tier, self.lineage, pack)
        ]

    def _plan(self, memory: Memory) -> Plan:
        self._bring_in_what_changed(memory)
        diffs = find_changes(
            self.regions, memory, chunk_bytes=self.chunk_bytes, cell_bytes=self.cell_bytes
        )
        diffs, wrong = without_wrong_duplicates(
            diffs, memory, self.tier, self.lineage, verify=self.verify
        )
        if wrong:
            _log.error(
                "%s: bytes of %s differ from those stored with their digest: stored as new.",
                self.lineage,
                ", ".join(wrong),
            )
        cores = min(THREADS_MAX, len(os.sched_getaffinity(0)))
        encodings = choose_encodings(diffs, memory, goal=self.goal, cores=cores)
        layout = lay_out(diffs, memory, encodings, bounds=DELTA_BOUNDS[self.goal])
        self._bring_in_what_is_written(layout, memory)
        return Plan(diffs, encodings, layout, memory, self.chunk_bytes)

    def _bring_in_what_changed(self, memory: Memory) -> None:
        """Complete sparse regions by what is not as in the memory: it is read by the diff."""
        lacks = [
            Lack.of(region, changed_chunks(region, memory))
            for region in self.regions
            if region.held is not None
        ]
        self._complete([lack for lack in lacks if lack], memory)

    def _bring_in_what_is_written(self, layout: Layout, memory: Memory) -> None:
        """Complete sparse regions by what did not change and is written all the same.

        What is needed of packs that are left behind, what lies beside changes in large cells,
        and periods. Bytes of that kind the diff has not compared with their digests.

        Raises:
            TornCapture: those that are there do not have the digests they were captured with.
        """
        lacks = []
        for number, written in written_chunks(layout, self.regions, self.chunk_bytes).items():
            region = self.regions[number]
            if lack := Lack.of(region, written):
                lacks.append(lack)
            assert region.digests is not None, "it was asked for those that have them"
            here = written & ~changed_chunks(region, memory)
            if region.held is not None:
                here &= region.held
            numbers = np.flatnonzero(here)
            found = digests_at(byte_view(region.data), numbers, self.chunk_bytes)
            if (found != region.digests[numbers]).any():
                raise torn_capture([region.name], "what is written is not what was digested.")
        self._complete(lacks, memory)

    def _complete(self, lacks: Sequence[Lack], memory: Memory) -> None:
        if not lacks:
            return
        checkpoints = list(self.sources.checkpoints)
        if memory.of is not None:
            checkpoints.insert(0, (Base(memory.of, memory), [self.tier]))
        replace(self.sources, checkpoints=checkpoints).complete(lacks, self.chunk_bytes)


def written_chunks(
    layout: Layout, regions: Sequence[NamedRegion], chunk_bytes: int
) -> dict[int, NDArray[np.bool_]]:
    """Return which chunks of each region that has digests are to be written, by its number."""
    plan, step = layout.plan, np.uint64(chunk_bytes)
    order = np.argsort(plan.region, kind="stable")
    first = (plan.start // step)[order]
    end = ((plan.start + plan.length + step - np.uint64(1)) // step)[order]
    edges = np.searchsorted(plan.region[order], np.arange(len(regions) + 1))
    found = {}
    for number in np.flatnonzero(np.diff(edges)).tolist():
        digests, here = regions[number].digests, slice(edges[number], edges[number + 1])
        if digests is not None:
            depth = np.zeros(len(digests) + 1, np.int64)
            np.add.at(depth, first[here], 1)
            np.add.at(depth, end[here], -1)
            found[number] = np.cumsum(depth[:-1]) > 0
    return found


def _is_there(tier: Tier, lineage: LineageId, pack: PackRef) -> bool:
    try:
        return tier.size(f"{lineage.prefix}/{pack.key}") == pack.size_bytes
    except NotFoundError:
        return False
