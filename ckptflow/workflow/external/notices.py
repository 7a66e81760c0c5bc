"""Waits until something may have happened to the files of a code.

inotify tells at once that a file was closed after writing, or renamed to its name. It tells
nothing of what other nodes do on a shared file system, and a machine has only so many
instances of it; so each wait is short, and whoever waits looks at the folder each time.
``tests/unit/test_external_notices.py``.
"""

from __future__ import annotations

import logging
import os
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from inotify_simple import INotify, flags


class Happened(NamedTuple):
    """The names of files that something happened to.

    Attributes:
        renamed: they came by a rename.
        closed: somebody who had written to them has closed them.
    """

    renamed: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()


_MASK = flags.CLOSE_WRITE | flags.MOVED_TO
_log = logging.getLogger("ckptflow")


class Notices:
    """What the kernel tells of one folder, which may appear later.

    Args:
        folder: where the files come.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._inotify: INotify | None = None
        self._is_watched = False
        try:
            self._inotify = INotify()
            self._poll.register(self._inotify.fileno(), select.POLLIN)
        except OSError as error:
            _log.info("No inotify for %s (%s); it is looked at instead.", folder, error)
        self._watch()

    def wait(self, timeout_s: float) -> Happened:
        """Return after something happened, or the time."""
        self._watch()
        end_s = time.monotonic() + timeout_s
        while (left_s := end_s - time.monotonic()) > 0:
            ready = self._poll.poll(max(1.0, 1000 * left_s))
            if ready:
                break
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        return self._read()

    def wake(self) -> None:
        """Let whoever waits return at once; may be called from any thread."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Give the descriptors back."""
        if self._inotify is not None:
            self._inotify.close()
        os.close(self._wake)

    def _watch(self) -> None:
        if self._is_watched or self._inotify is None or not self._folder.is_dir():
            return
        try:
            self._inotify.add_watch(self._folder, _MASK)
        except OSError as error:
            _log.info("No inotify for %s (%s); it is looked at instead.", self._folder, error)
            self._poll.unregister(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None
        else:
            self._is_watched = True

    def _read(self) -> Happened:
        if self._inotify is None:
            return Happened()
        events = list(self._inotify.read(timeout=0))
        return Happened(
            frozenset(event.name for event in events if event.mask & flags.MOVED_TO),
            frozenset(event.name for event in events if event.mask & flags.CLOSE_WRITE),
        )
