"""Which arguments of a task are input files, and what is in them.

A `parsl.File` in any argument is an input file, except in ``outputs``, ``stdout`` and
``stderr``; so is a path in ``inputs``, and what an app names with ``files=``. A file counts by
its content: when that has changed the result of the task is not used again. A file that lies
elsewhere (``https:``, ``globus:``, or a host's) counts by its name.

A file is read once for as long as its size, time of change and inode stay the same, in this
life of the run and, through the journal, in later ones. A digest that was taken within two
seconds after the file was changed is not kept: clocks of file systems are coarse, and another
change would not show. ``tests/unit/test_input_files.py``.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias, get_args

from parsl.data_provider.files import File

from ckptflow.errors import ConfigError

FILES_MAX = 10_000  # In one folder that is given as an input.

_DIGITS = 32
_SETTLED_NS = 2_000_000_000
_NOT_READ = frozenset({"outputs", "stdout", "stderr"})

FilesBy: TypeAlias = Literal["content", "name"]
Stamp: TypeAlias = tuple[int, int, int, int]
"""Device, inode, size and time of change."""


class FileDigests:
    """Digests of files, each read once while it stays the same. Safe for several threads.

    Args:
        known: digests by path and stamp, from earlier lives of the run.
        told: told of each new digest that can be relied upon later.
    """

    def __init__(
        self,
        known: Mapping[tuple[str, Stamp], str] | None = None,
        *,
        told: Callable[[str, Stamp, str], None] = lambda _path, _stamp, _digest: None,
    ) -> None:
        self._known = dict(known or {})
        self._told = told
        self._lock = threading.Lock()

    def of(self, path: Path, *, task: str) -> str:
        """Return the digest of a file, or of a folder with all that is in it.

        Raises:
            ConfigError: it is not there or cannot be read, which ``task`` will not get over.
        """
        try:
            if path.is_dir():
                return self._of_folder(path, task)
            return self._of_file(path)
        except FileNotFoundError:
            raise ConfigError(
                f"{task} takes the file {str(path)!r}, which does not exist. Put it there; if "
                f"another task makes it, let this one take its output, so that it waits."
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{task} takes the file {str(path)!r}, which cannot be read: {error}"
            ) from error

    def _of_file(self, path: Path) -> str:
        with self._lock:  # So that two tasks do not read one file at the same time.
            stamp = _stamp(path)
            place = (str(path), stamp)
            if place not in self._known:
                began_ns = time.time_ns()
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
                if stamp[3] > began_ns - _SETTLED_NS or _stamp(path) != stamp:
                    return digest
                self._known[place] = digest
                self._told(str(path), stamp, digest)
            return self._known[place]

    def _of_folder(self, folder: Path, task: str) -> str:
        whole = hashlib.sha256()
        files = (one for one in folder.rglob("*") if one.is_file())
        found = list(itertools.islice(files, FILES_MAX + 1))
        if len(found) > FILES_MAX:
            raise ConfigError(
                f"{task} takes the folder {str(folder)!r}, which has more than {FILES_MAX} "
                f"files; name those that it reads."
            )
        for path in sorted(found):
            name = os.fsencode(path.relative_to(folder))
            whole.update(b"%d:%s%s" % (len(name), name, self._of_file(path).encode()))
        return whole.hexdigest()[:_DIGITS]


def files_of(function: Callable[..., Any], names: Sequence[str] | str) -> tuple[str, ...]:
    """Check ``files=`` of an app against the parameters of its function.

    Raises:
        ConfigError: it names something that is no parameter.
    """
    files = (names,) if isinstance(names, str) else tuple(names)
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if unknown := [one for one in files if one not in parameters and not takes_any]:
        raise ConfigError(
            f"files={files!r} of {function.__name__}() names {unknown}; its parameters are: "
            f"{', '.join(parameters) or 'none'}."
        )
    return files


def checked_files_by(value: object) -> FilesBy:
    """Return what of an input file counts.

    Raises:
        ConfigError: it is neither of the two.
    """
    for one in get_args(FilesBy):
        if value == one:
            return one  # type: ignore[no-any-return]
    raise ConfigError(f"files_by is 'content' or 'name', not {value!r}.")


def local_path(value: object, *, paths: bool) -> Path | None:
    """Return where a value says that a file lies on this machine; ``None`` if it does not.

    Args:
        value: an argument.
        paths: whether texts and paths are meant as names of files, too.
    """
    if isinstance(value, File):
        here = value.scheme == "file" and value.netloc in ("", "localhost")
        return Path(value.path).absolute() if here else None
    if paths and isinstance(value, str | PurePath):
        return Path(value).absolute()
    return None


def input_files(
    arguments: Mapping[str, Any], names: Collection[str] = ()
) -> Iterator[tuple[str, Path]]:
    """Yield each input file among arguments, with where it stands: ``inputs[0]``.

    Args:
        arguments: by name of the parameter.
        names: parameters whose texts and paths name input files.
    """
    for name, value in arguments.items():
        if name not in _NOT_READ:
            paths = name in names
            yield from _within(name, value, paths=paths, listed=paths or name == "inputs")


def missing_outputs(outputs: object) -> list[Path]:
    """Return the files among the ``outputs`` of a task that should be here and are not."""
    places = (local_path(one, paths=False) for one in _items(outputs))
    return [place for place in places if place is not None and not place.exists()]


def _within(
    where: str, value: object, *, paths: bool, listed: bool
) -> Iterator[tuple[str, Path]]:
    if isinstance(value, str) and not paths:
        return
    if (path := local_path(value, paths=paths)) is not None:
        yield where, path
    elif items := _items(value):
        for number, one in enumerate(items):
            as_path = paths or (listed and isinstance(one, PurePath))
            yield from _within(f"{where}[{number}]", one, paths=as_path, listed=listed)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _within(f"{where}[{key!r}]", one, paths=paths, listed=listed)


def _items(value: object) -> Sequence[Any]:
    """Return the items of a list or a tuple; other values have none."""
    return value if isinstance(value, list | tuple) else ()


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
