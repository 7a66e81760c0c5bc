"""Files into checkpoints and back: the same bytes, or an error, and never another file."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ckptflow.errors import CaptureError, ConfigError, StateError
from ckptflow.workflow.external import image
from ckptflow.workflow.external.image import (
    Image,
    Images,
    holds,
    images_of_state,
    look,
    matching,
    put_back,
    read_image,
    state_of_images,
)


def read(folder: Path, name: str, **options: Any) -> Image:
    sight = look(folder, name)
    assert sight is not None
    return read_image(folder, name, sight, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    (place / "out").mkdir(parents=True)
    (place / "out" / "r.1").write_bytes(bytes(range(256)) * 17)
    (place / "out" / "r.1").chmod(0o640)
    os.utime(place / "out" / "r.1", ns=(1, 1_700_000_000_123_456_789))
    (place / "log").write_bytes(b"one\n")
    return place


def test_a_file_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    images = Images(read(folder, "out/r.1"), {"log": read(folder, "log")})
    again = images_of_state(state_of_images(images))
    other = tmp_path / "other"
    assert [put_back(other, one) for one in again.all] == [True, True]
    found, made = (folder / "out" / "r.1").stat(), (other / "out" / "r.1").stat()
    assert (other / "out" / "r.1").read_bytes() == (folder / "out" / "r.1").read_bytes()
    assert (made.st_mode, made.st_mtime_ns) == (found.st_mode, found.st_mtime_ns)
    assert {path.name for path in other.rglob("*")} == {"out", "log", "r.1"}


def test_what_is_there_already_is_not_written_again(folder: Path) -> None:
    before = (folder / "log").stat()
    one = read(folder, "log")
    assert holds(folder, one)
    assert put_back(folder, one) is False
    assert (folder / "log").stat().st_ino == before.st_ino
    (folder / "log").write_bytes(b"two\n")  # The same length.
    assert not holds(folder, one)
    assert put_back(folder, one) is True
    assert (folder / "log").read_bytes() == b"one\n"


def test_large_files_go_through_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = SimpleNamespace(available=0)
    monkeypatch.setattr(image.psutil, "virtual_memory", lambda: none)
    before = sorted(folder.rglob("*"))
    found = read(folder, "out/r.1")
    assert isinstance(found.data, np.memmap)
    assert found.data.tobytes() == (folder / "out" / "r.1").read_bytes()
    assert sorted(folder.rglob("*")) == before  # It has no name.


def test_a_file_that_changed_is_not_taken(folder: Path) -> None:
    sight = look(folder, "out/r.1")
    assert sight is not None
    (folder / "out" / "r.1").write_bytes(b"shorter")
    with pytest.raises(CaptureError, match="written to while"):
        read_image(folder, "out/r.1", sight)


def test_a_file_that_changes_within_the_read_is_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code overwrites a byte between the first piece and the last."""
    sight, real = look(folder, "out/r.1"), np.empty
    assert sight is not None

    def meanwhile(*args: Any) -> Any:
        with (folder / "out" / "r.1").open("r+b") as file:
            file.write(b"!")
        return real(*args)

    monkeypatch.setattr(image.np, "empty", meanwhile)
    with pytest.raises(CaptureError, match="written to while"):
        read_image(folder, "out/r.1", sight)


def test_a_file_that_is_cut_within_the_read_is_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sight, real = look(folder, "out/r.1"), np.empty
    assert sight is not None

    def meanwhile(*args: Any) -> Any:
        os.truncate(folder / "out" / "r.1", 100)
        return real(*args)

    monkeypatch.setattr(image.np, "empty", meanwhile)
    with pytest.raises(CaptureError, match="had 4352 bytes and ended after 100"):
        read_image(folder, "out/r.1", sight)


def test_another_file_of_the_same_name_is_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sight, real = look(folder, "out/r.1"), np.empty
    assert sight is not None

    def meanwhile(*args: Any) -> Any:
        (folder / "new").write_bytes((folder / "out" / "r.1").read_bytes())
        (folder / "new").rename(folder / "out" / "r.1")
        return real(*args)

    monkeypatch.setattr(image.np, "empty", meanwhile)
    with pytest.raises(CaptureError, match="written to while"):
        read_image(folder, "out/r.1", sight)


def test_what_is_appended_to_is_read_up_to_where_it_was(folder: Path) -> None:
    sight = look(folder, "log")
    assert sight is not None
    with (folder / "log").open("ab") as log:
        log.write(b"two\n")
    assert read_image(folder, "log", sight, appended=True).data.tobytes() == b"one\n"
    (folder / "log").write_bytes(b"1")
    with pytest.raises(CaptureError, match="written to while"):
        read_image(folder, "log", sight, appended=True)


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s")
    (folder / "r.2").symlink_to(tmp_path / "secret")
    with pytest.raises(CaptureError, match=r"r\.2 is a symbolic link"):
        look(folder, "r.2")
    (folder / "way").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="a link leads out"):
        look(folder, "way/secret")
    one = Image("way/new", np.zeros(1, np.uint8), 0o600, 0)
    with pytest.raises(ConfigError, match="a link leads out"):
        put_back(folder, one)
    assert not (tmp_path / "new").exists()


def test_putting_back_replaces_a_link_and_not_its_goal(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "goal").write_bytes(b"goal")
    (folder / "r.2").symlink_to(tmp_path / "goal")
    put_back(folder, Image("r.2", np.zeros(2, np.uint8), 0o4755, 0))
    assert (tmp_path / "goal").read_bytes() == b"goal"
    assert (folder / "r.2").read_bytes() == bytes(2)
    assert (folder / "r.2").stat().st_mode & 0o7777 == 0o755


def test_pipes_and_folders_are_no_files(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for name in ("pipe", "out"):
        with pytest.raises(CaptureError, match="no regular file"):
            look(folder, name)
    assert look(folder, "nothing") is None
    assert look(folder, "log/below") is None
    assert matching(folder, "*") == ["log"]


def fields(name: object = "r.1", data: object = None) -> dict[str, object]:
    array = np.zeros(3, np.uint8) if data is None else data
    return {"name": name, "mode": 0o600, "mtime_ns": 1, "data": array}


@pytest.mark.parametrize(
    "state",
    [
        {"i": 0},
        [1],
        {"kind": image.KIND},
        {"kind": image.KIND, "restart": fields(), "files": None},
        {"kind": image.KIND, "restart": fields("../r.1"), "files": {}},
        {"kind": image.KIND, "restart": fields("/etc/passwd"), "files": {}},
        {"kind": image.KIND, "restart": fields(), "files": {"x": fields("a/../../b")}},
        {"kind": image.KIND, "restart": fields(7), "files": {}},
        {"kind": image.KIND, "restart": fields(data=np.zeros(3)), "files": {}},
        {"kind": image.KIND, "restart": {"name": "r.1"}, "files": {}},
    ],
)
def test_a_state_of_something_else_is_not_put_back(state: object) -> None:
    with pytest.raises(StateError, match="checkpoint"):
        images_of_state(state)
