"""A real run, killed and started again, seen through each command; none changes a thing.

Method: one workflow of threads in a process of its own, which kills itself at a moment in its
first life and ends well in its second; between the two and after them the commands look at it,
in this process. So all that is looked at was written by real lives.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

from ckptflow.cli import app
from ckptflow.workflow import journal

pytestmark = pytest.mark.xdist_group("seeing")

FLOW = '''
"""Three tasks on two tiers; the second fails once, then the process dies at step 12 of it."""
import os
import sys
import time

import numpy as np

import ckptflow as cf


@cf.python_app(key=("seed",), every=2)
def work(seed, steps, ckpt):
    ckpt.total_steps = steps
    state = ckpt.restore({"step": 0, "w": np.random.default_rng(seed).standard_normal(500)})
    while state["step"] < steps:
        state["step"] += 1
        state["w"] += seed
        ckpt.step(state["step"], state)
        if seed == 1 and ckpt.attempt == 1 and state["step"] == 6:
            ckpt.wait()
            raise OSError("the first time it fails")
        if seed == 1 and ckpt.attempt == 2 and state["step"] == 12:
            ckpt.wait()
            # The journal is written a moment later: what is looked at has to be there.
            while "first time it fails" not in open("runs/exp/journal.jsonl").read():
                time.sleep(0.01)
            os.kill(os.getpid(), 9)
    return float(state["w"].sum())


@cf.python_app(key=("n",))
def odd(n):
    return None + n


with cf.run("exp", site="two.toml", retries=2):
    for seed in range(2):
        print(work(seed, 20).exception())
    print(odd(1).exception())
'''
SITE = """
run_dir = "runs"
[[tiers]]
name = "near"
kind = "posix"
level = 1
path = "near"
[[tiers]]
name = "far"
kind = "posix"
level = 3
path = "far"
[executor]
kind = "threads"
workers = 1
[policy]
keep = 2
flush_every = { far = 2 }
"""


@dataclass
class Seen:
    """What the commands said, and what became of the run's files meanwhile."""

    folder: Path
    dead: dict[str, Result]
    ended: dict[str, Result]
    changed: list[str]

    def json(self, name: str, *, dead: bool = False) -> Any:
        return json.loads((self.dead if dead else self.ended)[name].stdout)


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "status": ("status", "exp"),
    "status.json": ("status", "exp", "--json"),
    "watch": ("status", "exp", "--watch", "--every", "0.1"),
    "why": ("why", "exp/work-seed=1"),
    "why.json": ("why", "exp/work-seed=1", "--json"),
    "why odd": ("why", "exp/odd-n=1"),
    "logs": ("logs", "exp", "--lines", "2"),
    "logs task": ("logs", "exp/work-seed=1", "--json"),
    "events": ("events", "exp"),
    "metrics": ("metrics", "exp"),
}


def look(folder: Path) -> dict[str, Result]:
    runner = CliRunner()
    return {
        name: runner.invoke(app, [*command, "--site", "two.toml"])
        for name, command in COMMANDS.items()
    }


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file of the run and its stores."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for name in ("runs", "near", "far")
        for path in sorted((folder / name).rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("seeing")
    (folder / "flow.py").write_text(FLOW)
    (folder / "two.toml").write_text(SITE)
    changed: list[str] = []
    looks = []
    here = Path.cwd()
    for status in (-9, 0):
        done = subprocess.run(
            [sys.executable, "flow.py"], cwd=folder, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        before = files(folder)
        os.chdir(folder)  # The site's paths are relative, as a user's may be.
        try:
            looks.append(look(folder))
        finally:
            os.chdir(here)
        after = files(folder)
        changed += [
            name for name in before.keys() | after if before.get(name) != after.get(name)
        ]
    return Seen(folder, *looks, changed)


def test_nobody_who_looks_changes_a_thing(seen: Seen) -> None:
    assert seen.changed == []


def test_no_command_failed(seen: Seen) -> None:
    for found in (seen.dead, seen.ended):
        # Of the second task nothing was known yet when the run died.
        expected = {"watch": 7 if found is seen.dead else 1}
        expected |= {"why odd": 3} if found is seen.dead else {}
        codes = {name: one.exit_code for name, one in found.items()}
        assert codes == {**dict.fromkeys(COMMANDS, 0), **expected}


def test_a_dead_run_is_dead_and_says_what_to_type(seen: Seen) -> None:
    text = seen.dead["status"].stdout
    assert re.search(r"run exp: dead; process \d+ on \S+ is gone", text)
    assert "It goes on where it was with: ckptflow restart exp --site two.toml" in text
    tasks = {one["task"]: one for one in seen.json("status.json", dead=True)["tasks"]}
    assert tasks["work-seed=0"]["state"] == "finished"
    work = tasks["work-seed=1"]
    assert (work["state"], work["attempts"], work["total_steps"]) == ("interrupted", 2, 20)
    assert work["saved"]["near"]["step"] == 12
    assert 4 <= work["saved"]["far"]["step"] <= 12
    assert work["step"] == 12


def test_a_run_that_ended_says_how(seen: Seen) -> None:
    text = seen.ended["status"].stdout
    assert "run exp: ended with exit code 1 after" in text
    assert "start 2; 2 of 3 tasks done; 1 failed" in text
    document = seen.json("status.json")
    assert (document["state"], document["exit_code"]) == ("ended", 1)
    assert [life["died"] for life in document["lives"]] == [True, False]
    states = {one["task"]: one["state"] for one in document["tasks"]}
    assert states == {"work-seed=0": "reused", "work-seed=1": "finished", "odd-n=1": "failed"}


def test_the_story_of_a_task_has_all_its_attempts(seen: Seen) -> None:
    document = seen.json("why.json")
    found = [
        (one["number"], one["ending"], one["resumed_step"], one["reached_step"])
        for one in document["task"]["attempts"]
    ]
    assert found == [
        (1, "failed", None, 6), (2, "died", 6, 12), (3, "finished", 12, 20)
    ]  # fmt: skip
    texts = [one["text"] for one in document["story"]]
    told = "\n".join(texts)
    assert "attempt 1 failed at step 6: OSError: the first time it fails" in told
    assert "another try costs 1, it failed with OSError" in told
    assert re.search(r"attempt 2 began on \S+ \(process \d+\).*, and went on from step 6", told)
    assert "attempt 2 was left behind, at step 12 or later: the run died" in told
    assert "the script was started again" in told
    assert texts[-1] == "attempt 3 finished at step 20"
    assert document["conclusion"][0] == "It is finished."
    # Nothing was lost but what the attempts did after their last checkpoints: no whole step.
    assert [one["lost_steps"] for one in document["task"]["attempts"]][:2] == [0, 0]


def test_a_failed_task_tells_why_there_is_no_other_try(seen: Seen) -> None:
    text = seen.ended["why odd"].stdout
    assert "this try failed: TypeError: unsupported operand" in text
    assert "no other try, TypeError is a mistake, not bad luck" in text
    assert "When the run is started again, it begins anew" in text


def test_every_save_is_known_though_most_were_pruned(seen: Seen) -> None:
    found = seen.json("why.json")["task"]["checkpoints"]
    assert [one["step"] for one in found] == list(range(2, 22, 2))
    assert {one["status"] for one in found} >= {"pruned", "ok"}
    assert all(one["state_bytes"] > 4000 for one in found)
    # Of the last one before the kill the store knows, if nothing else.
    told = [one for one in found if one["step"] != 12]
    assert all(one["blocked_s"] is not None and one["taken_s"] for one in told)
    on_far = [
        one["step"]
        for one in found
        if any(copy["tier"] == "far" and copy["stored_s"] for copy in one["copies"])
    ]
    assert len(on_far) >= 3


def test_in_a_pipe_a_change_is_a_line(seen: Seen) -> None:
    lines = seen.ended["watch"].stdout.splitlines()
    assert any(re.match(r"\d\d:\d\d:\d\d work-seed=1 finished, ", line) for line in lines)
    assert lines[-3].startswith("run exp: ended with exit code 1")


def test_logs_name_the_files(seen: Seen) -> None:
    assert "journal (" in seen.ended["logs"].stdout
    assert str(seen.folder / "runs" / "exp" / "parsl" / "001") in seen.ended["logs"].stdout
    files = seen.json("logs task")["files"]
    assert [one["what"] for one in files] == ["Parsl (start 1)", "Parsl (start 2)"]
    assert all("ask 1 " in line for one in files[:1] for line in one["lines"])


def test_events_are_json_lines_in_order_and_all_on_the_page(seen: Seen) -> None:
    found = [json.loads(line) for line in seen.ended["events"].stdout.splitlines()]
    assert [one["time"] for one in found] == sorted(one["time"] for one in found)
    kept = list(journal.read(seen.folder / "runs" / "exp" / "journal.jsonl"))
    kept.sort(key=lambda one: one["time"])  # Threads that add at once may swap.
    assert [one for one in found if not one["event"].startswith(("att", "che", "st"))] == kept
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "events.md"
    rows = re.findall(r"^\| `([a-z-]+)` \|([^|]*)\|", page.read_text(), re.MULTILINE)
    fields = {event: set(re.findall(r"`(\w+)`", text)) for event, text in rows}
    unknown = {
        (one["event"], name)
        for one in found
        for name in one.keys() - {"event", "time"} - fields.get(one["event"], set())
    }
    assert unknown == set()
    assert {one["event"] for one in found} >= {
        "run-started", "parsl-started", "holder-died", "task-launched", "task-reused",
        "task-try-failed", "task-finished", "task-failed", "run-ended", "attempt-began",
        "attempt-resumed", "step-reached", "checkpoint-taken", "checkpoint-stored",
        "attempt-ended",
    }  # fmt: skip


def test_prometheus_reads_the_run(seen: Seen) -> None:
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(seen.ended["metrics"].stdout)
        for sample in family.samples
    }
    assert found["ckptflow_run_state", "exp", "ended"] == 1
    assert found["ckptflow_task_step", "exp", "work-seed=1"] == 20
    assert found["ckptflow_checkpoints_total", "exp", "work-seed=1"] == 10
    assert found["ckptflow_attempts_ended_total", "exp", "died"] == 1


def test_a_report_is_one_page_and_replaces_the_old_one(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(seen.folder)
    page = tmp_path / "page.html"
    for _ in range(2):
        command = ["report", "exp", "--site", "two.toml", "--out", str(page), "--json"]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["path"] == str(page)
    html = page.read_text()
    assert html.startswith("<!DOCTYPE html>")
    assert html.count("<svg") >= 5
    assert "the first time it fails" in html


@pytest.mark.slow
def test_whoever_watches_sees_changes_and_ends_as_the_run_does(
    tmp_path: Path,
) -> None:
    """A live run: its only task waits for a file, which comes when the watcher has seen it."""
    (tmp_path / "two.toml").write_text(SITE)
    (tmp_path / "flow.py").write_text(
        FLOW.replace("while state", "import time\n    while state")
        .replace("state[\"step\"] += 1", "state[\"step\"] += 1\n"
                 "        while state['step'] == 3 and not os.path.exists('go'):\n"
                 "            ckpt.step(2, state)\n"
                 "            time.sleep(0.05)")
        .replace("range(2)", "range(1)")
    )  # fmt: skip
    cli = [sys.executable, "-m", "ckptflow.cli"]
    flow = subprocess.Popen([sys.executable, "flow.py"], cwd=tmp_path)
    try:
        while not (tmp_path / "runs" / "exp" / "journal.jsonl").exists():
            assert flow.poll() is None
            time.sleep(0.05)
        command = [*cli, "status", "exp", "--watch", "--every", "0.2", "--site", "two.toml"]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as watcher:
            assert watcher.stdout is not None
            lines = []
            for line in watcher.stdout:
                lines.append(line)
                if "work-seed=0 running" in line and "saved near:2" in line:
                    (tmp_path / "go").touch()
        assert flow.wait(120) == 0
    finally:
        flow.kill()
        flow.wait()
    text = "".join(lines)
    assert "work-seed=0 running" in text
    assert "work-seed=0 finished" in text
    assert "run exp: ended with exit code 1" in text
    assert watcher.returncode == 1  # As `ckptflow run` would have ended: a task failed.


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (("status", "nothing"), 3, "There is no run 'nothing' in"),
        (("why", "exp/nothing"), 3, "has no task 'nothing'; it has work-seed=0"),
        (("why", "exp"), 2, "names no checkpoint; write RUN/TASK"),
        (("status", "a/b"), 2, "cannot be the name of a run"),
        (("report", "exp", "--out", "/no/folder/x.html"), 2, "There is no folder /no/folder"),
        (("report", "exp", "--monitoring", "no.db"), 3, "There is no monitoring database"),
        (("why", "exp/work-seed=1", "--monitoring", "flow.py"), 2, "cannot be read as Parsl's"),
        (("logs", "exp", "--follow", "--json"), 2, "--follow goes on"),
        (("status", "exp", "--watch", "--every", "soon"), 2, "is not a duration"),
    ],
)
def test_mistakes_are_said_in_one_line(
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    monkeypatch.chdir(seen.folder)
    done = CliRunner().invoke(app, [*command, "--site", "two.toml"])
    assert done.exit_code == code, done.output
    assert text in done.stderr
