"""Decide where every byte of a new checkpoint will lie, before any byte is written.

What did not change stays in the packs where it lies; what the lineage has met before is taken
from there; one repeated pattern becomes a fill; periods are stored once; the rest is laid out
in new packs, as it is or as deltas on the parent's bytes. Values in, values out:
``tests/property/test_layout_laws.py`` checks it against a model that keeps whole copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.extents import merge, starts_of
from ckptflow.data.frames import RAW, Encoding
from ckptflow.data.pack import PackPlan
from ckptflow.model import ExtentTable
from ckptflow.store.drafting import DeltaBounds, Drafting, Layers, RegionEncoding
from ckptflow.store.memory import Memory, RegionDiff
from ckptflow.store.pieces import PACK_MAX
from ckptflow.store.wear import Worn, outworn


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the bytes of a new checkpoint lie.

    Attributes:
        plan: the pieces to be written, in new packs; ``plan.encoding`` counts through
            ``encodings``.
        encodings: how pieces are encoded.
        regions: per region, its layers; packs count through ``shared``, then the new packs.
        shared: numbers, in the memory's list, of the older packs that are needed.
        cells: per size of cell, where the cells of its log lie; packs count through the
            memory's list, then the new packs.
        with_deltas: numbers of the regions of which some new bytes are stored as deltas.
    """

    plan: PackPlan
    encodings: list[Encoding]
    regions: list[Layers]
    shared: list[int]
    cells: dict[int, ExtentTable]
    with_deltas: frozenset[int]


def lay_out(
    diffs: Sequence[RegionDiff],
    memory: Memory,
    encodings: Sequence[RegionEncoding],
    *,
    bounds: DeltaBounds,
) -> Layout:
    """Lay out what ``diffs`` found against ``memory``.

    Args:
        diffs: all regions, in order.
        memory: what they were diffed against.
        encodings: how the new bytes of each region are best stored.
        bounds: how many deltas a region may have.
    """
    drafting = Drafting(diffs, memory, encodings, bounds)
    layers = drafting.layers()
    sizes = np.array([pack.plain_bytes for pack in memory.packs], np.uint64)
    logs = drafting.logs
    while (worn := outworn(layers, sizes)).any():  # A range written anew wears out others.
        moving = Worn(worn, sizes, drafting.draft, layers)
        layers = [moving.replace(number, one) for number, one in enumerate(layers)]
        logs = {cell_bytes: moving.follow(log) for cell_bytes, log in logs.items()}
    rows = ExtentTable.of([rows for one in layers for rows in one.tables])
    raw = [number for number, one in enumerate(drafting.encodings) if one == RAW]
    plan, placed = drafting.draft.plan(rows, raw=raw)
    new = len(memory.packs)  # Number of the first new pack.
    final = [[placed.final(rows, new)[1] for rows in one.tables] for one in layers]
    used = np.unique(ExtentTable.of([rows for tables in final for rows in tables]).pack)
    shared = used[used < new]
    order = np.concatenate(
        [shared, np.arange(plan.pack_count, dtype=np.uint32) + np.uint32(new)]
    )
    regions = [
        one.with_tables([_renumbered(_merged(rows), order) for rows in tables])
        for one, tables in zip(layers, final, strict=True)
    ]
    cells = {
        cell_bytes: placed.final(placed.written(log), new)[1]
        for cell_bytes, log in logs.items()
    }
    numbers = [int(number) for number in shared]
    return Layout(plan, drafting.encodings, regions, numbers, cells, drafting.with_deltas)


def _merged(rows: ExtentTable) -> ExtentTable:
    return merge(starts_of(rows.length), rows)[1]


def _renumbered(table: ExtentTable, order: NDArray[np.uint32]) -> ExtentTable:
    """Number packs by their place in ``order``, which is sorted."""
    place = np.where(table.pack < PACK_MAX, np.searchsorted(order, table.pack), table.pack)
    return ExtentTable(table.length, table.source, place.astype(np.uint32), table.period)
