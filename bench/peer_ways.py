"""What every way to save has in common, for `peers.py`; and ours.

A way is made in an empty folder, for one state, whose arrays it keeps. `Way.save` returns when
the program may go on; `Saving.may_write` when it may change its state; `Saving.wait` when files
and folders are synced. A library that syncs nothing itself gets it done after it, in a thread
of its own if the library works in the background, and that counts as its time.

A restore ends when every byte is in the arrays of the program.
"""

from __future__ import annotations

import inspect
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import updates
from updates import State, sync_path

SYNCED_ONE_BY_ONE = 64


class Unavailable(Exception):
    """This way cannot be measured here; the message says why."""


class Saving:
    """A save that was durable when the call returned."""

    def may_write(self) -> None:
        """Return as soon as the program may change its state."""

    def done(self) -> bool:
        """Tell whether everything is durable, or has failed."""
        return True

    def wait(self) -> None:
        """Wait until everything is durable; raise what went wrong."""


class InBackground(Saving):
    """A save that goes on in the background; ``finish`` waits for its end, in a thread."""

    def __init__(
        self, finish: Callable[[], object], captured: Callable[[], object] = lambda: None
    ) -> None:
        self._finish, self._captured = finish, captured
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001 - whatever a library raises; `wait` raises it.
            self._error = error

    def may_write(self) -> None:
        self._captured()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


class Way(ABC):
    """One way to save.

    Attributes:
        settling: how many saves of a kind of update are not counted before the next ones are,
            since the way fits itself to what changes.
        captures_later: whether the call returns before the state may be changed, and
            `Saving.may_write` is what the program waits for.
    """

    settling = 0
    captures_later = False

    def __init__(self, folder: Path, state: State) -> None:
        self.folder, self.state = folder, state
        self._seen: dict[Path, tuple[int, int, int]] = {}

    def path(self, step: int) -> Path:
        """Return the file or the folder that one save is in."""
        return self.folder / str(step)

    @abstractmethod
    def save(self, step: int) -> Saving:
        """Save the state; steps grow."""

    def forget(self, step: int) -> None:
        """Delete a save, if it is there, so that the disk does not fill up."""
        path = self.path(step)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def close(self) -> None:  # noqa: B027 - most have nothing to close.
        """Let go of everything; only `restore` comes after."""

    @abstractmethod
    def restore(self, step: int) -> None:
        """Read what was saved, which is the newest, into the arrays of the state."""

    def take(self, loaded: Any) -> None:
        """Copy arrays that a library made into those of the program."""
        updates.copy({name: loaded[name] for name in self.state}, self.state)

    def sync_new(self) -> None:
        """Sync all files that are new or have changed, and the folders that they are in.

        Many files are synced by one call for all that the system holds, which is faster.
        """
        found = entries(self.folder)
        changed = [path for path, entry in found.items() if self._seen.get(path) != entry]
        self._seen = found
        if len(changed) > SYNCED_ONE_BY_ONE:
            os.sync()
            return
        for path in changed:
            sync_path(path)
        sync_path(self.folder)


def entries(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return inode, time of change and size of everything in a folder, deepest first."""
    found = {}
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:  # Of an older checkpoint, pruned meanwhile.
                continue
            size_bytes = status.st_size if name in files else 0
            found[path] = (status.st_ino, status.st_mtime_ns, size_bytes)
    return found


def put_in_place(partial: Path, path: Path) -> None:
    """Give a whole file its name, and make both durable."""
    sync_path(partial)
    partial.replace(path)
    sync_path(path.parent)


# --- ckptflow ---------------------------------------------------------------------------


class OfTicket(Saving):
    """A save of ckptflow."""

    def __init__(self, ticket: Any) -> None:
        self._ticket = ticket

    def may_write(self) -> None:
        self._ticket.wait_captured()

    def done(self) -> bool:
        return self._ticket.durable or self._ticket.error is not None

    def wait(self) -> None:
        self._ticket.wait()


class Ckptflow(Way):
    """Ours, in one of the ways to capture."""

    settling = 2

    def __init__(self, folder: Path, state: State, *, capture: str) -> None:
        super().__init__(folder, state)
        from ckptflow.checkpointer import Checkpointer

        if "capture" not in inspect.signature(Checkpointer.__init__).parameters:
            raise Unavailable("this ckptflow has no capture=")
        self.captures_later = capture == "lazy"
        self._open: Any = Checkpointer
        self._checkpointer = self._open(folder, capture=capture, rng=False, keep=2)
        self._checkpointer.restore(state)  # As every program begins; there is nothing yet.

    def save(self, step: int) -> Saving:
        return OfTicket(self._checkpointer.save(step, self.state))

    def forget(self, step: int) -> None:
        """Its own retention does."""

    def close(self) -> None:
        self._checkpointer.close()

    def restore(self, step: int) -> None:
        with self._open(self.folder, rng=False) as checkpointer:
            checkpointer.restore(self.state, step=step)
