"""Compute the roots of the regions of a checkpoint in bounded memory, window by window.

A window is some chunks of one region, or several small regions. Its rows, of the bottom and of
all delta layers, are cut out of the manifest and read like a small checkpoint of its own; its
chunks are digested, and the bytes forgotten. The digests of a window are kept under the rows
that gave them: what the next checkpoint takes from the same places is not read again, so that
to check a lineage costs what changed from one checkpoint to the next.
``tests/unit/test_windows.py``; ``tests/property/test_layer_laws.py`` checks layouts of all
kinds this way, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import digest, merkle
from ckptflow.data.extents import cut, starts_of
from ckptflow.model import DeltaLayer, ExtentTable, Manifest, RegionEntry
from ckptflow.store.copies import Pack
from ckptflow.store.fetch import fill
from ckptflow.tiers.tier import Tier

Digests = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Span:
    """Whole chunks of one region, by its number; the last of all may be shorter."""

    region: int
    start: int
    stop: int


class RootChecker:
    """Checks the roots of checkpoints of one lineage on one tier, best from the oldest on.

    Args:
        tier: where.
        pool: runs the reads.
        window_bytes: of plain bytes in memory; more where a word of a delta would be cut.
    """

    def __init__(self, tier: Tier, pool: ThreadPoolExecutor, *, window_bytes: int) -> None:
        self._tier, self._pool, self._window_bytes = tier, pool, window_bytes
        # Of the last checkpoint, by its first region and byte: where a window came from.
        self._known: dict[tuple[str, int], tuple[bytes, list[Digests]]] = {}

    def wrong(self, manifest: Manifest) -> list[str]:
        """Return the names of the regions whose bytes do not have the root that is said.

        Raises:
            CorruptionError: something that has to be read is missing or damaged.
            TierError: the tier failed.
        """
        parts = [[np.empty((0, 2), np.uint64)] for _ in manifest.regions]
        for spans, digests in self._windows(manifest):
            for span, some in zip(spans, digests, strict=True):
                parts[span.region].append(some)
        return [
            region.name
            for region, some in zip(manifest.regions, parts, strict=True)
            if merkle.root(np.concatenate(some)) != region.root
        ]

    def _windows(self, manifest: Manifest) -> Iterator[tuple[list[Span], list[Digests]]]:
        layers, known = manifest.region_layers(), {}
        packs = {
            ref: Pack([self._tier], manifest.lineage, ref, lambda _text: None)
            for ref in manifest.packs
        }
        for spans in windows(manifest, layers, self._window_bytes):
            part = window(manifest, layers, spans)
            place, origin = (part.regions[0].name, spans[0].start), _origin(part)
            before, digests = self._known.get(place, (b"", []))
            if before != origin:
                digests = self._read(part, [packs[ref] for ref in part.packs])
            known[place] = origin, digests
            yield spans, digests
        self._known = known

    def _read(self, part: Manifest, packs: Sequence[Pack]) -> list[Digests]:
        buffers = [memoryview(bytearray(region.size_bytes)) for region in part.regions]
        fill(part, buffers, packs, self._pool, check_frames=False)
        return [digest.chunk_digests(buffer, part.chunk_bytes) for buffer in buffers]


def windows(
    manifest: Manifest, layers: Sequence[Sequence[ExtentTable]], window_bytes: int
) -> Iterator[list[Span]]:
    """Yield parts that cover all regions in order, about ``window_bytes`` each.

    They end where no word of a delta is cut, which every multiple of a chunk is where deltas
    begin with a chunk or a cell.
    """
    window: list[Span] = []
    room_bytes = window_bytes
    for number in range(len(manifest.regions)):
        for span in _spans(manifest, number, layers[number], window_bytes):
            size_bytes = span.stop - span.start
            if window and size_bytes > room_bytes:
                yield window
                window, room_bytes = [], window_bytes
            window.append(span)
            room_bytes -= size_bytes
    if window:
        yield window


def _spans(
    manifest: Manifest, number: int, layers: Sequence[ExtentTable], span_bytes: int
) -> Iterator[Span]:
    size_bytes = manifest.regions[number].size_bytes
    step = max(1, span_bytes // manifest.chunk_bytes) * manifest.chunk_bytes
    deltas = list(zip(layers[1:], manifest.regions[number].deltas, strict=True))
    start = 0
    for stop in range(step, size_bytes, step):
        if not any(_cuts_a_word(rows, delta, stop) for rows, delta in deltas):
            yield Span(number, start, stop)
            start = stop
    if start < size_bytes:
        yield Span(number, start, size_bytes)


def window(
    manifest: Manifest, layers: Sequence[Sequence[ExtentTable]], spans: Sequence[Span]
) -> Manifest:
    """Return a manifest of parts of regions, with no packs but those they need."""
    regions, tables = [], []
    for span in spans:
        region, size_bytes = manifest.regions[span.region], span.stop - span.start
        at, length = np.array([span.start], np.uint64), np.array([size_bytes], np.uint64)
        parts = [cut(table, at, length)[1] for table in layers[span.region]]
        deltas = tuple(
            replace(layer, extent_count=len(part))
            for layer, part in zip(region.deltas, parts[1:], strict=True)
        )
        regions.append(RegionEntry(region.name, size_bytes, b"", len(parts[0]), deltas))
        tables += parts
    rows = ExtentTable.of(tables)
    used = np.unique(rows.pack[rows.stored])
    pack = rows.pack.copy()
    pack[rows.stored] = np.searchsorted(used, rows.pack[rows.stored])
    return replace(
        manifest,
        regions=tuple(regions),
        packs=tuple(manifest.packs[int(old)] for old in used),
        extents=ExtentTable(rows.length, rows.source, pack, rows.period),
    )


def _cuts_a_word(rows: ExtentTable, delta: DeltaLayer, place: int) -> bool:
    begin = starts_of(rows.length)
    row = int(np.searchsorted(begin, np.uint64(place), side="right")) - 1
    return bool(rows.stored[row]) and (place - int(begin[row])) % delta.word_bytes != 0


def _origin(part: Manifest) -> bytes:
    """Return a seal of all that says which bytes a window has."""
    said = hashlib.blake2b(digest_size=16)
    said.update(repr((part.chunk_bytes, part.regions, part.packs)).encode())
    rows = part.extents
    for column in (rows.length, rows.source, rows.pack, rows.period):
        said.update(np.ascontiguousarray(column).data)
    return said.digest()
