"""Restore the state of one rank from a set, on any number of ranks.

Replicated arrays come back whole, boxed ones in whatever box the target has, and what belongs
to a rank comes from one rank of the set. The stored structure is fitted to the target as that
of any checkpoint is, after its boxed arrays were given the boxes of the target. So arrays keep
their memory, and nothing is written before all is known to fit. ``tests/unit/test_sharded.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ckptflow.data import boxes
from ckptflow.data.arrays import ArraySpec
from ckptflow.data.boxes import Placed
from ckptflow.data.dtypes import Unsupported
from ckptflow.data.fit import ABSENT
from ckptflow.data.leaves import Node, shown
from ckptflow.data.regions import RestorePlan, flatten, plan_restore
from ckptflow.data.runs import Runs, box_layout, runs_of
from ckptflow.data.tree import array_node, iter_arrays, refuse
from ckptflow.errors import CorruptionError
from ckptflow.model import Shard
from ckptflow.store.arrays import parts_of
from ckptflow.store.memory import Base, remember
from ckptflow.store.sharding.mapping import ShardMap, WholeRegion, with_arrays
from ckptflow.store.sharding.reading import SetReader, Wanted

_NO_FIT = "The checkpoint does not fit the state it should restore; nothing was changed"


@dataclass(frozen=True, slots=True)
class RestoredShard:
    """The state of one rank.

    Attributes:
        state: as the application gave it to `save`.
        rng: the random states, or ``None`` if no rank's are this one's.
        base: of this rank's own shard, what its next one is diffed against; ``None`` if it has
            none in this set.
        failed_tiers: names of those whose copy could not be used.
    """

    state: Any
    rng: Any
    base: Base | None
    failed_tiers: frozenset[str]


@dataclass(slots=True)
class _Draft:
    """A structure in the making, with regions of its own."""

    regions: list[tuple[WholeRegion, Runs | None, int]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)  # By the number in the map.

    def whole(self, map_: ShardMap, number: int) -> int:
        """Return the number of a region that is wanted whole."""
        if number not in self.numbers:
            region = map_.regions[number]
            self.numbers[number] = self.add(region, None, region.size_bytes)
        return self.numbers[number]

    def add(self, region: WholeRegion, runs: Runs | None, size_bytes: int) -> int:
        """Return the number of a new region."""
        self.regions.append((region, runs, size_bytes))
        return len(self.regions) - 1


def restore_rank(
    reader: SetReader, target: object | None, shard: Shard, *, source: int, same_rng: bool
) -> RestoredShard:
    """Restore the state of a rank into ``target``, or into a new one.

    Args:
        reader: of a complete set.
        target: state to fill in place, or ``None``.
        shard: the place of this rank, now.
        source: rank of the set whose own leaves are taken.
        same_rng: whether its random states are taken, too.

    Raises:
        StateError: ``target`` does not fit; nothing was written to it.
        CorruptionError: something has no sound copy.
    """
    with boxes.allowed():
        stored = reader.shards[source]
        draft = _Draft()
        structure = _adapted(stored.map, draft, target)
        count = len(draft.regions)
        rng = parts_of(stored.manifest.structure)["rng"] if same_rng else None
        rng_regions: list[int] = []

        def rng_node(_name: str, spec: ArraySpec, _node: Node) -> Node:
            if spec.region not in rng_regions:
                rng_regions.append(spec.region)
            return array_node(_moved(spec, count + rng_regions.index(spec.region)))

        both = ["dict", "state", structure, "rng", with_arrays(rng, rng_node)]
        sizes = [size for _, _, size in draft.regions]
        sizes += [stored.manifest.regions[number].size_bytes for number in rng_regions]
        goal = None if target is None else {"state": target, "rng": ABSENT}
        plan = _plan(reader, both, sizes, goal)
        reader.fill(
            [
                Wanted(region, source, buffer, runs)
                for (region, runs, _), buffer in zip(draft.regions, plan.buffers, strict=False)
            ],
            also={source: dict(zip(rng_regions, plan.buffers[count:], strict=True))},
        )
        base = _base(reader, shard)
        restored = plan.finish()
    return RestoredShard(
        restored["state"], restored["rng"], base, frozenset(reader.failed_tiers)
    )


def _adapted(map_: ShardMap, draft: _Draft, target: object | None) -> Node:
    """Return the structure of a shard with the boxes that the target has.

    Raises:
        StateError: one of them cannot be restored.
    """
    there = _arrays_in(target)
    are_parts = any(place is not None for place in there.values())
    missing: list[str] = []

    def change(name: str, spec: ArraySpec, _node: Node) -> Node:
        region, place = map_.regions[spec.region], there.get(name)
        if place is not None:
            return array_node(_boxed(draft, name, spec, region, place))
        if region.kind == "boxed" and are_parts and name not in there:
            missing.append(
                f"{shown(name)}: a part of a global array in the checkpoint, nothing in the "
                f"state that says which; make an optimizer's state by a step before restoring"
            )
        return array_node(_moved(spec, draft.whole(map_, spec.region)))

    structure = with_arrays(map_.structure, change)
    if missing:
        raise refuse(_NO_FIT, missing)
    return structure


def _plan(reader: SetReader, structure: Node, sizes: Sequence[int], target: Any) -> RestorePlan:
    try:
        return plan_restore(structure, sizes, target)
    except (MemoryError, OverflowError) as error:
        raise CorruptionError(
            f"{reader.sets.id} {reader.found} claims a state of {sum(sizes)} bytes, which "
            f"cannot be had here."
        ) from error


def _arrays_in(target: object | None) -> dict[str, Placed | None]:
    """Return the arrays of the target by name, and where those lie that are boxes.

    Raises:
        StateError: one of them cannot be restored.
    """
    if target is None or not boxes.may_be_somewhere():
        return {}
    places, problems = dict[str, Placed | None](), []
    flattened = flatten(target)
    names = (name for name, _ in iter_arrays(flattened.structure))
    for name, leaf in zip(names, flattened.leaves, strict=True):
        try:
            places[name] = boxes.placed(leaf)
        except Unsupported as problem:
            problems.append(f"{shown(name)}: {problem}")
    if problems:
        raise refuse("The state cannot be restored", problems)
    return places


def _moved(spec: ArraySpec, region: int) -> ArraySpec:
    return ArraySpec(
        spec.dtype, spec.shape, spec.strides_bytes, spec.offset_bytes, region, spec.kind
    )


def _boxed(
    draft: _Draft, name: str, spec: ArraySpec, region: WholeRegion, place: Placed
) -> ArraySpec:
    """Return the local array of a box, in a region that is just that.

    Raises:
        StateError: the box is of another array, or the array does not lie in C order.
    """
    if spec.shape != place.shape:
        raise refuse(
            _NO_FIT,
            [
                f"{shown(name)}: shape {spec.shape} in the checkpoint, a box of an array of "
                f"shape {place.shape} in the state"
            ],
        )
    layout = spec.layout()
    box = box_layout(spec.shape, spec.itemsize_bytes, place.offset, place.lengths)
    if spec.strides_bytes is not None:
        address = layout.address + sum(
            first * stride
            for first, stride in zip(place.offset, spec.strides_bytes, strict=True)
        )
        box = box._replace(strides_bytes=spec.strides_bytes, address=address)
    else:
        box = box._replace(address=box.address + layout.address)
    size_bytes = boxes.element_count(place.lengths) * spec.itemsize_bytes
    number = draft.add(region, runs_of(box), size_bytes)
    return ArraySpec(spec.dtype, place.lengths, None, 0, number, spec.kind)


def _base(reader: SetReader, shard: Shard) -> Base | None:
    """Return what the next shard of this rank is diffed against, if all of it was read."""
    if reader.found.world != shard.world:
        return None
    manifest = reader.shards[shard.rank].manifest
    buffers, chunks = [], []
    for number in range(len(manifest.regions)):
        buffer = reader.whole.get((shard.rank, number))
        if buffer is None:
            return None
        buffers.append(buffer)
        chunks.append(reader.digests[shard.rank, number])
    return remember(manifest, buffers, chunks)
