"""What was asked of Globus and has not ended, on disk, so that nothing is asked twice.

Before a transfer is submitted its *submission id* is written down: Globus accepts one id once,
so whoever submits it again, after a crash, gets the task that runs already
(https://docs.globus.org/api/transfer/task_submit/). What was submitted is then polled on, by
any process that has the same staging folder.

``tests/unit/test_globus_journal.py`` and ``tests/process/test_globus_resume.py``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ckptflow.tiers import durable

Direction: TypeAlias = Literal["out", "in"]

_LOCKS = 4096  # Keys share locks, so that there is a bounded number of them.
_threads = [threading.Lock() for _ in range(_LOCKS)]
# What a file system says that has no locks, such as Lustre mounted without them.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One file on its way.

    Attributes:
        key: of the tier.
        direction: ``out`` to the remote collection, ``in`` from there.
        version: which bytes: their SHA-256, or size and time of the remote file.
        size_bytes: how many.
        staged: name of the file in the staging folder.
        remote: path on the remote collection.
        submission_id: makes submitting it again harmless.
        task_id: of Globus, once it is known.
    """

    key: str
    direction: Direction
    version: str
    size_bytes: int
    staged: str
    remote: str
    submission_id: str
    task_id: str | None = None


class Journal:
    """A folder with a file for each transfer that is under way."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._folders = folder, durable.Folders()

    @contextlib.contextmanager
    def held(self, direction: Direction, key: str) -> Iterator[None]:
        """Keep others, also in other processes, from this key meanwhile.

        The kernel lets go of a lock when its process dies. On a file system without locks only
        threads are kept apart; that a checkpoint has one process that copies it has to do.
        """
        number = int(_digest(direction, key)[:8], 16) % _LOCKS
        self._folders.make(self._folder)
        path = self._folder / f"{number:04d}.lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with _threads[number]:
            descriptor = os.open(path, flags, 0o600)
            try:
                _lock(descriptor)
                yield
            finally:
                os.close(descriptor)

    def find(self, direction: Direction, key: str) -> Transfer | None:
        """Return what is under way for a key."""
        return _read(self._path(direction, key))

    def all(self) -> list[Transfer]:
        """Return everything that is under way."""
        found = (_read(path) for path in sorted(self._folder.glob("*.json")))
        return [transfer for transfer in found if transfer is not None]

    def write(self, transfer: Transfer) -> None:
        """Keep a transfer; it survives a crash of the machine when this returns."""
        text = json.dumps(asdict(transfer), indent=1).encode()
        durable.write_atomic(
            self._path(transfer.direction, transfer.key), [text], self._folders
        )

    def forget(self, transfer: Transfer) -> None:
        """Remove a transfer that has come to its end."""
        self._path(transfer.direction, transfer.key).unlink(missing_ok=True)

    def _path(self, direction: Direction, key: str) -> Path:
        return self._folder / f"{_digest(direction, key)}.json"


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _digest(direction: Direction, key: str) -> str:
    return hashlib.sha256(f"{direction}:{key}".encode()).hexdigest()[:32]


def _read(path: Path) -> Transfer | None:
    try:
        return Transfer(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return None  # Written by another version; as if it had not been asked for.
