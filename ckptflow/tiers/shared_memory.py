"""Memory of the node that outlives the process: a killed worker's last capture is not lost.

All values of a tier lie in one `Arena`, whose size is fixed when the first value is put. It is
lost when the node restarts or loses power, when the file is removed, and where the batch system
clears ``/dev/shm`` in between. ``tests/conformance/test_shared_memory.py`` and
``tests/process/test_shared_memory.py``, which kills processes that use it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from ckptflow.errors import (
    AlreadyExists,
    ConfigError,
    CorruptionError,
    NotFoundError,
    TierDenied,
    TierFull,
    TierUnavailable,
)
from ckptflow.tiers import arena_file, numa
from ckptflow.tiers.arena import (
    ARENA_BYTES_MIN,
    ArenaDamagedError,
    ArenaFullError,
    Entry,
    KeyTakenError,
)
from ckptflow.tiers.arena_file import Mapped
from ckptflow.tiers.shelf import folders_of
from ckptflow.tiers.tier import check_key, is_key_part
from ckptflow.units import KIB, format_bytes, parse_bytes

_READ_TRIES = 1000  # Each means that somebody replaced the value while it was copied.
_SMALL_PART_BYTES = 64 * KIB
_PAGE_BYTES = 4 * KIB
_FIELDS = "name", "level", "capacity_bytes", "arena", "path", "node", "device", "strict"

T = TypeVar("T")


class SharedMemoryTier:
    """An arena in a memory file system or on a memory device.

    Args:
        name: used in messages.
        capacity_bytes: how large the arena is made, its index included.
        level: 0, unless the site knows better.
        arena: name of its file; that of the tier if not given. Who gives the same has the same.
        path: a folder on a memory file system, such as one mounted with ``mpol=bind:1``.
        node: the NUMA node whose memory it takes, for example that of a CXL expander.
        device: a memory device instead of a file, such as ``/dev/dax0.0``.
        strict: do not fall back to any memory when ``node`` or ``device`` cannot be had.

    Raises:
        ConfigError: ``path`` is no memory, or ``strict`` and something cannot be had.
    """

    def __init__(
        self,
        name: str = "shared_memory",
        *,
        capacity_bytes: int,
        level: int = 0,
        arena: str | None = None,
        path: str | Path = arena_file.SHARED_MEMORY,
        node: int | None = None,
        device: str | Path | None = None,
        strict: bool = False,
    ) -> None:
        self._name, self._level, self._capacity_bytes = name, level, capacity_bytes
        self._arena = name if arena is None else arena
        self._path, self._node, self._strict = Path(path).absolute(), node, strict
        self._device = None if device is None else Path(device)
        self._notes: list[str] = []
        self._mapped: Mapped | None = None
        self._bound_node: int | None = None  # The one that was asked for, if it can be had.
        self._made = False  # Whether the arena was made by this object.
        self._opening = threading.Lock()
        self._check()
        self._file = self._choose_file()

    def __repr__(self) -> str:
        return f"SharedMemoryTier({str(self._file)!r}, name={self._name!r})"

    def _check(self) -> None:
        if not is_key_part(self._arena):
            raise ConfigError(f"{self._arena!r} cannot be the name of an arena.")
        if self._capacity_bytes < ARENA_BYTES_MIN:
            raise ConfigError(
                f"Tier {self._name!r} needs a capacity of at least "
                f"{format_bytes(ARENA_BYTES_MIN)}, got {format_bytes(self._capacity_bytes)}."
            )
        if self._node is not None and not 0 <= self._node <= numa.NODE_MAX:
            raise ConfigError(f"There can be no NUMA node {self._node}.")
        if self._node is not None and self._device is not None:
            raise ConfigError(f"Tier {self._name!r}: a device lies on a node of its own.")

    def _choose_file(self) -> Path:
        """Return the file or device, and give up what cannot be had, with a word."""
        if self._device is not None:
            try:
                arena_file.device_size_bytes(self._device)
            except ConfigError as error:
                self._fall_back(str(error))
            else:
                return self._device
        if not self._path.is_dir():
            raise ConfigError(f"Tier {self._name!r}: there is no folder {self._path}.")
        kind, _ = arena_file.file_system_of(self._path)
        if kind not in arena_file.MEMORY_FILE_SYSTEMS:
            raise ConfigError(
                f"Tier {self._name!r}: {self._path} is on {kind}, which is no memory. "
                f"Give it a folder on tmpfs, or make it a tier of kind posix."
            )
        if self._node is not None and (reason := numa.why_not(self._node)):
            self._fall_back(reason)
        else:
            self._bound_node = self._node
        return arena_file.own_folder(self._path) / f"{self._arena}.arena"

    def _fall_back(self, reason: str) -> None:
        if self._strict:
            raise ConfigError(f"Tier {self._name!r} cannot be as strict as asked: {reason}")
        note = f"Tier {self._name!r} uses ordinary shared memory: {reason.rstrip('.')}."
        self._notes.append(note)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> SharedMemoryTier:
        """See `ckptflow.tiers.opening.Opens`. One spec is one tier in the whole process.

        So the memory that one task has mapped is mapped already for the next.
        """
        given = {key: spec[key] for key in _FIELDS if key in spec}
        identity = tuple(sorted((key, str(value)) for key, value in given.items()))
        with _opened_lock:
            tier = _opened.get(identity)
            if tier is None or tier.vanished:
                tier = _opened[identity] = cls(**given)
            return tier

    @classmethod
    def spec_of(cls, url: str) -> dict[str, Any]:
        """See `ckptflow.tiers.opening.HasAddresses`: ``shm://NAME?capacity=8GiB``."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if not is_key_part(parts.netloc) or parts.path or set(options) != {"capacity"}:
            raise ConfigError(f"{url!r}: write shm://NAME?capacity=8GiB.")
        return {
            "kind": "shared_memory",
            "name": "store",
            "level": 0,
            "arena": parts.netloc,
            "capacity_bytes": parse_bytes(options["capacity"]),
        }

    # --- what it is ---

    @property
    def name(self) -> str:
        """Name from the site file."""
        return self._name

    @property
    def level(self) -> int:
        """0 unless said otherwise: lost with the node's memory."""
        return self._level

    @property
    def can_create(self) -> bool:
        """A lock decides, among the processes of one node."""
        return True

    @property
    def spec(self) -> dict[str, Any]:
        """See `Tier.spec`."""
        spec: dict[str, Any] = {
            "kind": "shared_memory",
            "name": self._name,
            "level": self._level,
            "capacity_bytes": self._capacity_bytes,
            "arena": self._arena,
            "path": str(self._path),
            "strict": self._strict,
        }
        if self._node is not None:
            spec["node"] = self._node
        if self._device is not None:
            spec["device"] = str(self._device)
        return spec

    @property
    def file(self) -> Path:
        """The file or device that holds all values; a file may be removed by hand."""
        return self._file

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as it was asked for."""
        return tuple(self._notes)

    @property
    def vanished(self) -> bool:
        """Whether the arena that this tier used was removed."""
        return self._mapped is not None and self._mapped.vanished

    @property
    def placement(self) -> str:
        """Where the memory really is, for people."""
        mapped = self._open()
        if mapped is None:
            return f"{self._file}, not made yet"
        size_bytes = mapped.arena.size_bytes
        taken = f"{format_bytes(mapped.arena.used_bytes())} of {format_bytes(size_bytes)}"
        try:
            nodes = ", ".join(map(str, numa.nodes_of(mapped.memory, size_bytes)))
        except OSError as error:
            nodes = f"unknown ({error.strerror or error})"
        return f"{self._file}, {taken} used, NUMA nodes: {nodes}"

    # --- keys and values ---

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`."""
        check_key(key)
        self._put(key, [memoryview(part).cast("B") for part in parts], replace=True)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`."""
        check_key(key)
        try:
            self._put(key, [memoryview(value).cast("B")], replace=False)
        except KeyTakenError as error:
            raise AlreadyExists(f"Tier {self._name!r} already holds {key!r}.") from error

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        end = None if size_bytes is None else start_bytes + size_bytes
        return self._read(key, lambda value: bytes(value.data[start_bytes:end]))

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        view = np.frombuffer(memoryview(target).cast("B"), np.uint8)
        size = self._read(key, lambda value: _copy_from(value, view, start_bytes))
        if start_bytes + len(view) > size:
            raise CorruptionError(
                f"{key!r} on tier {self._name!r} ends after {size} bytes; "
                f"{len(view)} bytes were expected from byte {start_bytes} on."
            )

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        check_key(key)
        with self._using("read", key) as mapped:
            return self._find(mapped, key)[1].size_bytes

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`."""
        check_key(prefix, prefix=True)
        start = f"{prefix}/" if prefix else ""
        with self._using("list", prefix) as mapped:
            keys = mapped.arena.keys() if mapped else []
        yield from sorted(key for key in keys if key.startswith(start))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        yield from folders_of(list(self.iter_keys(prefix)), prefix)

    def delete(self, key: str) -> None:
        """See `Tier.delete`."""
        check_key(key)
        with self._using("delete", key) as mapped:
            if mapped is not None:
                mapped.arena.delete(key)

    def sweep(self, prefix: str = "") -> int:
        """See `Sweeping.sweep`: the space of writers that are dead, whatever they wrote."""
        with self._using("sweep", check_key(prefix, prefix=True)) as mapped:
            return mapped.arena.reclaim() if mapped else 0

    def remove(self) -> None:
        """Remove the arena with all values, and give its memory back to the node.

        Processes that have it open find it unavailable from then on.

        Raises:
            ConfigError: it is a device, which cannot be removed.
        """
        if self._file == self._device:
            raise ConfigError(f"{self._file} is a device; clear its first 4 KiB instead.")
        self._file.unlink(missing_ok=True)

    def unmake(self) -> None:
        """See `Placed.unmake`."""
        with self._opening:
            mapped = self._mapped
            if self._made and mapped is not None and not mapped.arena.keys():
                self.remove()
                self._mapped, self._made = None, False

    # --- how ---

    def _put(self, key: str, parts: list[memoryview], *, replace: bool) -> None:
        with self._using("write", key):
            mapped = self._open(make=True)
            assert mapped is not None
            if replace and self._has_the_same(mapped, key, parts):
                return
            if not replace and mapped.arena.find(key) is not None:
                raise KeyTakenError(key)
            entry = self._reserve(mapped, key, sum(map(len, parts)))
            try:
                mapped.populate(entry.start_bytes, entry.size_bytes, write=True)
                _copy_to(parts, mapped.arena.view(entry))
                self._refuse_if_vanished(mapped)
                mapped.arena.publish(entry, key, replace=replace)
            except BaseException:
                mapped.arena.abandon(entry)
                raise

    def _reserve(self, mapped: Mapped, key: str, size_bytes: int) -> Entry:
        try:
            return mapped.arena.reserve(key, size_bytes)
        except ArenaFullError as error:
            raise TierFull(
                f"Tier {self._name!r} has no room for the {format_bytes(size_bytes)} of "
                f"{key!r}: {error}, in an arena of {format_bytes(mapped.arena.size_bytes)}. "
                f"Prune it, or remove {self._file} and give it more."
            ) from error

    def _has_the_same(self, mapped: Mapped, key: str, parts: list[memoryview]) -> bool:
        """Tell whether the value is there already, so that no second one needs room."""
        entry = mapped.arena.find(key)
        if entry is None or entry.size_bytes != sum(map(len, parts)):
            return False
        value, at = mapped.arena.view(entry), 0
        for part in parts:
            piece = value[at : at + len(part)]
            if not np.array_equal(piece, np.frombuffer(part, np.uint8)):
                return False
            at += len(part)
        return mapped.arena.holds(entry)

    def _read(self, key: str, copy: Callable[[NDArray[np.uint8]], T]) -> T:
        check_key(key)
        with self._using("read", key) as mapped:
            for _ in range(_READ_TRIES):
                there, entry = self._find(mapped, key)
                there.populate(entry.start_bytes, entry.size_bytes, write=False)
                result = copy(there.arena.view(entry))
                if there.arena.holds(entry):
                    return result
        raise TierUnavailable(
            f"{key!r} on tier {self._name!r} was replaced {_READ_TRIES} times while being read."
        )

    def _find(self, mapped: Mapped | None, key: str) -> tuple[Mapped, Entry]:
        entry = None if mapped is None else mapped.arena.find(key)
        if mapped is None or entry is None:
            raise NotFoundError(f"Tier {self._name!r} ({self._file}) holds no {key!r}.")
        return mapped, entry

    @contextlib.contextmanager
    def _using(self, verb: str, key: str) -> Iterator[Mapped | None]:
        """Give the arena if there is one, and say in our words what goes wrong with it."""
        try:
            yield self._open()
        except OSError as error:
            where = f"{verb} {key!r} on tier {self._name!r} ({self._file})"
            if isinstance(error, TimeoutError):
                raise TierUnavailable(
                    f"Cannot {where}: {error} Is that process stopped?"
                ) from error
            if isinstance(error, PermissionError):
                raise TierDenied(f"May not {where}: {error}. Mend its rights.") from error
            raise TierUnavailable(f"Cannot {where}: {error}.") from error
        except ArenaDamagedError as error:
            raise TierUnavailable(f"Cannot {verb} {key!r}: {self._file}: {error}.") from error

    def _open(self, *, make: bool = False) -> Mapped | None:
        """Return the arena; it is made when something is to be put into it."""
        with self._opening:
            if self._mapped is None:
                self._mapped = self._open_file(make=make)
            elif self._file != self._device:
                self._refuse_if_vanished(self._mapped)
            return self._mapped

    def _open_file(self, *, make: bool) -> Mapped | None:
        wanted_bytes = self._capacity_bytes // _PAGE_BYTES * _PAGE_BYTES
        if self._file == self._device:
            return arena_file.open_device(self._file, wanted_bytes if make else None)
        if not make and not self._file.parent.is_dir():
            return None
        arena_file.make_own_folder(self._file.parent)
        self._made = make and not self._file.exists()
        mapped = arena_file.open_file(
            self._file, wanted_bytes if make else None, node=self._bound_node
        )
        if mapped is not None and mapped.arena.size_bytes != wanted_bytes:
            self._notes.append(
                f"Tier {self._name!r} has {format_bytes(mapped.arena.size_bytes)} instead of "
                f"{format_bytes(wanted_bytes)}: so large is {self._file}, which was there. "
                f"Remove it to change that."
            )
        return mapped

    def _refuse_if_vanished(self, mapped: Mapped) -> None:
        if mapped.vanished:
            raise TierUnavailable(
                f"Tier {self._name!r}: {self._file} was removed while it was in use, and all "
                f"that was in it is lost. The next process makes a new one."
            )


def _copy_to(parts: list[memoryview], target: NDArray[np.uint8]) -> None:
    at, view = 0, target.data
    for part in parts:
        if len(part) < _SMALL_PART_BYTES:
            view[at : at + len(part)] = part
        else:  # NumPy lets other threads run meanwhile.
            target[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)


def _copy_from(value: NDArray[np.uint8], target: NDArray[np.uint8], start_bytes: int) -> int:
    """Fill ``target`` as far as the value goes; return the size of the value."""
    piece = value[start_bytes : start_bytes + len(target)]
    target[: len(piece)] = piece
    return len(value)


_opened: dict[tuple[tuple[str, str], ...], SharedMemoryTier] = {}
_opened_lock = threading.Lock()
