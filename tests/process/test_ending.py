"""Blocks and runs that are told to end: tasks save, go on elsewhere, and nothing stays behind.

Worker processes on this machine; `ending_workflow.py` waits in the middle until it is told.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow import journal

HERE = Path(__file__).resolve().parent
LIMIT_S = 280.0

# Pools of workers are started twice in each; on a busy machine that takes minutes.
pytestmark = pytest.mark.timeout(900)

SITE = """
[[tiers]]
kind = "posix"
name = "disk"
path = "{folder}/store"
level = 3

[executor]
workers = 2
heartbeat_period = "1s"
heartbeat_threshold = "{threshold}"
strategy_period = "500ms"
"""


def expected() -> float:
    values = np.ones(1000)
    for _ in range(12):
        values *= 1.01
    return float(values.sum())


class Scene:
    """A run of the script, and who is part of it."""

    def __init__(self, folder: Path, *, threshold: str = "60s", retries: int = 0) -> None:
        self.folder, self.notes = folder, folder / "notes"
        self.notes.mkdir(exist_ok=True)
        site = folder / "here.toml"
        site.write_text(SITE.format(folder=folder, threshold=threshold))
        self.out, self.err = folder / "out", folder / "err"
        words = [sys.executable, HERE / "ending_workflow.py", site, self.notes, retries]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [str(word) for word in words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "HOME": str(folder)},
                stdout=out,
                stderr=err,
            )

    @property
    def run_folder(self) -> Path:
        return self.folder / "store" / "runs" / "exp"

    def until(self, condition: Callable[[], object]) -> None:
        limit_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < limit_s, self.err.read_text()[-3000:]
            time.sleep(0.05)

    def until_waiting(self) -> None:
        self.until(lambda: len(list(self.notes.iterdir())) == 2)

    def leader(self) -> psutil.Process:
        worker = psutil.Process(int((self.notes / "a").read_text()))
        return next(
            one
            for one in worker.parents()
            if "ckptflow.workflow.blocks.leader" in one.cmdline()
        )

    def finish(self, status: int = 0) -> dict[str, Any]:
        found = self.process.wait(timeout=LIMIT_S)
        assert found == status, self.err.read_text()[-3000:]
        return json.loads(self.out.read_text() or "{}")

    def events(self, name: str) -> list[dict[str, Any]]:
        return [
            dict(one)
            for one in journal.read(self.run_folder / "journal.jsonl")
            if one["event"] == name
        ]

    def newest_step(self, name: str) -> int | None:
        store = PosixTier(self.folder / "store", level=3)
        newest = Lineage([store], LineageId("exp", f"count-name={name}")).newest()
        return newest.id.step if newest else None

    def processes(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("CKPTFLOW_RUN_FOLDER") == str(self.run_folder):
                    found.append(process.pid)
            except (psutil.Error, OSError):
                continue
        return found

    def clear(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.processes():
            psutil.Process(pid).kill()


@pytest.fixture(scope="module")
def warned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, dict[str, Any]]]:
    """The leader of the first block gets a warning while tasks compute and others wait."""
    scene = Scene(tmp_path_factory.mktemp("warned"))
    try:
        scene.until_waiting()
        scene.leader().send_signal(signal.SIGUSR2)
        yield scene, scene.finish()
    finally:
        scene.clear()


Warned = tuple[Scene, dict[str, Any]]


def test_tasks_of_a_warned_block_save_and_go_on_in_another(warned: Warned) -> None:
    assert warned[1]["results"] == [[2, 5, "1", expected()]] * 2


def test_nothing_is_charged_for_it(warned: Warned) -> None:
    """The run allows no retry at all."""
    tasks = [one for one in warned[1]["summary"]["tasks"] if one["task"].startswith("count")]
    assert [one["preempted"] for one in tasks] == [1, 1]
    costs = {event["cost"] for event in warned[0].events("task-try-failed")}
    assert costs == {0.0}


def test_no_task_is_started_on_a_block_that_was_warned(warned: Warned) -> None:
    assert set(warned[1]["blocks"]) == {"1"}


def test_the_journal_tells_of_the_blocks(warned: Warned) -> None:
    scene, _ = warned
    assert [event["block"] for event in scene.events("block-submitted")] == ["0", "1"]
    assert [event["block"] for event in scene.events("block-held")] == ["0"]
    ends = {event["block"]: event["state"] for event in scene.events("block-ended")}
    assert ends["0"] == "COMPLETED"
    assert set(ends) == {"0", "1"}


def test_nothing_is_left_of_it(warned: Warned) -> None:
    assert warned[0].processes() == []
    assert [event["exit_code"] for event in warned[0].events("run-ended")] == [0]


def test_a_run_that_is_told_to_stop_saves_and_the_same_line_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    try:
        scene.until_waiting()
        scene.process.send_signal(signal.SIGTERM)
        scene.process.send_signal(signal.SIGTERM)
        scene.finish(status=7)
        assert "it ends, start it again to go on" in scene.err.read_text()
        (end,) = scene.events("run-ended")
        assert (end["exit_code"], end["signal"]) == (7, "SIGTERM")
        assert [scene.newest_step(name) for name in "ab"] == [5, 5]
        assert scene.processes() == []
        again = Scene(tmp_path)
        assert [result[:2] for result in again.finish()["results"]] == [[2, 5], [2, 5]]
    finally:
        scene.clear()


@pytest.mark.slow
def test_tasks_that_lost_their_manager_save_before_they_are_given_up(tmp_path: Path) -> None:
    scene = Scene(tmp_path, threshold="20s", retries=1)
    try:
        scene.until_waiting()
        worker = psutil.Process(int((scene.notes / "a").read_text()))
        manager = worker.parent()
        assert manager is not None
        manager.kill()
        scene.until(lambda: [scene.newest_step(name) for name in "ab"] == [5, 5])
        assert [result[:2] for result in scene.finish()["results"]] == [[2, 5], [2, 5]]
        assert scene.processes() == []
    finally:
        scene.clear()


@pytest.mark.slow
def test_what_a_killed_run_has_left_is_cleared_away(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    try:
        scene.until_waiting()
        assert clean_up(tmp_path)[0] == 8  # It is running.
        scene.process.kill()
        scene.process.wait()
        (scene.run_folder / ".left.partial").touch()
        code, found = clean_up(tmp_path, "--dry-run")
        assert code == 0
        pids = {one["pid"] for one in found["processes"]}
        assert scene.leader().pid in pids
        assert pids <= set(scene.processes())
        code, found = clean_up(tmp_path)
        assert (code, found["problems"]) == (0, [])
        assert pids <= {one["pid"] for one in found["processes"]}
        assert str(scene.run_folder / ".left.partial") in found["files"]
        assert scene.processes() == []
        assert not (scene.run_folder / ".left.partial").exists()
        assert clean_up(tmp_path)[1]["processes"] == []
    finally:
        scene.clear()


def clean_up(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "ckptflow.cli", "cleanup", "exp", "--json", *options]
    done = subprocess.run(
        [*command, "--site", str(folder / "here.toml")],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)
