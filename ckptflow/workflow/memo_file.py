"""The file of the Parsl memo: records that are only ever added, each framed and checked.

Cut anywhere, by a kill or a full disk, or with a bit flipped, it still gives every record that
is whole. Records are written and synced by a thread, about 50 ms after the task's result is
known: a system call in the thread that hands out results would cost every task more than
Parsl itself does. A process that is killed may lose the results of that moment; those tasks
run again.

File: 16 bytes of magic, then records. A record is ``u32 size, u32 CRC-32`` (little-endian) of a
body. Version 2 has as body one letter, ``u32 size`` of a JSON object, the object, and what is
left. ``R`` is a result: the object has ``key``, ``task`` and what else is known, and what is
left is the pickled result. ``F`` forgets: the results of ``task`` that stand before it count no
more.
Version 1 has results only: 32 bytes of key, then the pickle. A file of that version is written
anew as version 2 when it is opened; one of a later version is refused.

One file belongs to one run name, and only the process with the run's lock writes it.
``tests/unit/test_memo.py`` cuts a file at every byte and flips bits in it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptflow.errors import FormatError
from ckptflow.tiers import durable

MAGIC, OLD_MAGIC = b"CKPTFLOW-MEMO-2\n", b"CKPTFLOW-MEMO-1\n"
RESULT, FORGET = b"R", b"F"

_HEAD, _SIZE = struct.Struct("<II"), struct.Struct("<I")
_OLD_KEY_BYTES = 32
_WRITE_EVERY_S = 0.05
_WAITING_BYTES_MAX = 64 << 20

_log = logging.getLogger("ckptflow")


@dataclass(frozen=True, slots=True)
class Remembered:
    """A result in the memo.

    Attributes:
        pickled: the result.
        task: name of its task; ``None`` if that was not recorded.
        code: digest of the code that made it, if that was recorded.
    """

    pickled: bytes
    task: str | None = None
    code: str | None = None


class MemoFile:
    """Appends to and reads a memo file. Safe to use from several threads.

    Args:
        path: the file; made if absent, and cut after its last sound record.
        failed: told when records could not be written; the file is as it was then.
        is_ours: asked before each write; false if another process writes the file by now.

    Raises:
        FormatError: it was written by a newer version.
    """

    def __init__(
        self,
        path: Path,
        *,
        failed: Callable[[str], None] = lambda _text: None,
        is_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _renew(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self.path, self._failed, self._is_ours = path, failed, is_ours
        self._end_bytes = self._find_end()
        os.ftruncate(self._descriptor, self._end_bytes)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._dirty, self._over = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._work, name="ckptflow-memo", daemon=True)
        self._writer.start()

    def results(self) -> tuple[dict[str, Remembered], frozenset[str]]:
        """Return what is remembered, by key, and the names of tasks that were forgotten.

        A result of which the task is not recorded counts no more if its task was forgotten.
        """
        return results_in(self._descriptor)

    def add(
        self, key: str, pickled: bytes, *, task: str | None = None, code: str | None = None
    ) -> None:
        """Add a result; it is on the disk soon after. Waits only if too much is waiting."""
        about = {"key": key, "task": task, "code": code}
        self._append(RESULT, about, pickled)

    def forget(self, task: str) -> None:
        """Let the results that a task has so far count no more."""
        self._append(FORGET, {"task": task}, b"")

    def close(self) -> None:
        """Write and sync what is left, and close the file."""
        if self._over.is_set():
            return
        self._over.set()
        self._dirty.set()
        self._writer.join()
        os.close(self._descriptor)

    def _append(self, kind: bytes, about: Mapping[str, Any], rest: bytes) -> None:
        record = _record(kind, about, rest)
        with self._lock:
            self._waiting.append(record)
            self._waiting_bytes += len(record)
            full = self._waiting_bytes > _WAITING_BYTES_MAX
        if full:
            self._write()
        elif not self._dirty.is_set():
            self._dirty.set()

    def _work(self) -> None:
        while not self._over.is_set():
            self._dirty.wait()
            self._over.wait(_WRITE_EVERY_S)  # What comes in meanwhile is written together.
            self._dirty.clear()
            self._write()

    def _write(self) -> None:
        with self._writing:
            with self._lock:
                records, self._waiting, self._waiting_bytes = self._waiting, [], 0
            data, written = b"".join(records), 0
            if not data:
                return
            if not self._is_ours():  # Two writers would write over each other.
                self._failed(
                    f"{len(records)} results were not written to {self.path}, since another "
                    f"process has taken the run over"
                )
                return
            try:
                while written < len(data):
                    at = self._end_bytes + written
                    written += os.pwrite(self._descriptor, data[written:], at)
                os.fsync(self._descriptor)
            except OSError as error:
                os.ftruncate(self._descriptor, self._end_bytes)
                self._failed(
                    f"{len(records)} results could not be written to {self.path}: {error}"
                )
            else:
                self._end_bytes += len(data)

    def _find_end(self) -> int:
        """Return where the last sound record ends, after writing the magic into a new file."""
        if os.pread(self._descriptor, len(MAGIC), 0) != MAGIC:
            if os.fstat(self._descriptor).st_size > len(MAGIC):
                _log.warning("%s is not a memo; it is started anew.", self.path)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, MAGIC, 0)
        end = max((end for end, _ in _records(self._descriptor)), default=len(MAGIC))
        torn = os.fstat(self._descriptor).st_size - end
        if torn:
            _log.warning("%s: the last %d bytes were torn, and dropped.", self.path, torn)
        return end


def read_results(path: Path) -> dict[str, Remembered]:
    """Return what a memo file remembers, without touching it; nothing if there is none.

    Raises:
        FormatError: it was written by a newer version.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    try:
        magic = os.pread(descriptor, len(MAGIC), 0)
        _refuse_newer(magic, path)
        if magic == OLD_MAGIC:
            return _old_results(descriptor)
        return results_in(descriptor)[0] if magic == MAGIC else {}
    finally:
        os.close(descriptor)


def results_in(descriptor: int) -> tuple[dict[str, Remembered], frozenset[str]]:
    """Return what an open file of version 2 remembers; see `MemoFile.results`."""
    results: dict[str, Remembered] = {}
    keys: dict[str, set[str]] = {}
    forgotten: set[str] = set()
    for _, body in _records(descriptor):
        if (parsed := _parsed(body)) is None:
            continue
        kind, about, rest = parsed
        task = about.get("task")
        if kind == RESULT and isinstance(key := about.get("key"), str):
            results[key] = Remembered(rest, task, about.get("code"))
            keys.setdefault(str(task), set()).add(key)
        elif kind == FORGET and isinstance(task, str):
            forgotten.add(task)
            for key in keys.pop(task, ()):
                results.pop(key, None)
    return results, frozenset(forgotten)


def _record(kind: bytes, about: Mapping[str, Any], rest: bytes) -> bytes:
    text = json.dumps({name: value for name, value in about.items() if value is not None})
    body = kind + _SIZE.pack(len(text)) + text.encode() + rest
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _parsed(body: bytes) -> tuple[bytes, dict[str, Any], bytes] | None:
    start = 1 + _SIZE.size
    if len(body) < start:
        return None
    end = start + _SIZE.unpack_from(body, 1)[0]
    try:
        about = json.loads(body[start:end])
    except ValueError:
        return None
    return (body[:1], about, body[end:]) if isinstance(about, dict) else None


def _records(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """Yield (where it ends, body) of each sound record.

    A damaged body is passed over if whole records follow it; the lengths lead on. Where a
    length makes no sense, nothing after it can be found.
    """
    size = os.fstat(descriptor).st_size
    at = len(MAGIC)
    while at + _HEAD.size <= size:
        length, checksum = _HEAD.unpack(os.pread(descriptor, _HEAD.size, at))
        end = at + _HEAD.size + length
        if length < 1 + _SIZE.size or end > size:
            return
        body = os.pread(descriptor, length, at + _HEAD.size)
        if len(body) == length and zlib.crc32(body) == checksum:
            yield end, body
        at = end


def _old_results(descriptor: int) -> dict[str, Remembered]:
    """Return what a file of version 1 remembers."""
    return {
        body[:_OLD_KEY_BYTES].decode("ascii", "replace"): Remembered(body[_OLD_KEY_BYTES:])
        for _, body in _records(descriptor)
        if len(body) >= _OLD_KEY_BYTES
    }


def _renew(path: Path) -> None:
    """Write a file of version 1 anew as version 2; the rename is the commit point."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        magic = os.pread(descriptor, len(MAGIC), 0)
        _refuse_newer(magic, path)
        if magic != OLD_MAGIC:
            return
        old = _old_results(descriptor)
    finally:
        os.close(descriptor)
    records = [_record(RESULT, {"key": key}, one.pickled) for key, one in old.items()]
    durable.write_atomic(path, [MAGIC, *records])


def _refuse_newer(magic: bytes, path: Path) -> None:
    if re.fullmatch(rb"CKPTFLOW-MEMO-\d\n", magic) and magic not in (MAGIC, OLD_MAGIC):
        raise FormatError(
            f"{path} was written by a newer version of ckptflow: it begins with {magic!r}. "
            f"Use that version, or another name for the run."
        )
