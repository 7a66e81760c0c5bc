"""Worker processes: what happens to tasks, workers and main processes, on the real executor.

Starting workers takes seconds, so one script (`htex_scenarios.py`) meets most misfortunes in
one run, and the tests look at what became of each.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
TIMEOUT_S = 120.0


def expected(steps: int) -> float:
    """The sum of 100 ones multiplied by 1.5, ``steps`` times, as the tasks compute it."""
    values = np.ones(100)
    for _ in range(steps):
        values *= 1.5
    return float(values.sum())


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1]),
        "HOME": str(folder),
        "PYTHONWARNINGS": "default",
    }


@dataclass
class Result:
    outcomes: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    store: Path

    def value(self, name: str) -> Any:
        return self.outcomes[name].get("value", self.outcomes[name])

    def task(self, prefix: str) -> dict[str, Any]:
        found = [task for task in self.summary["tasks"] if task["task"].startswith(prefix)]
        assert len(found) == 1, [task["task"] for task in self.summary["tasks"]]
        return found[0]


def run_scenarios(folder: Path) -> Result:
    store = folder / "store"
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "htex_scenarios.py")),
            *(str(store), str(HERE / "attached_program.py")),
        ],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    data = json.loads(done.stdout)
    return Result(data["outcomes"], data["summary"], store)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_scenarios(tmp_path_factory.mktemp("htex"))


@pytest.fixture(scope="module")
def second(first: Result) -> Result:
    return run_scenarios(first.store.parent)


def test_a_killed_worker_s_task_resumes_at_its_newest_step(first: Result) -> None:
    assert first.value("killed") == [3, 6, expected(9)]
    task = first.task("killed")
    assert (task["tries"], task["lost"]) == (3, 2)
    assert task["resumed_steps"] == [None, 3, 6]


@pytest.mark.parametrize("name", ["usr1", "usr2", "term"])
def test_a_stop_signal_saves_and_the_retry_is_free(first: Result, name: str) -> None:
    """Two stops against a budget of two: only free retries leave it at nothing spent."""
    assert first.value(name) == [3, 8, True, expected(10)]


def test_stops_in_time_are_counted(first: Result) -> None:
    tasks = [t for t in first.summary["tasks"] if t["task"].startswith("signalled")]
    assert [(task["tries"], task["preempted"]) for task in tasks] == [(3, 2)] * 3
    assert [task["resumed_steps"] for task in tasks] == [[None, 4, 8]] * 3


def test_workers_get_their_handlers_back(first: Result) -> None:
    """SIG_DFL for TERM; the pool ignores USR1 and USR2."""
    assert first.value("handlers") == ["0", "1", "1"]


def test_an_error_that_only_the_worker_knows_does_not_hang_the_executor(first: Result) -> None:
    assert first.outcomes["odd_error"] == {
        "error": "RemoteTaskError",
        "text": "odd_error raised worker_only.Odd: strange",
    }


def test_a_result_that_only_the_worker_knows_does_not_hang_the_executor(first: Result) -> None:
    assert first.outcomes["odd_result"]["error"] == "RemoteTaskError"
    assert "returned a worker_only.Thing" in first.outcomes["odd_result"]["text"]


def test_the_script_catches_its_own_errors_and_gets_its_own_objects(first: Result) -> None:
    assert first.outcomes["my_error"] == {"caught": "Mine", "text": "from the script"}
    assert first.value("my_thing") == "Thing(3)"


def test_leaving_by_exit_does_not_lose_the_task(first: Result) -> None:
    assert first.outcomes["leaves"]["error"] == "TaskExited"
    assert first.task("leaves")["lost"] == 0


def test_mistakes_are_given_up_at_once_and_bad_luck_is_not(first: Result) -> None:
    assert first.outcomes["mistaken"]["error"] == "TypeError"
    assert first.task("mistaken")["tries"] == 1
    assert first.outcomes["unlucky"]["error"] == "ValueError"
    assert first.task("unlucky")["tries"] == 3


@pytest.mark.parametrize("name", ["overtaken", "swallows"])
def test_an_attempt_that_was_overtaken_fails_and_commits_nothing(
    first: Result, name: str
) -> None:
    assert first.outcomes[name]["error"] == "FencedError"
    task = first.task(name)
    assert task["tries"] == 1
    lineage = Lineage([PosixTier(first.store, level=3)], LineageId("misfortunes", task["task"]))
    assert [found.id.step for found in lineage.checkpoints()] == [1]


def test_a_program_in_a_bash_app_attaches_and_is_stopped_in_time(first: Result) -> None:
    assert first.value("program") == 0
    task = first.task("program")
    assert (task["tries"], task["preempted"], task["step"]) == (2, 1, 9)
    assert task["resumed_steps"] == [None, 4]


def test_tasks_find_modules_beside_the_script(first: Result) -> None:
    assert first.value("beside") == "beside"


def test_bash_apps_keep_parsl_s_ways(first: Result) -> None:
    assert first.outcomes["fails"]["error"] == "BashExitFailure"
    assert first.value("plain") == 0
    assert (first.store / "hello.txt").read_text() == "hello\n"


def test_tasks_that_use_results_of_others(first: Result) -> None:
    assert first.value("chained") == 10


def test_the_exit_code_tells_that_tasks_failed(first: Result) -> None:
    assert first.summary["exit_code"] == 1
    assert first.summary["problems"] == []


def test_a_rerun_reuses_results_and_tries_failures_again(first: Result, second: Result) -> None:
    for name in ("killed", "usr1", "term", "my_thing", "program", "chained"):
        assert second.value(name) == first.value(name)
    for name in ("killed", "program", "add-which=x", "plain"):
        assert second.task(name)["status"] == "reused"
        assert second.task(name)["tries"] == 0
    assert second.task("unlucky")["tries"] == 3


def test_nothing_is_left_running(second: Result) -> None:
    assert processes_of(second.store / "runs") == []


def processes_of(folder: Path) -> list[int]:
    """Return processes that carry the run folder in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CKPTFLOW_RUN_FOLDER", "").startswith(str(folder)):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


SLOW_COUNT = """
    import sys
    import ckptflow as cf

    @cf.python_app(key=("name",), every=1)
    def count(name, steps, ckpt):
        state = ckpt.restore({"i": 0, "x": 1.0})
        while state["i"] < steps:
            state["i"] += 1
            state["x"] *= 1.0001
            ckpt.step(state["i"], state)
        return [ckpt.restored_step, state["x"]]

    if __name__ == "__main__":
        overrides = {"executor.heartbeat_period": 1}
        with cf.run("exp", site="local", store=sys.argv[1], overrides=overrides) as run:
            print(count("a", int(sys.argv[2])).result())
        print(run.summary())
"""


@dataclass
class Script:
    """A script in a process of its own. It writes to files: a pipe would stay open as long as
    what it started lives on."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def wait_until(self, condition: Callable[[], object]) -> None:
        limit = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self.process.poll() is None, self.err.read_text()[-3000:]
            assert time.monotonic() < limit
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self, status: int = 0) -> str:
        found = self.process.wait(timeout=TIMEOUT_S)
        assert found == status, self.err.read_text()[-3000:]
        return self.out.read_text()


def start(folder: Path, code: str, *arguments: object) -> Script:
    script = folder / "script.py"  # The same in each life: functions are known by their file.
    script.write_text(textwrap.dedent(code))
    number = len(list(folder.glob("*.out")))
    out, err = folder / f"script{number}.out", folder / f"script{number}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            cwd=folder,
            env=environment(folder),
            stdout=stdout,
            stderr=stderr,
        )
    return Script(process, out, err)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store whose processes do not outlive the test, however that ends."""
    yield tmp_path / "store"
    for pid in processes_of(tmp_path):
        psutil.Process(pid).kill()


def test_after_a_kill_of_the_main_process_the_same_script_goes_on(
    tmp_path: Path, store: Path
) -> None:
    lineage = Lineage([PosixTier(store, level=3)], LineageId("exp", "count-name=a"))
    killed = start(tmp_path, SLOW_COUNT, store, 1_000_000)
    killed.wait_until(lambda: store.exists() and len(lineage.checkpoints()) >= 2)
    killed.kill()
    orphans = processes_of(store / "runs")
    assert len(orphans) >= 3  # Interchange, manager, workers: they go on without it.

    steps = max(found.id.step for found in lineage.checkpoints()) + 400
    lines = start(tmp_path, SLOW_COUNT, store, steps).finish().splitlines()
    restored, x = json.loads(lines[0])
    assert restored >= 2
    assert x == math.prod([1.0001] * steps)
    assert not set(orphans) & set(psutil.pids())
    events = [
        event["event"] for event in journal.read(store / "runs" / "exp" / "journal.jsonl")
    ]
    assert "holder-died" in events
    assert events.count("leftover-ended") >= 3
    assert processes_of(store / "runs") == []

    again = start(tmp_path, SLOW_COUNT, store, steps).finish()
    assert again.splitlines() == [json.dumps([restored, x]), "run exp: 1 reused"]


@pytest.mark.slow
def test_a_second_process_of_one_run_is_refused(tmp_path: Path, store: Path) -> None:
    lineage = Lineage([PosixTier(store, level=3)], LineageId("exp", "count-name=a"))
    running = start(tmp_path, SLOW_COUNT, store, 1_000_000)
    running.wait_until(lambda: store.exists() and lineage.checkpoints())
    other = start(tmp_path, SLOW_COUNT, store, 10)
    other.finish(status=1)
    held = f"RunLocked: Run 'exp' is held by process {running.process.pid} on "
    assert held in other.err.read_text()
    running.kill()


INTERCHANGE = """
    import json, sys, time
    import parsl
    import ckptflow as cf

    @cf.python_app
    def wait(seconds):
        time.sleep(seconds)

    if __name__ == "__main__":
        with cf.run("exp", site="local", store=sys.argv[1]) as run:
            tasks = [wait(600.0 + n) for n in range(4)]
            executor = parsl.dfk().executors["htex"]
            while not executor.connected_managers():
                time.sleep(0.1)
            executor.interchange_proc.kill()
            errors = [str(task.exception(timeout=60)) for task in tasks]
        print(json.dumps([errors, run.exit_code, run.summary().problems]))
"""


def test_a_dead_interchange_fails_loudly_instead_of_hanging(
    tmp_path: Path, store: Path
) -> None:
    errors, code, problems = json.loads(start(tmp_path, INTERCHANGE, store).finish())
    assert len(errors) == 4
    assert all("The interchange of executor 'htex' has died" in text for text in errors)
    assert code == 1
    assert len(problems) == 1
    assert processes_of(store) == []


ZOMBIE = """
    import json, os, sys, time
    import psutil
    from ckptflow.errors import FencedError
    import ckptflow as cf

    @cf.python_app(key=("name",), every=1)
    def survive(name, steps, notes, ckpt):
        state = ckpt.restore({"i": 0, "x": 1.0})
        if ckpt.attempt == 1:
            # As if its node had lost its network: this worker goes on alone.
            leader = psutil.Process(os.getppid()).parent()
            assert "ckptflow.workflow.blocks.leader" in leader.cmdline()
            leader.kill()
            steps = 10**9
        try:
            while state["i"] < steps:
                state["i"] += 1
                state["x"] *= 1.0001
                ckpt.step(state["i"], state)
                time.sleep(0.02 if ckpt.attempt == 1 else 0)
            ckpt.wait()
        except FencedError as error:
            with open(notes, "w") as file:
                file.write(str(error))
            raise
        return [ckpt.attempt, ckpt.restored_step, state["i"], state["x"]]

    if __name__ == "__main__":
        overrides = {"executor.heartbeat_period": 1, "executor.heartbeat_threshold": 3}
        options = {"site": "local", "store": sys.argv[1], "overrides": overrides}
        with cf.run("exp", **options, retries=1) as run:
            print(json.dumps(survive("a", 400, sys.argv[2]).result()))
        print(run.summary().tasks[0].lost)
"""


@pytest.mark.slow
def test_a_worker_that_was_given_up_cannot_commit_beside_its_retry(
    tmp_path: Path, store: Path
) -> None:
    """Its leader is killed; it runs on as a second live writer, and is fenced."""
    notes = tmp_path / "fenced.txt"
    lines = start(tmp_path, ZOMBIE, store, notes).finish().splitlines()
    attempt, restored, steps, x = json.loads(lines[0])
    assert attempt == 2
    assert restored > 0
    assert steps == 400
    assert x == math.prod([1.0001] * 400)
    assert lines[1] == "1"
    assert "attempt 2 has taken over from attempt 1" in notes.read_text()
