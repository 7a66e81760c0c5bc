"""A state as named flat regions, without copying, and back into the memory it came from.

Out: :func:`flatten` walks the state once and returns its structure, a small JSON tree, and its
regions, views of the live memory. ``Flattened.copy_into`` copies all
of them; saves take snapshots that need not hold all (`ckptflow.data.snapshot`).

Back: :func:`plan_restore` compares a structure with the state that is there and raises before
anything is written. Its plan has one buffer a region: the state's own memory wherever the
bytes can lie there as they are, so that whoever fills the buffers has already restored most of
the state. ``finish`` copies the rest to its places and sets what is not an array.

Memory seen by several arrays is one region, and comes back shared. With a target, what shares
memory is up to the target; if arrays share memory there which were apart in the checkpoint,
all but the first get new memory, since one array cannot hold two values.

``tests/unit/test_regions.py``, ``test_regions_torch.py`` and
``tests/property/test_state_roundtrip.py`` keep it true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ckptflow.data.arrays import ArraySpec, array_from
from ckptflow.data.assembling import Build
from ckptflow.data.collector import collector_paused
from ckptflow.data.division import ALIGNMENT_BYTES, Flattened, Region, item_bytes_of
from ckptflow.data.fit import ABSENT, Fit, Mode, Slot
from ckptflow.data.leaves import Node, register_leaf, shown
from ckptflow.data.memory import Bytes, Layout, bytes_at, same_strides
from ckptflow.data.overlap import blocks, covers, share_memory, span
from ckptflow.data.recorded import RecordedWalk
from ckptflow.data.tree import iter_arrays, iter_plain, refuse
from ckptflow.errors import FormatError

__all__ = [
    "ALIGNMENT_BYTES",
    "ArraySpec",
    "Flattened",
    "Region",
    "RestorePlan",
    "array_from",
    "flatten",
    "item_bytes_by_region",
    "iter_arrays",
    "iter_plain",
    "plan_restore",
    "register_leaf",
]


def flatten(state: object) -> Flattened:
    """Return the structure and the regions of a state; nothing is copied or changed.

    Costs one walk over the tree and one sort of the arrays by address. Who does so again and
    again has a `ckptflow.data.recorded.RecordedWalk`.

    Raises:
        StateError: something in it cannot be stored; ``mismatches`` names every such place.
    """
    return RecordedWalk().flatten(state)


def item_bytes_by_region(structure: Node) -> dict[int, int]:
    """Return bytes of one number of the first array of each region, by the region's number."""
    found: dict[int, int] = {}
    for _, spec in iter_arrays(structure):
        found.setdefault(spec.region, item_bytes_of(spec))
    return found


# --- back ------------------------------------------------------------------------------------


@dataclass(slots=True)
class RestorePlan:
    """How the bytes of a checkpoint become a state.

    Fill each of ``buffers``, flat and writable, one a region in their order, check them, then
    call ``finish`` once. Many of them are the state's own memory: from the first byte written
    until ``finish`` has returned, the state is neither the old one nor the new.
    """

    buffers: list[memoryview]
    in_place_bytes: int  # Bytes of the buffers that are the state's own memory.
    _slots: list[Slot]
    _build: Build

    def finish(self) -> Any:
        """Copy what was not read in place, set the plain leaves, and return the state.

        The target itself, if there was one that can be changed. Objects get
        ``load_state_dict`` here, after all arrays are in place.
        """
        for slot in self._slots:
            slot.fill()
        return self._build()


@collector_paused()
def plan_restore(
    structure: Node, region_sizes: Sequence[int], target: object | None
) -> RestorePlan:
    """Compare a structure with the state that is there, and find memory for every region.

    Args:
        structure: from the manifest.
        region_sizes: bytes of each region, in order.
        target: the state to restore into; None makes a new one of plain containers.

    Returns:
        A plan. The target has not been changed.

    Raises:
        StateError: the checkpoint does not fit; ``mismatches`` names every place.
        FormatError: the structure is not of this version, or contradicts itself.
    """
    fit = Fit()
    try:
        build = fit.node(structure, ABSENT if target is None else target, None)
    except RecursionError as error:
        raise FormatError("The structure of the checkpoint is nested too deeply.") from error
    for slot in fit.slots:
        if slot.spec.region >= len(region_sizes):
            raise FormatError(f"The checkpoint has no region {slot.spec.region}.")
        slot.spec.check(region_sizes[slot.spec.region])
    mismatches = fit.mismatches + _separate(fit.slots)
    if mismatches:
        raise refuse(
            "The checkpoint does not fit the state it should restore; nothing was changed",
            mismatches,
        )
    by_region: list[list[Slot]] = [[] for _ in region_sizes]
    for slot in fit.slots:
        by_region[slot.spec.region].append(slot)
    buffers, in_place_bytes = [], 0
    for slots, nbytes in zip(by_region, region_sizes, strict=True):
        own = _own_memory(slots, nbytes)
        in_place_bytes += nbytes if own is not None else 0
        buffer = np.empty(nbytes, np.uint8) if own is None else own
        for slot in slots:
            slot.region = buffer
        buffers.append(buffer.data)
    return RestorePlan(buffers, in_place_bytes, fit.slots, build)


def _base(slot: Slot) -> int:
    """Return where the region would start for the bytes to fall on the target."""
    assert slot.live is not None
    return slot.live.layout.address - slot.spec.offset_bytes


def _own_memory(slots: list[Slot], nbytes: int) -> Bytes | None:
    """Return the targets' memory if the region can be read into it as it is.

    That takes targets laid out as in the checkpoint which occupy every byte of the region:
    a byte between them may belong to somebody else.
    """
    if len(slots) == 1 and slots[0].is_whole(nbytes):  # As nearly all are.
        (slot,) = slots
        assert slot.live is not None, "it is somewhere"
        slot.scattered = False
        return bytes_at(slot.live.layout.address, nbytes, slot.target, writable=True)
    groups: dict[int, list[Slot]] = {}
    for slot in slots:
        if slot.live is not None and slot.live.fits(slot.stored):
            groups.setdefault(_base(slot), []).append(slot)
    for base, group in groups.items():
        if nbytes and covers([slot.stored for slot in group], nbytes):
            for slot in group:
                slot.scattered = False
            owners = [slot.target for slot in group]
            return bytes_at(base, nbytes, owners, writable=True)
    return None


def _separate(slots: Iterable[Slot]) -> list[str]:
    """Find targets that share memory but were apart in the checkpoint.

    The first keeps its memory; the others, where we own the container or its owner takes over
    what it is given, are new arrays. A torch module or another object may write into its own
    arrays, so there it is a mismatch.
    """
    mismatches = []
    places: dict[str, list[Slot]] = {}
    for slot in slots:
        if slot.live is not None and slot.live.access != "immutable":
            places.setdefault(slot.live.place, []).append(slot)
    for group in places.values():
        if _are_apart([slot.live.layout for slot in group if slot.live is not None]):
            continue  # As nearly always.
        for first, second in _clashes(group):
            if first[0].live is None or second[0].live is None:
                continue  # Already apart.
            if all(slot.mode in {Mode.STATE, Mode.ADOPTER} for slot in second):
                _detach(second)
            elif all(slot.mode in {Mode.STATE, Mode.ADOPTER} for slot in first):
                _detach(first)
            else:
                mismatches.append(
                    f"{shown(second[0].name)}: shares memory with {shown(first[0].name)} in "
                    "the state, but has a value of its own in the checkpoint"
                )
    return mismatches


def _detach(slots: list[Slot]) -> None:
    for slot in slots:
        slot.live, slot.target = None, ABSENT


def _clashes(slots: list[Slot]) -> list[tuple[list[Slot], list[Slot]]]:
    """Return targets that share memory in another way than in the checkpoint, in pairs.

    One side of a pair is all slots that are the same array in checkpoint and state.
    """
    same: dict[tuple[object, ...], list[Slot]] = {}
    layouts: list[Layout] = []
    for slot in slots:
        assert slot.live is not None
        layout = slot.live.layout
        key = (slot.spec.region, slot.stored, layout)
        if key not in same:
            layouts.append(layout)
        same.setdefault(key, []).append(slot)
    groups = list(same.values())
    frames = [_frame(group[0]) for group in groups]
    found: list[tuple[int, int]] = []
    for block in blocks(layouts):
        if len({frames[i] for i in block.members}) == 1:
            continue  # As in the checkpoint, which is nearly always so.
        for first, second in combinations(block.members, 2):
            apart = frames[first] != frames[second]
            if apart and share_memory(layouts[first], layouts[second]):
                found.append((first, second))
    return [(groups[first], groups[second]) for first, second in found]


def _are_apart(layouts: Sequence[Layout]) -> bool:
    """Tell whether no span of addresses overlaps another."""
    low, high = np.array(list(map(span, layouts)), np.int64).reshape(-1, 2).T
    order = np.argsort(low, kind="stable")
    order = order[low[order] < high[order]]
    return not (low[order][1:] < high[order][:-1]).any()


def _frame(slot: Slot) -> object:
    """Return what two targets have in common if each byte is the same one for both.

    That is the region and where it would start, given that the strides are the stored ones.
    """
    assert slot.live is not None
    own = slot.live.layout.strides_bytes
    if same_strides(slot.stored.shape, own, slot.stored.strides_bytes):
        return slot.spec.region, _base(slot)
    return slot.spec.region, slot.stored, slot.live.layout
