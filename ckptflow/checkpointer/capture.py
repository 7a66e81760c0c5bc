"""Decide how each region of a state is captured; take snapshots within a budget of bytes.

What may be captured after the call is left to `Captured.unfinished`, for another thread, while
the application only reads. ``tests/unit/test_capture.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ckptflow.checkpointer.arena import ArenaPool, default_budget_bytes
from ckptflow.checkpointer.taking import Captured, Mask, Plan, Take
from ckptflow.data import snapshot as snapshots
from ckptflow.data.buffers import I64s, U64s
from ckptflow.data.division import Flattened
from ckptflow.data.recorded import RecordedWalk
from ckptflow.data.snapshot import Parent, Places, Snapshot
from ckptflow.errors import StateError, TornCapture
from ckptflow.gpu.fleet import Fleet
from ckptflow.policy.capture import (
    IN_FLIGHT_FIRST,
    SMALL_BYTES,
    CaptureMode,
    CaptureRules,
    Choices,
    RegionFacts,
    choose,
)
from ckptflow.store.memory import Memory
from ckptflow.store.planning.changes import wanted_cells, wanted_whole


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the next save will want.

    Attributes:
        whole: names of the regions of which the writer will want all bytes.
        cells: of which it will want the digests of all cells, and of what size.
        coarse: the size of cells of those that have larger ones than chunks.
    """

    whole: frozenset[str] = frozenset()
    cells: Mapping[str, int] = field(default_factory=dict)
    coarse: Mapping[str, int] = field(default_factory=dict)


class Capturer:
    """Takes snapshots within a budget of bytes; by default a quarter of free memory.

    Args:
        budget_bytes: for snapshots.
        rules: which mode is asked for.
        chunk_bytes: unit of digest.
        note: told why nothing can be captured on a device.
        keeps_parent: whether the last snapshot is kept for deltas, and so has to be whole.
    """

    def __init__(
        self,
        budget_bytes: int | None,
        *,
        rules: CaptureRules,
        chunk_bytes: int,
        note: Callable[[str], None],
        keeps_parent: bool = False,
    ) -> None:
        budget = default_budget_bytes() if budget_bytes is None else budget_bytes
        self.arenas = ArenaPool(budget, IN_FLIGHT_FIRST)
        self._wanted = _Wanted()
        self.lazy_addresses: Callable[[], Collection[int]] = tuple
        self._rules, self._chunk_bytes, self._kept = rules, chunk_bytes, keeps_parent
        self._before: Snapshot | None = None  # The newest snapshot.
        self._changed: dict[str, float] = {}  # Fraction of the chunks, the last time.
        self._torn: set[str] = set()
        self._asked_for: dict[str, CaptureMode] = {}
        self._fleet = Fleet(chunk_bytes, note=note)
        self._walk = RecordedWalk()
        self._places: tuple[I64s, Places] | None = None  # Of regions of these sizes.

    @property
    def is_short(self) -> bool:
        """Whether a save waits for the memory of an earlier one."""
        return self.arenas.is_short

    def preparation(self, state: object) -> Callable[[], None] | None:
        """Return what makes memory for a snapshot of ``state``, and opens the devices it is on.

        It takes its time, and another thread may do it. ``None``: the state cannot be saved.
        """
        try:
            flattened, snapshot = self._flatten(state)
        except StateError:  # The save will say so.
            return None
        return partial(self._prepare, flattened.on_devices, snapshot.places)

    def _prepare(self, on_devices: Mapping[str, list[int]], places: Places) -> None:
        self.arenas.prepare(places.arena_bytes)
        self._fleet.prepare(on_devices, places)

    def begin(self, digests: Mapping[str, U64s], make_room: Callable[[], None]) -> None:
        """Begin an attempt.

        Args:
            digests: of the chunks of each region that was restored, uint64 [n, 2]: what the
                first snapshot is compared with.
            make_room: asked before a save has to wait for memory.
        """
        self.arenas.make_room = make_room
        large = [n for n, one in digests.items() if len(one) * self._chunk_bytes >= SMALL_BYTES]
        sizes = [len(digests[name]) * self._chunk_bytes for name in large]
        self._before = Snapshot(large, Places.of(sizes, self._chunk_bytes))
        for number, name in enumerate(large):
            self._before.learn(number, digests[name])

    def forget(self) -> None:
        """Hold all of the next snapshot: what the last one held is not to be had any more."""
        self._before = None

    def capture(
        self, state: object, *, sparse: bool = True, in_flight_max: int = IN_FLIGHT_FIRST
    ) -> Captured:
        """Capture ``state``; waits while earlier snapshots use the budget up.

        Args:
            state: anything that can be saved.
            sparse: whether what did not change may be left to an earlier snapshot.
            in_flight_max: how many snapshots there may be at a time.

        Raises:
            StateError: it cannot be saved; the message lists every problem.
            TornCapture: a region was torn before, and is being written to even now.
        """
        flattened, snapshot = self._flatten(state)
        self.arenas.in_flight_max = in_flight_max
        if not sparse:
            self.forget()
        plan = self._plan(flattened, snapshot)
        while True:
            arena = self.arenas.take(snapshot.places.arena_bytes, plan.expected_bytes)
            if plan.before is self._before:
                break
            if arena is not None:  # To make room, the snapshot before was given up.
                self.arenas.give_back(arena)
            plan = self._plan(flattened, snapshot)
        take = Take(self.arenas, flattened, snapshot, plan, arena)
        captured = take.captured
        self._before = snapshot
        try:
            take.run(~plan.later)
            if not plan.later.any():
                take.check_again()
            if take.is_unfinished:
                take.guard()
                captured.unfinished = partial(self._finish, take)
        except BaseException as error:  # A device may fail; the next save needs the memory.
            captured.release()
            self._give_up(error)
            raise
        return captured

    def _finish(self, take: Take) -> None:
        """Capture what was left for later.

        Raises:
            TornCapture: something wrote to it meanwhile.
        """
        try:
            take.finish()
        except BaseException as error:
            self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        """Take note that a snapshot could not be taken."""
        self.note_torn(error.regions if isinstance(error, TornCapture) else ())

    def note_torn(self, names: Collection[str]) -> None:
        """Copy some regions from now on, and hold all of the next snapshot."""
        self._torn.update(names)
        self.forget()

    def learn(self, captured: Captured, memory: Memory) -> None:
        """Take over what the writer found out: digests of what was copied, what it wants next.

        Args:
            captured: a snapshot that was committed.
            memory: what is remembered of it.
        """
        snapshot = captured.snapshot
        large = snapshot.places.nbytes >= SMALL_BYTES
        for number in np.flatnonzero(large & ~snapshot.digested).tolist():
            name = snapshot.names[number]
            snapshot.learn(number, memory.regions[name].chunks)
        self._wanted = _Wanted(
            wanted_whole(memory),
            wanted_cells(memory, self._chunk_bytes),
            {
                name: region.cell_bytes
                for name, region in memory.regions.items()
                if region.cell_bytes > self._chunk_bytes
            },
        )
        if captured.parent is not None:
            self._changed.update(snapshots.changed_fractions(snapshot, captured.parent))
            captured.parent = None

    def _flatten(self, state: object) -> tuple[Flattened, Snapshot]:
        """Return the regions of a state, and a snapshot to be taken of them."""
        flattened = self._walk.flatten(state)
        names, sizes = flattened.names, flattened.table.nbytes
        if self._places is None or self._places[0] is not sizes:
            self._places = sizes, Places.of(sizes, self._chunk_bytes)
        return flattened, Snapshot(names, self._places[1])

    def _plan(self, flattened: Flattened, snapshot: Snapshot) -> Plan:
        before, places = self._before, snapshot.places
        parent, devices = Parent(snapshot, before), self._fleet.regions(flattened)
        on_host = flattened.table.address != 0
        changed = self._changed_last(snapshot.names)
        choices = self._choices(flattened, snapshot, parent, changed, on_host | devices.where)
        whole = choices.which(lambda choice: choice.whole)
        digested = choices.which(lambda choice: choice.digested)
        later = choices.which(lambda choice: choice.mode is CaptureMode.LAZY)
        how = np.where(whole, snapshots.WHOLE, snapshots.NOTHING)
        how |= np.where(digested, snapshots.DIGEST, snapshots.NOTHING)
        share = np.minimum(1.0, 2 * np.nan_to_num(changed) + 1 / 16)
        expected = places.nbytes * np.where(whole, 1.0, share)
        grain = np.ones(len(whole), np.uint64)
        for name, cell_bytes in self._wanted.coarse.items():
            if (number := snapshot.number(name)) is not None:
                grain[number] = cell_bytes // self._chunk_bytes
        cells = {
            number: cell_bytes
            for name, cell_bytes in self._wanted.cells.items()
            if (number := snapshot.number(name)) is not None
            and digested[number]
            and not whole[number]
            and on_host[number]
        }
        expected_bytes = int(expected.sum())
        return Plan(choices, parent, before, how, grain, cells, later, devices, expected_bytes)

    def _changed_last(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Return what fraction of each region changed the last time; NaN: not known."""
        if not self._changed:
            return np.full(len(names), np.nan)
        known = self._changed.get
        return np.array([known(name, math.nan) for name in names], np.float64)

    def _choices(
        self,
        flattened: Flattened,
        snapshot: Snapshot,
        parent: Parent,
        changed: NDArray[np.float64],
        readable: Mask,
    ) -> Choices:
        names, count = snapshot.names, len(snapshot.names)
        known, on_device = parent.known > 0, flattened.table.address == 0
        is_small = snapshot.places.nbytes < SMALL_BYTES
        columns = {
            "is_small": is_small,
            "readable": readable,
            "kept": np.full(count, self._kept),
            "next_writer_known": self._of_optimizers(flattened, readable & ~is_small),
            "known": known,
            "coming": self._coming(names, ~known & ~is_small),
            # Of cells a device knows nothing.
            "wanted": _among(names, self._wanted.whole)
            | (on_device & _among(names, self._wanted.cells)),
            "torn": _among(names, self._torn),
        }
        # Most regions are like some other, so that few choices have to be made.
        percent = np.where(np.isnan(changed), -1, np.round(100 * changed)).astype(np.int64)
        key, modes = percent + 1, list(CaptureMode)
        for column in (*columns.values(), *self._asked_modes(names, modes)):
            key = 2 * key + column
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        made = []
        for number in first.tolist():
            last = None if percent[number] < 0 else int(percent[number]) / 100
            facts = {name: bool(column[number]) for name, column in columns.items()}
            asked = self._asked(names[number])
            made.append(choose(RegionFacts(**facts, changed=last), asked))
        return Choices(made, of)

    def _of_optimizers(self, flattened: Flattened, which: Mask) -> Mask:
        """Return which regions change in the steps of optimizers only."""
        found = np.zeros(len(which), np.bool_)
        if lazy := self.lazy_addresses():
            for number in np.flatnonzero(which).tolist():
                found[number] = all(
                    _address(owner) in lazy for owner in flattened.owners_of(number)
                )
        return found

    def _coming(self, names: Sequence[str], which: Mask) -> Mask:
        """Return of which regions the writer is computing digests."""
        found = np.zeros(len(which), np.bool_)
        if self._before is not None:
            for number in np.flatnonzero(which).tolist():
                found[number] = self._before.number(names[number]) is not None
        return found

    def _asked_modes(self, names: Sequence[str], modes: Sequence[CaptureMode]) -> list[Mask]:
        """Return, for each mode, of which regions it is asked for."""
        if not self._rules.patterns:
            return []
        asked = [self._asked(name) for name in names]
        return [np.array([one is mode for one in asked], np.bool_) for mode in modes]

    def _asked(self, name: str) -> CaptureMode:
        if not self._rules.patterns:
            return self._rules.other
        if name not in self._asked_for:
            self._asked_for[name] = self._rules.asked(shown_name(name))
        return self._asked_for[name]


def shown_name(name: str) -> str:
    """Return the name of a region as users know it."""
    return name.removeprefix("state/")


def _among(names: Sequence[str], some: Collection[str]) -> Mask:
    if not some:
        return np.zeros(len(names), np.bool_)
    return np.array([name in some for name in names], np.bool_)


def _address(owner: object) -> int | None:
    pointer = getattr(owner, "data_ptr", None)
    return pointer() if callable(pointer) else None
