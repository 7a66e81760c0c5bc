"""Look into one checkpoint without restoring it: its arrays one by one, and its plain values.

A checkpointer saves ``{"state": …, "rng": …}``; names here are those within one of the two
parts, so that an array is called what the application calls it. In a checkpoint of another
shape everything is state.

Only the region that an array lies in is read, verified like any restore, and the last region
is kept; so a state of any size can be looked through in the memory of its largest region.
``tests/unit/test_stored_arrays.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.arrays import ArraySpec, array_from
from ckptflow.data.extents import starts_of
from ckptflow.data.leaves import Node
from ckptflow.data.runs import Index, Runs
from ckptflow.data.tree import iter_arrays, iter_plain
from ckptflow.errors import CorruptionError, FormatError, NotFoundError
from ckptflow.model import ExtentTable, Manifest, RegionEntry
from ckptflow.store.catalog import Lineage
from ckptflow.store.partial import PartialReader, scatter
from ckptflow.store.rereading import consolidated
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.slices import near, read_slice

Part = Literal["state", "rng"]


class StoredArrays:
    """The arrays of one checkpoint, by name.

    Args:
        lineage: whose checkpoint it is.
        manifest: which one.
        part: the application's state, or the random states of its process.
        note: told, in a sentence, of every copy that was skipped and why.

    Raises:
        FormatError: the structure names a region that is not there, or parts not known here.
    """

    def __init__(
        self,
        lineage: Lineage,
        manifest: Manifest,
        *,
        part: Part = "state",
        note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.lineage, self.manifest, self._note = lineage, manifest, note
        self._node = parts_of(manifest.structure)[part]
        self.specs: dict[str, ArraySpec] = dict(iter_arrays(self._node))
        for name, spec in self.specs.items():
            if spec.region >= len(manifest.regions):
                raise FormatError(
                    f"{lineage.id} {manifest.id}: the array {name!r} lies in region "
                    f"{spec.region}, but there are {len(manifest.regions)}."
                )
        self._kept: tuple[int, memoryview] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    @property
    def plain(self) -> dict[str, Any]:
        """The plain leaves, by name."""
        return dict(iter_plain(self._node))

    def region_of(self, name: str) -> RegionEntry:
        """Return the region that an array lies in."""
        return self.manifest.regions[self._spec(name).region]

    def read(self, name: str) -> NDArray[Any]:
        """Return an array; a type that NumPy lacks here as unsigned integers of its size.

        Raises:
            NotFoundError: there is no array of that name.
            CorruptionError: no copy of its region is sound.
        """
        spec = self._spec(name)
        if self._kept is None or self._kept[0] != spec.region:
            self._kept = None  # Two regions at once would double the memory.
            self._kept = spec.region, self._read_region(spec.region)
        return array_from(spec, self._kept[1], as_bits=True)

    def read_part(self, name: str, index: Index = ...) -> NDArray[Any]:
        """Return what ``index`` picks of an array; reads about the bytes of that.

        Raises:
            NotFoundError: there is no array of that name.
            ConfigError: ``index`` does not fit the array, or picks by lists or masks.
            CorruptionError: some frame has no sound copy.
        """
        spec = self._spec(name)
        return read_slice(spec, index, partial(self._fill, spec.region))

    def _fill(self, region: int, runs: Runs, buffer: memoryview) -> None:
        try:
            self._fill_from(self.manifest, region, runs, buffer)
        except CorruptionError:  # Its packs may have gone with a consolidation.
            other = consolidated(self.lineage.tiers, self.manifest)
            if other is None:
                raise
            self.manifest = other
            self._fill_from(other, region, runs, buffer)

    def _fill_from(
        self, manifest: Manifest, region: int, runs: Runs, buffer: memoryview
    ) -> None:
        length = np.full(len(runs.start), runs.length, np.uint64)
        start, target = runs.start.astype(np.uint64), starts_of(length)
        with PartialReader(self.lineage.tiers, manifest, note=self._note) as reader:
            scatter(reader, region, start, length, buffer=buffer, target=target)

    def _spec(self, name: str) -> ArraySpec:
        if name not in self.specs:
            raise NotFoundError(
                f"{self.lineage.id} {self.manifest.id} has no array {name!r}; "
                f"{near(name, self.specs)}"
            )
        return self.specs[name]

    def _read_region(self, number: int) -> memoryview:
        try:
            return self._read_from(self.manifest, number)
        except CorruptionError:  # Its packs may have gone with a consolidation.
            other = consolidated(self.lineage.tiers, self.manifest)
            if other is None:
                raise
            self.manifest = other
            return self._read_from(other, number)

    def _read_from(self, manifest: Manifest, number: int) -> memoryview:
        part = restrict(manifest, number)
        buffer = memoryview(bytearray(part.regions[0].size_bytes))
        read_checkpoint(self.lineage.tiers, part, [buffer], note=self._note)
        return buffer.toreadonly()


def parts_of(structure: Node) -> dict[Part, Node]:
    """Return the nodes of the application's state and of the random states."""
    match structure:
        case ["dict", "state", state, "rng", rng, *_]:
            return {"state": state, "rng": rng}
    return {"state": structure, "rng": None}


def restrict(manifest: Manifest, *numbers: int) -> Manifest:
    """Return a manifest of some regions, in this order, with no packs but those it needs."""
    layers = manifest.region_layers()
    rows = ExtentTable.of([table for number in numbers for table in layers[number]])
    used = np.unique(rows.pack[rows.stored])
    pack = rows.pack.copy()
    pack[rows.stored] = np.searchsorted(used, rows.pack[rows.stored])
    return replace(
        manifest,
        regions=tuple(manifest.regions[number] for number in numbers),
        packs=tuple(manifest.packs[int(old)] for old in used),
        extents=ExtentTable(rows.length, rows.source, pack, rows.period),
    )
