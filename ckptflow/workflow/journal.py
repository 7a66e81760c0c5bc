"""What happened in a run: one JSON object a line, only ever added to.

The journal outlives the process that writes it, and a rerun adds to the same file. A line is
written by one ``write`` to a file opened for appending, so lines of several threads do not
mix, and a process that dies leaves at most one torn line, at the end. Readers pass over
what is not a whole line; the next writer begins a new line.

Nothing is decided by it that matters for the results: it tells `restart.plan` and the summary
what was going on. ``tests/unit/test_journal.py`` cuts a journal at every byte.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_BLOCK_BYTES = 1 << 20


class Journal:
    """Adds events to a journal file, made if absent. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._lock = threading.Lock()
        self._path, self._closed = path, False
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # The last writer died within a line.

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def add(self, event: str, *, sync: bool = False, **fields: object) -> None:
        """Add an event; with ``sync`` it is on the disk when this returns.

        Events that come after the journal was closed are dropped: results of tasks that were
        given up may still trickle in.

        Raises:
            OSError: the file cannot be written.
        """
        record = {"event": event, "time": _now(), **fields}
        line = json.dumps(record, default=str, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._closed:
                return
            os.write(self._descriptor, line)
            if sync:
                os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a journal, the oldest first; torn and foreign lines are passed over.

    A file that does not exist has no events.
    """
    try:
        file = path.open("rb", buffering=_BLOCK_BYTES)
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if not line.endswith(b"\n"):
                continue  # Torn, even if it happens to read as JSON: "12" of "123", say.
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("event"), str):
                yield record


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
