"""From the state of one rank to what its shard stores of it.

What is captured is another small tree: the parts, as views of the live arrays (in the library
that they are of, so that whoever captures them sees whose memory it is), and the text that says
what they are parts of. Nothing is copied but regions that no array spans, which are rare. As
long as the arrays of a state are those that were, so are its parts.
``tests/unit/test_divide.py``.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ckptflow.data import boxes
from ckptflow.data.arrays import ArraySpec, LiveArray, describe
from ckptflow.data.boxes import Placed
from ckptflow.data.division import Division, Flattened
from ckptflow.data.dtypes import Unsupported
from ckptflow.data.leaves import Node, shown
from ckptflow.data.memory import Layout
from ckptflow.data.overlap import Form, form_of, span, without_repeats
from ckptflow.data.recorded import RecordedWalk
from ckptflow.data.shares import shares
from ckptflow.data.tree import array_node, iter_arrays, iter_plain, refuse
from ckptflow.store.sharding.mapping import (
    Classify,
    Part,
    ShardMap,
    WholeRegion,
    with_arrays,
)
from ckptflow.store.sharding.replicas import Compared, Seen


@dataclass(frozen=True, slots=True)
class Divided:
    """What one rank stores of its state.

    Attributes:
        state: the parts, by name.
        shard: what they are parts of, as plain values.
        seen: digests of what this rank has of what all should have alike; ``None`` if nothing
            was digested.
    """

    state: dict[str, Any]
    shard: dict[str, Any]
    seen: Seen | None


class Divider:
    """Takes the share of one rank, again and again. Not for two threads at once.

    Args:
        rank: which share is taken.
        world: number of shares.
    """

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._walk = RecordedWalk()
        self._last: _Plan | None = None
        self._views: list[tuple[Any, Any]] = []  # Each with what it is of, until `let_go`.

    def divide(self, state: Any, classify: Classify, *, check: bool) -> Divided:
        """Return what this rank stores of a state.

        Args:
            state: all that the rank holds.
            classify: tells, by the name of a leaf, who holds it; the same function tells the
                same each time.
            check: digest everything that all ranks hold alike, to compare it.

        Raises:
            StateError: it cannot be saved; the message lists every problem.
        """
        with boxes.allowed():
            flattened = self._walk.flatten(state)
            places = _placed(flattened)
            plan = self._last
            if plan is None or not plan.fits(flattened, classify, places):
                plan = self._last = _plan(flattened, classify, places, self._rank, self._world)
            views = [_view(flattened, cut) for cut in plan.cuts]
        self._views = [
            (view, flattened.owners[cut.array])
            for view, cut in zip(views, plan.cuts, strict=True)
            if cut.array is not None
        ]
        seen = None
        if check and self._world > 1:
            seen = plan.compared.see(flattened, classify)
        own = [name for name, _ in iter_plain(flattened.structure) if classify(name) == "own"]
        map_ = ShardMap(
            self._rank,
            self._world,
            _with_global_shapes(flattened.structure, plan),
            tuple(plan.regions),
            tuple(plan.parts),
            (*own, *plan.own),
            None if seen is None else seen.whole,
        )
        return Divided(_tree(plan.paths, views), map_.node(), seen)

    def parts_of(self, addresses: Collection[int]) -> set[int]:
        """Return where the parts lie, in the last division, of tensors at some addresses."""
        return {
            view.data_ptr()
            for view, owner in self._views
            if hasattr(owner, "data_ptr") and owner.data_ptr() in addresses
        }

    def let_go(self) -> None:
        """Hold none of the arrays any more."""
        self._views = []


class _Cut(NamedTuple):
    """How a view is made, of whatever arrays are there.

    Attributes:
        region: that it is of.
        array: number of the array that is cut; ``None``: the region is gathered.
        first: index that takes repeats out of it, and turns axes that run backwards.
        order: of its axes in memory, if it is made flat; else ``None``.
        picks: what is taken then.
    """

    region: int
    array: int | None
    first: tuple[slice, ...]
    order: tuple[int, ...] | None
    picks: tuple[int | slice, ...]


def _view(flattened: Flattened, cut: _Cut) -> Any:
    if cut.array is None:
        region = flattened.region(cut.region)
        gathered = np.empty(region.nbytes, np.uint8)
        region.copy_into(gathered)
        return gathered[cut.picks]
    array = flattened.owners[cut.array]
    is_tensor = hasattr(array, "detach")
    array = array.detach() if is_tensor else array
    if cut.first:
        array = array[cut.first]
    if cut.order is not None:
        array = array.permute(cut.order) if is_tensor else array.transpose(cut.order)
        array = array.reshape(-1)
    return array[cut.picks]


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one state is divided: what depends neither on values nor on addresses.

    Holds no array of the state, so that what the application drops is gone.

    Attributes:
        division: of the state into regions.
        classify: told who holds what.
        places: of all arrays that are boxes, by the number of the array.
        boxes: the same by the number of the region.
        regions: the whole regions.
        parts: what this rank stores, one for each cut.
        cuts: how to make arrays over that.
        paths: where each lies in the tree that is captured.
        own: names of the arrays that belong to this rank.
        compared: what other ranks should have alike.
    """

    division: Division
    classify: Classify
    places: dict[int, Placed]
    boxes: dict[int, Placed]
    regions: list[WholeRegion]
    parts: list[Part]
    cuts: list[_Cut]
    paths: list[tuple[str, ...]]
    own: list[str]
    compared: Compared

    def fits(self, flattened: Flattened, classify: Classify, places: dict[int, Placed]) -> bool:
        """Tell whether a state is divided likewise."""
        return (
            self.division is flattened.division
            and self.classify is classify
            and self.places == places
        )


def _placed(flattened: Flattened) -> dict[int, Placed]:
    """Return where boxes lie, by the number of the array.

    Raises:
        StateError: one cannot be stored.
    """
    found, problems = dict[int, Placed](), []
    for number, leaf in enumerate(flattened.leaves):
        try:
            place = boxes.placed(leaf)
        except Unsupported as problem:
            problems.append(f"{shown(_name_of(flattened, number))}: {problem}")
            continue
        if place is not None:
            found[number] = place
    if problems:
        raise refuse("The state cannot be saved", problems)
    return found


def _name_of(flattened: Flattened, number: int) -> str:
    return next(itertools.islice(iter_arrays(flattened.structure), number, None))[0]


def _plan(
    flattened: Flattened,
    classify: Classify,
    places: dict[int, Placed],
    rank: int,
    world: int,
) -> _Plan:
    members: dict[int, list[_Member]] = defaultdict(list)
    of_regions: dict[int, Placed] = {}
    for number, (name, spec) in enumerate(iter_arrays(flattened.structure)):
        members[spec.region].append(_Member(number, name, spec))
        if number in places:
            of_regions[spec.region] = places[number]
    _refuse_shared(members, of_regions)
    sizes = flattened.table.nbytes.tolist()
    regions = [
        _whole(name, sizes[number], members[number], of_regions.get(number), classify)
        for number, name in enumerate(flattened.names)
    ]
    walked = _Walked(flattened, members, of_regions, regions)
    parts, cuts, paths = list[Part](), list[_Cut](), list[tuple[str, ...]]()
    for part, cut in _parts(walked, rank, world):
        path = _path(flattened.names[part.region])
        if paths and (paths[-1] == path or parts[-1].region == part.region):
            path = (*path[:-1], f"{path[-1]} {len(parts)}")  # One more piece of a region.
        parts.append(part)
        cuts.append(cut)
        paths.append(path)
    own = [
        array.name
        for number, region in enumerate(regions)
        if region.kind == "own"
        for array in members[number]
    ]
    return _Plan(
        division=flattened.division,
        classify=classify,
        places=places,
        boxes=of_regions,
        regions=regions,
        parts=parts,
        cuts=cuts,
        paths=paths,
        own=own,
        compared=Compared(
            regions, {n: one for n, one in of_regions.items() if one.replicas > 1}
        ),
    )


def _path(name: str) -> tuple[str, ...]:
    """Return keys under which an array has a name, so that its part is called like it."""
    keys = [part.replace("~2", "[").replace("~1", "/") for part in name.split("/")]
    return tuple(key.replace("~0", "~") for key in keys)


def _tree(paths: Sequence[tuple[str, ...]], views: Sequence[Any]) -> dict[str, Any]:
    """Return dictionaries in which each view lies at its path, in their order."""
    tree: dict[str, Any] = {}
    for path, view in zip(paths, views, strict=True):
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = view
    return tree


class _Member(NamedTuple):
    """An array of a region: its number, its name, and where it lies there."""

    number: int
    name: str
    spec: ArraySpec


@dataclass(frozen=True, slots=True)
class _Walked:
    """A state that was walked: its regions, which arrays lie in each, and where boxes lie."""

    flattened: Flattened
    members: dict[int, list[_Member]]
    places: dict[int, Placed]
    regions: list[WholeRegion]


def _refuse_shared(members: dict[int, list[_Member]], places: dict[int, Placed]) -> None:
    problems = []
    for number in places:
        if len(members[number]) > 1:
            names = ", ".join(shown(other.name) for other in members[number])
            problems.append(f"{names}: share memory, and one is a part of a global array")
    if problems:
        raise refuse("The state cannot be saved", problems)


def _whole(
    name: str,
    size_bytes: int,
    members: list[_Member],
    place: Placed | None,
    classify: Classify,
) -> WholeRegion:
    if place is not None:
        item = members[0].spec.itemsize_bytes
        return WholeRegion(place.name or name, "boxed", place.shape, item)
    kinds = {classify(one.name) for one in members}
    kind = kinds.pop() if len(kinds) == 1 else "own"
    return WholeRegion(name, kind, (size_bytes,), 1)


def _with_global_shapes(structure: Node, plan: _Plan) -> Node:
    """Give boxed arrays the shape that they have as a whole; boxes of one are one region."""
    if not plan.boxes:
        return structure
    first: dict[str, int] = {}
    for number in plan.boxes:
        first.setdefault(plan.regions[number].name, number)

    def whole(_name: str, spec: ArraySpec, node: Node) -> Node:
        if spec.region not in plan.boxes:
            return node
        known = first[plan.regions[spec.region].name]
        shape = plan.regions[known].shape
        return array_node(ArraySpec(spec.dtype, shape, None, 0, known, spec.kind))

    return with_arrays(structure, whole)


def _parts(walked: _Walked, rank: int, world: int) -> Iterator[tuple[Part, _Cut]]:
    """Yield the parts that this rank stores, and how to make views of them."""
    regions = walked.regions
    replicated = [n for n, one in enumerate(regions) if one.kind == "replicated"]
    sizes = [regions[n].size_bytes for n in replicated]
    units = [_unit(walked.members[n], regions[n].size_bytes) for n in replicated]
    pieces: dict[int, tuple[int, int]] = {
        replicated[one.region]: (one.start, one.length)
        for one in shares(sizes, units, world=world)[rank]
    }
    for number, region in enumerate(regions):
        if region.kind == "boxed":
            array = walked.members[number][0].number
            if (found := _box_part(number, array, walked.places[number])) is not None:
                yield found
            continue
        start, length = 0, region.size_bytes
        if region.kind == "replicated":
            start, length = pieces.get(number, (0, 0))
        if not length or (region.kind == "first" and rank):
            continue
        for nbytes, cut in _cuts(walked, number, start, length):
            yield Part(number, (start,), (nbytes,)), cut
            start += nbytes


def _unit(members: list[_Member], size_bytes: int) -> int:
    """Return the bytes of a region that are never cut: an element of any of its arrays."""
    unit = math.lcm(*(one.spec.itemsize_bytes for one in members))
    return unit if size_bytes % unit == 0 else max(1, size_bytes)


def _box_part(number: int, array: int, place: Placed) -> tuple[Part, _Cut] | None:
    """Return the share that this rank stores of a box which several may hold."""
    offset, lengths = list(place.offset), list(place.lengths)
    index: tuple[int | slice, ...] = ()
    if place.replicas > 1:
        axis = max(range(len(lengths)), key=lengths.__getitem__, default=None)
        if axis is None:  # One number: the first that holds it stores it.
            if place.replica:
                return None
        else:
            size = lengths[axis]
            first, end = (size * (place.replica + step) // place.replicas for step in (0, 1))
            index = (*[slice(None)] * axis, slice(first, end))
            offset[axis], lengths[axis] = offset[axis] + first, end - first
    if 0 in lengths:
        return None
    return Part(number, tuple(offset), tuple(lengths)), _Cut(number, array, (), None, index)


def _cuts(walked: _Walked, number: int, start: int, length: int) -> Iterator[tuple[int, _Cut]]:
    """Yield how to make views of some bytes of a region, in its order; usually one."""
    size_bytes = walked.regions[number].size_bytes
    lives = [(one.number, _live(walked.flattened, one)) for one in walked.members[number]]
    for array, live in lives:
        layout, item = live.layout, live.layout.itemsize
        low, high = span(layout)
        shape = without_repeats(layout).shape
        if (
            high - low == size_bytes == boxes.element_count(shape) * item
            and form_of(layout) is Form.WHOLE
            and (min(layout.strides_bytes, default=0) >= 0 or live.kind != "torch")
            and start % item == length % item == 0
        ):
            strides = layout.strides_bytes
            order = tuple(sorted(range(len(strides)), key=lambda axis: -abs(strides[axis])))
            index = (slice(start // item, (start + length) // item),)
            yield length, _Cut(number, array, _forward(layout), order, index)
            return
    if len(lives) == 1 and form_of(lives[0][1].layout) is Form.PACKED:
        array, live = lives[0]
        layout, item = without_repeats(live.layout), live.layout.itemsize
        for count, index_ in _elements(layout.shape, start // item, (start + length) // item):
            yield count * item, _Cut(number, array, _repeats(live.layout), None, index_)
        return
    yield length, _Cut(number, None, (), None, (slice(start, start + length),))


def _live(flattened: Flattened, one: _Member) -> LiveArray:
    live = describe(flattened.owners[one.number])
    assert live is not None, "it is an array"
    return live


def _repeats(layout: Layout) -> tuple[slice, ...]:
    """Return the index that takes repeats out of an array."""
    if 0 not in layout.strides_bytes:
        return ()
    return tuple(slice(0, 1) if stride == 0 else slice(None) for stride in layout.strides_bytes)


def _forward(layout: Layout) -> tuple[slice, ...]:
    """Return the index that also turns its axes so that all run forward in memory."""
    if min(layout.strides_bytes, default=1) > 0:
        return ()
    return tuple(
        slice(0, 1) if stride == 0 else slice(None, None, -1 if stride < 0 else 1)
        for stride in layout.strides_bytes
    )


def _elements(
    shape: tuple[int, ...], first: int, end: int
) -> Iterator[tuple[int, tuple[int | slice, ...]]]:
    """Yield indices whose elements, in C order, are those from ``first`` to before ``end``.

    Each with how many it picks; at most two more than there are axes, on each side.
    """
    if first >= end:
        return
    if len(shape) == 1:
        yield end - first, (slice(first, end),)
        return
    inner = boxes.element_count(shape[1:])
    row, last = first // inner, end // inner
    if first > row * inner or row == last:  # Not all of the first row.
        stop = min(end, (row + 1) * inner)
        for count, index in _elements(shape[1:], first - row * inner, stop - row * inner):
            yield count, (row, *index)
        row += 1
    if last > row:
        yield (last - row) * inner, (slice(row, last),)
    if last >= row and end > last * inner:
        for count, index in _elements(shape[1:], 0, end - last * inner):
            yield count, (last, *index)
