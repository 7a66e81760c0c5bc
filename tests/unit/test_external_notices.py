"""Waiting for files: told at once where the kernel tells, and never waiting for ever."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ckptflow.workflow.external import notices
from ckptflow.workflow.external.notices import Happened, Notices

LONG_S = 60.0


@pytest.mark.parametrize("way", ["close", "rename"])
def test_a_wait_ends_when_a_file_is_written_or_renamed(tmp_path: Path, way: str) -> None:
    (tmp_path / "old").write_bytes(b"1")
    told = Notices(tmp_path)
    if way == "close":
        (tmp_path / "new").write_bytes(b"2")
    else:
        (tmp_path / "old").rename(tmp_path / "new")
    renamed = told.wait(LONG_S)  # The test's own limit would end it.
    assert renamed == (
        Happened({"new"}, set()) if way == "rename" else Happened(set(), {"new"})
    )
    told.close()


def test_the_folder_may_come_later(tmp_path: Path) -> None:
    told = Notices(tmp_path / "out")
    assert told.wait(0) == Happened()
    (tmp_path / "out").mkdir()
    assert told.wait(0) == Happened()  # From here on it is watched.
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "x").rename(tmp_path / "out" / "r.1")
    assert told.wait(LONG_S).renamed == {"r.1"}
    told.close()


def test_another_thread_can_end_the_wait(tmp_path: Path) -> None:
    told = Notices(tmp_path)
    waiter = threading.Thread(target=told.wait, args=(LONG_S,))
    waiter.start()
    told.wake()
    waiter.join(LONG_S / 2)
    assert not waiter.is_alive()
    told.close()


def test_without_inotify_waits_end_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine has only so many instances of it."""

    def none() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(notices, "INotify", none)
    told = Notices(tmp_path)
    (tmp_path / "new").write_bytes(b"2")
    assert told.wait(0.01) == Happened()
    told.wake()
    assert told.wait(LONG_S) == Happened()
    told.close()


def test_a_watch_that_is_refused_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(notices.INotify, "add_watch", refuse)
    told = Notices(tmp_path)
    (tmp_path / "new").write_bytes(b"2")
    assert told.wait(0.01) == Happened()
    told.close()
