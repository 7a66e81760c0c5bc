"""A tier on somebody else's filesystem: whole or absent, honest errors, no secret shown."""

from __future__ import annotations

import errno
import os
import stat
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from ckptflow.errors import (
    ConfigError,
    NotFoundError,
    TierDenied,
    TierError,
    TierFull,
    TierUnavailable,
)
from ckptflow.site.tiers import tier_model
from ckptflow.tiers.filesystem import FilesystemTier
from ckptflow.tiers.opening import open_tier, spec_of

PASSWORD = "correct-horse-battery"


class Rented(MemoryFileSystem):
    """Object storage of somebody, reached with a password."""

    protocol = "rented"
    cachable = False

    def __init__(self, password: str = "", **options: Any) -> None:
        super().__init__(password=password, **options)
        self.fail: Callable[[], None] = lambda: None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("rented://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        self.fail()
        super().pipe_file(path, value, mode, **more)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
        self.fail()
        return super().cat_file(path, start, end, **more)


def rented(fail: Exception | None = None, password: str = PASSWORD) -> FilesystemTier:
    fs = Rented(password=password)
    tier = FilesystemTier(fs, f"/{uuid.uuid4().hex}", name="bucket", commit="direct")
    tier.put("here", [b"value"])

    def raising() -> None:
        if fail is not None:
            raise fail

    fs.fail = raising
    return tier


# --- errors ----------------------------------------------------------------------------


class ForeignError(Exception):
    """Of a class that no one has told us about."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), TierFull),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), TierFull),
        (PermissionError("Forbidden"), TierDenied),
        (OSError(errno.EROFS, "Read-only file system"), TierDenied),
        (OSError(errno.ESTALE, "Stale file handle"), TierUnavailable),
        (ConnectionResetError("gone"), TierUnavailable),
        (TimeoutError(), TierUnavailable),
        (ForeignError("what is this"), TierUnavailable),
    ],
    ids=repr,
)
def test_errors_say_what_may_help(error: Exception, expected: type[TierError]) -> None:
    tier = rented(error)
    with pytest.raises(expected, match=r"write 'a/b' on tier 'bucket'") as caught:
        tier.put("a/b", [b"x"])
    assert type(caught.value) is expected
    with pytest.raises(expected, match=r"read 'here' on tier 'bucket'"):
        tier.get("here")


def test_absent_is_not_unavailable() -> None:
    with pytest.raises(NotFoundError, match="'here'"):
        rented(FileNotFoundError("vanished meanwhile")).get("here")


def test_a_programming_error_of_a_stranger_is_no_crash_of_the_save() -> None:
    with pytest.raises(TierUnavailable, match="KeyError"):
        rented(KeyError("ContentLength")).put("a", [b"x"])


# --- secrets ---------------------------------------------------------------------------


def test_a_secret_is_shown_nowhere() -> None:
    tier = rented(OSError(f"GET https://user:{PASSWORD}@host/ failed"))
    with pytest.raises(TierUnavailable, match=r"user:\*\*\*@host") as caught:
        tier.get("here")
    shown = "".join(traceback.format_exception(caught.value))
    for text in (shown, repr(tier), str(tier.spec)):
        assert PASSWORD not in text


def test_a_secret_below_a_folder_view_is_shown_nowhere() -> None:
    below = Rented(password=PASSWORD)
    below.fail = lambda: (_ for _ in ()).throw(OSError(f"login as {PASSWORD} failed"))
    tier = FilesystemTier(DirFileSystem(path="/x", fs=below), "y", commit="direct")
    with pytest.raises(TierUnavailable, match=r"login as \*\*\* failed") as caught:
        tier.put("here", [b"x"])
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_what_was_handed_in_with_options_is_not_opened_elsewhere() -> None:
    spec = rented().spec
    assert spec["address"].startswith("handed-in:rented://")
    assert tier_model(spec).spec == spec  # It travels, so that whoever opens it can say why.
    with pytest.raises(ConfigError, match=r"'bucket'.*handed in.*configuration"):
        open_tier(spec)


def test_what_was_handed_in_without_options_is_opened_elsewhere(tmp_path: Path) -> None:
    tier = FilesystemTier(fsspec.filesystem("file"), str(tmp_path), name="disk", level=3)
    tier.put("a", [b"x"])
    again = open_tier(tier.spec)
    assert again.get("a") == b"x"
    assert again.spec == tier.spec


def test_options_from_the_configuration_of_fsspec_are_found_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fsspec.register_implementation("rented", Rented, clobber=True)
    monkeypatch.setitem(fsspec.config.conf, "rented", {"password": PASSWORD})
    tier = FilesystemTier(Rented(), "/a", name="b", commit="direct")
    tier.put("key", [b"x"])
    assert PASSWORD not in str(tier.spec)
    assert open_tier(tier.spec).get("key") == b"x"


def test_a_folder_view_is_as_reopenable_as_what_is_below(tmp_path: Path) -> None:
    view = DirFileSystem(path=str(tmp_path), fs=fsspec.filesystem("file"))
    tier = FilesystemTier(view, "store")
    tier.put("a", [b"x"])
    assert open_tier(tier.spec).get("a") == b"x"
    hidden = DirFileSystem(path="/x", fs=Rented(password=PASSWORD))
    assert FilesystemTier(hidden, "y", commit="direct").spec["address"].startswith("handed-in")


@pytest.mark.parametrize("option", ["password", "client_secret", "token"])
def test_a_site_may_not_hold_secrets(option: str) -> None:
    spec = {**spec_of("fsspec+memory://x"), "options": {option: PASSWORD}}
    with pytest.raises(ConfigError, match=f"'{option}' would hold") as caught:
        open_tier(spec)
    assert PASSWORD not in str(caught.value)


# --- addresses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"fsspec+ftp://me:{PASSWORD}@host/x", "has a password"),
        ("fsspec+nothing-like-that://x", "cannot open"),
        ("fsspec+simplecache::memory://x", "is no address"),
    ],
)
def test_addresses_that_are_refused(url: str, message: str) -> None:
    spec = {**spec_of("fsspec+memory://x"), "address": url.removeprefix("fsspec+")}
    with pytest.raises(ConfigError, match=message) as caught:
        open_tier(spec)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_a_filesystem_of_unknown_ways_has_to_be_explained() -> None:
    with pytest.raises(ConfigError, match=r"'rented' is not known.*commit = 'move'"):
        FilesystemTier(Rented(), "/x")


# --- whole or absent -------------------------------------------------------------------


class BreakingOff(LocalFileSystem):
    """A disk that fails in the middle of a file, or before the move."""

    protocol = ("file", "local")
    cachable = False
    at = ""

    def open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        file = super().open(path, mode, **more)
        if self.at == "write" and "w" in mode:
            file.write(b"half")
            file.close()
        return file

    def mv(self, path1: str, path2: str, **more: Any) -> None:
        if self.at == "move":
            raise OSError(errno.EIO, "Input/output error")
        super().mv(path1, path2, **more)


@pytest.mark.parametrize("at", ["write", "move"])
def test_a_put_that_breaks_off_leaves_what_was(tmp_path: Path, at: str) -> None:
    fs = BreakingOff()
    tier = FilesystemTier(fs, str(tmp_path))
    tier.put("a/key", [b"before"])
    fs.at = at
    with pytest.raises(TierUnavailable, match="'a/key'"):
        tier.put("a/key", [b"after"])
    assert tier.get("a/key") == b"before"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["key"]


def test_what_killed_writers_left_a_day_ago_is_swept(tmp_path: Path) -> None:
    tier = FilesystemTier(fsspec.filesystem("file"), str(tmp_path))
    tier.put("a/b/key", [b"x"])
    old, new = (tmp_path / "a" / "b" / f".{name}.partial" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert list(tier.iter_keys("")) == ["a/b/key"]
    assert tier.sweep("a") == 1
    assert (old.exists(), new.exists()) == (False, True)


def test_local_files_and_folders_are_private(tmp_path: Path) -> None:
    tier = FilesystemTier(fsspec.filesystem("file"), str(tmp_path / "store"))
    tier.put("a/b/key", [b"x"])
    tier.create("a/claim", b"x")
    for path in (tmp_path / "store").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_link_out_of_the_store_is_no_value(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    tier = FilesystemTier(fsspec.filesystem("file"), str(tmp_path / "store"))
    tier.put("here", [b"x"])
    (tmp_path / "store" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "store" / "folder").symlink_to(tmp_path)
    assert list(tier.iter_keys("")) == ["here"]
    assert list(tier.iter_folders("")) == []
    with pytest.raises(NotFoundError, match="'link'"):
        tier.get("link")


# --- what is remembered ----------------------------------------------------------------


class Remembering(MemoryFileSystem):
    """Lists a folder once, like the object stores of fsspec, until it is told to forget."""

    protocol = "remembering"
    cachable = False

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True, **more)
        return self.dircache[path]

    def info(self, path: str, **more: Any) -> Any:
        path = self._strip_protocol(path)
        for entry in self.dircache.get(self._parent(path), []):
            if entry["name"] == path:
                return entry
        return super().info(path, **more)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.pop(path, None)


def test_what_another_process_wrote_and_deleted_is_seen() -> None:
    root = f"/{uuid.uuid4().hex}"
    ours, theirs = (
        FilesystemTier(Remembering(use_listings_cache=True), root, commit="direct")
        for _ in range(2)
    )
    ours.put("a/one", [b"1"])
    assert list(ours.iter_keys("a")) == ["a/one"]
    theirs.put("a/two", [b"2"])
    theirs.put("a/one", [b"longer than before"])
    assert list(ours.iter_keys("a")) == ["a/one", "a/two"]
    assert ours.get("a/one") == b"longer than before"
    theirs.delete("a/one")
    assert list(ours.iter_keys("a")) == ["a/two"]
    with pytest.raises(NotFoundError, match="'a/one'"):
        ours.size("a/one")
