"""Write a file so that it is never seen in part, and is still there after a power cut.

Write to a temporary name, fsync the file, rename, fsync the folder. The rename is the
moment of commit; the folder is synced after it because POSIX lets the new *name* be lost
in a crash otherwise, and every folder on the way is synced for the same reason.

A sync that failed is final for its file: the kernel may have dropped the pages that it could
not write and say *done* the next time (Rebello et al., "Can Applications Recover from fsync
Failures?", USENIX ATC 2020). The file is thrown away; whoever tries again writes a new one.

``tests/process/test_durability.py`` kills a writer at each of these system calls, and cuts the
power below a real file system where the machine allows it; ``tests/simulate`` does so on a
disk that loses whatever it may.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from typing_extensions import Buffer

from ckptflow.tiers.disk import DISK, Disk
from ckptflow.tiers.gathering import gather_list

PARTIAL_SUFFIX = ".partial"

_IOV_MAX = 1024  # Linux's limit on buffers in one writev.
_WRITE_BYTES_MAX = 8 << 20  # By one call. The device begins with as many while more come.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)


class Folders:
    """Makes folders whose names are durable, and remembers which are: each is synced once.

    That a folder exists does not say so: whoever made it may have been killed before the sync,
    or may not have got there yet.
    """

    def __init__(self, disk: Disk = DISK) -> None:
        self.disk = disk
        self._durable: set[tuple[Path, int]] = set()  # With the inode: it may be made anew.

    def make(self, folder: Path) -> None:
        """Make ``folder`` and those above it, private to the user, each name durable."""
        is_new = False
        try:
            found = folder.stat()
        except FileNotFoundError:
            self.make(folder.parent)
            with contextlib.suppress(FileExistsError):
                self.disk.make_folder(folder)
                is_new = True
            found = folder.stat()
        known = (folder, found.st_ino)
        if known not in self._durable:
            # Ours are private. What others own or may enter, others made, and a while ago.
            private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
            if is_new or private:  # Some mounts show one mode for all.
                self.make(folder.parent)
                self._sync_parent(folder)
            self._durable.add(known)

    def _sync_parent(self, folder: Path) -> None:
        # Where the parent may be passed but not read, its names are not ours either.
        with contextlib.suppress(PermissionError):
            self.disk.sync_folder(folder.parent)


def make_folders(folder: Path) -> None:
    """Make ``folder`` and those above it, private to the user, each name durable."""
    Folders().make(folder)


def write_atomic(path: Path, parts: Sequence[Buffer], folders: Folders | None = None) -> None:
    """Make ``path`` hold the bytes of ``parts``, or leave it as it was.

    The parts go to the kernel as gather lists. They are never joined in memory, but for small
    ones next to each other, of which a list would be dearer: see `ckptflow.tiers.gathering`.
    """
    folders = folders or Folders()
    folders.make(path.parent)
    partial, disk = _partial_name(path), folders.disk
    try:
        _write_synced(disk, partial, parts)
        disk.rename(partial, path)
    except BaseException:
        _remove_quietly(disk, partial)
        raise
    disk.sync_folder(path.parent)


@contextlib.contextmanager
def whole_file(path: Path, disk: Disk = DISK) -> Iterator[IO[bytes]]:
    """Yield a file that gets the name ``path``, durably, if the block ends well; else none."""
    partial = _partial_name(path)
    try:
        with (
            _open_new(disk, partial) as descriptor,
            os.fdopen(os.dup(descriptor), "wb") as file,
        ):
            yield file
            file.flush()
            disk.sync(descriptor)
        disk.rename(partial, path)
    except BaseException:
        _remove_quietly(disk, partial)
        raise
    disk.sync_folder(path.parent)


def create_exclusive(path: Path, value: Buffer, folders: Folders | None = None) -> None:
    """Make ``path`` hold ``value`` if nothing is there; atomic, also between hosts.

    A hard link either makes the name or fails, on NFS too. File systems without hard links
    get an exclusive open instead, which decides just as surely; only a reader in that
    instant could see the value unfinished.

    Raises:
        FileExistsError: the name is taken.
    """
    folders = folders or Folders()
    folders.make(path.parent)
    partial, disk = _partial_name(path), folders.disk
    try:
        _write_synced(disk, partial, [value])
        try:
            disk.link(partial, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _create_in_place(disk, path, value)
    finally:
        _remove_quietly(disk, partial)
    disk.sync_folder(path.parent)


def _create_in_place(disk: Disk, path: Path, value: Buffer) -> None:
    with _open_new(disk, path) as descriptor:
        try:
            write_all(disk, descriptor, [memoryview(value).cast("B")])
            disk.sync(descriptor)
        except BaseException:  # Half a value would hold the name for ever.
            _remove_quietly(disk, path)
            raise


def is_partial(name: str) -> bool:
    """Tell whether a file of that name is one that a writer has not finished."""
    return name.startswith(".") and name.endswith(PARTIAL_SUFFIX)


def _partial_name(path: Path) -> Path:
    # Not the pid: two nodes of a cluster may have the same one.
    return path.with_name(f".{uuid.uuid4().hex}{PARTIAL_SUFFIX}")


@contextlib.contextmanager
def _open_new(disk: Disk, path: Path) -> Iterator[int]:
    descriptor = disk.create(path)
    try:
        yield descriptor
    finally:
        disk.close(descriptor)


def _write_synced(disk: Disk, path: Path, parts: Sequence[Buffer]) -> None:
    with _open_new(disk, path) as descriptor:
        write_all(disk, descriptor, gather_list([memoryview(one).cast("B") for one in parts]))
        disk.sync(descriptor)


def write_all(disk: Disk, descriptor: int, views: Sequence[memoryview]) -> None:
    """Append bytes to a file; what a call did not take is handed to the next.

    No call gets more buffers than Linux takes, nor more bytes than are worth waiting for: the
    device begins with what was written while the rest is.
    """
    views = [view for view in views if len(view)]
    first = done_bytes = begun_bytes = 0
    while first < len(views):
        batch, size_bytes = [], 0
        for view in views[first : first + _IOV_MAX]:
            batch.append(view[: _WRITE_BYTES_MAX - size_bytes])
            size_bytes += len(batch[-1])
            if size_bytes >= _WRITE_BYTES_MAX:
                break
        written = taken = disk.write(descriptor, batch)
        while first < len(views) and written >= len(views[first]):
            written -= len(views[first])
            first += 1
        if written:
            views[first] = views[first][written:]
        done_bytes += taken
        # The last ones are synced at once.
        if first < len(views) and done_bytes - begun_bytes >= _WRITE_BYTES_MAX:
            disk.start_writing(descriptor, begun_bytes, done_bytes - begun_bytes)
            begun_bytes = done_bytes


def _remove_quietly(disk: Disk, path: Path) -> None:
    # The cause is on its way to the caller; a left-over partial file is swept later.
    with contextlib.suppress(OSError):
        disk.remove(path)
