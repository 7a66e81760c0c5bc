"""The board of a node: a private folder through which its leader and its tasks talk.

The leader posts when the block ends, that it takes no more tasks (``closed``), and that the
running ones have to stop (``stop``). A process that runs tasks has an entry of one byte, which
says whether it is idle, runs a task, or runs one that saves when a stop signal comes. So the
leader knows whom to signal and for whom to wait, and a task knows what the batch system told
the leader only.

Everything is cheap: an entry is changed by one ``pwrite``, and a look at the board is a few
calls on a local file system. This module is imported by the leader, so it imports little.
``tests/unit/test_board.py``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

BOARD = "CKPTFLOW_BOARD"

IDLE, RUNS, HEARS = "idle", "runs", "hears"
_CODES = {IDLE: b"i", RUNS: b"r", HEARS: b"h"}
_STATES = {code: state for state, code in _CODES.items()}

_ENDS, _STOP, _CLOSED, _TASKS, _LOCK = "ends", "stop", "closed", "tasks", "lock"
_PREFIX = "ckptflow-block-"


class End(NamedTuple):
    """When a block ends, in seconds since 1970, and who said so."""

    ends_at_s: float
    source: str


class Entry(NamedTuple):
    """A process that runs tasks."""

    pid: int
    state: str


class Board:
    """The board in a folder.

    Args:
        folder: made by `make_board`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # --- what the leader posts ---

    def post_end(self, end: End) -> None:
        """Say when the block ends."""
        self._post(_ENDS, {"ends_at_s": end.ends_at_s, "source": end.source})

    def post_stop(self, reason: str) -> None:
        """Say that running tasks have to save and stop; it is closed with that."""
        self.post_closed(reason)
        self._post(_STOP, {"reason": reason})

    def post_closed(self, reason: str) -> None:
        """Say that the block takes no more tasks. A task may do so, too."""
        if self.closed() is None:
            self._post(_CLOSED, {"reason": reason})

    def end(self) -> End | None:
        """Return when the block ends, if that is known."""
        fields = self._read(_ENDS)
        try:
            return (
                End(float(str(fields["ends_at_s"])), str(fields["source"])) if fields else None
            )
        except (KeyError, ValueError):
            return None

    def stop(self) -> str | None:
        """Return why running tasks have to stop, if they have to."""
        return self._reason(_STOP)

    def closed(self) -> str | None:
        """Return why the block takes no more tasks, if it does not."""
        return self._reason(_CLOSED)

    # --- who runs tasks ---

    def entries(self) -> Iterator[Entry]:
        """Yield the processes that have an entry; those that are gone lose theirs."""
        for path in (self.folder / _TASKS).iterdir():
            if not path.name.isdigit():
                continue
            pid = int(path.name)
            if not is_alive(pid):
                path.unlink(missing_ok=True)
                continue
            with contextlib.suppress(OSError):
                yield Entry(pid, _STATES.get(path.read_bytes()[:1], IDLE))

    def has_worked(self) -> bool:
        """Tell whether any task has run here, of the processes that have an entry."""
        return any(path.stat().st_size for path in (self.folder / _TASKS).iterdir())

    def enter(self) -> int:
        """Make an entry for this process; return the descriptor of its byte."""
        path = self.folder / _TASKS / str(os.getpid())
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    def remove(self) -> None:
        """Take the board away."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _post(self, name: str, fields: dict[str, object]) -> None:
        partial = self.folder / f".{name}.{os.getpid()}"
        partial.write_text(json.dumps(fields), encoding="utf-8")
        partial.rename(self.folder / name)

    def _reason(self, name: str) -> str | None:
        fields = self._read(name)
        return None if fields is None else str(fields.get("reason", name))

    def _read(self, name: str) -> dict[str, object] | None:
        try:
            descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None  # Not posted; or the leader is gone, and its board with it.
        try:
            fields = json.loads(os.read(descriptor, 1 << 16))
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)
        return fields if isinstance(fields, dict) else None


class Presence:
    """This process on the board of its node.

    Args:
        board: of the node.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.pid, self._state = os.getpid(), IDLE
        self._descriptor = board.enter()

    @contextmanager
    def as_one_that(self, state: str) -> Iterator[None]:
        """While entered, have another state: `RUNS` or `HEARS`."""
        before = self._state
        self._set(state)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, state: str) -> None:
        if os.getpid() == self.pid:  # Not so in a process that was forked off.
            self._state = state
            os.pwrite(self._descriptor, _CODES[state], 0)


_presence: Presence | None = None
_asked_by: int | None = None


def presence() -> Presence | None:
    """Return this process on the board of its node; ``None`` where there is no leader."""
    global _presence, _asked_by  # noqa: PLW0603  One board a process, looked for once.
    pid = os.getpid()
    if _asked_by != pid:
        _asked_by, _presence = pid, None
        folder = os.environ.get(BOARD)
        if folder:
            # Its leader may have ended, and the board with it.
            with contextlib.suppress(OSError):
                _presence = Presence(Board(Path(folder)))
    return _presence


def make_board() -> Board:
    """Return a new board, in a folder for this user alone, which this process has locked."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (folder / _TASKS).mkdir(mode=0o700)
    descriptor = os.open(folder / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # Until this process ends, however it does.
    return Board(folder)


def abandoned_boards() -> Iterator[Path]:
    """Yield the folders of boards of this user whose leader is dead."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            # Not by the number of a process: containers that share a folder have their own.
            if folder.lstat().st_uid == os.geteuid() and _is_unlocked(folder / _LOCK):
                yield folder


def _is_unlocked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def is_alive(pid: int) -> bool:
    """Tell whether a process exists and has not ended: a zombie has."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])
