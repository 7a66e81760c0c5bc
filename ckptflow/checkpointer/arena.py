"""Memory for snapshots: address space as long as the state, with pages where bytes were put.

An *arena* is reserved, not filled: what was never written takes no memory, so a snapshot of
which little is held takes little. Pages that will be wanted again are kept, because fresh ones
cost more than the copy itself; others are given back after use. The budget bounds what all
snapshots in flight hold, and ``in_flight_max`` how many there are. A save for which there is no
room waits for an earlier one; a state that can never fit gets no snapshot at all, and its save
blocks until it is written. So checkpointing slows down, but never runs out of memory.
``tests/unit/test_arena.py``.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Iterable

import numpy as np
import psutil
from numpy.typing import NDArray

from ckptflow.units import MIB

BUDGET_FRACTION = 0.25  # Of the memory that is available at construction.
BUDGET_BYTES_MIN = 64 * MIB

_PAGE = mmap.PAGESIZE
_RESERVE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14; Python has no name for it yet.


class Arena:
    """Address space for one snapshot.

    Attributes:
        bytes: all of it, writable, uint8.
        counted_bytes: what it counts for in the budget.
        passing: stretches, first and last byte, of which no pages are kept after use.
    """

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, max(1, size_bytes), flags=_RESERVE)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)[:size_bytes]
        self.counted_bytes = 0
        self.passing: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.bytes)

    def populate(self) -> None:
        """Have pages for all of it now, and not one by one when it is written."""
        self.scatter(few=False)
        try:
            self._map.madvise(_POPULATE_WRITE)
        except OSError:  # An older kernel.
            self.bytes[::_PAGE] = 0

    def scatter(self, *, few: bool) -> None:
        """Say whether few bytes here and there will be written, or all: then pages are huge."""
        advice = mmap.MADV_NOHUGEPAGE if few else mmap.MADV_HUGEPAGE
        with contextlib.suppress(OSError):  # A kernel without huge pages.
            self._map.madvise(advice)

    def forget(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Give back the whole pages of some stretches; they read as zeros then."""
        for first, end in stretches:
            start = -(-first // _PAGE) * _PAGE
            stop = len(self._map) if end == len(self.bytes) else end // _PAGE * _PAGE
            if stop > start:
                self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)


def default_budget_bytes() -> int:
    """Return a quarter of the available memory, at least 64 MiB."""
    available = int(psutil.virtual_memory().available)
    return max(BUDGET_BYTES_MIN, int(available * BUDGET_FRACTION))


class ArenaPool:
    """Hands out arenas within a budget of bytes held, and takes them back.

    Attributes:
        make_room: asked before a save has to wait.
        in_flight_max: how many arenas may be lent at a time.
        is_short: whether a save waits for one.
    """

    def __init__(self, budget_bytes: int, in_flight_max: int) -> None:
        self.budget_bytes, self.in_flight_max = budget_bytes, in_flight_max
        self.make_room: Callable[[], None] = lambda: None
        self.is_short = False
        self._lent: list[Arena] = []
        self._aside: list[Arena] = []  # Their bytes count, but they are on no way to a tier.
        self._free: list[Arena] = []
        self._preparing = False
        self._changed = threading.Condition()

    def prepare(self, size_bytes: int) -> None:
        """Make an arena, with all its pages, before it is needed; whoever takes one waits."""
        with self._changed:
            if size_bytes > self.budget_bytes or self._lent or self._free or self._preparing:
                return
            self._preparing = True
        try:
            arena = Arena(size_bytes)
            arena.populate()
        except (MemoryError, OSError):  # Who needs one will tell.
            arena = None
        with self._changed:
            self._preparing = False
            if arena is not None:
                self._free.append(arena)
            self._changed.notify_all()

    def take(self, size_bytes: int, expected_bytes: int | None = None) -> Arena | None:
        """Return an arena; waits for one; ``None`` if it can never fit.

        Args:
            size_bytes: its length.
            expected_bytes: what it will probably hold; all if not given.
        """
        expected_bytes = size_bytes if expected_bytes is None else expected_bytes
        if expected_bytes > self.budget_bytes:
            return None
        self.is_short = not self._has_room(expected_bytes)
        if self.is_short:
            self.make_room()
        with self._changed:
            self._changed.wait_for(
                lambda: self._has_room(expected_bytes) and not self._preparing
            )
            self.is_short = False
            arena = self._reused(size_bytes)
            arena.counted_bytes, arena.passing = expected_bytes, []
            self._lent.append(arena)
        return arena

    def _reused(self, size_bytes: int) -> Arena:
        for number, arena in enumerate(self._free):
            if len(arena) == size_bytes:
                return self._free.pop(number)
        # States that change size leave arenas of old sizes; they must not pile up.
        self._free.clear()
        return Arena(size_bytes)

    @property
    def counted_bytes(self) -> int:
        """What all arenas that are lent or set aside count for."""
        return sum(arena.counted_bytes for arena in (*self._lent, *self._aside))

    def _has_room(self, size_bytes: int) -> bool:
        return (
            len(self._lent) < self.in_flight_max
            and self.counted_bytes + size_bytes <= self.budget_bytes
        )

    def limit_bytes(self, arena: Arena) -> int:
        """Return how much an arena may come to hold."""
        with self._changed:
            return self.budget_bytes - (self.counted_bytes - arena.counted_bytes)

    def count(self, arena: Arena, held_bytes: int) -> None:
        """Say how much a lent arena holds."""
        with self._changed:
            arena.counted_bytes = held_bytes
            self._changed.notify_all()

    def expand(self, arena: Arena, size_bytes: int) -> bool:
        """Wait until a lent arena may come to hold ``size_bytes``; False if it never may."""
        if size_bytes > self.budget_bytes:
            return False

        def has_room() -> bool:
            others = self.counted_bytes - arena.counted_bytes
            return others + size_bytes <= self.budget_bytes

        self.is_short = not has_room()
        if self.is_short:
            self.make_room()
        with self._changed:
            self._changed.wait_for(has_room)
            self.is_short = False
            arena.counted_bytes = size_bytes
        return True

    def set_aside(self, arena: Arena) -> None:
        """Count an arena by its bytes only: nothing that is under way needs it."""
        with self._changed:
            if _take_out(self._lent, arena):
                self._aside.append(arena)
                self._changed.notify_all()

    def write_off(self, arena: Arena) -> None:
        """Stop counting an arena: a call that does not come back reads it.

        Else saves would wait for it for ever. There is one such call for each tier at most.
        """
        with self._changed:
            if _take_out(self._lent, arena) or _take_out(self._aside, arena):
                self._changed.notify_all()

    def give_back(self, arena: Arena) -> None:
        """Return an arena; pages that do not pass are kept for the next save."""
        arena.forget(arena.passing)
        with self._changed:
            if _take_out(self._lent, arena) or _take_out(self._aside, arena):
                self._free.append(arena)
                self._changed.notify_all()


def _take_out(arenas: list[Arena], arena: Arena) -> bool:
    for number, one in enumerate(arenas):
        if one is arena:
            del arenas[number]
            return True
    return False
