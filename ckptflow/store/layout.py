"""Decide where every byte of a new checkpoint will lie, before any byte is written.

Each region is diffed against the base; what did not change stays in the packs where it
lies, what is one repeated pattern becomes a fill, and the rest is laid out in new packs.
Pure: values in, values out. ``tests/property/test_layout_laws.py`` checks it against a
model that keeps whole copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.diff import Kind, diff_region
from ckptflow.data.extents import U64, cut, merge
from ckptflow.data.pack import PackPlan, plan_packs
from ckptflow.model import FILL, ExtentTable, Manifest

PACKS_MAX = 32  # A manifest names at most this many older packs.
LIVE_FRACTION_MIN = 0.25  # A pack of which less than this is still needed is left behind.

_OWN = 1 << 31  # Until the final list of packs is known, own packs are numbered from here on.


@dataclass(frozen=True, slots=True)
class NamedRegion:
    """A region to be saved: its name and its bytes, flat."""

    name: str
    data: memoryview


@dataclass(frozen=True, slots=True)
class Base:
    """What the next checkpoint is diffed against: a manifest and the digests of its chunks.

    ``digests`` has, per region name, the chunk digests, uint64 [n, 2].
    """

    manifest: Manifest
    digests: Mapping[str, NDArray[np.uint64]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the bytes of a new checkpoint lie.

    Attributes:
        plan: the pieces to be written, in new packs.
        rows: per region, the rows that cover it; ``pack`` counts through ``shared``, then
            through the new packs.
        shared: numbers of the base's packs that are still needed.
    """

    plan: PackPlan
    rows: list[ExtentTable]
    shared: list[int]


def lay_out(
    regions: Sequence[NamedRegion],
    digests: Mapping[str, NDArray[np.uint64]],
    base: Base | None,
    *,
    chunk_bytes: int,
) -> Layout:
    """Diff ``regions`` against ``base`` and lay out what has to be written."""
    parts = _take_apart(regions, digests, base, chunk_bytes)
    if base:
        parts = _leave_behind(parts, _outworn(parts, base))
    plan = plan_packs(
        np.repeat(
            np.arange(len(parts)), np.array([len(p.fresh_start) for p in parts], np.intp)
        ),
        _joined([part.fresh_start for part in parts]),
        _joined([part.fresh_length for part in parts]),
    )
    rows = _combine(parts, plan)
    used = np.unique(ExtentTable.of(rows).pack)
    shared = used[used < _OWN]
    new = np.arange(plan.pack_count, dtype=np.uint32) + np.uint32(_OWN)
    rows = [_renumbered(table, np.concatenate([shared, new])) for table in rows]
    return Layout(plan, rows, [int(number) for number in shared])


@dataclass(frozen=True, slots=True)
class _Parts:
    """One region, taken apart: rows that stay where they lie, and pieces to be written."""

    kept_start: U64
    kept: ExtentTable  # Packs are numbered as in the base.
    fresh_start: U64
    fresh_length: U64


def _take_apart(
    regions: Sequence[NamedRegion],
    digests: Mapping[str, NDArray[np.uint64]],
    base: Base | None,
    chunk_bytes: int,
) -> list[_Parts]:
    old_rows: dict[str, ExtentTable] = {}
    old_sizes: dict[str, int] = {}
    if base:
        entries = base.manifest.regions
        tables = base.manifest.region_extents()
        old_rows = {entry.name: table for entry, table in zip(entries, tables, strict=True)}
        old_sizes = {entry.name: entry.size_bytes for entry in entries}
    parts = []
    for region in regions:
        runs = diff_region(
            region.data,
            digests[region.name],
            base.digests.get(region.name) if base else None,
            chunk_bytes=chunk_bytes,
            parent_bytes=old_sizes.get(region.name),
        )
        same, data, fill = (runs.kind == kind for kind in (Kind.SAME, Kind.DATA, Kind.FILL))
        no_pack = np.full(int(fill.sum()), FILL, np.uint32)
        start = runs.start_bytes[fill]
        kept = ExtentTable(runs.length_bytes[fill], runs.pattern[fill], no_pack)
        if same.any():
            old = old_rows[region.name]
            same_start, rows = cut(old, runs.start_bytes[same], runs.length_bytes[same])
            start, kept = np.concatenate([same_start, start]), ExtentTable.of([rows, kept])
        parts.append(_Parts(start, kept, runs.start_bytes[data], runs.length_bytes[data]))
    return parts


def _outworn(parts: Sequence[_Parts], base: Base) -> NDArray[np.bool_]:
    """Tell, for each pack of the base, whether what is left of it is better written anew.

    This bounds the objects that a restore opens, and the dead bytes that old packs carry,
    at the price of writing at most a quarter of each pack once more, and small packs together
    when there are too many.
    """
    packs = base.manifest.packs
    live = np.zeros(len(packs))
    for part in parts:
        data = part.kept.pack != FILL
        weights = part.kept.length[data].astype(np.float64)
        live += np.bincount(part.kept.pack[data], weights=weights, minlength=len(packs))
    outworn = live < LIVE_FRACTION_MIN * np.array([pack.plain_bytes for pack in packs])
    left = len(packs) - int(outworn.sum())
    if left > PACKS_MAX:
        fewest_first = np.argsort(np.where(outworn, np.inf, live), kind="stable")[:left]
        moved = np.cumsum(live[fewest_first])
        count = left - PACKS_MAX
        # If only the surplus moved, every save would write a whole small pack again, and those
        # grow with each. Where a pack goes with all that together are as large, its bytes move
        # once per doubling.
        while count < left and live[fewest_first[count]] <= moved[count - 1]:
            count += 1
        outworn[fewest_first[:count]] = True
    return outworn


def _leave_behind(parts: Sequence[_Parts], outworn: NDArray[np.bool_]) -> list[_Parts]:
    """Turn what lies in outworn packs into pieces to be written."""
    if not outworn.any():
        return list(parts)
    gone = np.append(outworn, False)  # The last one stands for fills, which stay.
    result = []
    for part in parts:
        moved = gone[np.where(part.kept.pack == FILL, len(outworn), part.kept.pack)]
        start = np.concatenate([part.fresh_start, part.kept_start[moved]])
        length = np.concatenate([part.fresh_length, part.kept.length[moved]])
        order = np.argsort(start)
        kept = ExtentTable(
            part.kept.length[~moved], part.kept.source[~moved], part.kept.pack[~moved]
        )
        result.append(_Parts(part.kept_start[~moved], kept, start[order], length[order]))
    return result


def _combine(parts: Sequence[_Parts], plan: PackPlan) -> list[ExtentTable]:
    """Return, per region, the rows that cover it."""
    first = np.searchsorted(plan.region, np.arange(len(parts) + 1))
    rows = []
    for number, part in enumerate(parts):
        own = slice(int(first[number]), int(first[number + 1]))
        start = np.concatenate([part.kept_start, plan.start[own]])
        pack = (plan.pack[own] + _OWN).astype(np.uint32)
        fresh = ExtentTable(plan.length[own], plan.source[own], pack)
        table, order = ExtentTable.of([part.kept, fresh]), np.argsort(start)
        table = ExtentTable(table.length[order], table.source[order], table.pack[order])
        rows.append(merge(start[order], table)[1])
    return rows


def _renumbered(table: ExtentTable, order: NDArray[np.uint32]) -> ExtentTable:
    """Number packs by their place in ``order``, which is sorted."""
    place = np.where(table.pack == FILL, FILL, np.searchsorted(order, table.pack))
    return ExtentTable(table.length, table.source, place.astype(np.uint32))


def _joined(arrays: Sequence[U64]) -> U64:
    return np.concatenate(arrays) if arrays else np.empty(0, np.uint64)
