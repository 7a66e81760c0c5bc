"""Memory for snapshots: reused, because fresh pages cost more than the copy itself.

The budget bounds what all snapshots in flight may take, and `SNAPSHOTS_MAX` how many there are.
A save for which there is no room waits for an earlier one; a state larger than the whole
budget gets no snapshot at all, and its save blocks until it is written. So checkpointing slows
down, but never runs out of memory, and whoever has to stop waits for a few writes only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import psutil
from numpy.typing import NDArray

from ckptflow.units import MIB

BUDGET_FRACTION = 0.25  # Of the memory that is available at the first save.
BUDGET_BYTES_MIN = 64 * MIB
SNAPSHOTS_MAX = 4  # More would only let small states queue up faster than they are written.

Arena = NDArray[np.uint8]


def default_budget_bytes() -> int:
    """Return a quarter of the available memory, at least 64 MiB."""
    available = int(psutil.virtual_memory().available)
    return max(BUDGET_BYTES_MIN, int(available * BUDGET_FRACTION))


class ArenaPool:
    """Hands out flat buffers within a budget of bytes, and takes them back."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.make_room: Callable[[], None] = lambda: None  # Asked before a save has to wait.
        self.is_short = False  # Whether one waits.
        self._lent_bytes = 0
        self._lent = 0
        self._free: list[Arena] = []
        self._written_off: set[int] = set()  # By identity.
        self._changed = threading.Condition()

    def take(self, size_bytes: int) -> Arena | None:
        """Return a buffer of ``size_bytes``; waits for one; ``None`` if it can never fit."""
        if size_bytes > self.budget_bytes:
            return None
        self.is_short = not self._has_room(size_bytes)
        if self.is_short:
            self.make_room()
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(size_bytes))
            self.is_short = False
            self._lent += 1
            self._lent_bytes += size_bytes
            for number, arena in enumerate(self._free):
                if len(arena) == size_bytes:
                    return self._free.pop(number)
            # States that change size leave arenas of old sizes; they must not pile up.
            self._free.clear()
        return np.empty(size_bytes, np.uint8)

    def _has_room(self, size_bytes: int) -> bool:
        return self._lent < SNAPSHOTS_MAX and self._lent_bytes + size_bytes <= self.budget_bytes

    def write_off(self, arena: Arena) -> None:
        """Stop counting a buffer: a call that does not come back reads it.

        Else saves would wait for it for ever. There is one such call for each tier at most.
        """
        with self._changed:
            if id(arena) not in self._written_off:
                self._written_off.add(id(arena))
                self._lent_bytes -= len(arena)
                self._lent -= 1
                self._changed.notify_all()

    def give_back(self, arena: Arena) -> None:
        """Return a buffer; its memory is kept for the next save."""
        with self._changed:
            if id(arena) in self._written_off:
                self._written_off.remove(id(arena))
                return
            self._lent_bytes -= len(arena)
            self._lent -= 1
            self._free.append(arena)
            self._changed.notify_all()
