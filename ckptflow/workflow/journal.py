"""What happened in a run: one JSON object a line, only ever added to.

The journal outlives the process that writes it, and a rerun adds to the same file. Lines are
collected and written by a thread, many with one ``write``, a few times a second: a system call
in the thread that hands out results would cost every task more than the line is worth. So a
process that is killed loses its last moments, and leaves at most one torn line, at the end.
Readers pass over what is not a whole line; the next writer begins a new line.

Nothing is decided by it that matters for the results: it tells `restart.plan` and the summary
what was going on. ``tests/unit/test_journal.py`` cuts a journal at every byte.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_BLOCK_BYTES = 1 << 20
_WRITE_EVERY_S = 0.1

_encoder = json.JSONEncoder(default=str, separators=(",", ":"))


class Journal:
    """Adds events to a journal file, made if absent. Safe to use from several threads.

    Args:
        path: the file.
        failed: told once if the file cannot be written; the lines are lost then.
    """

    def __init__(
        self, path: Path, *, failed: Callable[[OSError], None] = lambda _error: None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._path, self._failed = path, failed
        self._lines: deque[bytes | threading.Event] = deque()
        self._writing, self._closed = threading.Lock(), threading.Event()
        self._wanted = threading.Event()  # Set when somebody does not want to wait.
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            self._lines.append(b"\n")  # The last writer died within a line.
        self._writer = threading.Thread(target=self._work, name="ckptflow-journal", daemon=True)
        self._writer.start()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def add(self, event: str, *, sync: bool = False, **fields: object) -> None:
        """Add an event; with ``sync`` it is on the disk when this returns.

        Events that come after the journal was closed are dropped: results of tasks that were
        given up may still trickle in.
        """
        record = {"event": event, "time": _now(), **fields}
        self._lines.append(_encode(record))
        if sync and not self._closed.is_set():
            self._write(sync=True)

    def settle(self, timeout_s: float) -> bool:
        """Wait until what was added so far is handed to the system; return whether it is."""
        written = threading.Event()
        self._lines.append(written)
        self._wanted.set()
        return written.wait(timeout_s)

    def close(self) -> None:
        """Write what is left, and close the file."""
        if not self._closed.is_set():
            self._closed.set()
            self._wanted.set()
            self._writer.join()
            os.close(self._descriptor)

    def _work(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait(_WRITE_EVERY_S)
            self._wanted.clear()
            self._write()
        self._write(sync=True)

    def _write(self, *, sync: bool = False) -> None:
        with self._writing:
            lines, waiting = list[bytes](), list[threading.Event]()
            while self._lines:
                one = self._lines.popleft()
                if isinstance(one, bytes):
                    lines.append(one)
                else:
                    waiting.append(one)
            if not lines and not sync:
                _release(waiting)
                return
            try:
                os.write(self._descriptor, b"".join(lines))
                if sync:
                    os.fsync(self._descriptor)
            except OSError as error:
                failed, self._failed = self._failed, lambda _error: None
                failed(error)
            _release(waiting)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read(path: Path, *, only: Collection[str] | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a journal, the oldest first; torn and foreign lines are passed over.

    A file that does not exist has no events.

    Args:
        path: the file.
        only: names of the events to yield; others are not even parsed, which saves most of
            the time in a long journal.
    """
    wanted = tuple(_begin(name) for name in only) if only is not None else b""
    try:
        file = path.open("rb", buffering=_BLOCK_BYTES)
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if not line.endswith(b"\n"):
                continue  # Torn, even if it happens to read as JSON: "12" of "123", say.
            if not line.startswith(wanted):
                continue
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("event"), str):
                yield record


def _release(waiting: Iterable[threading.Event]) -> None:
    for one in waiting:
        one.set()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _begin(event: str) -> bytes:
    """Return how the line of an event begins: its name comes first."""
    return _encoder.encode({"event": event}).encode()[:-1]


def _encode(record: Mapping[str, object]) -> bytes:
    return _encoder.encode(record).encode() + b"\n"
