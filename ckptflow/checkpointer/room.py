"""How much room tiers have, as far as a file system tells at once.

It is asked by threads of its own: a file system that hangs holds up nobody who wants to know,
but is known by what it said last. ``tests/unit/test_room.py``.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ckptflow.tiers.tier import Tier

AGAIN_S = 10.0
"""So often a file system is asked at the most."""


def in_a_thread(work: Callable[[], None]) -> None:
    """Have something done by a thread that ends with the process."""
    threading.Thread(target=work, name="ckptflow-aside", daemon=True).start()


class Room:
    """The room that is left on the tiers that are folders.

    Args:
        tiers: any.
        clock: seconds that only grow.
        apart: has a function called by somebody else.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        clock: Callable[[], float] = time.monotonic,
        apart: Callable[[Callable[[], None]], None] = in_a_thread,
    ) -> None:
        self._clock, self._apart = clock, apart
        self._folders = {tier.name: path for tier in tiers if (path := folder_of(tier))}
        self._free: dict[str, int] = {}
        self._asked_s: dict[str, float] = {}
        self._asking: set[str] = set()

    def free_bytes(self) -> dict[str, int]:
        """Return what is known, by the name of the tier, and ask again where that is old."""
        for name, folder in self._folders.items():
            last_s = self._asked_s.get(name)
            is_fresh = last_s is not None and self._clock() < last_s + AGAIN_S
            if name not in self._asking and not is_fresh:
                self._asking.add(name)
                self._asked_s[name] = self._clock()
                self._apart(partial(self._ask, name, folder))
        return dict(self._free)

    def _ask(self, name: str, folder: Path) -> None:
        try:
            self._free[name] = free_in(folder)
        except OSError:
            self._free.pop(name, None)
        finally:
            self._asking.discard(name)


def folder_of(tier: Tier) -> Path | None:
    """Return the folder in which a tier lies, if it is one."""
    path = tier.spec.get("path")
    return Path(path) if tier.spec.get("kind") == "posix" and isinstance(path, str) else None


def free_in(folder: Path) -> int:
    """Return the room of the file system in which a folder is, or will be.

    Raises:
        OSError: it cannot be asked.
    """
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
