"""Look into one set without restoring it: its arrays one by one, and its plain values.

Names are those of the application, as one rank saw the state. ``tests/unit/test_slices.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import merkle
from ckptflow.data.arrays import ArraySpec
from ckptflow.data.runs import Index, Runs
from ckptflow.data.tree import iter_arrays, iter_plain
from ckptflow.errors import NotFoundError
from ckptflow.model import Manifest
from ckptflow.store.sharding.reading import SetReader, Wanted
from ckptflow.store.sharding.sets import FoundSet, ShardSets, lacking
from ckptflow.store.slices import near, read_slice

_SHOWN_MAX = 8


class SetArrays:
    """The arrays of one complete set, by name.

    Args:
        sets: whose.
        found: which set.
        rank: whose view of the state is meant, and whose own leaves.
        note: told, in a sentence, of every copy that was skipped and why.

    Raises:
        NotFoundError: a shard lacks.
        CorruptionError: some manifest has no sound copy, or shards contradict each other.
    """

    def __init__(
        self,
        sets: ShardSets,
        found: FoundSet,
        *,
        rank: int = 0,
        note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.reader, self.rank = SetReader(sets, found, note=note), rank
        self.map = self.reader.shards[rank].map
        self.specs: dict[str, ArraySpec] = dict(iter_arrays(self.map.structure))

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    @property
    def manifest(self) -> Manifest:
        """What stands for the set: the manifest of the rank, under the name of the task.

        Its root is that of the roots of all shards.
        """
        shards = self.reader.shards
        roots = np.frombuffer(b"".join(one.manifest.root for one in shards), "<u8")
        return replace(
            shards[self.rank].manifest,
            lineage=self.reader.sets.id,
            root=merkle.root(roots.reshape(-1, 2).astype(np.uint64)),
        )

    @property
    def plain(self) -> dict[str, Any]:
        """The plain leaves, by name."""
        return dict(iter_plain(self.map.structure))

    def kind(self, name: str) -> str:
        """Return who holds an array: ``replicated``, ``own`` or ``boxed``."""
        return self.map.regions[self._spec(name).region].kind

    def read(self, name: str) -> NDArray[Any]:
        """Return an array; see `read_part`."""
        return self.read_part(name)

    def read_part(self, name: str, index: Index = ...) -> NDArray[Any]:
        """Return what ``index`` picks of an array; reads about the bytes of that.

        Raises:
            NotFoundError: there is no array of that name.
            ConfigError: ``index`` does not fit the array, or picks by lists or masks.
            CorruptionError: some frame has no sound copy.
        """
        spec = self._spec(name)
        return read_slice(spec, index, partial(self._fill, spec))

    def _fill(self, spec: ArraySpec, runs: Runs, buffer: memoryview) -> None:
        region = self.map.regions[spec.region]
        self.reader.fill([Wanted(region, self.rank, buffer, runs)])

    def _spec(self, name: str) -> ArraySpec:
        if name not in self.specs:
            where = f"{self.reader.sets.id} {self.reader.found}"
            raise NotFoundError(f"{where} has no array {name!r}; {near(name, self.specs)}")
        return self.specs[name]


def complete_set(sets: ShardSets, *, step: int | None = None) -> FoundSet:
    """Return the newest complete set, or that of a step.

    Raises:
        NotFoundError: there is none; the message tells which there are, and what they lack.
    """
    for found in sets.newest_first():
        if step is None or found.id.step == step:
            return found
    which = "complete checkpoint" if step is None else f"complete checkpoint of step {step}"
    there = [
        f"step {one.id.step} ({'void' if one.void else lacking(one) or 'complete'})"
        for one in sets.every()[:_SHOWN_MAX]
    ]
    raise NotFoundError(f"{sets.id} has no {which}; it has {', '.join(there) or 'nothing'}.")


def read_from_set(
    sets: ShardSets, name: str, index: Index = ..., *, step: int | None = None, rank: int = 0
) -> NDArray[Any]:
    """Return an array of a complete set, or a part of it. See `SetArrays.read_part`.

    Args:
        sets: whose.
        name: of the array.
        index: which part.
        step: of which set; the newest complete one if ``None``.
        rank: whose, of what belongs to ranks; rank 0 if there were fewer.
    """
    found = complete_set(sets, step=step)
    return SetArrays(sets, found, rank=rank if rank < found.world else 0).read_part(name, index)
