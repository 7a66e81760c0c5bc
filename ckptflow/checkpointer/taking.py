"""Take one snapshot: what is captured within the call, and what after it.

A snapshot lies in an arena. Of regions of which little changes it has only that, besides the
digests of all; the rest is left to the snapshot before (`ckptflow.data.snapshot`). Where there
is no room for it the application's own memory is read, and the application has to wait.
``tests/unit/test_capture.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.checkpointer.arena import Arena, ArenaPool
from ckptflow.data import snapshot as snapshots
from ckptflow.data.buffers import Bytes, U64s
from ckptflow.data.digest import chunk_digests
from ckptflow.data.division import Flattened, Region
from ckptflow.data.guarding import ReadOnly, versions
from ckptflow.data.snapshot import Parent, Places, Snapshot
from ckptflow.gpu.fleet import OnDevices
from ckptflow.policy.capture import CaptureMode, Choices
from ckptflow.store.memory import NamedRegion
from ckptflow.store.planning.changes import torn_capture

Mask = NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Captured:
    """A state ready to be written, or to be captured by `Capturer.finish` first.

    Attributes:
        structure: how the regions make the state.
        views: makes the regions when they are first asked for, in whatever thread that is.
        choices: how each was captured.
        snapshot: digests, and what is held.
        parent: what they were compared with, until the writer has the digests of all.
        live: whether some are the application's own memory, which must not change.
        arenas: where the arena is from.
        arena: where the others lie.
        unfinished: captures what was left for later; ``None`` if nothing was.
        guard: keeps what is live from being written to, as far as that can be done.
    """

    structure: Any
    views: Callable[[], list[NamedRegion]]
    choices: Choices
    snapshot: Snapshot
    parent: Parent | None = None
    live: bool = False
    unfinished: Callable[[], None] | None = None
    guard: ReadOnly = field(default_factory=ReadOnly)
    arenas: ArenaPool | None = None
    arena: Arena | None = None
    _readers: int = 1
    _regions: list[NamedRegion] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def regions(self) -> list[NamedRegion]:
        """Its bytes."""
        with self._lock:
            if self._regions is None:
                self._regions = self.views()
            return self._regions

    def hold(self) -> None:
        """To be called by whoever else will read the bytes."""
        with self._lock:
            self._readers += 1

    def release(self) -> None:
        """To be called by everybody who has read them; the last one gives them back."""
        with self._lock:
            self._readers -= 1
            if self._readers:
                return
        if self.arenas is not None and self.arena is not None:
            self.arenas.give_back(self.arena)

    def write_off(self) -> None:
        """Do not count them any more: who reads them may never come to an end."""
        if self.arenas is not None and self.arena is not None:
            self.arenas.write_off(self.arena)

    def set_aside(self) -> None:
        """Keep them for others that need some of them, and not to be written."""
        if self.arenas is not None and self.arena is not None:
            self.arenas.set_aside(self.arena)

    def grow(self, more_bytes: int) -> None:
        """Say that more bytes were put into the arena."""
        if self.arenas is not None and self.arena is not None:
            self.arenas.count(self.arena, self.arena.counted_bytes + more_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How the regions of one state are captured."""

    choices: Choices
    parent: Parent
    before: Snapshot | None
    how: U64s
    grain: U64s
    cells: Mapping[int, int]  # Of which regions all cells are digested, of what size in bytes.
    later: Mask  # Which are captured after the call.
    devices: OnDevices  # And which on their device.
    expected_bytes: int

    def is_few(self, places: Places) -> bool:
        """Whether less than half of the arena will probably be written."""
        return 2 * self.expected_bytes < places.arena_bytes


class Take:
    """One snapshot while it is taken."""

    def __init__(
        self,
        arenas: ArenaPool,
        flattened: Flattened,
        snapshot: Snapshot,
        plan: Plan,
        arena: Arena | None,
    ) -> None:
        self._arenas = arenas
        self._flattened, self._count = flattened, len(flattened.names)
        self._snapshot, self._plan, self._arena = snapshot, plan, arena
        self._address = flattened.table.address
        self._versions: dict[int, list[int | None]] = {}
        self._cells: dict[int, tuple[int, U64s]] = {}
        self.captured = Captured(
            flattened.structure,
            list,
            plan.choices,
            snapshot,
            plan.parent,
            arenas=self._arenas,
            arena=arena,
        )
        self._held_bytes = 0
        self._done = np.zeros(self._count, np.bool_)

    def run(self, which: Mask) -> None:
        """Capture some regions; all of them live, if there is no room for a snapshot."""
        if self._arena is None:
            self._go_live(np.ones(len(which), np.bool_))
            return
        self._arena.scatter(few=self._plan.is_few(self._snapshot.places))
        self._arena.passing = self._passing()
        self.captured.views = self._views()
        self._hold_or_go_live(which)

    def _hold_or_go_live(self, which: Mask) -> None:
        """Capture some regions; if there is too little room for what changed, all of them."""
        if self._hold(which, self._plan.how):
            self._digest_cells(which)
            return
        arena, size_bytes = self._arena, self._snapshot.places.arena_bytes
        assert arena is not None, "there was too little room in it"
        if not self._arenas.expand(arena, size_bytes) or not self._hold(
            which, self._plan.how | snapshots.WHOLE
        ):
            self._go_live(which)

    def _digest_cells(self, which: Mask) -> None:
        """Digest the cells of some regions where they lie, for a writer that has not all bytes.

        Without them chunks are compared as a whole. Digests of something else than the chunks
        were digested of would say of a cell that it did not change although it did.
        """
        for number in (n for n in self._plan.cells if which[n]):
            data = self._flattened.region(number).data
            assert data is not None, "cells are for what lies on the host"
            cell_bytes, only = self._plan.cells[number], np.zeros(len(which), np.bool_)
            cells, only[number] = chunk_digests(data, cell_bytes), True
            if not snapshots.torn(self._snapshot, self._address, only):
                self._cells[number] = cell_bytes, cells

    def _hold(self, which: Mask, how: U64s) -> bool:
        """Capture some regions; return whether there was room."""
        arena = self._arena
        assert arena is not None, "without one there is nothing to copy into"
        plan, snapshot, readable = self._plan, self._snapshot, self._address != 0
        limit = max(0, self._arenas.limit_bytes(arena) - self._held_bytes)
        taken = plan.devices.capture(  # Their bytes come while the others are copied.
            snapshot, np.where(which & plan.devices.where, how, snapshots.NOTHING),
            arena=arena.bytes, parent=plan.parent, grain=plan.grain, limit_bytes=limit,
        )  # fmt: skip
        if taken is None:
            return False
        copied = snapshots.capture(
            snapshot, self._address, np.where(which & readable, how, snapshots.NOTHING),
            arena=arena.bytes, parent=plan.parent, grain=plan.grain, limit_bytes=limit - taken,
        )  # fmt: skip
        if copied is None:
            plan.devices.drop()
            return False
        taken += copied
        gathered = which & ~readable & ~plan.devices.where & (snapshot.places.nbytes > 0)
        for number in np.flatnonzero(gathered).tolist():
            taken += self._gather(number, arena.bytes)
        self._held_bytes += taken
        self._done |= which
        expected = 0 if self._done.all() else self._plan.expected_bytes
        self._arenas.count(arena, max(expected, self._held_bytes))
        return True

    def _gather(self, number: int, arena: Bytes) -> int:
        """Copy a region that cannot be read where it lies; return its bytes."""
        snapshot, places = self._snapshot, self._snapshot.places
        data = arena[places.bytes_of(number)]
        self._flattened.region(number).copy_into(data)
        if self._plan.how[number] & snapshots.DIGEST:  # Its device should have done it.
            snapshot.learn(number, chunk_digests(data, places.chunk_bytes))
            snapshot.held_of(number)[:] = True
        return len(data)

    def _go_live(self, which: Mask) -> None:
        """Let some regions be read where they lie, until they are written."""
        captured, live = self.captured, which & (self._snapshot.places.nbytes > 0)
        views = [] if self._arena is None else captured.views()
        if self._arena is not None and which.all():
            self._arenas.give_back(self._arena)
            self._arena = captured.arena = None
        captured.live = True
        self._snapshot.digested[which] = False
        regions = [
            _live(self._flattened.region(number))
            if self._arena is None or live[number]
            else views[number]
            for number in range(self._count)
        ]
        captured.views = lambda: regions

    def _views(self) -> _Views:
        """Return what makes the regions; it keeps nothing of the state alive."""
        assert self._arena is not None, "without one they are live"
        return _Views(
            self._flattened.names,
            self._flattened.item_bytes,
            self._arena.bytes.data,
            self._snapshot,
            (self._plan.how & snapshots.DIGEST) != 0,
            (self._plan.how & snapshots.WHOLE) != 0,
            self._cells,
        )

    def _passing(self) -> list[tuple[int, int]]:
        """Return the stretches of the arena that the next save will not write as a whole."""
        places = self._snapshot.places
        stays = self._plan.choices.which(lambda choice: choice.again)
        if not stays.any():
            return [(0, places.arena_bytes)]
        large = (places.nbytes >= snapshots.PAGED_BYTES_MIN) & ~stays
        stretches: list[tuple[int, int]] = []
        for number in np.flatnonzero(large).tolist():
            place = places.bytes_of(number)
            start, end = (
                place.start,
                -(-place.stop // snapshots.PAGE_BYTES) * snapshots.PAGE_BYTES,
            )
            if stretches and stretches[-1][1] == start:
                stretches[-1] = stretches[-1][0], end
            else:
                stretches.append((start, end))
        return stretches

    # --- after the call ---

    @property
    def is_unfinished(self) -> bool:
        """Whether something is left for after the call."""
        waits = self._plan.later.any() or self._plan.devices.is_under_way
        return bool(waits) and not self.captured.live

    def guard(self) -> None:
        """Keep what is captured later from being written to, as far as that can be done."""
        arrays: list[object] = []
        for number in np.flatnonzero(self._plan.later).tolist():
            owners = self._flattened.owners_of(number)
            arrays += owners
            if any(not isinstance(owner, np.ndarray) for owner in owners):
                self._versions[number] = versions(owners)
        self.captured.guard.freeze(arrays)
        self._plan.devices.mark()

    def finish(self) -> None:
        """Capture what was left for later, and make sure that nothing wrote to it.

        What turned out to have no room is live, and stays guarded.
        """
        later, devices = self._plan.later, self._plan.devices
        try:
            devices.finish()
            if later.any():
                self._hold_or_go_live(later)
                devices.finish()
            if later.any() and not self.captured.live:
                self._check(later)
        except BaseException:
            self.captured.guard.lift()
            raise
        if not self.captured.live:
            self.captured.guard.lift()

    def check_again(self) -> None:
        """Look once more at regions that were torn before, and were copied now."""
        torn = self._plan.choices.which(
            lambda choice: choice.mode is CaptureMode.COPY and choice.digested
        )
        if not self.captured.live and torn.any():
            self._plan.devices.finish()
            self._check(torn)

    def _check(self, which: Mask) -> None:
        wrong = [
            number
            for number, before in self._versions.items()
            if versions(self._flattened.owners_of(number)) != before
        ]
        readable, devices = self._address != 0, self._plan.devices
        wrong += snapshots.torn(self._snapshot, self._address, which & readable)
        wrong += devices.torn(self._snapshot, which & devices.where)
        gathered = which & ~readable & ~devices.where
        wrong += [n for n in np.flatnonzero(gathered).tolist() if self._is_torn(n)]
        if wrong:
            names = [self._flattened.names[number] for number in sorted(set(wrong))]
            raise torn_capture(names, "its bytes changed meanwhile.")

    def _is_torn(self, number: int) -> bool:
        """Gather a region again that its device should have looked at, and compare."""
        again = np.empty(int(self._snapshot.places.nbytes[number]), np.uint8)
        self._flattened.region(number).copy_into(again)
        digests = chunk_digests(again, self._snapshot.places.chunk_bytes)
        return not np.array_equal(digests, self._snapshot.digests_of(number))


@dataclass(frozen=True, slots=True, eq=False)
class _Views:
    """Makes the regions of a snapshot as they lie in an arena, when they are called for.

    Attributes:
        names: of the regions.
        item_bytes: of each.
        arena: where they lie.
        snapshot: their digests, and what is held.
        digested: which were digested when they were captured, bool [n].
        whole: of which all is held, bool [n].
        cells: sizes and digests of cells, by the number of the region.
    """

    names: Sequence[str]
    item_bytes: Sequence[int]
    arena: memoryview
    snapshot: Snapshot
    digested: Mask
    whole: Mask
    cells: Mapping[int, tuple[int, U64s]]

    def __call__(self) -> list[NamedRegion]:
        names, item_bytes, places = self.names, self.item_bytes, self.snapshot.places
        ends = (places.offset + places.nbytes).tolist()
        data = list(map(self.arena.__getitem__, map(slice, places.offset.tolist(), ends)))
        views = list(map(NamedRegion, names, data, item_bytes))
        for number in np.flatnonzero(self.digested).tolist():
            views[number] = NamedRegion(
                names[number],
                data[number],
                item_bytes[number],
                self.snapshot.digests_of(number),
                None if self.whole[number] else self.snapshot.held_of(number),
                self.cells.get(number),
            )
        return views


def _live(region: Region) -> NamedRegion:
    """Return the live memory of a region; one that has to be gathered is copied."""
    if region.data is not None:
        return NamedRegion(region.name, region.data.data, region.item_bytes)
    gathered = np.empty(region.nbytes, np.uint8)
    region.copy_into(gathered)
    return NamedRegion(region.name, gathered.data, region.item_bytes)
