"""Where an arena lies: a file of a memory file system, or a device; made, found, mapped.

The file has all of its memory from the start (``fallocate``): a page of tmpfs that cannot be
had later is no error but a signal, and the end of the process. Its folder is the user's alone.
``tests/unit/test_arena_file.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError, TierDenied, TierError, TierFull, TierUnavailable
from ckptflow.tiers import numa
from ckptflow.tiers.arena import (
    HEADER_BYTES,
    LOCK_WAIT_S,
    Arena,
    ArenaDamagedError,
    format_arena,
    is_formatted,
)
from ckptflow.tiers.memory_left import memory_left_bytes
from ckptflow.tiers.owner_lock import OwnerLocks
from ckptflow.units import MIB, format_bytes

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "devtmpfs")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder below it is private
DEVICE_ALIGNMENT_BYTES = 2 * MIB

_MOUNTS = Path("/proc/self/mountinfo")
_DEVICES = Path("/sys/dev/char")
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_OPEN_TRIES = 100
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # madvise(2), since Linux 5.14
_BLOCK_BYTES = 2 * MIB


def own_folder(place: Path) -> Path:
    """Return the folder of this user below a memory file system."""
    return place / f"ckptflow-{os.geteuid()}"


def make_own_folder(folder: Path) -> None:
    """Make it, or see that it is private.

    Raises:
        TierDenied: somebody else could have made what is in it.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise TierDenied(
            f"{folder} is not a folder of user {os.geteuid()} alone. Remove it, or give the "
            f"tier another path."
        )


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> tuple[str, str]:
    """Return type and options of the file system that a folder is on, as the kernel tells."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == number:
            kind, _, options = source.split(" ", 2)
            return kind, options
    return "unknown", ""


def device_size_bytes(path: Path, devices: Path = _DEVICES) -> int:
    """Return the size of a memory device, from sysfs.

    Raises:
        ConfigError: there is no such device, or it is none of memory.
    """
    try:
        found = path.stat()
        if not stat.S_ISCHR(found.st_mode):
            raise ConfigError(f"{path} is not a character device such as /dev/dax0.0.")
        number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
        size = int((devices / number / "size").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no memory device that can be used: {error}.") from error
    return size // DEVICE_ALIGNMENT_BYTES * DEVICE_ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class Mapped:
    """An arena together with its file, as this process has it.

    Attributes:
        arena: the arena.
        memory: all of it, mapped.
        path: its file or device.
        inode: device and number of the file when it was opened.
        touched: which blocks have their pages mapped in this process.
    """

    arena: Arena
    memory: mmap.mmap
    path: Path
    inode: tuple[int, int]
    touched: NDArray[np.bool_]

    @property
    def vanished(self) -> bool:
        """Whether its file is not there any more, or another one is."""
        try:
            found = self.path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return True
        return (found.st_dev, found.st_ino) != self.inode

    def populate(self, start_bytes: int, size_bytes: int, *, write: bool) -> None:
        """Map the pages of a range at once, which is cheaper than one fault for each.

        Older kernels do not know this; there each page is mapped when it is touched.
        """
        first, last = (
            start_bytes // _BLOCK_BYTES,
            -(-(start_bytes + size_bytes) // _BLOCK_BYTES),
        )
        lacking = first + np.flatnonzero(~self.touched[first:last])
        if size_bytes < _BLOCK_BYTES or not len(lacking):
            return
        self.touched[first:last] = True
        low = int(lacking[0]) * _BLOCK_BYTES
        high = min((int(lacking[-1]) + 1) * _BLOCK_BYTES, len(self.memory))
        advice = _POPULATE_WRITE if write else _POPULATE_READ
        libc = ctypes.CDLL(None)
        address = self.arena.bytes.ctypes.data + low
        libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(high - low), advice)

    def close(self) -> None:
        """Let go of it; the values stay."""
        self.arena.close()


def open_file(path: Path, size_bytes: int | None, *, node: int | None = None) -> Mapped | None:
    """Return the arena in a file; made when it is not there and ``size_bytes`` is given.

    One that is there keeps its size.

    Raises:
        TierDenied: something else lies there.
        TierFull: there is not so much memory.
        TierUnavailable: somebody else holds it for long, or the node could not be bound to.
    """
    for _ in range(_OPEN_TRIES):
        try:
            flags = _OPEN | (os.O_CREAT if size_bytes is not None else 0)
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            return None
        with _closed_on_error(descriptor), _locked(descriptor, path):
            found = os.fstat(descriptor)
            memory = None
            if found.st_nlink and found.st_size >= HEADER_BYTES:
                memory = _formatted(path, _map(descriptor, found.st_size), descriptor)
            if memory is None and found.st_nlink and size_bytes is not None:
                memory = _allocate(descriptor, path, size_bytes, node)
                format_arena(memory, size_bytes)
            if memory is not None:
                return _mapped(descriptor, path, memory)
        os.close(descriptor)
        if size_bytes is None:
            return None
        # Whoever was making it failed, and removed it.
    raise TierUnavailable(f"{path} was removed {_OPEN_TRIES} times while it was being opened.")


def open_device(path: Path, size_bytes: int | None) -> Mapped | None:
    """Return the arena on a memory device; made when there is none and a size is given.

    Raises:
        TierDenied: something else lies there.
        TierUnavailable: somebody else holds it for long.
    """
    there_bytes = device_size_bytes(path)
    descriptor = os.open(path, _OPEN)
    with _closed_on_error(descriptor), _locked(descriptor, path):
        whole = _map(descriptor, there_bytes)
        memory = _formatted(path, whole)
        if memory is None and size_bytes is not None:
            memory = whole
            format_arena(memory, min(size_bytes, there_bytes))
        if memory is not None:
            return _mapped(descriptor, path, memory)
    os.close(descriptor)
    return None


@contextlib.contextmanager
def _closed_on_error(descriptor: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def _locked(descriptor: int, path: Path) -> Iterator[None]:
    """Hold the lock of the index, so that nobody else makes the arena meanwhile."""
    locks = OwnerLocks(descriptor)
    try:
        locks.acquire(0, wait_s=LOCK_WAIT_S)
    except TimeoutError as error:
        raise TierUnavailable(f"{path}: {error} Is that process stopped?") from error
    try:
        yield
    finally:
        locks.release(0)


def _mapped(descriptor: int, path: Path, memory: mmap.mmap) -> Mapped:
    found = os.fstat(descriptor)
    touched = np.zeros(-(-len(memory) // _BLOCK_BYTES), np.bool_)
    arena = Arena(descriptor, memory)
    return Mapped(arena, memory, path, (found.st_dev, found.st_ino), touched)


def _formatted(
    path: Path, memory: mmap.mmap, descriptor: int | None = None
) -> mmap.mmap | None:
    """Return ``memory`` if it has been made an arena, and ``None`` if it is empty.

    A file is read, not touched: a page that was never written need not be there to be had.
    """
    if descriptor is None:
        header = memory[:HEADER_BYTES]
    else:
        header = os.pread(descriptor, HEADER_BYTES, 0)
    try:
        return memory if is_formatted(header, len(memory)) else None
    except ArenaDamagedError as error:
        raise TierDenied(
            f"{path} cannot be used: {error}. If nothing in it is needed, remove it; of a "
            f"device, clear the first {HEADER_BYTES} bytes."
        ) from error


def _map(descriptor: int, size_bytes: int) -> mmap.mmap:
    # A mapping keeps a duplicate of its descriptor: of a description without locks, so that a
    # forked child does not keep its parent's.
    other = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(other, size_bytes)
    finally:
        os.close(other)


def _allocate(descriptor: int, path: Path, size_bytes: int, node: int | None) -> mmap.mmap:
    """Give an empty file all of its memory, on a node if one is named."""
    try:
        if size_bytes > memory_left_bytes(node):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, size_bytes)
        memory = _map(descriptor, size_bytes)
        with contextlib.suppress(OSError):  # A kernel without huge pages.
            memory.madvise(mmap.MADV_HUGEPAGE)
        if node is not None:
            numa.bind(memory, node)
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        os.ftruncate(descriptor, 0)
        path.unlink()
        raise _refused(error, path, size_bytes, node) from error
    return memory


def _refused(error: OSError, path: Path, size_bytes: int, node: int | None) -> TierError:
    wanted = f"{format_bytes(size_bytes)} for {path}"
    if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG):
        room = os.statvfs(path.parent)
        free = format_bytes(room.f_bavail * room.f_frsize)
        left = format_bytes(memory_left_bytes(node))
        where = "" if node is None else f" on NUMA node {node}"
        return TierFull(
            f"No room for {wanted}: {free} are free there, and {left} of memory are left"
            f"{where}. Give the tier less capacity, or another path."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return TierDenied(f"May not allocate {wanted}: {error.strerror}.")
    return TierUnavailable(f"Cannot allocate {wanted}: {error.strerror}.")
