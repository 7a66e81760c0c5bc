"""How the regions of a checkpoint are stored, for ``show``: kinds of bytes, deltas, packs.

All of it is counted in the manifest alone; no pack is opened.
``tests/unit/test_cli_regions.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckptflow.cli import output
from ckptflow.data.leaves import shown
from ckptflow.model import FILL, CheckpointId, DeltaLayer, ExtentTable, Manifest, RegionEntry
from ckptflow.units import format_bytes


@dataclass(frozen=True, slots=True)
class Layer:
    """A delta layer of a region.

    Attributes:
        op: how its words change those below, ``"sub"`` or ``"xor"``.
        word_bytes: size of a word.
        rows: its extents.
        bytes: of the region that it changes.
    """

    op: str
    word_bytes: int
    rows: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.op}{self.word_bytes} {format_bytes(self.bytes)}"


@dataclass(frozen=True, slots=True)
class StoredRegion:
    """How a region is stored.

    Attributes:
        name: of its first array.
        bytes: its length: what lies in packs as it is, repeats, and fills, together.
        cell_bytes: unit of reuse.
        rows: extents of all layers.
        data_bytes: of the bottom layer, what lies in packs.
        repeat_bytes: of the bottom layer, what repeats a period that lies in a pack.
        fill_bytes: of the bottom layer, what repeats eight bytes.
        new_bytes: what this checkpoint itself put into packs for it, before encoding.
        deltas: the layers above, the lowest first.
        encoding: how its new bytes were encoded; empty if there were too few to choose.
        reasons: why so.
    """

    name: str
    bytes: int
    cell_bytes: int
    rows: int
    data_bytes: int
    repeat_bytes: int
    fill_bytes: int
    new_bytes: int
    deltas: tuple[Layer, ...]
    encoding: str
    reasons: str

    def share(self, part_bytes: int) -> str:
        """Return a part of the region in percent, as the table has it."""
        pct = 100 * part_bytes / self.bytes if self.bytes else 0.0
        return "" if not part_bytes else "<1 %" if pct < 1 else f"{pct:.0f} %"


@dataclass(frozen=True, slots=True)
class UsedPack:
    """A pack that an older checkpoint wrote and this one needs.

    Attributes:
        key: relative to the lineage.
        step: of the checkpoint that wrote it.
        attempt: likewise.
        bytes: as stored.
        plain_bytes: what it holds.
        used_bytes: what of that is needed here, each byte counted once.
    """

    key: str
    step: int
    attempt: int
    bytes: int
    plain_bytes: int
    used_bytes: int


def stored_regions(manifest: Manifest) -> list[StoredRegion]:
    """Return how each region is stored."""
    own = [pack in manifest.own_packs for pack in manifest.packs]
    is_own = np.array([*own, False], np.bool_)  # The last stands for what is in no pack.

    def stored(entry: RegionEntry, layers: list[ExtentTable]) -> StoredRegion:
        bottom = layers[0]
        repeats, fills = bottom.period > 0, bottom.pack == FILL
        encoding, _, reasons = entry.encoding.partition(": ")
        return StoredRegion(
            name=entry.name,
            bytes=entry.size_bytes,
            cell_bytes=entry.cell_bytes or manifest.chunk_bytes,
            rows=sum(entry.row_counts),
            data_bytes=int(bottom.length[~repeats & ~fills].sum()),
            repeat_bytes=int(bottom.length[repeats].sum()),
            fill_bytes=int(bottom.length[fills].sum()),
            new_bytes=sum(
                int(rows.extent[is_own[np.minimum(rows.pack, len(own))]].sum())
                for rows in layers
            ),
            deltas=tuple(starmap(_layer, zip(entry.deltas, layers[1:], strict=True))),
            encoding=encoding,
            reasons=reasons,
        )

    return list(starmap(stored, zip(manifest.regions, manifest.region_layers(), strict=True)))


def _layer(layer: DeltaLayer, rows: ExtentTable) -> Layer:
    changed = int(rows.length[rows.stored].sum())
    return Layer(str(layer.op), layer.word_bytes, layer.extent_count, changed)


def older_packs(manifest: Manifest) -> list[UsedPack]:
    """Return the packs of older checkpoints, the newest first."""
    found = []
    for number, pack in enumerate(manifest.packs):
        writer = CheckpointId.of_pack(pack.key)
        assert writer is not None, "decoding checked the keys"
        if writer != manifest.id:
            rows = manifest.extents.take(manifest.extents.pack == number)
            found.append(
                UsedPack(
                    key=pack.key,
                    step=writer.step,
                    attempt=writer.attempt,
                    bytes=pack.size_bytes,
                    plain_bytes=pack.plain_bytes,
                    used_bytes=_union_bytes(rows),
                )
            )
    return sorted(found, key=lambda one: one.key, reverse=True)


def _union_bytes(rows: ExtentTable) -> int:
    """Return how many bytes of a pack its rows take; several may take the same ones."""
    order = np.argsort(rows.source, kind="stable")
    start = rows.source[order]
    end = start + rows.extent[order]
    before = np.concatenate([np.zeros(1, np.uint64), np.maximum.accumulate(end)])[:-1]
    first = np.maximum(start, before)
    return int((np.maximum(end, first) - first).sum())


def document(manifest: Manifest) -> dict[str, Any]:
    """Return what ``--json`` says of it."""
    return {"regions": stored_regions(manifest), "older_packs": older_packs(manifest)}


def print_regions(console: Console, manifest: Manifest, *, reasons: bool) -> None:
    """Print the regions, then the older packs."""
    found, packs = stored_regions(manifest), older_packs(manifest)
    if found:
        console.print()
        console.print(_region_table(found))
    if reasons:
        chosen = [one for one in found if one.reasons]
        console.print()
        for one in chosen:
            text = Text(f"{shown(one.name or None)}: {one.encoding}. {one.reasons}")
            console.print(text, soft_wrap=True)
        if not chosen:
            console.print("No region had enough new bytes to choose an encoding for them.")
    if packs:
        table = output.table(
            "OLDER PACK", "STEP", "ATTEMPT", "STORED", "HOLDS", "USED",
            numbers=("STEP", "ATTEMPT", "STORED", "HOLDS", "USED"),
        )  # fmt: skip
        for pack in packs:
            sizes = map(format_bytes, (pack.bytes, pack.plain_bytes, pack.used_bytes))
            name = pack.key.removeprefix("packs/")
            output.add_row(table, [name, pack.step, pack.attempt, *sizes])
        console.print()
        console.print(table)


def _region_table(regions: list[StoredRegion]) -> Table:
    numbers = ("BYTES", "NEW", "CELL", "ROWS", "DATA", "REPEAT", "FILL")
    table = output.table("REGION", *numbers, "DELTAS", "ENCODING", numbers=numbers)
    for one in regions:
        row = [shown(one.name or None), one.bytes, one.new_bytes, one.cell_bytes, one.rows]
        row += map(one.share, (one.data_bytes, one.repeat_bytes, one.fill_bytes))
        output.add_row(table, [*row, ", ".join(map(str, one.deltas)), one.encoding])
    return table
