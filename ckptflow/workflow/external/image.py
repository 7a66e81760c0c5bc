"""Files as they go into a checkpoint and come out of it: bytes, name, mode, time.

A file is read once, into memory that nobody else has. It is not mapped: a code that cuts or
overwrites its file would kill the worker, or change what is being stored. What is too large
for memory is copied to a file without a name, beside it, and that is mapped.

Every file is looked at by opening it, since only that makes a network file system ask its
server; no symbolic link is followed. ``tests/unit/test_external_image.py``.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from ckptflow.errors import CaptureError, ConfigError, StateError
from ckptflow.tiers import durable
from ckptflow.workflow.external.names import checked_name

KIND = "files of a code, 1"

_PIECE_BYTES = 64 << 20  # Read and compared at once.
_MEMORY_PART = 0.25  # Of what is available; larger files go through one on the disk.
_MODE_BITS = 0o777  # No set-user-id bit comes out of a store.

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Sight:
    """What tells one content of a file from another, without reading it.

    Attributes:
        device: where it lies.
        inode: which file it is; a rename brings another one.
        size_bytes: its length.
        mtime_ns: when it was last written to.
        mode: its permissions.
    """

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    mode: int


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """One file, whole.

    Attributes:
        name: its path, relative to the folder of the task.
        data: its bytes.
        mode: its permissions.
        mtime_ns: when it was last written to.
    """

    name: str
    data: Bytes
    mode: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """The files of one checkpoint.

    Attributes:
        restart: the restart file.
        others: those that belong to it, by what ``with_files=`` calls them.
    """

    restart: Image
    others: Mapping[str, Image]

    @property
    def all(self) -> list[Image]:
        """All of them, the restart file last: when it is there, so are the others."""
        return [*self.others.values(), self.restart]


def look(folder: Path, name: str) -> Sight | None:
    """Return what a file looks like now; ``None`` if there is none.

    Raises:
        CaptureError: there is something that is no file, or it lies elsewhere.
        OSError: it cannot be looked at.
    """
    try:
        descriptor = _open(folder, name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _sight(descriptor)
    finally:
        os.close(descriptor)


def read_image(folder: Path, name: str, sight: Sight, *, appended: bool = False) -> Image:
    """Return a file as it was when `look` saw it.

    Args:
        folder: of the task.
        name: relative to it.
        sight: what `look` has seen.
        appended: the file may have got longer since, and is read up to the length it had.

    Raises:
        CaptureError: it has changed since, or changed while it was read.
        OSError: it cannot be read.
    """
    try:
        descriptor = _open(folder, name)
    except FileNotFoundError as error:
        raise CaptureError(f"{name} has gone while it was taken in.") from error
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        _check_same(name, sight, _sight(file.fileno()), appended=appended)
        data = _memory(sight.size_bytes, folder)
        done = 0
        while done < sight.size_bytes:
            got = file.readinto(data[done : done + _PIECE_BYTES].data)
            if not got:
                raise CaptureError(
                    f"{name} had {sight.size_bytes} bytes and ended after {done} when read."
                )
            done += got
        _check_same(name, sight, _sight(file.fileno()), appended=appended)
    # The name may lead to another file by now: a code that replaces it has gone on.
    again = look(folder, name)
    if again is None or not appended:
        _check_same(name, sight, again, appended=appended)
    return Image(name, data, sight.mode & _MODE_BITS, sight.mtime_ns)


def state_of_images(images: Images) -> dict[str, Any]:
    """Return the state that a checkpoint of these files holds.

    Names change from step to step. They are values, and the keys stay the same, so that a file
    is compared with the one of the step before.
    """
    return {
        "kind": KIND,
        "restart": _fields(images.restart),
        "files": {key: _fields(image) for key, image in images.others.items()},
    }


def images_of_state(state: Any) -> Images:
    """Return what `state_of_images` made a state of; it may come from somebody else's store.

    Raises:
        StateError: it is another state, or a name in it leads out of the folder.
    """
    if not isinstance(state, Mapping) or state.get("kind") != KIND:
        raise StateError(
            "The checkpoint holds no files of a code that watch= could put back: another kind "
            "of app of the same name has saved it. Use another name for the app or the run."
        )
    others = state.get("files")
    if not isinstance(others, Mapping):
        raise StateError("The checkpoint of a code lacks its list of files.")
    return Images(
        _image(state.get("restart")),
        {str(key): _image(one) for key, one in others.items()},
    )


def put_back(folder: Path, image: Image) -> bool:
    """Make a file be there with these bytes, mode and time; at once, and durably.

    Returns:
        Whether anything had to be written.

    Raises:
        ConfigError: the name leads out of the folder.
        OSError: it could not be written.
    """
    path = _place(folder, image.name)
    if holds(folder, image):
        return False
    durable.make_folders(path.parent)
    with durable.whole_file(path) as file:
        for begin in range(0, len(image.data), _PIECE_BYTES):
            file.write(image.data[begin : begin + _PIECE_BYTES].data)
        file.flush()
        os.fchmod(file.fileno(), image.mode & _MODE_BITS)
        os.utime(file.fileno(), ns=(image.mtime_ns, image.mtime_ns))
    return True


def holds(folder: Path, image: Image) -> bool:
    """Tell whether a file has exactly these bytes already."""
    with suppress(OSError, CaptureError):
        descriptor = _open(folder, image.name)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if os.fstat(descriptor).st_size != len(image.data):
                return False
            piece = np.empty(min(len(image.data), _PIECE_BYTES), np.uint8)
            done = 0
            while done < len(image.data):
                got = file.readinto(piece[: len(image.data) - done].data)
                if not got or not np.array_equal(piece[:got], image.data[done : done + got]):
                    return False
                done += got
            return True
    return False


def _open(folder: Path, name: str) -> int:
    """Open a regular file below the folder, and nothing that a link leads to."""
    path = _place(folder, name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if path.is_symlink():
            raise CaptureError(f"{name} is a symbolic link, which is not followed.") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CaptureError(f"{name} is no regular file.")
    return descriptor


def _place(folder: Path, name: str) -> Path:
    """Return where a name is; the folders on the way may not lead out either.

    Raises:
        ConfigError: it leads out.
    """
    path = folder / checked_name(name, "The file")
    root = folder.resolve()
    if not path.parent.resolve().is_relative_to(root):
        raise ConfigError(f"{name} lies outside of {root}: a link leads out of it.")
    return path


def _sight(descriptor: int) -> Sight:
    found = os.fstat(descriptor)
    return Sight(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode & _MODE_BITS
    )


def _check_same(name: str, before: Sight, after: Sight | None, *, appended: bool) -> None:
    if after is not None and appended:
        same_file = (before.device, before.inode) == (after.device, after.inode)
        if same_file and after.size_bytes >= before.size_bytes:
            return
    if before != after:
        raise CaptureError(f"{name} was written to while it was taken in.")


def _memory(size_bytes: int, folder: Path) -> Bytes:
    """Return memory for a file: the machine's, or that of a file which has no name."""
    if size_bytes <= _MEMORY_PART * psutil.virtual_memory().available:
        return np.empty(size_bytes, np.uint8)
    with tempfile.TemporaryFile(dir=folder, prefix=".ckptflow-") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)  # Full now, or never.
        return np.memmap(file, np.uint8, "r+", shape=(size_bytes,))


def _fields(image: Image) -> dict[str, Any]:
    return {
        "name": image.name,
        "mode": image.mode,
        "mtime_ns": image.mtime_ns,
        "data": image.data,
    }


def _image(fields: Any) -> Image:
    try:
        name, data = fields["name"], np.asarray(fields["data"])
        mode, mtime_ns = int(fields["mode"]), int(fields["mtime_ns"])
    except (TypeError, KeyError, ValueError) as error:
        raise StateError(f"The checkpoint of a code has a broken file: {error!r}.") from error
    if not isinstance(name, str) or data.dtype != np.uint8 or data.ndim != 1:
        raise StateError(f"The checkpoint of a code has a broken file {name!r}.")
    try:
        checked_name(name, "The file")
    except ConfigError as error:
        raise StateError(f"The checkpoint is not used: {error}") from error
    return Image(name, np.ascontiguousarray(data), mode, mtime_ns)


def matching(folder: Path, pattern: str) -> Sequence[str]:
    """Return the names, relative to the folder, of the regular files that match a pattern."""
    found = []
    for path in sorted(folder.glob(pattern)):
        if path.is_file() and not path.is_symlink():
            name = PurePosixPath(path.relative_to(folder).as_posix())
            found.append(str(name))
    return found
