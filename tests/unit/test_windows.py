"""Windows cover the regions, in order, in whole chunks, and cut no word of a delta."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.model import (
    FILL,
    KEEP,
    CheckpointId,
    DeltaLayer,
    DeltaOp,
    ExtentTable,
    LineageId,
    Manifest,
    PackRef,
    RegionEntry,
)
from ckptflow.store.checking.roots import Span, window, windows

CHUNK = 16
PACK = PackRef("packs/000000000001.00000001.0000.00c0ffee.pack", 1000, 500, 1, bytes(16))


def table(*rows: tuple[int, int, int]) -> ExtentTable:
    """Rows of length, source and pack."""
    length, source, pack = (np.array(column) for column in zip(*rows, strict=True))
    return ExtentTable(
        length.astype(np.uint64), source.astype(np.uint64), pack.astype(np.uint32)
    )


def manifest_of(*regions: tuple[RegionEntry, ExtentTable]) -> Manifest:
    return Manifest(
        lineage=LineageId("run", "task"),
        id=CheckpointId(1, 1),
        parent=None,
        kind="full",
        created="",
        writer="",
        metrics={},
        root=bytes(16),
        chunk_bytes=CHUNK,
        packs=(PACK,),
        regions=tuple(entry for entry, _ in regions),
        extents=ExtentTable.of([rows for _, rows in regions]),
        structure=None,
    )


def plain(name: str, size: int) -> tuple[RegionEntry, ExtentTable]:
    return RegionEntry(name, size, bytes(16), 1), table((size, 0, FILL))


def spans(manifest: Manifest, window_bytes: int) -> list[list[Span]]:
    return list(windows(manifest, manifest.region_layers(), window_bytes))


def test_a_large_region_is_cut_at_chunks_and_small_ones_share_a_window() -> None:
    manifest = manifest_of(plain("a", 70), plain("b", 5), plain("c", 0), plain("d", 20))
    assert spans(manifest, 40) == [
        [Span(0, 0, 32)],
        [Span(0, 32, 64), Span(0, 64, 70)],
        [Span(1, 0, 5), Span(3, 0, 20)],
    ]
    assert spans(manifest, 1)[:2] == [[Span(0, 0, 16)], [Span(0, 16, 32)]]
    assert spans(manifest_of(plain("c", 0)), 40) == []


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (8, [Span(0, 0, 48), Span(0, 48, 64)]),
        (1, [Span(0, 0, 16), Span(0, 16, 32), Span(0, 32, 48), Span(0, 48, 64)]),
    ],
)
def test_a_window_goes_on_where_a_word_of_a_delta_would_be_cut(
    word: int, expected: list[Span]
) -> None:
    """The delta begins with byte 3, where our own writer would never let one begin."""
    entry = RegionEntry("a", 64, bytes(16), 1, (DeltaLayer(3, DeltaOp.XOR, word),))
    rows = table((64, 0, 0), (3, 0, KEEP), (40, 64, 0), (21, 0, KEEP))
    manifest = manifest_of((entry, rows))
    found = spans(manifest, 16)
    assert [span for group in found for span in group] == expected
    parts = [window(manifest, manifest.region_layers(), group) for group in found]
    assert [part.state_bytes for part in parts] == [s.stop - s.start for s in expected]
    first = parts[0].region_layers()[0][1]
    assert first.length.tolist()[:2] == [3, min(40, expected[0].stop - 3)]
