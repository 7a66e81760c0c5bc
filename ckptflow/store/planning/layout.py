"""Decide where every byte of a new checkpoint will lie, before any byte is written.

What did not change stays in the packs where it lies; what the lineage has met before is taken
from there; one repeated pattern becomes a fill; periods are stored once; the rest is laid out
in new packs, as it is or as deltas on the parent's bytes. Values in, values out:
``tests/property/test_layout_laws.py`` checks it against a model that keeps whole copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.extents import merge, starts_of
from ckptflow.data.frames import RAW, Encoding
from ckptflow.data.pack import PackPlan
from ckptflow.model import ExtentTable
from ckptflow.store.memory import Memory, RegionDiff
from ckptflow.store.planning.drafting import DeltaBounds, Drafting, RegionEncoding
from ckptflow.store.planning.lines import Layers
from ckptflow.store.planning.pieces import PACK_MAX, Draft, Placed
from ckptflow.store.planning.wear import Worn, outworn


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
    new = len(memory.packs)  # Number of the first new pack.
    plan, placed, regions, shared = place(layers, drafting.draft, drafting.encodings, new)
    cells = {
        cell_bytes: placed.final(placed.written(log), new)[1]
        for cell_bytes, log in logs.items()
    }
    return Layout(plan, drafting.encodings, regions, shared, cells, drafting.with_deltas)


def place(
    layers: Sequence[Layers], draft: Draft, encodings: Sequence[Encoding], new: int
) -> tuple[PackPlan, Placed, list[Layers], list[int]]:
    """Plan the packs of a draft, and put them in the rows that refer to it.

    Args:
        layers: of every region; some rows say `OWN`.
        draft: what is to be written.
        encodings: what its numbers mean.
        new: number of the first new pack, that is, how many there were before.

    Returns:
        The plan; where positions of the draft ended up; the layers, in which packs count
        through the older ones that are needed, then the new ones; and the former's numbers.
    """
    tables = [rows for one in layers for rows in one.tables]
    rows = ExtentTable.of(tables)
    raw = [number for number, one in enumerate(encodings) if one == RAW]
    plan, placed = draft.plan(rows, raw=raw)
    of, rows = placed.final(rows, new)
    owner = np.repeat(np.arange(len(tables)), [len(table) for table in tables])[of]
    rows, edges = _merged(rows, owner, len(tables))
    used = np.unique(rows.pack)
    shared = used[used < new]
    order = np.concatenate(
        [shared, np.arange(plan.pack_count, dtype=np.uint32) + np.uint32(new)]
    )
    rows = _renumbered(rows, order)
    final = (rows.rows(a, b) for a, b in itertools.pairwise(edges.tolist()))
    regions = [one.with_tables([next(final) for _ in one.tables]) for one in layers]
    return plan, placed, regions, [int(number) for number in shared]


def _merged(
    rows: ExtentTable, owner: NDArray[np.intp], count: int
) -> tuple[ExtentTable, NDArray[np.intp]]:
    """Join neighbouring rows of ``count`` tables; return them, and where each table begins.

    Args:
        rows: of all tables, one behind the other.
        owner: number of the table of each row.
        count: of tables.
    """
    # Tables lie one byte apart here, so that no row is joined with one of the next table.
    start = starts_of(rows.length) + owner.astype(np.uint64)
    first, merged = merge(start, rows)
    owner = owner[np.searchsorted(start, first, side="right") - 1]
    return merged, np.searchsorted(owner, np.arange(count + 1))


def _renumbered(table: ExtentTable, order: NDArray[np.uint32]) -> ExtentTable:
    """Number packs by their place in ``order``, which is sorted."""
    place = np.where(table.pack < PACK_MAX, np.searchsorted(order, table.pack), table.pack)
    return ExtentTable(table.length, table.source, place.astype(np.uint32), table.period)
