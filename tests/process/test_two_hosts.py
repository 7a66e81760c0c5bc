"""Two hosts and one shared folder: who runs the workflow, and what happens to who lost it.

Method: each host is a process that takes itself for a host of another name, so that neither
can look for the other's process and only the file system's clock counts. One is stopped or
killed for good; the time after which it is taken for dead is short. Nothing here waits for a
fixed time: each process says what it has come to, and there are long limits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STALE_S = 2.0
LIMIT_S = 120.0

HOST = """
import socket, sys, time
from pathlib import Path
name, folder, stale_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
socket.gethostname = lambda: name
from ckptflow.errors import RunLocked
from ckptflow.workflow.lock import RunLock

def say(text):
    print(text, flush=True)

lock = RunLock(folder, run="exp", session=name, stale_after_s=stale_s)
refused = set()
while True:
    try:
        lock.acquire()
        break
    except RunLocked as error:
        who = str(error).partition(", started")[0]
        if who not in refused:
            say(f"refused {error}")
        refused.add(who)
        time.sleep(0.05)
say("holds")
while not (folder / f"{name}.release").exists():
    try:
        lock.renew()
    except RunLocked as error:
        say(f"lost {lock.is_mine} {error}")
        sys.exit(3)
    time.sleep(0.05)
lock.release()
say("released")
"""

FLOW = """
import socket, sys, threading
from pathlib import Path
name, store = sys.argv[1], sys.argv[2]
socket.gethostname = lambda: name
import numpy as np
import ckptflow as cf
from ckptflow.errors import CheckpointError

@cf.python_app(key=("n",), every=1)
def work(n, store, name, ckpt):
    import time
    from pathlib import Path
    state = ckpt.restore({"step": 0, "w": np.zeros(100)})
    while state["step"] < 5:
        state["step"] += 1
        state["w"] += state["step"]
        ckpt.step(state["step"], state)
        ckpt.wait()
        Path(store, f"{name}-{state['step']}").touch()
        while name == "first" and state["step"] == 3 and not Path(store, "go").exists():
            time.sleep(0.02)
    return float(state["w"].sum())

with cf.run("exp", site="local_threads", store=store, retries=3,
            overrides={"lock_stale": "3s", "executor.workers": 1}) as run:
    futures = [work(n, store, name) for n in range(2)]
    for future in futures:
        error = future.exception()
        print("failed" if error else "result", type(error).__name__, error or future.result(),
              flush=True)
    try:
        work(7, store, name)
        print("submitted", flush=True)
    except CheckpointError as error:
        print("refused", type(error).__name__, flush=True)
print("exit", run.exit_code, flush=True)
"""


@contextmanager
def host(text: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", text, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str], beginning: str) -> str:
    """Wait for a line; the test's own time limit ends it if none comes."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return line
    raise AssertionError(f"it ended without saying {beginning!r}")


def test_a_killed_holder_is_replaced_when_it_has_been_silent(tmp_path: Path) -> None:
    with host(HOST, "a", tmp_path, STALE_S) as first:
        said(first, "holds")
        with host(HOST, "b", tmp_path, STALE_S) as second:
            assert "on a, started" in said(second, "refused")
            first.kill()
            killed_s = time.monotonic()
            said(second, "holds")
            assert time.monotonic() - killed_s > STALE_S / 2
            (tmp_path / "b.release").touch()
            said(second, "released")


@pytest.mark.slow
def test_of_two_that_race_for_a_dead_lock_one_wins(tmp_path: Path) -> None:
    with host(HOST, "a", tmp_path, STALE_S) as first:
        said(first, "holds")
        first.kill()
    with (
        host(HOST, "b", tmp_path, STALE_S) as second,
        host(HOST, "c", tmp_path, STALE_S) as third,
    ):
        hosts = {"b": second, "c": third}
        holders = list[str]()
        deadline_s = time.monotonic() + LIMIT_S
        while not holders:
            assert time.monotonic() < deadline_s
            numbers = sorted(tmp_path.glob("*.lock"))
            text = numbers[-1].read_text() if numbers else ""
            holders = [name for name in hosts if f'"session": "{name}"' in text]
        winner = holders[0]
        (loser,) = set(hosts) - {winner}
        said(hosts[winner], "holds")
        pid = hosts[winner].pid
        said(hosts[loser], f"refused Run 'exp' is held by process {pid} on {winner}, started")
        (tmp_path / f"{winner}.release").touch()
        said(hosts[winner], "released")
        said(hosts[loser], "holds")


def test_a_holder_that_was_frozen_finds_that_it_lost(tmp_path: Path) -> None:
    with host(HOST, "a", tmp_path, STALE_S) as first:
        said(first, "holds")
        os.kill(first.pid, signal.SIGSTOP)
        with host(HOST, "b", tmp_path, STALE_S) as second:
            said(second, "holds")
            os.kill(first.pid, signal.SIGCONT)
            line = said(first, "lost")
            assert "lost False" in line
            assert "taken over by process" in line
            assert first.wait(LIMIT_S) == 3
            (tmp_path / "b.release").touch()
            said(second, "released")


@pytest.mark.slow
def test_a_run_that_was_taken_over_stops_and_the_other_ends_it(tmp_path: Path) -> None:
    with host(FLOW, "first", tmp_path) as first:
        deadline_s = time.monotonic() + LIMIT_S
        while not (tmp_path / "first-3").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGSTOP)
        while True:  # It is refused until the first has been silent for long enough.
            with host(FLOW, "second", tmp_path) as second:
                output, _ = second.communicate(timeout=LIMIT_S)
            if second.returncode == 0:
                break
            assert time.monotonic() < deadline_s
        assert [line.split()[0] for line in output.splitlines()] == [
            "result", "result", "submitted", "exit",
        ]  # fmt: skip
        assert "exit 0" in output
        os.kill(first.pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        output, _ = first.communicate(timeout=LIMIT_S)
    lines = [line.split()[:2] for line in output.splitlines()]
    assert lines[0] == ["failed", "FencedError"]
    assert ["refused", "RunLocked"] in lines
    assert lines[-1] == ["exit", "1"]
    memo = (tmp_path / "runs" / "exp" / "memo").read_bytes()
    assert memo.count(b'"task": "work-n=0"') == 1
