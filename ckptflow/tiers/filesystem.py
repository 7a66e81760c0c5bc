"""Any filesystem that fsspec knows, or one that the user hands in, as a tier.

A value is whole or absent by one of two ways. ``move``: it is written under a temporary name
and moved, where moving is one rename. ``direct``: it is put at once under its own name, where
a put shows nothing before it is complete (object stores). Which one is right is known for the
usual filesystems, and has to be said for others, since the wrong one would show halves.

How durable a value is on return is what the filesystem means by closing a file; where a file
has a descriptor it is synced, too. Nothing here trusts the listings that fsspec remembers.

``tests/conformance/test_filesystem_tier.py`` and ``tests/unit/test_filesystem_tier.py``.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Buffer

from ckptflow.errors import AlreadyExists, ConfigError, CorruptionError, TierUnavailable
from ckptflow.tiers import durable
from ckptflow.tiers.filesystem_kinds import (
    HANDED_IN,
    Commit,
    commit_of,
    innermost,
    is_local,
    move_replaces,
    open_filesystem,
    options_of,
    reopenable,
)
from ckptflow.tiers.foreign_errors import translated
from ckptflow.tiers.secrets import blot_out, secrets_in
from ckptflow.tiers.tier import check_key, is_key_part
from ckptflow.units import MIB

_PIECE_BYTES = 64 * MIB  # So much is asked for in one read, and held besides the target.
_PARTIAL_AGE_S = 86_400.0  # A put that is a day old has no writer any more.
_Info = Mapping[str, Any]


class FilesystemTier:
    """A folder of an fsspec filesystem that holds one file per key.

    Args:
        fs: the filesystem, an instance of ``fsspec.AbstractFileSystem``.
        path: the folder on it; made on the first write.
        name: used in messages.
        level: what it survives; 4 for something remote.
        commit: ``move`` or ``direct``, see the module; known for the usual filesystems.
        spec: how it was opened, if from a spec.

    Raises:
        ConfigError: ``commit`` is not given and not known for this filesystem.
    """

    def __init__(
        self,
        fs: Any,
        path: str,
        *,
        name: str = "fsspec",
        level: int = 4,
        commit: Commit | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        self._fs, self._name, self._level = fs, name, level
        self._root = str(fs._strip_protocol(str(path))).rstrip("/")  # noqa: SLF001 (no other)
        self._commit, self._folders = commit_of(fs, commit), durable.Folders()
        self._secrets = secrets_in(options_of(fs))
        self._spec = dict(spec) if spec is not None else self._own_spec(commit)
        self._where = blot_out(f"tier {name!r} ({innermost(fs)}: {path})", self._secrets)

    def __repr__(self) -> str:
        return f"FilesystemTier({self._where}, level={self._level})"

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> FilesystemTier:
        """See `ckptflow.tiers.opening.Opens`.

        Raises:
            ConfigError: fsspec knows no such address, or it was a filesystem handed in.
        """
        fs, path = open_filesystem(spec)
        return cls(
            fs,
            path,
            name=spec["name"],
            level=spec["level"],
            commit=spec.get("commit"),
            spec=spec,
        )

    @classmethod
    def spec_of(cls, url: str) -> dict[str, Any]:
        """See `ckptflow.tiers.opening.HasAddresses`: ``fsspec+protocol://path``."""
        address = url.removeprefix("fsspec+")
        return {"kind": "fsspec", "name": "store", "level": 4, "address": address}

    @property
    def name(self) -> str:
        """Name from the site file."""
        return self._name

    @property
    def level(self) -> int:
        """What it survives."""
        return self._level

    @property
    def can_create(self) -> bool:
        """Only the local filesystem decides; fsspec has no such promise for the others."""
        return is_local(self._fs)

    @property
    def spec(self) -> dict[str, Any]:
        """See `Tier.spec`.

        A filesystem that was handed in with options of its own is only named: options may
        be secret. Such a spec opens nowhere else, and says so.
        """
        return dict(self._spec)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`. With ``direct`` the value is in memory once more meanwhile."""
        path = self._path(key)
        with translated("write", key, self._where, self._secrets):
            self._make_folder(path)
            if self._commit == "direct":
                self._fs.pipe_file(path, b"".join(memoryview(part).cast("B") for part in parts))
            else:
                self._put_by_move(path, parts)
        expected, found = sum(memoryview(part).nbytes for part in parts), self.size(key)
        if found != expected:
            raise TierUnavailable(
                f"Cannot write {key!r} on {self._where}: {expected} bytes went there, and it "
                f"holds {found}. Somebody else writes this key, or the filesystem loses data."
            )

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        path = self._path(key)
        if not self.can_create:
            raise ConfigError(
                f"{self._where} cannot decide between two that claim {key!r}; "
                f"claims need a tier of another kind beside it."
            )
        with translated("create", key, self._where, self._secrets):
            try:
                durable.create_exclusive(Path(self._local(path)), value, self._folders)
            except FileExistsError as error:
                raise AlreadyExists(f"Tier {self._name!r} already holds {key!r}.") from error

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        left = max(0, self.size(key) - start_bytes)
        wanted = left if size_bytes is None else min(size_bytes, left)
        # What a server says of sizes is not trusted with memory; only what it sends is.
        return b"".join(self._pieces(key, start_bytes, start_bytes + wanted))

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        view, held_bytes = memoryview(target).cast("B"), self.size(key)
        filled = 0
        if start_bytes + len(view) <= held_bytes:
            filled = self._fill(key, view, start_bytes)
            held_bytes = start_bytes + filled  # As far as this look goes.
        if filled < len(view):
            raise CorruptionError(
                f"{key!r} on tier {self._name!r} ends after {held_bytes} bytes; "
                f"{len(view)} bytes were expected from byte {start_bytes} on."
            )

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        path = self._path(key)
        with translated("read", key, self._where, self._secrets):
            self._forget_listings(path)
            info = self._fs.info(path)
            if not _is_file(info):
                raise FileNotFoundError(path)
            return int(info["size"])

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        check_key(prefix, prefix=True)
        yield from sorted(self._walk(prefix))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        check_key(prefix, prefix=True)
        for name, info in sorted(self._entries(prefix).items()):
            below = f"{prefix}/{name}" if prefix else name
            if _is_folder(info) and next(self._walk(below), None) is not None:
                yield name

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        path = self._path(key)
        with (
            translated("delete", key, self._where, self._secrets),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            self._forget_listings(path)
            self._fs.rm_file(path)

    def sweep(self, prefix: str, *, now_s: float | None = None) -> int:
        """See `Sweeping.sweep`; a writer that began a day ago is taken for dead."""
        check_key(prefix, prefix=True)
        limit_s = (time.time() if now_s is None else now_s) - _PARTIAL_AGE_S
        removed = 0
        for folder in [prefix, *self._folders_below(prefix)]:
            for name in self._entries(folder, partial=True):
                path = f"{self._path_of(folder)}/{name}"
                with (
                    translated("sweep", folder, self._where, self._secrets),
                    contextlib.suppress(FileNotFoundError),  # Its writer was faster.
                ):
                    if self._fs.modified(path).timestamp() < limit_s:
                        self._fs.rm_file(path)
                        removed += 1
        return removed

    def _own_spec(self, commit: Commit | None) -> dict[str, Any]:
        spec = {"kind": "fsspec", "name": self._name, "level": self._level}
        address = f"{innermost(self._fs)}://{self._root.lstrip('/')}"
        if is_local(self._fs):
            address = f"file://{self._local(self._root)}"
        shown = blot_out(address, self._secrets)
        spec["address"] = shown if reopenable(self._fs) else HANDED_IN + shown
        if commit is not None:
            spec["commit"] = commit
        return spec

    def _local(self, path: str) -> str:
        fs = self._fs
        while hasattr(fs, "fs") and hasattr(fs, "_join"):  # `dir://` around it.
            fs, path = fs.fs, fs._join(path)  # noqa: SLF001 (it has no public name)
        return str(path)

    def _put_by_move(self, path: str, parts: Sequence[Buffer]) -> None:
        partial = f"{path.rsplit('/', 1)[0]}/.{uuid.uuid4().hex}{durable.PARTIAL_SUFFIX}"
        try:
            with self._fs.open(partial, "wb") as file:
                descriptor = _descriptor(file)
                if descriptor is not None:
                    os.fchmod(descriptor, 0o600)
                for part in parts:
                    file.write(memoryview(part).cast("B"))
                file.flush()
                if descriptor is not None:
                    os.fsync(descriptor)
            if not move_replaces(self._fs) and self._fs.exists(path):
                self._fs.rm_file(path)  # Absent for an instant, but never half there.
            self._fs.mv(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.rm_file(partial)
            raise
        if is_local(self._fs):
            self._folders.disk.sync_folder(Path(self._local(path)).parent)

    def _make_folder(self, path: str) -> None:
        folder = path.rsplit("/", 1)[0]
        if is_local(self._fs):
            self._folders.make(Path(self._local(folder)))
        elif self._commit == "move":
            self._fs.makedirs(folder, exist_ok=True)

    def _fill(self, key: str, view: memoryview, start_bytes: int) -> int:
        filled = 0
        for piece in self._pieces(key, start_bytes, start_bytes + len(view)):
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _pieces(self, key: str, first: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from ``first`` to before ``end``, or to where they end."""
        path = self._path(key)
        while first < end:
            last = min(first + _PIECE_BYTES, end)
            with translated("read", key, self._where, self._secrets):
                piece = bytes(self._fs.cat_file(path, start=first, end=last))
            yield piece[: last - first]
            if len(piece) < last - first:
                return
            first = last

    def _path(self, key: str) -> str:
        return self._path_of(check_key(key))

    def _path_of(self, prefix: str) -> str:
        return f"{self._root}/{prefix}" if prefix else self._root

    def _forget_listings(self, path: str) -> None:
        self._fs.invalidate_cache(path.rsplit("/", 1)[0])
        self._fs.invalidate_cache(path)

    def _entries(self, prefix: str, *, partial: bool = False) -> dict[str, _Info]:
        """Return what lies directly below: what may be part of a key, or the partial files."""
        path = self._path_of(prefix)
        with translated("list", prefix, self._where, self._secrets):
            self._forget_listings(path)
            try:
                found = self._fs.ls(path, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        named = {
            str(info["name"]).rstrip("/").rsplit("/", 1)[-1]: info
            for info in found
            # Some name the folder itself, or the file that was asked for.
            if str(info["name"]).strip("/") != path.strip("/")
        }
        return {
            name: info
            for name, info in named.items()
            if (durable.is_partial(name) if partial else is_key_part(name))
        }

    def _walk(self, prefix: str) -> Iterator[str]:
        for name, info in self._entries(prefix).items():
            key = f"{prefix}/{name}" if prefix else name
            if _is_folder(info):
                yield from self._walk(key)
            elif _is_file(info):
                yield key

    def _folders_below(self, prefix: str) -> Iterator[str]:
        for name, info in self._entries(prefix).items():
            if _is_folder(info):
                below = f"{prefix}/{name}" if prefix else name
                yield below
                yield from self._folders_below(below)


def _is_file(info: _Info) -> bool:
    return info["type"] == "file" and not info.get("islink")


def _is_folder(info: _Info) -> bool:
    return info["type"] == "directory" and not info.get("islink")


def _descriptor(file: Any) -> int | None:
    """Return the descriptor of a file of this computer; others have none."""
    try:
        return int(file.fileno())
    except (AttributeError, OSError, TypeError):
        return None
