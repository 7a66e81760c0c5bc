"""A workflow whose code, arguments and input files change between its starts.

Method: one story in a folder, told by the command line on the site of threads; each test looks
at one chapter. The tasks write down where they begin. What comes out is compared with runs
that nothing has disturbed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ckptflow.cli import app

FLOW = '''
"""Two works over an input file, and their sum."""
import sys
from pathlib import Path

import numpy as np
from parsl.data_provider.files import File

import ckptflow as cf
from physics import advance

HERE = Path(__file__).parent


@cf.python_app(key=("seed",), every=1, keep="all")
def work(seed, steps, deck, ckpt):
    from pathlib import Path
    state = ckpt.restore({"step": 0, "w": np.full(50, float(Path(deck.filepath).read_text()))})
    with open(HERE / "ran", "a") as ran:
        ran.write(f"work {seed} from {state['step']}\\n")
    while state["step"] < steps:
        state["step"] += 1
        state["w"] = advance(state["w"], seed)
        ckpt.step(state["step"], state)
        ckpt.wait()
        if seed and state["step"] == 3 and (HERE / "stop").exists():
            raise ValueError("told to stop")
    return float(state["w"].sum())


@cf.python_app(key=())
def total(*values):
    with open(HERE / "ran", "a") as ran:
        ran.write("total\\n")
    return sum(values)


steps = int(sys.argv[1])
with cf.run("exp", site="local_threads", retries=0):
    works = [work(seed, steps, File(str(HERE / "deck.in"))) for seed in range(2)]
    total(*works).exception()
'''
PHYSICS = "def advance(w, seed):\n    return w * 1.5 + seed\n"
EDITED = "def advance(w, seed):\n    return w * 1.25 + seed\n"


@dataclass
class Story:
    """A folder, and what was done in it."""

    folder: Path
    chapters: dict[str, tuple[Result, list[str]]] = field(default_factory=dict)

    def tell(self, chapter: str, *command: str) -> Result:
        """Run a command as a chapter of the story."""
        (self.folder / "ran").write_text("")
        sys.modules.pop("physics", None)
        result = CliRunner().invoke(app, command)
        self.chapters[chapter] = (
            result,
            sorted((self.folder / "ran").read_text().splitlines()),
        )
        return result

    def write(self, name: str, text: str) -> None:
        """Write a file of the workflow, a while ago."""
        (self.folder / name).write_text(text)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The whole story; each chapter is a command."""
    folder = tmp_path_factory.mktemp("story")
    told, home = Story(folder), Path.cwd()
    os.chdir(folder)
    try:
        for name, text in (("flow.py", FLOW), ("physics.py", PHYSICS), ("deck.in", "2")):
            told.write(name, text)
        told.write("stop", "")
        told.tell("stopped", "run", "flow.py", "--", "6")
        (folder / "stop").unlink()
        told.write("physics.py", EDITED)
        told.tell("plan", "restart", "exp", "--dry-run", "--json")
        told.tell("refused", "run", "flow.py", "--on-change", "fail", "--", "6")
        told.tell("resumed", "run", "flow.py", "--", "6")
        told.tell("redone", "run", "flow.py", "--on-change", "redo", "--", "6")
        told.tell("invalidated", "invalidate", "exp", "work-seed=1", "--dependents", "--json")
        told.tell("run again", "run", "flow.py", "--", "6")
        told.tell("undisturbed", "run", "flow.py", "--name", "other", "--", "6")
        told.tell("same", "diff", "exp/work-seed=1", "other/work-seed=1")
        told.tell("also same", "diff", "exp/work-seed=0", "other/work-seed=0")
        told.tell("back", "rerun", "exp", "work-seed=0", "--from", "2", "--json")
        told.tell("same after going back", "diff", "exp/work-seed=0", "other/work-seed=0")
        told.tell("more", "run", "flow.py", "--", "8")
        told.write("deck.in", "3")
        told.tell("deck", "run", "flow.py", "--on-change", "redo", "--", "8")
        (folder / "deck.in").unlink()
        told.tell("no deck", "run", "flow.py", "--", "8")
    finally:
        os.chdir(home)
    return told


def summary(story: Story, chapter: str, task: str) -> str:
    lines = story.chapters[chapter][0].stderr.splitlines()
    found = [line.strip() for line in lines if line.strip().startswith(f"{task}:")]
    return found[0] if found else ""


def ran(story: Story, chapter: str) -> list[str]:
    return story.chapters[chapter][1]


def code(story: Story, chapter: str) -> int:
    return story.chapters[chapter][0].exit_code


def test_before_anything_changes(story: Story) -> None:
    assert code(story, "stopped") == 1
    assert ran(story, "stopped") == ["work 0 from 0", "work 1 from 0"]


def test_the_plan_names_the_function_that_has_changed(story: Story) -> None:
    plan = json.loads(story.chapters["plan"][0].stdout)["plan"]
    tasks = {one["task"]: one for one in plan["tasks"]}
    for task, action in (("work-seed=0", "reuse"), ("work-seed=1", "resume")):
        assert tasks[task]["action"] == action
        assert tasks[task]["changes"] == ["physics.py:advance has changed"]
    assert plan["now"]["site"] == "local"


def test_fail_lets_changed_tasks_fail_before_they_start(story: Story) -> None:
    assert code(story, "refused") == 1
    assert ran(story, "refused") == []
    for task in ("work-seed=0", "work-seed=1"):
        line = summary(story, "refused", task)
        assert "TaskChanged" in line
        assert "physics.py:advance has changed" in line


def test_resume_goes_on_and_says_so(story: Story) -> None:
    assert code(story, "resumed") == 0
    assert ran(story, "resumed") == ["total", "work 1 from 3"]
    assert "advance has changed); the result is used all the same" in summary(
        story, "resumed", "work-seed=0"
    )
    assert "checkpoint of step 3 was made (physics.py:advance has changed); it goes on" in (
        summary(story, "resumed", "work-seed=1")
    )


def test_redo_begins_anew_what_another_code_has_made(story: Story) -> None:
    """The other work was ended by the new code, so its result is taken for that of it."""
    assert code(story, "redone") == 0
    assert ran(story, "redone") == ["total", "work 0 from 0"]
    assert "it begins anew" in summary(story, "redone", "work-seed=0")


def test_what_is_invalidated_runs_again_from_the_beginning(story: Story) -> None:
    document = json.loads(story.chapters["invalidated"][0].stdout)
    assert [(one["task"], one["reason"]) for one in document["tasks"]] == [
        ("work-seed=1", "was named"),
        ("total", "takes the result of work-seed=1"),
    ]
    assert ran(story, "run again") == ["total", "work 1 from 0"]


@pytest.mark.parametrize("chapter", ["same", "also same", "same after going back"])
def test_the_bits_are_those_of_an_undisturbed_run(story: Story, chapter: str) -> None:
    assert code(story, "undisturbed") == 0
    assert code(story, chapter) == 0, story.chapters[chapter][0].output


def test_a_task_goes_back_to_an_older_checkpoint(story: Story) -> None:
    document: dict[str, Any] = json.loads(story.chapters["back"][0].stdout)
    assert (document["tasks"][0]["newest_step"], document["tasks"][0]["goes_on_from"]) == (6, 2)
    assert document["status"] == 0
    assert ran(story, "back") == ["work 0 from 2"]


def test_asking_for_more_goes_on_and_tells_the_argument(story: Story) -> None:
    assert ran(story, "more") == ["total", "work 0 from 6", "work 1 from 6"]
    assert "(steps: 6 -> 8)" in summary(story, "more", "work-seed=1")


def test_another_content_of_an_input_file_is_a_change(story: Story) -> None:
    assert ran(story, "deck") == ["total", "work 0 from 0", "work 1 from 0"]
    assert "(deck: deck.in #" in summary(story, "deck", "work-seed=1")


def test_a_missing_input_file_is_told_and_nothing_runs(story: Story) -> None:
    assert code(story, "no deck") == 1
    assert ran(story, "no deck") == []
    assert "deck.in', which does not exist" in summary(story, "no deck", "work-seed=1")


# --- another site ----------------------------------------------------------------------

SITES = '''
"""Four walks, slow until they are let go."""
from pathlib import Path

import numpy as np

import ckptflow as cf

HERE = Path(__file__).parent


@cf.python_app(key=("seed",), every=1)
def walk(seed, here, ckpt):
    import time
    from pathlib import Path
    state = ckpt.restore({"step": 0, "w": np.zeros(50), "rng": np.random.default_rng(seed)})
    while state["step"] < 6:
        state["step"] += 1
        state["w"] += state["rng"].standard_normal(50)
        ckpt.step(state["step"], state)
        if state["step"] == 3:
            ckpt.wait()
            Path(here, f"at-three-{seed}").touch()
            while not Path(here, "go").exists():
                time.sleep(0.02)
    return state["w"].tobytes().hex()


with cf.run("exp", site="local"):
    for future in [walk(seed, str(HERE)) for seed in range(4)]:
        print(future.result())
'''


@contextmanager
def begun(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command that prints into ``out`` and ``err``.

    Not into pipes: workers that outlive a killed process would hold them open.
    """
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "ckptflow.cli", *command], cwd=folder, stdout=out, stderr=err
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def printed(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait for the end of a command and return what it printed."""
    status = process.wait(150)
    assert status == 0, (folder / "err").read_text()
    return (folder / "out").read_text()


def wait_until_three(folder: Path, process: subprocess.Popen[bytes], *seeds: int) -> None:
    deadline_s = time.monotonic() + 250
    while not all((folder / f"at-three-{seed}").exists() for seed in seeds):
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


ELSEWHERE = """
name = "elsewhere"
[[tiers]]
kind = "posix"
name = "disk"
path = "unused"
level = 3
[executor]
kind = "threads"
workers = 3
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_run_goes_on_at_another_site_with_other_workers(tmp_path: Path) -> None:
    """Begun by two worker processes, and killed; ended by three threads, to the same bits."""
    (tmp_path / "walks.py").write_text(SITES)
    (tmp_path / "elsewhere.toml").write_text(ELSEWHERE)
    at = ["--store", str(tmp_path / "store")]
    with begun(tmp_path, "run", "walks.py", *at) as first:
        wait_until_three(tmp_path, first, 0, 1)
        first.send_signal(signal.SIGKILL)
    with begun(tmp_path, "restart", "exp", *at, "--site", "elsewhere.toml") as second:
        wait_until_three(tmp_path, second, 2, 3)
        (tmp_path / "go").touch()
        shown = printed(tmp_path, second)
    assert "before: site local, " in shown
    assert "now: site elsewhere, 3 workers a node" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("walk-seed=")]
    actions = {row[0]: row[1] for row in rows}
    assert [actions[f"walk-seed={seed}"] for seed in range(4)] == [
        "resume", "resume", "begin", "begin",
    ]  # fmt: skip
    results = [line for line in shown.splitlines() if len(line) == 800]
    more = ["--name", "other", "--site", "elsewhere.toml", *at]
    with begun(tmp_path, "run", "walks.py", *more) as undisturbed:
        expected = printed(tmp_path, undisturbed)
    assert len(results) == 4
    assert results == expected.splitlines()
