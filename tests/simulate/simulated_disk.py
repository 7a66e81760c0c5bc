"""A disk that forgets whatever POSIX lets it forget, and the works of those who lie.

`RecordingDisk` makes the real calls, without the real syncs, and remembers them in order. From
such a list `after_power_cut` draws a state that a power cut may leave:

* of a file: what was written before its last sync is there; of what was appended since, any
  length may be, and each block of it may hold the bytes, zeros, or what lay on the disk before;
* of a folder: each name that was changed since the last sync of the folder may have any of the
  values that it had since, independently of all others. So creations, renames and removals may
  get lost and may come in any order, and a rename may have happened to one of its two names;
* a folder whose own name is lost is lost with all that is in it.

Journalling file systems are kinder than this. A name that is replaced is never without a value:
that is what rename promises, crash or not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckptflow.testing.faults import Crash
from ckptflow.tiers.disk import Disk
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import is_key_part

BLOCK_BYTES = 512

Call = tuple[str, int, str, object]
"""What, the number of the file or folder, the name in the folder, the value."""


@dataclass
class Log:
    """The calls of all processes that ever used the disk, and when what was promised."""

    root: Path
    calls: list[Call] = field(default_factory=list)
    folders: dict[Path, int] = field(default_factory=dict)
    files: dict[Path, int] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.root.mkdir()
        self.folders[self.root] = self.number()

    def number(self) -> int:
        return next(self._numbers)

    def add(self, what: str, number: int, name: str = "", value: object = None) -> None:
        self.calls.append((what, number, name, value))

    def name(self, path: Path, value: int | None) -> None:
        """A name in a folder has got a new value; ``None``: it is gone."""
        self.add("name", self.folders[path.parent], path.name, value)


class RecordingDisk(Disk):
    """The disk as one process sees it, which dies before its ``dies_at``-th call."""

    def __init__(self, log: Log, *, dies_at: int | None = None) -> None:
        self.log, self.calls, self._dies_at = log, 0, dies_at
        self._open: dict[int, int] = {}

    def _begin(self) -> None:
        if self._dies_at is not None and self.calls >= self._dies_at:
            raise Crash("the process was killed")
        self.calls += 1

    def create(self, path: Path) -> int:
        self._begin()
        descriptor = super().create(path)
        self._open[descriptor] = self.log.files[path] = self.log.number()
        self.log.name(path, self.log.files[path])
        return descriptor

    def write(self, descriptor: int, buffers: Sequence[memoryview]) -> int:
        self._begin()
        written = super().write(descriptor, buffers)
        data = b"".join(buffers)[:written]
        self.log.add("write", self._open[descriptor], value=data)
        return written

    def sync(self, descriptor: int) -> None:
        self._begin()
        self.log.add("sync", self._open[descriptor])

    def close(self, descriptor: int) -> None:
        super().close(descriptor)  # What the kernel does for the dead, too.
        del self._open[descriptor]

    def link(self, path: Path, name: Path) -> None:
        self._begin()
        super().link(path, name)
        self.log.files[name] = self.log.files[path]
        self.log.name(name, self.log.files[name])

    def rename(self, path: Path, name: Path) -> None:
        self._begin()
        super().rename(path, name)
        self.log.files[name] = self.log.files.pop(path)
        self.log.name(name, self.log.files[name])
        self.log.name(path, None)

    def remove(self, path: Path) -> None:
        self._begin()
        super().remove(path)
        del self.log.files[path]
        self.log.name(path, None)

    def make_folder(self, path: Path) -> None:
        self._begin()
        super().make_folder(path)
        self.log.folders[path] = self.log.number()
        self.log.name(path, self.log.folders[path])

    def sync_folder(self, path: Path) -> None:
        if path in self.log.folders:  # Those above the store are somebody else's.
            self._begin()
            self.log.add("sync", self.log.folders[path])


class DiskThatSyncsNoFile(RecordingDisk):
    """As if `durable` had left it out."""

    def sync(self, descriptor: int) -> None:
        self._begin()


class DiskThatSyncsNoFolder(RecordingDisk):
    """As if `durable` had left it out."""

    def sync_folder(self, path: Path) -> None:
        if path in self.log.folders:
            self._begin()


class DiskThatSyncsAfterTheRename(RecordingDisk):
    """As if `durable` had the two in the wrong order."""

    def __init__(self, log: Log, *, dies_at: int | None = None) -> None:
        super().__init__(log, dies_at=dies_at)
        self._late: list[int] = []

    def sync(self, descriptor: int) -> None:
        self._late.append(self._open[descriptor])

    def rename(self, path: Path, name: Path) -> None:
        super().rename(path, name)
        self._begin()
        for number in self._late:
            self.log.add("sync", number)
        self._late.clear()


class DiskThatSyncsNoNewFolder(RecordingDisk):
    """As if `durable` synced the folder of the file only, and none of those above."""

    def sync_folder(self, path: Path) -> None:
        if any(one.is_file() for one in path.iterdir()):
            super().sync_folder(path)


class DiskThatTrustsWhatItFinds(RecordingDisk):
    """As if `durable` synced the names of those folders only that it made itself.

    Then nobody syncs the name of a folder whose maker was killed in between.
    """

    def __init__(self, log: Log, *, dies_at: int | None = None) -> None:
        super().__init__(log, dies_at=dies_at)
        self._made_in: set[Path] = set()

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self._made_in.add(path.parent)

    def sync_folder(self, path: Path) -> None:
        if path in self._made_in or any(one.is_file() for one in path.iterdir()):
            super().sync_folder(path)


class DiskThatSyncsNoRemoval(RecordingDisk):
    """As if prune did not settle the manifests that it deletes before it deletes packs."""

    def sync_folder(self, path: Path) -> None:
        last = self.log.calls[-1]
        if (
            last[:2] != ("name", self.log.folders.get(path))
            or last[3] is not None
            or last[2].endswith(".partial")
        ):
            super().sync_folder(path)


# --- what is left ---


def after_power_cut(log: Log, at: int, rng: random.Random) -> dict[Path, bytes]:
    """Return, by path, the files that are left if the power goes before call ``at``.

    How much of what may get lost does is drawn as well: a disk that loses half of everything
    every time would never show what needs one loss exactly.
    """
    synced: dict[int, int] = {}  # Number to the index of its last sync.
    for index, (what, number, _, _) in enumerate(log.calls[:at]):
        if what == "sync":
            synced[number] = index
    loss = rng.choice([0.05, 0.5, 0.95])
    data, names = _contents(log, at, synced, rng, loss), _names(log, at, synced, rng, loss)
    found: dict[Path, bytes] = {}

    def walk(folder: int, path: Path) -> None:
        for name, number in names.get(folder, {}).items():
            if number in data:
                found[path / name] = data[number]
            else:
                walk(number, path / name)

    walk(log.folders[log.root], Path())
    return found


def _names(
    log: Log, at: int, synced: dict[int, int], rng: random.Random, loss: float
) -> dict[int, dict[str, int]]:
    values: dict[tuple[int, str], list[object]] = {}
    for index, (what, folder, name, value) in enumerate(log.calls[:at]):
        if what == "name":
            history = values.setdefault((folder, name), [None])
            if index < synced.get(folder, -1):
                history.clear()
            history.append(value)
    names: dict[int, dict[str, int]] = {}
    for (folder, name), history in values.items():
        chosen = len(history) - 1
        while chosen and rng.random() < loss:
            chosen -= 1
        number = history[chosen]
        if isinstance(number, int):
            names.setdefault(folder, {})[name] = number
    return names


def _contents(
    log: Log, at: int, synced: dict[int, int], rng: random.Random, loss: float
) -> dict[int, bytes]:
    folders = set(log.folders.values())
    sure: dict[int, bytearray] = {}
    unsure: dict[int, bytearray] = {}
    for index, (what, number, _, value) in enumerate(log.calls[:at]):
        if what == "name" and isinstance(value, int) and value not in folders:
            sure.setdefault(value, bytearray())
        elif what == "write":
            assert isinstance(value, bytes)
            kind = sure if index < synced.get(number, -1) else unsure
            kind.setdefault(number, bytearray()).extend(value)
    return {
        number: bytes(data) + _mangled(unsure.get(number, bytearray()), rng, loss)
        for number, data in sure.items()
    }


def _mangled(data: bytearray, rng: random.Random, loss: float) -> bytes:
    kept = data if rng.random() > loss else data[: rng.randint(0, len(data))]
    blocks = []
    for start in range(0, len(kept), BLOCK_BYTES):
        block = bytes(kept[start : start + BLOCK_BYTES])
        if rng.random() < loss:
            block = bytes(len(block)) if rng.random() < 0.5 else rng.randbytes(len(block))
        blocks.append(block)
    return b"".join(blocks)


def as_tier(files: dict[Path, bytes], folder: str, level: int) -> MemoryTier:
    """Return what is left below a folder as the tier that it was."""
    tier = MemoryTier(folder, level=level)
    for path, data in files.items():
        top, *parts = path.parts
        if top == folder and all(map(is_key_part, parts)):
            tier.put("/".join(parts), [data])
    return tier
