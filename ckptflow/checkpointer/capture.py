"""Decide how each region of a state is captured; take snapshots within a budget of bytes.

What may be captured after the call is left to `Captured.unfinished`, for another thread, while
the application only reads. ``tests/unit/test_capture.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ckptflow.checkpointer.arena import ArenaPool, default_budget_bytes
from ckptflow.checkpointer.taking import Captured, Plan, Take
from ckptflow.data import snapshot as snapshots
from ckptflow.data.buffers import I64s, U64s
from ckptflow.data.division import Flattened
from ckptflow.data.recorded import RecordedWalk
from ckptflow.data.snapshot import Parent, Places, Snapshot
from ckptflow.errors import StateError, TornCapture
from ckptflow.gpu.fleet import Fleet
from ckptflow.policy.capture import (
    IN_FLIGHT_FIRST,
    SMALL,
    SMALL_BYTES,
    CaptureMode,
    CaptureRules,
    Choice,
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
        cell_bytes: per region, the unit in which it looks at them.
    """

    whole: frozenset[str] = frozenset()
    cells: Mapping[str, int] = field(default_factory=dict)
    cell_bytes: Mapping[str, int] = field(default_factory=dict)


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
            {name: region.cell_bytes for name, region in memory.regions.items()},
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
        readable = (flattened.table.address != 0) | devices.where
        choices = self._choices(flattened, snapshot, parent, readable.tolist())
        whole = np.array([choice.whole for choice in choices], np.bool_)
        digested = np.array([choice.digested for choice in choices], np.bool_)
        later = np.array([choice.mode is CaptureMode.LAZY for choice in choices], np.bool_)
        how = np.where(whole, snapshots.WHOLE, snapshots.NOTHING)
        how |= np.where(digested, snapshots.DIGEST, snapshots.NOTHING)
        grain = np.ones(len(choices), np.uint64)
        cells: dict[int, int] = {}
        expected = np.where(whole, places.nbytes, np.uint64(0)).astype(np.float64)
        for number in np.flatnonzero(digested).tolist():
            name, size = snapshot.names[number], int(places.nbytes[number])
            cell_bytes = self._wanted.cell_bytes.get(name, 0)
            grain[number] = max(1, cell_bytes // self._chunk_bytes)
            if not whole[number]:
                if name in self._wanted.cells and flattened.table.address[number]:
                    cells[number] = self._wanted.cells[name]
                expected[number] = min(size, size * (2 * self._changed.get(name, 0.0) + 1 / 16))
        expected_bytes = int(expected.sum())
        return Plan(choices, parent, before, how, grain, cells, later, devices, expected_bytes)

    def _choices(
        self, flattened: Flattened, snapshot: Snapshot, parent: Parent, readable: list[bool]
    ) -> list[Choice]:
        lazy, before = self.lazy_addresses(), self._before
        names, sizes = snapshot.names, snapshot.places.nbytes.tolist()
        on_host = (flattened.table.address != 0).tolist()
        known = (parent.known > 0).tolist()
        choices = [SMALL] * len(names)
        looked_at: Iterable[int] = range(len(names))
        if self._rules == CaptureRules() and not self._kept:
            looked_at = np.flatnonzero(snapshot.places.nbytes >= SMALL_BYTES).tolist()
        made: dict[tuple[RegionFacts, CaptureMode], Choice] = {}  # Most are like some other.
        for number in looked_at:
            name = names[number]
            facts = RegionFacts(
                is_small=sizes[number] < SMALL_BYTES,
                readable=readable[number],
                kept=self._kept,
                next_writer_known=(
                    bool(lazy) and readable[number] and _all_in(flattened, number, lazy)
                ),
                known=known[number],
                coming=(
                    not known[number] and before is not None and before.number(name) is not None
                ),
                changed=self._changed.get(name),
                wanted=name in self._wanted.whole
                or (name in self._wanted.cells and not on_host[number]),
                torn=name in self._torn,
            )
            key = facts, self._asked(name)
            if key not in made:
                made[key] = choose(*key)
            choices[number] = made[key]
        return choices

    def _asked(self, name: str) -> CaptureMode:
        if not self._rules.patterns:
            return self._rules.other
        if name not in self._asked_for:
            self._asked_for[name] = self._rules.asked(shown_name(name))
        return self._asked_for[name]


def shown_name(name: str) -> str:
    """Return the name of a region as users know it."""
    return name.removeprefix("state/")


def _all_in(flattened: Flattened, number: int, addresses: Collection[int]) -> bool:
    """Tell whether all arrays of a region lie at some addresses."""
    return all(_address(owner) in addresses for owner in flattened.owners_of(number))


def _address(owner: object) -> int | None:
    pointer = getattr(owner, "data_ptr", None)
    return pointer() if callable(pointer) else None
