"""A folder as a tier: node-local disks and parallel file systems.

Keys are paths below the folder. Files and folders are private to the user; symbolic links
are not followed on the last step, and keys cannot climb out of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from typing_extensions import Buffer

from ckptflow.errors import (
    AlreadyExists,
    ConfigError,
    CorruptionError,
    NotFoundError,
    TierDenied,
    TierError,
    TierFull,
    TierUnavailable,
)
from ckptflow.tiers import durable
from ckptflow.tiers.disk import DISK, Disk
from ckptflow.tiers.tier import check_key, is_key_part

_READ_BYTES_MAX = 1 << 30
_PARTIAL_AGE_S = 86_400.0  # A put that is a day old has no writer any more.
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EKEYEXPIRED, errno.ENOKEY)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Everything else may pass: EIO, ESTALE, ETIMEDOUT, ENODEV, ENOTCONN, EHOSTDOWN, EREMOTEIO, ...


class PosixTier:
    """A folder that holds one file per key.

    Args:
        root: the folder; made on the first write.
        name: used in messages.
        level: 1 for a node's own disk, 3 for a parallel file system.
        disk: makes the system calls that write; another one only in tests.
    """

    def __init__(
        self, root: str | Path, *, name: str = "posix", level: int = 1, disk: Disk = DISK
    ) -> None:
        self._folders = durable.Folders(disk)
        self._root, self._name, self._level = Path(root).absolute(), name, level
        if self._root.exists() and not self._root.is_dir():
            raise ConfigError(f"Tier {name!r} needs a folder, but {self._root} is a file.")

    def __repr__(self) -> str:
        return f"PosixTier({str(self._root)!r}, name={self._name!r}, level={self._level})"

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> PosixTier:
        """See `ckptflow.tiers.opening.Opens`."""
        return cls(spec["path"], name=spec["name"], level=spec["level"])

    @classmethod
    def spec_of(cls, url: str) -> dict[str, Any]:
        """See `ckptflow.tiers.opening.HasAddresses`: ``file:///absolute/path``."""
        path = unquote(url.removeprefix("file://"))
        if not path.startswith("/"):
            raise ConfigError(f"{url!r}: write file:///absolute/path, or just the path.")
        return {"kind": "posix", "name": "store", "level": 1, "path": path}

    @property
    def name(self) -> str:
        """Name from the site file."""
        return self._name

    @property
    def level(self) -> int:
        """Survival class of the file system."""
        return self._level

    @property
    def can_create(self) -> bool:
        """The file system decides: see `durable.create_exclusive`."""
        return True

    @property
    def spec(self) -> dict[str, Any]:
        """See `Tier.spec`."""
        return {
            "kind": "posix",
            "name": self._name,
            "level": self._level,
            "path": str(self._root),
        }

    @property
    def root(self) -> Path:
        """The folder, absolute."""
        return self._root

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        with self._translated("write", key):
            durable.write_atomic(self._path(key), parts, self._folders)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        with self._translated("create", key):
            durable.create_exclusive(self._path(key), value, self._folders)

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        with self._translated("read", key), self._opened(key) as descriptor:
            left = max(0, os.fstat(descriptor).st_size - start_bytes)
            return _read_some(
                descriptor, left if size_bytes is None else min(size_bytes, left), start_bytes
            )

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        view = memoryview(target).cast("B")
        with self._translated("read", key), self._opened(key) as descriptor:
            filled = _read_full(descriptor, view, start_bytes)
        if filled < len(view):
            raise CorruptionError(
                f"{key!r} on tier {self._name!r} ends after {start_bytes + filled} bytes; "
                f"{len(view)} bytes were expected from byte {start_bytes} on."
            )

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        with self._translated("read", key), self._opened(key) as descriptor:
            return os.fstat(descriptor).st_size

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        check_key(prefix, prefix=True)
        yield from sorted(self._walk(prefix))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        check_key(prefix, prefix=True)
        with self._translated("list", prefix):
            names = [
                entry.name
                for entry in self._scan(prefix)
                if entry.is_dir(follow_symlinks=False)
            ]
        for name in sorted(names):
            if next(self._walk(f"{prefix}/{name}" if prefix else name), None) is not None:
                yield name

    def last_keys(self, prefix: str, count: int) -> list[str]:
        """See `Ordered.last_keys`. One look at all names, and another at the last of them.

        To look at each of a hundred thousand entries would take ten times as long.
        """
        check_key(prefix, prefix=True)
        with self._translated("list", prefix):
            try:
                names = os.listdir(self._root / prefix)  # noqa: PTH208 - no Path for each
            except (FileNotFoundError, NotADirectoryError):
                return []
            looked_at = count
            while True:
                last = heapq.nlargest(looked_at, names)
                keys = [f"{prefix}/{name}" if prefix else name for name in last]
                found = [key for key in keys if self._is_file(key)]
                if len(found) >= count or len(last) == len(names):
                    return found[:count]
                looked_at = 2 * looked_at  # Some were folders, or no keys at all.

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        with self._translated("delete", key), contextlib.suppress(FileNotFoundError):
            self._folders.disk.remove(self._path(key))

    def settle(self, prefix: str) -> None:
        """See `Settling.settle`."""
        # A folder that is not there holds nothing that could come back.
        with self._translated("sync", prefix), contextlib.suppress(FileNotFoundError):
            self._folders.disk.sync_folder(self._root / check_key(prefix, prefix=True))

    def sweep(self, prefix: str = "", *, now_s: float | None = None) -> int:
        """See `Sweeping.sweep`; a writer that began a day ago is taken for dead."""
        limit = (time.time() if now_s is None else now_s) - _PARTIAL_AGE_S
        removed = 0
        # A folder that others remove meanwhile has nothing to sweep.
        with self._translated("sweep", prefix), contextlib.suppress(FileNotFoundError):
            folder = self._root / check_key(prefix, prefix=True)
            for path in folder.rglob(f".*{durable.PARTIAL_SUFFIX}"):
                with contextlib.suppress(FileNotFoundError):  # Its writer was faster.
                    if path.stat(follow_symlinks=False).st_mtime < limit:
                        self._folders.disk.remove(path)
                        removed += 1
        return removed

    def _path(self, key: str) -> Path:
        """Return where the value of ``key`` is, below folders that are no symbolic links."""
        folder = self._root
        *parents, last = check_key(key).split("/")
        for part in parents:
            folder /= part
            if folder.is_symlink():
                raise TierDenied(
                    f"{key!r} on tier {self._name!r} lies behind {folder}, which is a symbolic "
                    f"link; links are not followed."
                )
        return folder / last

    def _scan(self, prefix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / prefix) as entries:
                # Partial files, and whatever else people put there, are no keys.
                return [entry for entry in entries if is_key_part(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _is_file(self, key: str) -> bool:
        if not is_key_part(key.rpartition("/")[2]):
            return False
        try:
            return stat.S_ISREG(self._path(key).stat(follow_symlinks=False).st_mode)
        except FileNotFoundError:  # Deleted since it was listed.
            return False

    def _walk(self, prefix: str) -> Iterator[str]:
        with self._translated("list", prefix):
            entries = self._scan(prefix)
        for entry in entries:
            key = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(key)
            elif entry.is_file(follow_symlinks=False):
                yield key

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        # Without waiting: what lies there may be a pipe, which nobody writes to.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._path(key), flags)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FileNotFoundError(errno.ENOENT, "not a regular file", key)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _translated(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._tier_error(verb, key, error) from error

    def _tier_error(self, verb: str, key: str, error: OSError) -> TierError | NotFoundError:
        if isinstance(error, FileExistsError) and verb == "create":
            return AlreadyExists(f"Tier {self._name!r} already holds {key!r}.")
        if error.errno in _ABSENT and verb == "read":
            return NotFoundError(f"Tier {self._name!r} ({self._root}) holds no {key!r}.")
        reason = f"{error.strerror or error} (errno {error.errno})"
        where = f"{verb} {key!r} on tier {self._name!r} ({self._root})"
        if error.errno in _FULL:
            return TierFull(f"No room to {where}: {reason}. Prune the tier or free space.")
        if error.errno in _DENIED:
            return TierDenied(f"May not {where}: {reason}. Mend the rights of the folder.")
        return TierUnavailable(f"Cannot {where}: {reason}.")


def _read_some(descriptor: int, size_bytes: int, start_bytes: int) -> bytes:
    """Return up to so many bytes, read into place: joining holds up all other threads."""
    pieces: list[bytes] = []
    while size_bytes and (
        piece := os.pread(descriptor, min(size_bytes, _READ_BYTES_MAX), start_bytes)
    ):
        pieces.append(piece)
        start_bytes += len(piece)
        size_bytes -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _read_full(descriptor: int, view: memoryview, start_bytes: int) -> int:
    filled = 0
    while filled < len(view):
        piece = view[filled : filled + _READ_BYTES_MAX]
        count = os.preadv(descriptor, [piece], start_bytes + filled)
        if count == 0:
            break
        filled += count
    return filled
