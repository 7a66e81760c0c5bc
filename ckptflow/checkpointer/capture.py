"""Capture a state: its structure, and its bytes held still until they are written.

Usually the bytes are a snapshot in an arena, and the application goes on at once. A state
larger than the whole memory budget is not copied; then the application has to wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ckptflow.checkpointer.arena import ArenaPool, default_budget_bytes
from ckptflow.data.regions import Region, flatten
from ckptflow.store.memory import NamedRegion


@dataclass(frozen=True, slots=True)
class Captured:
    """A state ready to be written.

    Attributes:
        structure: how the regions make the state.
        regions: its bytes.
        live: whether they are the application's own memory, which must not change.
        hold: to be called by whoever else will read them.
        release: to be called by everybody who has read them; the last one gives them back.
        write_off: does not count them any more: who reads them may never come to an end.
    """

    structure: Any
    regions: list[NamedRegion]
    live: bool
    hold: Callable[[], None]
    release: Callable[[], None]
    write_off: Callable[[], None]


class _Readers:
    """Gives memory back when the last of its readers has let go."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back, self._count, self._lock = give_back, 1, threading.Lock()

    def hold(self) -> None:
        with self._lock:
            self._count += 1

    def release(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count:
                return
        self._give_back()


class Capturer:
    """Takes snapshots within a budget of bytes; by default a quarter of free memory."""

    def __init__(self, budget_bytes: int | None) -> None:
        self._budget_bytes = budget_bytes
        self._arenas: ArenaPool | None = None
        self.make_room: Callable[[], None] = lambda: None  # Asked before a save has to wait.

    @property
    def is_short(self) -> bool:
        """Whether a save waits for the memory of an earlier one."""
        return self._arenas is not None and self._arenas.is_short

    def capture(self, state: object) -> Captured:
        """Capture ``state``; waits while earlier snapshots use the budget up.

        Raises:
            StateError: it cannot be saved; the message lists every problem.
        """
        flattened = flatten(state)
        if self._arenas is None:
            budget = self._budget_bytes
            self._arenas = ArenaPool(default_budget_bytes() if budget is None else budget)
        self._arenas.make_room = self.make_room
        arena = self._arenas.take(flattened.total_bytes)
        give_back: Callable[[], None] = _nothing
        write_off: Callable[[], None] = _nothing
        if arena is not None:
            give_back = partial(self._arenas.give_back, arena)
            write_off = partial(self._arenas.write_off, arena)
            try:
                views = flattened.copy_into(arena)
            except BaseException:  # A device may fail; the next save needs the memory.
                give_back()
                raise
        else:
            views = [_live_view(region) for region in flattened.regions]
        regions = [
            NamedRegion(region.name, view, region.item_bytes)
            for region, view in zip(flattened.regions, views, strict=True)
        ]
        readers = _Readers(give_back)
        return Captured(
            flattened.structure,
            regions,
            live=arena is None,
            hold=readers.hold,
            release=readers.release,
            write_off=write_off,
        )


def _live_view(region: Region) -> memoryview:
    """Return the live memory of a region; one that has to be gathered is copied."""
    if region.data is not None:
        return region.data.data
    gathered = np.empty(region.nbytes, np.uint8)
    region.copy_into(gathered)
    return gathered.data


def _nothing() -> None:
    pass
