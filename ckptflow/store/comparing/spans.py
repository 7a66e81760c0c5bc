"""Read some ranges of the regions of a checkpoint, and no more than the frames they lie in.

A restore verifies regions by their roots. Whoever reads a part cannot, so here every frame is
compared with its digest, and taken from another copy if it differs.
``tests/unit/test_spans.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.extents import U64, cut
from ckptflow.data.pack import FrameTable
from ckptflow.model import ExtentTable, Manifest, RegionEntry
from ckptflow.store.copies import Pack
from ckptflow.store.fetch import fill
from ckptflow.tiers.tier import Tier


class SpanReader:
    """Reads ranges of the regions of one checkpoint.

    Args:
        tiers: where copies of its packs may lie, the preferred first.
        manifest: the checkpoint.
        pool: runs the reads.
        note: told, in a sentence, of every copy that was skipped and why.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        manifest: Manifest,
        pool: ThreadPoolExecutor,
        *,
        note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.manifest, self._pool = manifest, pool
        self._packs = [Pack(tiers, manifest.lineage, ref, note) for ref in manifest.packs]
        self._layers = manifest.region_layers()

    def rows(self, region: int, start: U64, length: U64) -> ExtentTable:
        """Return the rows that cover some ranges of a region, rising, one after the other.

        A region with delta layers has no such rows: what lies below them are not its bytes.
        """
        assert len(self._layers[region]) == 1, "the caller reads regions with deltas as a whole"
        return cut(self._layers[region][0], start, length)[1]

    def frames(self, rows: ExtentTable) -> dict[int, FrameTable]:
        """Return the frame tables of the packs that rows name, by the number of the pack.

        Raises:
            CorruptionError: a table has no sound copy.
        """
        used = np.unique(rows.pack[rows.stored]).tolist()
        return {number: self._packs[number].frames() for number in used}

    def read(self, rows: ExtentTable) -> NDArray[np.uint8]:
        """Return the bytes that rows name, one after the other; all frames are verified.

        Raises:
            CorruptionError: a frame has no sound copy.
        """
        used = np.unique(rows.pack[rows.stored])
        pack = rows.pack.copy()
        pack[rows.stored] = np.searchsorted(used, pack[rows.stored])
        size = int(rows.length.sum())
        # To `fill` this is a small checkpoint of its own, of one region.
        part = replace(
            self.manifest,
            regions=(RegionEntry("", size, b"", len(rows)),),
            packs=tuple(self.manifest.packs[number] for number in used.tolist()),
            extents=ExtentTable(rows.length, rows.source, pack, rows.period),
        )
        buffer = np.empty(size, np.uint8)
        packs = [self._packs[number] for number in used.tolist()]
        fill(part, [buffer.data], packs, self._pool, check_frames=True)
        return buffer
