"""Capture a state: its structure, and its bytes held still until they are written.

Usually the bytes are a snapshot in an arena, and the application goes on at once. A state
larger than the whole memory budget is not copied; then the application has to wait.
"""

from __future__ import annotations

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
        release: to be called once they are written.
    """

    structure: Any
    regions: list[NamedRegion]
    live: bool
    release: Callable[[], None]


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
        release: Callable[[], None] = _nothing
        if arena is not None:
            release = partial(self._arenas.give_back, arena)
            try:
                views = flattened.copy_into(arena)
            except BaseException:  # A device may fail; the next save needs the memory.
                release()
                raise
        else:
            views = [_live_view(region) for region in flattened.regions]
        regions = [
            NamedRegion(region.name, view, region.item_bytes)
            for region, view in zip(flattened.regions, views, strict=True)
        ]
        return Captured(flattened.structure, regions, arena is None, release)


def _live_view(region: Region) -> memoryview:
    """Return the live memory of a region; one that has to be gathered is copied."""
    if region.data is not None:
        return region.data.data
    gathered = np.empty(region.nbytes, np.uint8)
    region.copy_into(gathered)
    return gathered.data


def _nothing() -> None:
    pass
