"""Parsl's monitoring on real workers: joined by hash, and its process does not outlive the run.

Method: a run with two workers, whose main process kills itself in its first life; a worker is
killed in the second. Then `why` and `logs` look at it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from ckptflow.cli import app
from ckptflow.workflow import journal

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("monitoring")]

FLOW = '''
"""One task, which kills its worker in the second life; the first life ends at once."""
import os
import time
from pathlib import Path

import numpy as np

import ckptflow as cf


@cf.python_app(key=(), every=1)
def work(ckpt):
    state = ckpt.restore({"step": 0, "w": np.ones(100)})
    while state["step"] < 6:
        state["step"] += 1
        ckpt.step(state["step"], state)
        while ckpt.attempt == 1 and state["step"] == 2:
            time.sleep(0.1)  # Until the second start ends what the first has left.
        if ckpt.attempt == 2 and state["step"] == 4:
            ckpt.wait()
            os.kill(os.getpid(), 9)
    return state["step"]


if __name__ == "__main__":
    overrides = {"executor.monitoring": True, "executor.heartbeat_period": "2s",
                 "executor.heartbeat_threshold": "6s"}
    with cf.run("exp", site="local", store="store", overrides=overrides, retries=3):
        future = work()
        if not Path("second").exists():
            while not list(Path("store").glob("lineages/exp/work/manifests/*")):
                time.sleep(0.1)
            os.kill(os.getpid(), 9)
        print(future.result())
'''


@dataclass
class Monitored:
    folder: Path
    why: dict[str, Any]
    logs: dict[str, Any]
    events: list[Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Monitored:
    folder = tmp_path_factory.mktemp("monitored")
    (folder / "flow.py").write_text(FLOW)
    for status in (-9, 0):
        # Into a file: a pipe would be held open by what the killed process leaves behind.
        with (folder / "output").open("w") as output:
            done = subprocess.run(
                [sys.executable, "flow.py"],
                cwd=folder,
                stdout=output,
                stderr=output,
                timeout=240,
                check=False,
            )
        assert done.returncode == status, (folder / "output").read_text()
        (folder / "second").touch()
    found = []
    here = Path.cwd()
    os.chdir(folder)
    try:
        for command in ("why", "logs"):
            line = [command, "exp/work", "--store", "store", "--json"]
            seen = CliRunner().invoke(app, line)
            assert seen.exit_code == 0, seen.output
            found.append(json.loads(seen.stdout))
    finally:
        os.chdir(here)
    events = list(journal.read(folder / "store" / "runs" / "exp" / "journal.jsonl"))
    return Monitored(folder, *found, events)


def test_tries_are_joined_by_the_hash_of_their_task(run: Monitored) -> None:
    found = run.why["monitoring"]
    starts = [e["run_id"] for e in run.events if e["event"] == "parsl-started"]
    assert {one["run_id"] for one in found} == set(starts)
    assert len(starts) == 2
    assert {one["task"] for one in found} == {"work"}
    lost, done = (one for one in found if one["run_id"] == starts[1])
    assert (lost["try_id"], done["try_id"]) == (0, 1)
    assert "WorkerLost" in lost["failed"]
    assert done["failed"] is None
    assert (done["block"], done["memory_bytes"] > 1 << 20) == ("0", True)


def test_attempts_say_on_which_worker_of_which_block_they_ran(run: Monitored) -> None:
    attempts = run.why["task"]["attempts"]
    assert [one["ending"] for one in attempts] == ["died", "lost", "finished"]
    for one in attempts:
        assert one["where"]["block"] == "0"
        assert one["where"]["worker"] in ("0", "1")
        assert len(one["where"]["manager"]) == 12
    assert attempts[1]["resumed_step"] in (1, 2)
    assert attempts[2]["resumed_step"] == 4
    assert 0 <= attempts[1]["lost_s"] < 60


def test_the_logs_of_its_workers_are_found(run: Monitored) -> None:
    what = [one["what"] for one in run.logs["files"]]
    assert sum(name.startswith("worker ") for name in what) >= 2
    lines = [
        line for one in run.logs["files"] if one["what"].startswith("manager") for line in
        one["lines"]
    ]  # fmt: skip
    assert any("has died" in line for line in lines)


def test_the_process_that_writes_the_database_does_not_outlive_the_run(run: Monitored) -> None:
    """The first life was killed, and left it behind; the second start ended it."""
    assert [e for e in run.events if e["event"] == "leftover-ended"]
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CKPTFLOW_RUN_FOLDER", "").startswith(str(run.folder)):
                left.append(process)
        except psutil.Error:
            continue
    assert left == []
