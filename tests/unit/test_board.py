"""The board of a node: what is posted is read, and who has gone is not there any more."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptflow.workflow.blocks import board as module
from ckptflow.workflow.blocks.board import (
    BOARD,
    HEARS,
    IDLE,
    RUNS,
    Board,
    End,
    Entry,
    Presence,
    abandoned_boards,
    is_alive,
    make_board,
    presence,
)


@pytest.fixture
def board() -> Iterator[Board]:
    made = make_board()
    yield made
    made.remove()
    assert not made.folder.exists()


def test_nobody_else_can_look_at_it(board: Board) -> None:
    assert stat.S_IMODE(board.folder.stat().st_mode) == 0o700


def test_a_board_is_abandoned_when_its_leader_is_gone(
    board: Board, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert board.folder not in abandoned_boards()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code = "from ckptflow.workflow.blocks.board import make_board; print(make_board().folder)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(abandoned_boards()) == [Path(done.stdout.strip())]


def test_what_is_posted_is_read(board: Board) -> None:
    assert (board.end(), board.stop(), board.closed()) == (None, None, None)
    board.post_end(End(12.5, "squeue"))
    board.post_end(End(99.5, "squeue"))
    board.post_stop("warned")
    assert (board.end(), board.stop(), board.closed()) == (
        End(99.5, "squeue"),
        "warned",
        "warned",
    )


def test_the_first_reason_to_close_stays(board: Board) -> None:
    board.post_closed("it ends soon")
    board.post_stop("warned")
    assert (board.closed(), board.stop()) == ("it ends soon", "warned")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ends_at_s": "soon", "source": ""}'])
def test_nonsense_on_it_is_passed_over(board: Board, text: str) -> None:
    (board.folder / "ends").write_text(text)
    assert board.end() is None


def test_entries_follow_their_processes(board: Board) -> None:
    here = Presence(board)
    pid = os.getpid()
    assert list(board.entries()) == [Entry(pid, IDLE)]
    with here.as_one_that(RUNS):
        with here.as_one_that(HEARS):
            assert list(board.entries()) == [Entry(pid, HEARS)]
        assert list(board.entries()) == [Entry(pid, RUNS)]
    assert list(board.entries()) == [Entry(pid, IDLE)]


def test_who_is_killed_loses_its_entry(board: Board) -> None:
    code = (
        "import sys; from ckptflow.workflow.blocks.board import HEARS, presence\n"
        "with presence().as_one_that(HEARS):\n    print('up', flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, BOARD: str(board.folder)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert list(board.entries()) == [Entry(child.pid, HEARS)]
        child.kill()
        while is_alive(child.pid):
            os.sched_yield()
        assert list(board.entries()) == []  # Although nobody has waited for it.


def test_a_forked_child_does_not_change_its_parent_s_entry(board: Board) -> None:
    here = Presence(board)
    pid = os.fork()
    if pid == 0:
        with here.as_one_that(HEARS):
            os._exit(0)
    os.waitpid(pid, 0)
    assert list(board.entries()) == [Entry(os.getpid(), IDLE)]


def test_without_a_leader_there_is_no_presence(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_asked_by", None)
    monkeypatch.delenv(BOARD, raising=False)
    assert presence() is None
    monkeypatch.setattr(module, "_asked_by", None)
    monkeypatch.setenv(BOARD, str(board.folder / "gone"))
    assert presence() is None
    monkeypatch.setattr(module, "_asked_by", None)
    monkeypatch.setenv(BOARD, str(board.folder))
    found = presence()
    assert found is not None
    assert presence() is found
    monkeypatch.setattr(module, "_asked_by", None)  # For whoever asks next, without this one.
