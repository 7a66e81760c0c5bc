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
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.arrays import ArraySpec, array_from
from ckptflow.data.leaves import Node
from ckptflow.data.tree import iter_arrays, iter_plain
from ckptflow.errors import CorruptionError, FormatError, NotFoundError
from ckptflow.model import ExtentTable, Manifest, RegionEntry
from ckptflow.store.catalog import Lineage
from ckptflow.store.rereading import consolidated
from ckptflow.store.restore import read_checkpoint

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

    def _spec(self, name: str) -> ArraySpec:
        if name not in self.specs:
            raise NotFoundError(
                f"{self.lineage.id} {self.manifest.id} has no array {name!r}; "
                f"`ckptflow show` lists those it has."
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
        case ["dict", "state", state, "rng", rng]:
            return {"state": state, "rng": rng}
    return {"state": structure, "rng": None}


def restrict(manifest: Manifest, number: int) -> Manifest:
    """Return a manifest of one region only, with no packs but those it needs."""
    rows = ExtentTable.of(manifest.region_layers()[number])
    used = np.unique(rows.pack[rows.stored])
    pack = rows.pack.copy()
    pack[rows.stored] = np.searchsorted(used, rows.pack[rows.stored])
    return replace(
        manifest,
        regions=(manifest.regions[number],),
        packs=tuple(manifest.packs[int(old)] for old in used),
        extents=ExtentTable(rows.length, rows.source, pack, rows.period),
    )
