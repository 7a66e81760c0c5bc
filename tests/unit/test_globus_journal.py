"""What is under way to and from Globus is found again, by one process at a time."""

from __future__ import annotations

import errno
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ckptflow.tiers.globus_journal import Journal, Transfer

ONE = Transfer(
    key="a/b",
    direction="out",
    version="v",
    size_bytes=7,
    staged="out/x",
    remote="/store/.incoming/x",
    submission_id="id",
)


def test_what_was_written_is_found(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert journal.find("out", "a/b") is None
    assert journal.all() == []
    journal.write(ONE)
    journal.write(replace(ONE, task_id="task"))
    assert Journal(tmp_path / "journal").find("out", "a/b") == replace(ONE, task_id="task")
    assert journal.find("in", "a/b") is None
    journal.forget(ONE)
    journal.forget(ONE)
    assert journal.find("out", "a/b") is None


def test_what_makes_no_sense_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(ONE)
    for path in tmp_path.glob("*.json"):
        path.write_text('{"key": 1}')
    assert journal.find("out", "a/b") is None
    assert journal.all() == []


def test_files_are_private(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write(ONE)
    with journal.held("out", "a/b"):
        pass
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "journal").iterdir()}
    assert modes == {0o600}


@pytest.mark.parametrize("locks", [True, False], ids=["flock", "no flock"])
def test_one_at_a_time(tmp_path: Path, locks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if not locks:
        monkeypatch.setattr("fcntl.flock", refuse)
    inside, done, order = threading.Event(), threading.Event(), []

    def first() -> None:
        with Journal(tmp_path).held("out", "a/b"):
            inside.set()
            done.wait()
            order.append("first")

    def second() -> None:
        with Journal(tmp_path).held("out", "a/b"):
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    with Journal(tmp_path).held("in", "a/b"):
        order.append("another key")
    done.set()
    for thread in threads:
        thread.join()
    assert order == ["another key", "first", "second"]
