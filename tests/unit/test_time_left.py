"""When a block ends: from the environment, from a batch system, and not from one that hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptflow.workflow.blocks import clock as clock_module
from ckptflow.workflow.blocks.board import Board, End, make_board
from ckptflow.workflow.blocks.clock import Clock
from ckptflow.workflow.blocks.time_left import (
    answer_of,
    ask_pbs,
    ask_slurm,
    asking_command,
    end_in,
    seconds_of,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return folder


def command(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:30", 30),
        ("5:00", 300),
        ("2:03:04", 7384),
        ("1-02:03:04", 93784),
        ("1-02", 93600),
        ("24:00:00", 86400),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("NOT_SET", None),
        ("", None),
    ],
)
def test_times_as_batch_systems_print_them(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


def test_the_environment_of_slurm_comes_before_the_site_s_walltime() -> None:
    assert end_in({"SLURM_JOB_END_TIME": "10", "CKPTFLOW_ENDS_AT": "5"}) == End(
        10, "Slurm's environment"
    )
    assert end_in({"CKPTFLOW_ENDS_AT": "5"}) == End(5, "the site's walltime")
    assert end_in({"CKPTFLOW_ENDS_AT": "soon"}) is None


def test_slurm_says_when_and_how_long_kill_waits(commands: Path) -> None:
    command(commands, "squeue", 'echo "$@" > "$0.args"; echo 10:00')
    command(commands, "scontrol", "echo 'KillOnBadExit = 0'; echo 'KillWait      = 5 sec'")
    answer = ask_slurm("17")
    assert 590 <= float(str(answer["ends_at_s"])) - time.time() <= 600
    assert answer["kill_wait_s"] == 5.0
    assert "--jobs=17" in (commands / "squeue.args").read_text()


def test_slurm_that_fails_says_nothing_of_the_end(commands: Path) -> None:
    command(commands, "squeue", "exit 1")
    command(commands, "scontrol", "exit 1")
    assert ask_slurm("17") == {"source": "squeue", "kill_wait_s": 30.0}


def test_pbs_says_when(commands: Path) -> None:
    began = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(1_700_000_000))
    text = f"Job Id: 17\n    Resource_List.walltime = 01:00:00\n    stime = {began}\n"
    command(commands, "qstat", f"cat <<'END'\n{text}END")
    assert ask_pbs("17")["ends_at_s"] == 1_700_003_600.0
    used = "    Resource_List.walltime = 01:00:00\n    resources_used.walltime = 00:59:00\n"
    command(commands, "qstat", f"cat <<'END'\n{used}END")
    assert 50 <= float(str(ask_pbs("17")["ends_at_s"])) - time.time() <= 60
    command(commands, "qstat", "exit 35")
    assert "ends_at_s" not in ask_pbs("17")


@pytest.mark.parametrize("text", ["", "x", "[]", "null", '{"ends_at_s": "soon"}'])
def test_an_answer_that_is_none(text: str) -> None:
    assert answer_of(text) == (None, None)


def test_one_node_of_a_block_asks_and_the_others_read(commands: Path, tmp_path: Path) -> None:
    command(commands, "squeue", 'echo x >> "$0.calls"; echo 10:00')
    command(commands, "scontrol", "echo 'KillWait = 7 sec'")

    def asked(node: str, restarts: str = "0") -> tuple[End | None, float | None]:
        environment = {
            **os.environ,
            "SLURM_JOB_ID": "17",
            "SLURM_NODEID": node,
            "SLURM_RESTART_COUNT": restarts,
            "CKPTFLOW_RUN_FOLDER": str(tmp_path),
        }
        done = subprocess.run(
            asking_command(), env=environment, capture_output=True, text=True, check=True
        )
        return answer_of(done.stdout)

    assert asked("1") == (None, None)
    first = asked("0")
    assert first[1] == 7.0
    assert asked("1") == asked("2") == first
    assert asked("1", restarts="1") == (None, None)  # Requeued: another end.
    assert (commands / "squeue.calls").read_text() == "x\n"
    (file,) = (tmp_path / "blocks").iterdir()
    assert json.loads(file.read_text())["source"] == "squeue"


@pytest.fixture
def board() -> Iterator[Board]:
    made = make_board()
    yield made
    made.remove()


def until_ended(clock: Clock, pid: int) -> None:
    limit_s = time.monotonic() + 60
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() < limit_s
        clock.look()
        time.sleep(0.01)
    clock.ended(pid)


def test_the_clock_takes_what_the_batch_system_says(
    commands: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(commands, "squeue", "echo 10:00")
    command(commands, "scontrol", "echo 'KillWait = 5 sec'")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("CKPTFLOW_ENDS_AT", "1")
    monkeypatch.setattr(clock_module, "QUERY_S", 60.0)
    clock = Clock(board, 30.0)
    assert clock.left_s() < 0
    assert board.end() == End(1.0, "the site's walltime")
    clock.look()
    assert clock.pid is not None
    until_ended(clock, clock.pid)
    assert clock.pid is None
    assert 500 < clock.left_s() <= 600
    assert clock.kill_wait_s == 5.0
    end = board.end()
    assert end is not None
    assert end.source == "squeue"


def test_a_batch_system_that_hangs_holds_nothing_up(
    commands: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(commands, "squeue", "exec sleep 1000")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("CKPTFLOW_ENDS_AT", "1e12")
    monkeypatch.setattr(clock_module, "QUERY_S", 0.3)
    clock = Clock(board, 30.0)
    began_s = time.monotonic()
    clock.look()
    assert time.monotonic() - began_s < 60
    assert clock.pid is not None
    until_ended(clock, clock.pid)
    assert board.end() == End(1e12, "the site's walltime")
    clock.look()
    assert clock.pid is None  # Not at once again.


def test_without_a_batch_system_nobody_is_asked(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    clock = Clock(board, 30.0)
    clock.look()
    assert clock.pid is None
    assert sys.maxsize < clock.left_s()
