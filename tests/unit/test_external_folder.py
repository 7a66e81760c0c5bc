"""Who may work in a folder: one attempt, and nobody that may still live beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.model import CheckpointId
from ckptflow.workflow.external import folder as folders
from ckptflow.workflow.external.folder import take_over
from ckptflow.workflow.external.image import look
from ckptflow.workflow.external.processes import MARK, mark_of

TASK = "exp/melt-seed=1"


def test_an_attempt_keeps_the_folder_of_one_that_has_ended(tmp_path: Path) -> None:
    first = take_over(tmp_path / "melt", TASK, 1)
    assert first.left is None
    (first.path / "r.1").write_bytes(b"1")
    sight = look(first.path, "r.1")
    assert sight is not None
    first.write(first.record.with_taken(CheckpointId(1, 1), "r.1", sight))
    first.write(replace(first.record, ended=True))
    second = take_over(tmp_path / "melt", TASK, 2)
    assert second.path == first.path
    assert second.left is not None
    assert second.left.record.attempt == 1
    assert second.record.newest == (1, 1)
    assert second.record.has_taken("r.1", sight)
    assert not second.record.ended
    assert (second.path.stat().st_mode & 0o777, second.own.name) == (0o700, "attempt-2")


def test_what_an_attempt_of_this_node_left_running_is_ended(tmp_path: Path) -> None:
    first = take_over(tmp_path / "melt", TASK, 1)
    environment = {**os.environ, MARK: mark_of(first.path, 1)}
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env=environment
    )
    other = {**os.environ, MARK: mark_of(tmp_path / "melt-2", 1)}
    neighbour = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env=other
    )
    try:
        second = take_over(tmp_path / "melt", TASK, 2)
        assert second.path == first.path
        assert sleeper.wait(60) == -9
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


def test_an_attempt_that_may_live_elsewhere_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = take_over(tmp_path / "melt", TASK, 1)
    monkeypatch.setattr(folders, "this_node", lambda: "another one")
    second = take_over(tmp_path / "melt", TASK, 2)
    assert second.path == tmp_path / "melt~2"
    assert second.left is not None
    assert second.left.path == first.path
    second.write(replace(second.record, ended=True))
    third = take_over(tmp_path / "melt", TASK, 3)
    assert third.path == second.path  # The newest, not the first.


def test_a_folder_of_another_task_is_refused(tmp_path: Path) -> None:
    take_over(tmp_path / "same", "exp/a", 1)
    with pytest.raises(ConfigError, match=r"belongs to task exp/a, not to exp/b.*\{task\}"):
        take_over(tmp_path / "same", "exp/b", 1)


@pytest.mark.parametrize("text", ["", "{", '{"attempt": 1}', "[]", "null", '{"newest": 3}'])
def test_a_record_that_cannot_be_read_gives_nothing_away(tmp_path: Path, text: str) -> None:
    first = take_over(tmp_path / "melt", TASK, 1)
    (first.path / "ckptflow" / "record.json").write_text(text)
    second = take_over(tmp_path / "melt", TASK, 2)
    assert second.path == tmp_path / "melt~2"
    assert second.left is None


def test_a_place_where_nothing_can_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="Say by folder="):
        take_over(tmp_path / "file" / "melt", TASK, 1)


def test_what_is_moved_aside_is_never_overwritten(tmp_path: Path) -> None:
    work = take_over(tmp_path / "melt", TASK, 1)
    for text in (b"1", b"2"):
        (work.path / "r.1").write_bytes(text)
        work.set_aside("r.1")
    aside = work.own / "aside"
    assert [(aside / name).read_bytes() for name in ("r.1", "r.1.2")] == [b"1", b"2"]


def test_the_record_forgets_files_that_are_gone(tmp_path: Path) -> None:
    work = take_over(tmp_path / "melt", TASK, 1)
    for step in (1, 2):
        (work.path / f"r.{step}").write_bytes(b"1")
        sight = look(work.path, f"r.{step}")
        assert sight is not None
        work.write(work.record.with_taken(CheckpointId(step, 1), f"r.{step}", sight))
        (work.path / "r.1").unlink(missing_ok=True)
    assert list(work.record.taken) == ["r.2"]
