"""Commands of a scheduler: what hangs is ended, with all that it has started."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from ckptflow.workflow.blocks.commands import TIMED_OUT, run_command


def test_status_and_both_outputs_come_back() -> None:
    assert run_command("echo out; echo err >&2; exit 3", 60) == (3, "out\n", "err\n")
    assert run_command("no-such-program-here", 60)[0] == 127


def test_what_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = f"sleep 600 & echo $! > {pids}; trap '' TERM; sleep 600"
    began_s = time.monotonic()
    status, out, said = run_command(command, 1.0)
    assert (status, out) == (TIMED_OUT, "")
    assert "did not answer within 1 s" in said
    assert time.monotonic() - began_s < 60
    child = int(pids.read_text())
    gone = not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    assert gone or not psutil.wait_procs([psutil.Process(child)], timeout=30)[1]


def test_a_process_that_stays_behind_holds_nobody_up() -> None:
    began_s = time.monotonic()
    assert run_command("sleep 30 & echo done", 20)[:2] == (0, "done\n")
    assert time.monotonic() - began_s < 15
