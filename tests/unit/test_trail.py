"""What attempts tell while they run: in which file, what, and that nobody is hindered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.workflow.journal import Journal
from ckptflow.workflow.trail import TRAIL, TellingCheckpointer, Trail


def events(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in sorted((folder / TRAIL).glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]


def telling(store: Path, run_folder: Path, **options: Any) -> TellingCheckpointer:
    made = TellingCheckpointer(store, run="run", task="task", every=1, **options)
    made.trail = Trail(str(run_folder / TRAIL))
    return made


def test_an_attempt_tells_where_it_is_where_it_began_and_what_it_saved(tmp_path: Path) -> None:
    run_folder = tmp_path / "runs"
    run_folder.mkdir()
    for first, last in ((1, 3), (3, 5)):
        with telling(tmp_path / "store", run_folder) as ckpt:
            ckpt.total_steps = 9
            state = ckpt.restore({"i": 0, "w": np.ones(1000)})
            for step in range(first, last):
                state["i"] = step
                ckpt.step(step, state)
            ckpt.wait()
            ckpt.tell_last_step()
    found = events(run_folder)
    for attempt, begin, steps in ((1, None, (1, 2)), (2, 2, (3, 4))):
        ours = [(e["event"], e.get("step")) for e in found if e["attempt"] == attempt]
        assert ours[:3] == [
            ("attempt-began", None), ("attempt-resumed", begin), ("step-reached", steps[0])
        ]  # fmt: skip
        assert ours[-1] == ("step-reached", steps[1])
        # Writing goes on beside the next step.
        assert sorted(ours[3:-1]) == sorted(
            (event, step)
            for step in steps
            for event in ("checkpoint-taken", "checkpoint-stored")
        )
    assert found[0]["pid"] == os.getpid()
    resumed = next(e for e in found if e["event"] == "attempt-resumed" and e["attempt"] == 2)
    assert (resumed["of_attempt"], resumed["skipped"]) == (1, [])
    stored = next(e for e in found if e["event"] == "checkpoint-stored")
    assert stored["state_bytes"] >= 8000
    assert stored["stored_bytes"] > 0
    assert {e["total_steps"] for e in found if e["event"] == "step-reached"} == {9}


@pytest.mark.damaged_store
def test_what_was_passed_over_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with telling(tmp_path / "store", tmp_path / "runs", keep="all") as ckpt:
        state = ckpt.restore({"w": np.arange(5000.0)})
        for step in (1, 2):
            state["w"] *= 2
            ckpt.save(step, state)
    (pack,) = (tmp_path / "store").rglob("000000000002.*.pack")
    pack.write_bytes(pack.read_bytes()[:-100])
    with (
        telling(tmp_path / "store", tmp_path / "runs") as ckpt,
        pytest.warns(UserWarning, match="was skipped"),
    ):
        ckpt.restore({"w": np.zeros(5000)})
    ckpt.trail.settle()
    resumed = [e for e in events(tmp_path / "runs") if e["event"] == "attempt-resumed"][-1]
    assert resumed["step"] == 1
    (skipped,) = resumed["skipped"]
    assert (skipped["step"], skipped["attempt"]) == (2, 1)
    assert "pack" in skipped["reason"]


def test_where_the_run_s_folder_is_not_seen_nothing_is_made(tmp_path: Path) -> None:
    """A worker on another machine must not make folders in places that mean nothing there."""
    with telling(tmp_path / "store", tmp_path / "elsewhere" / "runs") as ckpt:
        ckpt.save(1, ckpt.restore({"i": 1}))
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_written_hinders_nobody(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / TRAIL).write_text("no folder")
    with telling(tmp_path / "store", tmp_path / "runs") as ckpt:
        ckpt.save(1, ckpt.restore({"i": 1}))
        ckpt.wait()
    assert ckpt.failures == []


def test_the_trail_is_private(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with telling(tmp_path / "store", tmp_path / "runs") as ckpt:
        ckpt.save(1, ckpt.restore({"i": 1}))
    ckpt.trail.settle()
    (file,) = (tmp_path / "runs" / TRAIL).iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_who_is_killed_has_told_what_it_saved(tmp_path: Path) -> None:
    """The file is written by a thread, but soon: a kill -9 takes no save with it."""
    script = """
import os, sys
from pathlib import Path
from ckptflow.workflow.trail import TellingCheckpointer, Trail
ckpt = TellingCheckpointer(sys.argv[1], run="run", task="task", every=1)
ckpt.trail = Trail(sys.argv[2])
ckpt.save(1, ckpt.restore({"i": 1}))
ckpt.wait()
while not any("checkpoint-stored" in p.read_text() for p in Path(sys.argv[2]).glob("*")):
    pass
os.kill(os.getpid(), 9)
"""
    (tmp_path / "runs").mkdir()
    folder = str(tmp_path / "runs" / TRAIL)
    command = [sys.executable, "-c", script, str(tmp_path / "store"), folder]
    assert subprocess.run(command, timeout=120, check=False).returncode == -9
    assert events(tmp_path / "runs")[-1]["event"] == "checkpoint-stored"


@pytest.mark.parametrize("steps", [-1, True, 10**12])
def test_a_total_that_is_none_is_refused(tmp_path: Path, steps: int) -> None:
    with telling(tmp_path, tmp_path) as ckpt, pytest.raises(ConfigError, match="total_steps"):
        ckpt.total_steps = steps


def test_the_total_travels_in_the_manifest(tmp_path: Path) -> None:
    with telling(tmp_path / "store", tmp_path) as ckpt:
        ckpt.total_steps = 500
        ckpt.save(1, ckpt.restore({"i": 1}))
    newest = ckpt.lineage.newest()
    assert newest is not None
    assert ckpt.lineage.manifest(newest).pace["total_steps"] == 500


def test_settling_a_journal_waits_until_its_lines_are_there(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        for number in range(100):
            journal.add("event", number=number)
        assert journal.settle(60)
        assert len((tmp_path / "journal").read_text().splitlines()) == 100
        assert journal.settle(60)
