"""Copies that came in from Globus are kept up to a number of bytes."""

from __future__ import annotations

import os
from pathlib import Path

from ckptflow.tiers.globus_staging import Staging


def come_in(staging: Staging, folder: Path, key: str, value: bytes, version: str = "v") -> None:
    staging.make_room("in/x", len(value))
    (folder / "in" / "x").write_bytes(value)
    staging.adopt("in/x", key, version)


def has(staging: Staging, key: str, version: str = "v") -> bytes | None:
    descriptor = staging.open_copy(key, version)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    staging = Staging(tmp_path, cache_bytes=100)
    come_in(staging, tmp_path, "a", b"a" * 40)
    come_in(staging, tmp_path, "b", b"b" * 40)
    for number, path in enumerate(sorted((tmp_path / "fetched").iterdir())):
        os.utime(path, (number, number))
    oldest = min("ab", key=lambda key: used(tmp_path, staging, key))
    come_in(staging, tmp_path, "c", b"c" * 40)
    assert has(staging, oldest) is None
    assert has(staging, "c") == b"c" * 40
    assert sum(path.stat().st_size for path in (tmp_path / "fetched").iterdir()) == 80


def used(folder: Path, staging: Staging, key: str) -> float:
    value = key.encode() * 40
    paths = [path for path in (folder / "fetched").iterdir() if path.read_bytes() == value]
    return paths[0].stat().st_mtime


def test_what_is_larger_than_all_is_kept_alone(tmp_path: Path) -> None:
    staging = Staging(tmp_path, cache_bytes=10)
    come_in(staging, tmp_path, "a", b"a" * 5)
    come_in(staging, tmp_path, "b", b"b" * 500)
    assert has(staging, "a") is None
    assert has(staging, "b") == b"b" * 500


def test_another_version_is_another_copy(tmp_path: Path) -> None:
    staging = Staging(tmp_path, cache_bytes=1000)
    come_in(staging, tmp_path, "a", b"old", "1")
    reader = staging.open_copy("a", "1")
    assert reader is not None
    come_in(staging, tmp_path, "a", b"new", "2")
    assert (has(staging, "a", "1"), has(staging, "a", "2")) == (None, b"new")
    assert os.pread(reader, 10, 0) == b"old"
    os.close(reader)


def test_what_nobody_waits_for_is_swept(tmp_path: Path) -> None:
    staging = Staging(tmp_path, cache_bytes=1000)
    for name in ("out/ours", "out/lost", "in/lost"):
        staging.stage(name, [b"x"])
        os.utime(tmp_path / name, (0, 0))
    staging.stage("in/young", [b"x"])
    assert staging.sweep({"out/ours"}, before_s=1e6) == 2
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*"))
    assert left == ["in/young", "out/ours"]
