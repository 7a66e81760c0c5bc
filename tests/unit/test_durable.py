"""Each system call of a put or a create may fail: nothing half is left under the final name."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ckptflow.errors import AlreadyExists, TierDenied, TierFull, TierUnavailable
from ckptflow.tiers import disk as disk_module
from ckptflow.tiers.disk import Disk
from ckptflow.tiers.durable import Folders
from ckptflow.tiers.posix import PosixTier
from ckptflow.units import MIB


class FailingDisk(Disk):
    """Fails the n-th call of a kind, counted from 1; some file systems know no hard links."""

    def __init__(self, call: str, number: int, at: int = 1, *, links: bool = True) -> None:
        self._call, self._errno, self._left, self._links = call, number, at, links

    def _maybe(self, call: str) -> None:
        if call == self._call:
            self._left -= 1
            if self._left == 0:
                raise OSError(self._errno, os.strerror(self._errno))

    def create(self, path: Path) -> int:
        self._maybe("create")
        return super().create(path)

    def write(self, descriptor: int, buffers: Sequence[memoryview]) -> int:
        self._maybe("write")
        return super().write(descriptor, [buffers[0][:3]])  # Short, as it may be.

    def sync(self, descriptor: int) -> None:
        self._maybe("sync")
        super().sync(descriptor)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self._maybe("close")

    def link(self, path: Path, name: Path) -> None:
        self._maybe("link")
        if not self._links:
            raise OSError(errno.EPERM, "no hard links here")
        super().link(path, name)

    def rename(self, path: Path, name: Path) -> None:
        self._maybe("rename")
        super().rename(path, name)


class NotingDisk(Disk):
    """Takes some bytes by one call, and notes what the device is told to begin with."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self.begun = most_bytes, list[tuple[int, int]]()

    def write(self, descriptor: int, buffers: Sequence[memoryview]) -> int:
        return super().write(descriptor, [buffers[0][: self._most]])

    def start_writing(self, descriptor: int, start_bytes: int, size_bytes: int) -> None:
        self.begun.append((start_bytes, size_bytes))
        super().start_writing(descriptor, start_bytes, size_bytes)


KINDS = {
    errno.EIO: TierUnavailable,
    errno.ESTALE: TierUnavailable,
    errno.ETIMEDOUT: TierUnavailable,
    errno.ENOTCONN: TierUnavailable,
    errno.EHOSTDOWN: TierUnavailable,
    errno.ENODEV: TierUnavailable,
    errno.ENOSPC: TierFull,
    errno.EDQUOT: TierFull,
    errno.EROFS: TierDenied,
    errno.EACCES: TierDenied,
    errno.EKEYEXPIRED: TierDenied,
}


@pytest.mark.parametrize("call", ["create", "write", "sync", "close", "rename"])
@pytest.mark.parametrize("number", KINDS)
def test_a_put_that_fails_leaves_what_was_there(tmp_path: Path, call: str, number: int) -> None:
    PosixTier(tmp_path, name="disk").put("a/key", [b"the old value"])
    tier = PosixTier(tmp_path, name="disk", disk=FailingDisk(call, number))
    with pytest.raises(KINDS[number], match=rf"'a/key' on tier 'disk' .*errno {number}\)"):
        tier.put("a/key", [b"another value"])
    assert tier.get("a/key") == b"the old value"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["key"]
    tier.put("a/key", [b"a third ", b"value"])  # A new file: nothing is synced twice.
    assert tier.get("a/key") == b"a third value"


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("call", ["create", "write", "sync", "close", "link"])
def test_a_create_that_fails_leaves_nothing(
    tmp_path: Path, call: str, at: int, *, links: bool
) -> None:
    """Without hard links the value is written in place, and taken away if that fails."""
    store = tmp_path / "store"
    tier = PosixTier(store, name="disk", disk=FailingDisk(call, errno.ENOSPC, at, links=links))
    try:
        tier.create("claim", b"mine")
    except TierFull:
        assert {path.read_bytes() for path in store.iterdir()} <= {b"mine"}
    else:
        assert tier.get("claim") == b"mine"
        with pytest.raises(AlreadyExists, match="claim"):
            PosixTier(store).create("claim", b"yours")


@pytest.mark.parametrize("most_bytes", [64 * MIB, 5 * MIB])
def test_the_device_begins_while_more_is_written(tmp_path: Path, most_bytes: int) -> None:
    """In order, without a gap, in large pieces, and never with what is synced at once."""
    disk = NotingDisk(most_bytes)
    tier = PosixTier(tmp_path, disk=disk)
    data = np.random.default_rng(0).bytes(50 * MIB)
    tier.put("large", [data[: 30 * MIB], data[30 * MIB :]])
    assert tier.get("large") == data
    assert len(disk.begun) >= 2
    end = 0
    for start_bytes, size_bytes in disk.begun:
        assert start_bytes == end
        assert size_bytes >= 8 * MIB
        end += size_bytes
    assert end < len(data)
    disk.begun.clear()
    tier.put("small", [bytes(MIB)] * 3)
    assert disk.begun == []


def test_who_cannot_tell_the_device_writes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "_sync_file_range", None)
    tier = PosixTier(tmp_path)
    tier.put("large", [bytes(40 * MIB)])
    assert tier.size("large") == 40 * MIB


class OneModeDisk(Disk):
    """A mount that shows the same mode for whatever is made there."""

    def __init__(self) -> None:
        self.synced = list[Path]()

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        path.chmod(0o755)

    def sync_folder(self, path: Path) -> None:
        self.synced.append(path)
        super().sync_folder(path)


def test_what_was_made_here_is_synced_whatever_mode_the_mount_shows(tmp_path: Path) -> None:
    disk = OneModeDisk()
    Folders(disk).make(tmp_path / "a" / "b")
    assert {tmp_path, tmp_path / "a"} <= set(disk.synced)
