"""Snapshots that stay in memory after their save: for deltas on them, or for what they hold.

The *parent* is the last snapshot that was committed, kept whole where the next one is stored
as deltas on its bytes. The *unsaved* one is the last that reached no tier: snapshots after it
left bytes to it. Both are given up when a save needs the room.
``tests/unit/test_kept_snapshot.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ckptflow.checkpointer.capture import Capturer
from ckptflow.checkpointer.taking import Captured
from ckptflow.store.completion import absorb
from ckptflow.store.memory import Base


class KeptSnapshots:
    """The snapshots that one writer keeps.

    Args:
        capturer: takes them; told when one is given up.
        keeps_parent: whether deltas are wanted.
        chunk_bytes: unit of digest.
    """

    def __init__(self, capturer: Capturer, *, keeps_parent: bool, chunk_bytes: int) -> None:
        self._capturer, self._keeps_parent = capturer, keeps_parent
        self._chunk_bytes = chunk_bytes
        self._parent: Captured | None = None
        self._parent_of: Base | None = None
        self._unsaved: Captured | None = None
        self._in_use = False  # While a save is written, which may need them.
        self._lock = threading.Lock()

    @property
    def all(self) -> list[Captured]:
        """Return those that there are."""
        return [one for one in (self._parent, self._unsaved) if one is not None]

    @property
    def unsaved(self) -> list[Captured]:
        """Return the last snapshot that reached no tier, if there is one."""
        return [] if self._unsaved is None else [self._unsaved]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Give none up while a save is written."""
        with self._lock:
            self._in_use = True
        try:
            yield
        finally:
            with self._lock:
                self._in_use = False

    def make_room(self, *, is_busy: bool) -> None:
        """Give up what may be given up: the next save needs room.

        Not while a save is written whose bytes would change, or lack; who writes asks again
        when it is done. And not the unsaved one while others are queued that left bytes to it.
        """
        self._drop_parent()
        with self._lock:
            if self._in_use or is_busy or self._unsaved is None:
                return
            unsaved, self._unsaved = self._unsaved, None
        unsaved.release()
        self._capturer.forget()

    def committed(self, captured: Captured, base: Base) -> None:
        """Take over a snapshot that was committed."""
        self._drop_parent()
        keeps = self._keeps_parent and not captured.live
        with self._lock:
            # A save that begins to wait after this look asks for the snapshot itself.
            if keeps := keeps and not self._capturer.is_short:
                at_hand = {region.name: region.data for region in captured.regions}
                base.memory.bytes_at_hand = at_hand
                self._parent, self._parent_of = captured, base
        if not keeps:
            captured.release()
        self._replace_unsaved(None)

    def failed(self, captured: Captured) -> None:
        """Take over a snapshot that reached no tier: those after it left bytes to it.

        With what it left itself to the one before, so that one is enough.
        """
        if captured.live:  # Its bytes will be others when this call returns.
            captured.release()
            self._capturer.forget()
            self._replace_unsaved(None)
            return
        for before in self.unsaved:
            captured.grow(absorb(captured.regions, before.regions, self._chunk_bytes))
        captured.set_aside()
        self._replace_unsaved(captured)

    def _replace_unsaved(self, captured: Captured | None) -> None:
        with self._lock:
            before, self._unsaved = self._unsaved, captured
        if before is not None:
            before.release()

    def _drop_parent(self) -> None:
        with self._lock:
            if self._in_use or self._parent is None:
                return
            parent, self._parent = self._parent, None
            if self._parent_of is not None:
                self._parent_of.memory.bytes_at_hand = {}
        parent.release()
