"""The Parsl memo: results of finished tasks, so that a rerun does not run them again.

Parsl's own memo file is a row of pickles. Cut anywhere, by a kill or a full disk, it stops the
next run from starting, and a result whose class is gone does so too. This one frames each
record and checks it, drops what is torn, and unpickles a result only when it is asked for.
Records are written and synced by a thread, about 50 ms after the task's result is known: a
system call in the thread that hands out results would cost every task more than Parsl itself
does. A process that is killed may lose the results of that moment; those tasks run again.

File: 16 bytes of magic, then records. A record is ``u32 size, u32 CRC-32`` (little-endian) of a
body, and the body: 32 bytes of key, then the pickled result. One file belongs to one run name,
and only the process with the run lock writes it.

Keys never fail: where Parsl gives up (bytes, arrays, sets, dataclasses, paths), the canonical
bytes of the arguments are hashed; a task whose arguments have none is run and not remembered.

``tests/unit/test_memo.py`` cuts a file at every byte and flips bits in it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import dill  # type: ignore[import-untyped]
from parsl.dataflow.memoization import BasicMemoizer, id_for_memo
from parsl.dataflow.taskrecord import TaskRecord

from ckptflow.errors import ConfigError
from ckptflow.workflow.canonical import encode_call

MAGIC = b"CKPTFLOW-MEMO-1\n"

_HEAD = struct.Struct("<II")
_KEY_BYTES = 32
_WRITE_EVERY_S = 0.05
_WAITING_BYTES_MAX = 64 << 20

_log = logging.getLogger("ckptflow")

Notice = Callable[[TaskRecord, bool], None]
"""Told of a task that is about to be launched, and whether its result was remembered."""


class MemoFile:
    """Appends to and reads a memo file. Safe to use from several threads.

    Args:
        path: the file; made if absent, and cut after its last sound record.
        failed: told when records could not be written; the file is as it was then.
    """

    def __init__(
        self, path: Path, *, failed: Callable[[str], None] = lambda _text: None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self.path, self._failed = path, failed
        self._end_bytes = self._find_end()
        os.ftruncate(self._descriptor, self._end_bytes)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._dirty, self._over = threading.Event(), threading.Event()
        self._writer = threading.Thread(target=self._work, name="ckptflow-memo", daemon=True)
        self._writer.start()

    def records(self) -> Iterator[tuple[str, bytes]]:
        """Yield each sound record in the file, the oldest first: key and pickled result."""
        for _, body in _records(self._descriptor):
            yield body[:_KEY_BYTES].decode("ascii", "replace"), body[_KEY_BYTES:]

    def append(self, key: str, pickled: bytes) -> None:
        """Add a record; it is on the disk soon after. Waits only if too much is waiting."""
        assert len(key) == _KEY_BYTES, "keys are 32 hex digits"
        body = key.encode("ascii") + pickled
        record = _HEAD.pack(len(body), zlib.crc32(body)) + body
        with self._lock:
            self._waiting.append(record)
            self._waiting_bytes += len(record)
            full = self._waiting_bytes > _WAITING_BYTES_MAX
        if full:
            self._write()
        elif not self._dirty.is_set():
            self._dirty.set()

    def close(self) -> None:
        """Write and sync what is left, and close the file."""
        if self._over.is_set():
            return
        self._over.set()
        self._dirty.set()
        self._writer.join()
        os.close(self._descriptor)

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
        if length < _KEY_BYTES or end > size:
            return
        body = os.pread(descriptor, length, at + _HEAD.size)
        if len(body) == length and zlib.crc32(body) == checksum:
            yield end, body
        at = end


class DurableMemoizer(BasicMemoizer):  # type: ignore[misc]
    """A memo that survives kills, torn files, foreign types and vanished classes.

    Args:
        path: the memo file of the run.
        runs_folder: output files below it do not count as arguments: Parsl numbers them anew
            in every run.
        notice: told of each launch; must not raise, and not block.
    """

    def __init__(
        self,
        path: Path,
        *,
        runs_folder: Path | None = None,
        notice: Notice = lambda _record, _remembered: None,
    ) -> None:
        super().__init__()
        self._path, self._runs_folder, self._notice = path, runs_folder, notice
        self._file: MemoFile | None = None
        self._stored: dict[str, bytes] = {}
        self.failures: list[str] = []

    def start(self, *, run_dir: str, config_run_dir: str) -> None:
        """Read the file; called by Parsl."""
        super().start(run_dir=run_dir, config_run_dir=config_run_dir)
        self._file = MemoFile(self._path, failed=self._note_failure)
        self._stored = dict(self._file.records())
        _log.info("%s: %d results of finished tasks", self._path, len(self._stored))

    def close(self) -> None:
        """Close the file; called by Parsl."""
        if self._file:
            self._file.close()

    def check_memo(self, task: TaskRecord) -> Future[Any] | None:
        """Return a future with the remembered result, or ``None``; called by Parsl."""
        found = None
        task["hashsum"] = self._key(task) if task["memoize"] else None
        key = task["hashsum"]
        if key is not None:
            found = self.memo_lookup_table.get(key) or self._recall(key)
        self._notice(task, found is not None)
        return found

    def update_memo_result(self, task: TaskRecord, r: Any) -> None:
        """Remember a result; called by Parsl.

        What goes wrong is noted in ``failures``: an error raised here would hang the task.
        """
        key = task["hashsum"]
        if key is None:
            return
        # Not Parsl's own future: that would keep all that is known of the task.
        result: Future[Any] = Future()
        result.set_result(r)
        self.memo_lookup_table[key] = result
        if task["from_memo"] or self._file is None:
            return
        try:
            self._file.append(key, _pickled(r))
        except Exception as error:  # noqa: BLE001  Pickling runs the user's code.
            self._note_failure(
                f"The result of {task['func_name']}() will not be remembered: {error}"
            )

    def remembers(self, task: TaskRecord) -> bool:
        """Tell whether a rerun will find the result of a finished task."""
        return task["hashsum"] is not None

    def _note_failure(self, text: str) -> None:
        self.failures.append(text)
        _log.warning(text)

    def _recall(self, key: str) -> Future[Any] | None:
        pickled = self._stored.get(key)
        if pickled is None:
            return None
        future: Future[Any] = Future()
        try:
            future.set_result(dill.loads(pickled))  # noqa: S301  Our own file, see the module.
        except Exception as error:  # noqa: BLE001  Unpickling runs the user's code.
            _log.warning("A remembered result cannot be read, its task runs again: %s", error)
            del self._stored[key]
            return None
        return future

    def _key(self, task: TaskRecord) -> str | None:
        ignored = {*task["ignore_for_cache"], "walltime", "parsl_resource_specification"}
        ignored |= {
            name for name in ("stdout", "stderr") if self._is_ours(task["kwargs"].get(name))
        }
        kwargs = {name: value for name, value in task["kwargs"].items() if name not in ignored}
        function = (task["func"].__module__, task["func"].__name__)
        try:
            call = encode_call(function, task["args"], kwargs, fallback=_registered)
        except ConfigError as error:
            _log.warning("A call of %s() will not be remembered: %s", task["func_name"], error)
            return None
        return hashlib.sha256(call).hexdigest()[:_KEY_BYTES]

    def _is_ours(self, output: object) -> bool:
        """Tell whether an output file lies below the runs' folder, where Parsl put it."""
        if self._runs_folder is None:
            return False
        path = output[0] if isinstance(output, tuple) else output
        if not isinstance(path, str | os.PathLike):
            return False
        return Path(path).absolute().is_relative_to(self._runs_folder.absolute())


def _registered(value: object) -> bytes | None:
    """Ask what the user registered with Parsl for a type; Parsl's own rules are not needed."""
    kind = type(value)
    if id_for_memo.dispatch(kind) is id_for_memo.dispatch(object):
        return None
    return bytes(id_for_memo(value))


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(dill.dumps(value))
