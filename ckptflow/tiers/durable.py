"""Write a file so that it is never seen in part, and is still there after a power cut.

Write to a temporary name, fsync the file, rename, fsync the folder. The rename is the
moment of commit; the folder is synced after it because POSIX lets the new *name* be lost
in a crash otherwise, and every folder made on the way is synced for the same reason.

``tests/process/test_durability.py`` kills a writer at each of these system calls, and cuts the
power below a real file system where the machine allows it.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from typing_extensions import Buffer

PARTIAL_SUFFIX = ".partial"

_IOV_MAX = 1024  # Linux's limit on buffers in one writev.
_WRITE_BYTES_MAX = 64 << 20  # One call never asks for more than the kernel's 2 GiB.


def write_atomic(path: Path, parts: Sequence[Buffer]) -> None:
    """Make ``path`` hold the bytes of ``parts``, or leave it as it was.

    The parts go to the kernel as gather lists; they are never joined in memory.
    """
    make_folders(path.parent)
    partial = _partial_name(path)
    try:
        _write_synced(partial, parts)
        partial.rename(path)
    except BaseException:
        _remove_quietly(partial)
        raise
    sync_folder(path.parent)


def create_exclusive(path: Path, value: Buffer) -> None:
    """Make ``path`` hold ``value`` if nothing is there; atomic, also between hosts.

    A hard link either makes the name or fails, on NFS too. File systems without hard links
    get an exclusive open instead, which decides just as surely; only a reader in that
    instant could see the value unfinished.

    Raises:
        FileExistsError: the name is taken.
    """
    make_folders(path.parent)
    partial = _partial_name(path)
    try:
        _write_synced(partial, [value])
        try:
            os.link(partial, path)
        except FileExistsError:
            raise
        except OSError:
            with _open_new(path) as descriptor:
                _write_all(descriptor, [value])
                os.fsync(descriptor)
    finally:
        _remove_quietly(partial)
    sync_folder(path.parent)


def make_folders(folder: Path) -> None:
    """Make ``folder`` and those above it, private to the user, each name durable."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_partial(name: str) -> bool:
    """Tell whether a file of that name is one that a writer has not finished."""
    return name.startswith(".") and name.endswith(PARTIAL_SUFFIX)


def _partial_name(path: Path) -> Path:
    # Not the pid: two nodes of a cluster may have the same one.
    return path.with_name(f".{uuid.uuid4().hex}{PARTIAL_SUFFIX}")


@contextlib.contextmanager
def _open_new(path: Path) -> Iterator[int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_synced(path: Path, parts: Sequence[Buffer]) -> None:
    with _open_new(path) as descriptor:
        _write_all(descriptor, parts)
        os.fsync(descriptor)


def _write_all(descriptor: int, parts: Sequence[Buffer]) -> None:
    views = [view for part in parts if len(view := memoryview(part).cast("B"))]
    first = 0
    while first < len(views):
        batch, size_bytes = [], 0
        for view in views[first : first + _IOV_MAX]:
            batch.append(view[: _WRITE_BYTES_MAX - size_bytes])
            size_bytes += len(batch[-1])
            if size_bytes >= _WRITE_BYTES_MAX:
                break
        written = os.writev(descriptor, batch)
        while first < len(views) and written >= len(views[first]):
            written -= len(views[first])
            first += 1
        if written:
            views[first] = views[first][written:]


def _remove_quietly(path: Path) -> None:
    # The cause is on its way to the caller; a left-over partial file is swept later.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
