"""Diff a whole state against what is remembered of it, region by region.

In what cells bytes are compared and reused follows for large regions from how scattered their
changes were so far (`ckptflow.policy.cells`). Where nearly all changes, a region goes into
full mode: only chunks are compared, and no cell is looked up. ``tests/unit/test_changes.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.buffers import U64s
from ckptflow.data.digest import chunk_digests
from ckptflow.data.extents import union
from ckptflow.data.scan import Changes, Kind, Runs, collect_runs, scan
from ckptflow.data.sparsity import Sampler, cell_sizes
from ckptflow.errors import TornCapture
from ckptflow.policy.cells import CellPolicy, Writing
from ckptflow.store.memory import Memory, NamedRegion, RegionDiff, RegionMemory
from ckptflow.store.planning.small import diff_small, is_small
from ckptflow.units import MIB

ADAPT_BYTES_MIN = 1 * MIB  # Smaller regions are compared in whole chunks.

# A region in more pieces than this is written whole again: every save and restore handles each
# of its rows, which take 28 bytes of memory.
ROWS_PER_BYTE_MAX = 1 / 256
ROWS_MIN = 4096


def find_changes(
    regions: Sequence[NamedRegion],
    memory: Memory,
    *,
    chunk_bytes: int,
    cell_bytes: int | None,
) -> list[RegionDiff]:
    """Diff every region.

    Args:
        regions: the state.
        memory: what it is compared with; its logs are extended, until commit or rollback.
        chunk_bytes: unit of digest.
        cell_bytes: unit of reuse; ``None``: as the changes of each region suggest.

    Of a region that is not whole, what changed must be there: see `changed_chunks`.

    Raises:
        ConfigError: there are no such chunks or cells.
        TornCapture: bytes that changed do not have the digests they were captured with.
    """
    state_bytes = sum(len(region.data) for region in regions)
    worn = _fragmented(memory)
    small = [
        (cell_bytes or chunk_bytes) == chunk_bytes
        and region.name not in worn
        and is_small(region, memory.regions.get(region.name), chunk_bytes)
        for region in regions
    ]
    try:
        together = diff_small(list(compress(regions, small)), memory, chunk_bytes, state_bytes)
    except TornCapture as error:
        raise torn_capture(error.regions, str(error)) from error
    of_small = iter(together)
    return [
        next(of_small)
        if one_chunk
        else _whole(region, memory, chunk_bytes)
        if region.name in worn and region.is_whole
        else _find(
            region, memory, chunk_bytes=chunk_bytes, fixed=cell_bytes, state_bytes=state_bytes
        )
        for region, one_chunk in zip(regions, small, strict=True)
    ]


def changed_chunks(region: NamedRegion, memory: Memory) -> NDArray[np.bool_]:
    """Return which chunks are not as in the memory, by the digests they were captured with."""
    assert region.digests is not None, "only digests tell what changed before it is read"
    return _changed(region.digests, memory.regions.get(region.name))


def wanted_whole(memory: Memory) -> frozenset[str]:
    """Return the names of the regions that are written as a whole if all bytes are there.

    They are in too many pieces.
    """
    return frozenset(_fragmented(memory))


def wanted_cells(memory: Memory, chunk_bytes: int) -> dict[str, int]:
    """Return the size of cells of regions whose cells have no digests yet, by their names.

    Until they have, all of a chunk that changed is written.
    """
    return {
        name: region.cell_bytes
        for name, region in memory.regions.items()
        if region.cells is None and region.cell_bytes < chunk_bytes
    }


def _changed(chunks: U64s, old: RegionMemory | None) -> NDArray[np.bool_]:
    changed = np.ones(len(chunks), np.bool_)
    if old:
        common = min(len(old.chunks), len(chunks))
        changed[:common] = (old.chunks[:common] != chunks[:common]).any(axis=1)
    return changed


def _scan(region: NamedRegion, **arguments: Any) -> Changes:
    try:
        return scan(region.data, given=region.digests, **arguments)
    except TornCapture as error:
        raise torn_capture([region.name], str(error)) from error


def torn_capture(names: Sequence[str], what: str) -> TornCapture:
    """Return the error for regions that were written to while they were captured."""
    shown = ", ".join(repr(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return TornCapture(
        f"Region {shown}{more} was written to while it was captured: {what} Nothing of this "
        f"save is stored. Wait for the capture (ticket.wait_captured()) before the state is "
        f"changed, and let no other thread write until then.",
        tuple(names),
    )


def _fragmented(memory: Memory) -> set[str]:
    entries = memory.of.regions if memory.of else ()
    return {
        entry.name
        for entry in entries
        if sum(entry.row_counts) > max(ROWS_MIN, entry.size_bytes * ROWS_PER_BYTE_MAX)
    }


def _whole(region: NamedRegion, memory: Memory, chunk_bytes: int) -> RegionDiff:
    """Return a region as if nothing were known of it, so that it becomes few pieces again."""
    old = memory.regions.get(region.name)
    changes = _scan(region, chunk_bytes=chunk_bytes, cell_bytes=chunk_bytes)
    runs = collect_runs(changes, changes.kind, changes.index, changes.size_bytes)
    cell_bytes = old.cell_bytes if old else chunk_bytes
    return RegionDiff(region, cell_bytes, changes, runs, None, whole=True)


def _find(
    region: NamedRegion,
    memory: Memory,
    *,
    chunk_bytes: int,
    fixed: int | None,
    state_bytes: int,
) -> RegionDiff:
    old = memory.regions.get(region.name)
    wanted = fixed or (old.cell_bytes if old else chunk_bytes)
    cell_bytes = min(wanted, chunk_bytes)
    changes = _scan(
        region,
        chunk_bytes=chunk_bytes,
        cell_bytes=cell_bytes,
        old_chunks=old.chunks if old else None,
        old_cells=old.cells if old and old.cell_bytes == cell_bytes else None,
    )
    size_bytes = changes.size_bytes
    full = not fixed and old is not None and old.policy is not None and old.policy.full
    if full or wanted > chunk_bytes:
        runs = collect_runs(changes, changes.kind, changes.index, size_bytes)
        runs = _coarsened(runs, wanted, size_bytes) if wanted > chunk_bytes else runs
        return RegionDiff(region, wanted, changes, runs, None)
    seen = memory.seen_of(cell_bytes, state_bytes)
    ids, kinds = seen.history.find_or_add(changes)
    runs = collect_runs(changes, kinds, ids, size_bytes)
    return RegionDiff(region, cell_bytes, changes, runs, seen)


def remember_changes(
    diffs: Sequence[RegionDiff],
    memory: Memory,
    writings: Sequence[Writing] | None,
    *,
    chunk_bytes: int,
) -> None:
    """Take the digests of a state that was committed; its bytes must still be there.

    Args:
        diffs: all regions.
        memory: what they were compared with.
        writings: how each was written, for the choice of its cells; ``None``: they are fixed.
        chunk_bytes: unit of digest.
    """
    regions = {}
    for number, diff in enumerate(diffs):
        old = memory.regions.get(diff.region.name)
        region = RegionMemory(diff.changes.chunks, diff.cell_bytes)
        if writings is not None and diff.changes.size_bytes >= ADAPT_BYTES_MIN:
            region.sampler, region.policy = _adapted(diff, old, writings[number], chunk_bytes)
            region.cell_bytes = region.policy.cell_bytes
        if region.cell_bytes < chunk_bytes:
            region.cells = _cells(diff, old, region.cell_bytes)
        regions[diff.region.name] = region
    memory.regions = regions


def _adapted(
    diff: RegionDiff, old: RegionMemory | None, writing: Writing, chunk_bytes: int
) -> tuple[Sampler, CellPolicy]:
    """Return how the region is compared next time, after what was seen this time."""
    sampler = (old.sampler if old else None) or Sampler(chunk_bytes)
    # Cells may have been fixed before, at a size that would not be chosen.
    may_stay = diff.cell_bytes in cell_sizes(chunk_bytes) and diff.cell_bytes < chunk_bytes
    policy = old.policy if old else None
    policy = policy or CellPolicy(diff.cell_bytes if may_stay else chunk_bytes)
    changed = _changed(diff.changes.chunks, old)
    sparsity = sampler.observe(diff.region.data, changed, diff.region.held)
    sampler.commit()
    # At first all is new, which tells nothing.
    return sampler, policy.observe(sparsity, writing) if old else policy


def _cells(diff: RegionDiff, old: RegionMemory | None, cell_bytes: int) -> U64s | None:
    """Return the digests of all cells, for the next diff; ``None`` if some cannot be read."""
    if diff.changes.cell_bytes == cell_bytes:
        before = old.cells if old and old.cell_bytes == cell_bytes else None
        if before is not None or len(diff.changes) * cell_bytes >= diff.changes.size_bytes:
            return diff.changes.cells(before)
    if diff.region.cells is not None and diff.region.cells[0] == cell_bytes:
        return diff.region.cells[1]
    return chunk_digests(diff.region.data, cell_bytes) if diff.region.is_whole else None


def _coarsened(runs: Runs, cell_bytes: int, size_bytes: int) -> Runs:
    """Return runs that begin and end at multiples of ``cell_bytes``: fewer and longer.

    Patterns keep what is theirs of whole cells.
    """
    step = np.uint64(cell_bytes)
    end = runs.start_bytes + runs.length_bytes
    up = (runs.start_bytes + step - np.uint64(1)) // step * step
    down = np.where(end == size_bytes, end, end // step * step)
    fill = (runs.kind == Kind.FILL) & (down > up)
    inside = up[fill], down[fill]
    # What is not inside of a pattern is new.
    start = np.concatenate([runs.start_bytes[~fill], runs.start_bytes[fill], down[fill]])
    stop = np.concatenate([end[~fill], up[fill], end[fill]])
    some = stop > start
    start, stop = start[some] // step * step, (stop[some] + step - np.uint64(1)) // step * step
    start, length = union(start, np.minimum(stop, np.uint64(size_bytes)))
    a = np.concatenate([inside[0], start])
    b = np.concatenate([inside[1], start + length])
    kind = np.full(len(a), Kind.NEW, np.uint8)
    kind[: len(inside[0])] = Kind.FILL
    ref = np.concatenate([runs.ref[fill], np.zeros(len(start), np.uint64)])
    order = np.argsort(a, kind="stable")
    a, b, kind, ref = a[order], b[order], kind[order], ref[order]
    return Runs(kind, a, b - a, ref)
