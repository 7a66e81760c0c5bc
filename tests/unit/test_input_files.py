"""Which arguments are input files, and that each is read once while it stays the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parsl.data_provider.files import File

from ckptflow.errors import ConfigError
from ckptflow.workflow import input_files as input_files_module
from ckptflow.workflow.input_files import (
    FileDigests,
    Stamp,
    files_of,
    input_files,
    missing_outputs,
)

LONG_AGO_NS = 1_000_000_000_000_000_000


@pytest.fixture
def deck(tmp_path: Path) -> Path:
    path = tmp_path / "deck.in"
    path.write_text("run 100\n")
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read from now on."""
    read: list[str] = []
    real = input_files_module.hashlib.file_digest

    def digest(file: Any, name: str) -> Any:
        read.append(Path(file.name).name)
        return real(file, name)

    monkeypatch.setattr(input_files_module.hashlib, "file_digest", digest)
    return read


def test_a_file_is_read_once_for_many_tasks(
    deck: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, digests = counted(monkeypatch), FileDigests()
    found = {digests.of(deck, task=f"t-{number}") for number in range(100)}
    assert len(found) == 1
    assert read == ["deck.in"]


def test_another_content_is_another_digest_whatever_the_size(deck: Path) -> None:
    digests = FileDigests()
    before = digests.of(deck, task="t")
    deck.write_text("run 200\n")
    assert digests.of(deck, task="t") != before


def test_what_was_written_just_now_is_read_again(
    deck: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change within one tick of the file system's clock would not show."""
    read, digests = counted(monkeypatch), FileDigests()
    now = time.time_ns()
    os.utime(deck, ns=(now, now))
    before = digests.of(deck, task="t")
    deck.write_text("run 300\n")
    os.utime(deck, ns=(now, now))
    assert digests.of(deck, task="t") != before
    assert len(read) == 2


def test_a_later_life_need_not_read_it(deck: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[tuple[str, Stamp], str] = {}

    def tell(path: str, stamp: Stamp, digest: str) -> None:
        told[path, stamp] = digest

    first = FileDigests(told=tell).of(deck, task="t")
    read = counted(monkeypatch)
    assert FileDigests(told).of(deck, task="t") == first
    assert read == []


def test_a_folder_counts_with_all_that_is_in_it(tmp_path: Path, deck: Path) -> None:
    folder = tmp_path / "case"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a").write_text("1")
    before = FileDigests().of(folder, task="t")
    assert FileDigests().of(folder, task="t") == before
    (folder / "sub" / "a").write_text("2")
    changed = FileDigests().of(folder, task="t")
    (folder / "sub" / "a").rename(folder / "a")
    assert len({before, changed, FileDigests().of(folder, task="t")}) == 3


def test_a_folder_of_too_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files_module, "FILES_MAX", 2)
    for number in range(3):
        (tmp_path / str(number)).touch()
    with pytest.raises(ConfigError, match="more than 2 files; name those"):
        FileDigests().of(tmp_path, task="t")


def test_a_missing_file_is_told_with_its_task(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sim-n=1 takes the file '.*nil', which does not"):
        FileDigests().of(tmp_path / "nil", task="sim-n=1")


def test_which_arguments_are_files(tmp_path: Path) -> None:
    arguments = {
        "deck": File("a.in"),
        "steps": 3,
        "text": "b.in",
        "path": Path("c.in"),
        "named": "d.in",
        "several": ["e.in", Path("f.in")],
        "inputs": [File("g.in"), Path("h.in"), "i.in"],
        "table": {"mesh": File("j.in")},
        "far": File("https://example.org/k.in"),
        "outputs": [File("l.out")],
        "stdout": File("m.out"),
    }
    found = dict(input_files(arguments, ("named", "several")))
    assert {where: path.name for where, path in found.items()} == {
        "deck": "a.in",
        "named": "d.in",
        "several[0]": "e.in",
        "several[1]": "f.in",
        "inputs[0]": "g.in",
        "inputs[1]": "h.in",
        "table['mesh']": "j.in",
    }
    assert all(path.is_absolute() for path in found.values())


def test_outputs_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    outputs = [File(str(tmp_path / name)) for name in ("there", "gone")]
    far = File("globus://ep/gone")
    assert missing_outputs([*outputs, far]) == [tmp_path / "gone"]
    assert missing_outputs(None) == []


def sim(deck: str, steps: int) -> None: ...


def test_files_are_named_by_parameters_that_exist() -> None:
    check: Callable[..., tuple[str, ...]] = files_of
    assert check(sim, "deck") == ("deck",)
    assert check(sim, ["deck"]) == ("deck",)
    with pytest.raises(ConfigError, match=r"names \['mesh'\]; its parameters are: deck, steps"):
        check(sim, ("mesh",))
