"""The system calls by which `durable` changes a file system, gathered in one place.

A seam for tests: ``tests/simulate`` puts a disk in its place that remembers every call, and
works out what a power cut may leave of them. In production it costs one method call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)  # Only Linux has it.
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE


class Disk:
    """The real one. Every method raises what the system call raises."""

    def create(self, path: Path) -> int:
        """Make a new file, private to the user, and return its descriptor for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    def write(self, descriptor: int, buffers: Sequence[memoryview]) -> int:
        """Append ``buffers``; return how many bytes were taken."""
        return os.writev(descriptor, buffers)

    def start_writing(self, descriptor: int, start_bytes: int, size_bytes: int) -> None:
        """Let the device begin with bytes that a `sync` will wait for; where that can be done.

        It promises nothing, and what goes wrong is left for `sync` to tell: only that call
        takes note of errors of the device.
        """
        if _sync_file_range is not None:
            _sync_file_range(descriptor, start_bytes, size_bytes, _START_WRITING)

    def sync(self, descriptor: int) -> None:
        """Make the bytes of a file durable; its name is another matter."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file. Network file systems tell here what a write has come to."""
        os.close(descriptor)

    def link(self, path: Path, name: Path) -> None:
        """Give a file a second name, which must be free."""
        os.link(path, name)

    def rename(self, path: Path, name: Path) -> None:
        """Give a file another name, in place of whatever has it."""
        os.rename(path, name)  # noqa: PTH104  Beside its sisters.

    def remove(self, path: Path) -> None:
        """Take a name away."""
        os.unlink(path)  # noqa: PTH108

    def make_folder(self, path: Path) -> None:
        """Make a folder, private to the user."""
        os.mkdir(path, 0o700)  # noqa: PTH102

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable, those that are there and those that are gone."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


DISK = Disk()
