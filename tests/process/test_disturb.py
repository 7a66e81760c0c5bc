"""The demo kills whom it should, sees what it cost, and calls a failure a failure.

Method: the real `run_demo` with a workflow of a few lines in place of the example, so that a
case takes seconds. Its tasks run in processes of their own and are started again when killed.
Variants of the script are broken in one way each.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from ckptflow.cli import demo
from ckptflow.cli.disturb import TOKEN, Execution, Workload
from ckptflow.errors import ConfigError, WorkflowError

SCRIPT = """
import argparse, multiprocessing, pathlib, sys, time
import numpy as np
import ckptflow as cf

EVERY = 5

def work(options, task, steps):
    store, run = options.store, options.name
    with cf.Checkpointer(store, run=run, task=task, every=EVERY, keep=9) as ckpt:
        state = {"step": 0, "rng": np.random.default_rng(3), "walk": np.zeros(999)}
        state = ckpt.restore(state)
        while state["step"] < steps:
            state["walk"] += state["rng"].standard_normal(999)
            state["step"] += 1
            ckpt.step(state["step"], state)
            time.sleep(0.01)  # So long does a step of the work take.
    (pathlib.Path(options.out) / task).write_text(state["walk"].tobytes().hex())

def main():
    parser = argparse.ArgumentParser()
    for name in ("site", "name", "out", "store"):
        parser.add_argument(f"--{name}")
    for name in ("seeds", "size", "sim-steps", "train-steps"):
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()
    print("seen by the log", flush=True)
    out = pathlib.Path(options.out)
    tasks = {"simulate-seed=0": options.sim_steps, "train-seed=0": options.train_steps}
    for task, steps in tasks.items():
        while not (out / task).exists():
            worker = multiprocessing.Process(target=work, args=(options, task, steps))
            worker.start()
            worker.join()
    (out / "result.json").write_text("".join((out / task).read_text() for task in tasks))

if __name__ == "__main__":
    main()
"""

WORK = Workload(seeds=1, size=16, sim_steps=100, train_steps=160)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "workflow.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def play(script, tmp_path, monkeypatch):
    """Run the demo on the small workflow, changed by replacements; return result and talk."""

    def run(**replacements: str):
        text = SCRIPT
        for old, new in replacements.values():
            assert old in text
            text = text.replace(old, new)
        script.write_text(text)
        monkeypatch.setattr(demo, "workflow_script", lambda: script)
        told = io.StringIO()
        console = Console(file=told, width=300)
        return demo.run_demo(tmp_path / "out", console=console, work=WORK), told.getvalue()

    return run


def left_over() -> list[int]:
    """Return processes of any demo that this test process started and that still live."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if TOKEN in process.environ():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_three_kills_three_resumes_and_the_same_bits(play):
    result, told = play()
    assert result.line.startswith(
        "demo: PASS kills=3 resumed=3 bit_identical=true stored_ratio="
    )
    assert result.passed
    assert [loss.kill for loss in result.losses] == [1, 2, 3]
    assert [loss.task for loss in result.losses] == [
        "simulate-seed=0", "train-seed=0", "train-seed=0"
    ]  # fmt: skip
    for loss in result.losses:
        assert loss.resumed_step == loss.newest.step > 0
        assert loss.newest.step % 5 == 0
        assert loss.lost_s >= 0
    assert "kill 3: SIGKILL to main process" in told
    assert "seen by the log" in (result.out / "disturbed" / "output.log").read_text()
    assert left_over() == []
    _the_tables_tell_what_was_lost_and_stored(result)


def _the_tables_tell_what_was_lost_and_stored(result: demo.DemoResult) -> None:
    shown = io.StringIO()
    for table in demo.tables(result):
        Console(file=shown, width=200).print(table)
    text = shown.getvalue()
    for loss in result.losses:
        assert f"step {loss.resumed_step}" in text
        assert loss.victim in text
    for held in result.holdings:
        assert held.task in text
        assert held.full_bytes >= held.checkpoints * 999 * 8
    stored = sum(
        path.stat().st_size
        for path in (result.out / "store" / "lineages" / "disturbed").rglob("*")
        if path.is_file() and not path.name.startswith(".")  # A killed put is no object.
    )
    assert sum(held.stored_bytes for held in result.holdings) == stored


@pytest.mark.slow
def test_one_differing_bit_fails(play):
    changed = ('"".join((out', 'options.name + "".join((out')
    result, _ = play(other=changed)
    assert not result.passed
    assert result.line.startswith("demo: FAIL (workflow) bit_identical=false: ")


@pytest.mark.slow
def test_a_task_that_begins_anew_fails_though_the_bits_agree(play):
    """Restoring nothing gives the right result, only later: the demo must not be content."""
    forgets = ("task=task", 'task=f"{task}-{time.time_ns()}"')
    result, _ = play(forgets=forgets)
    assert result.line.startswith("demo: FAIL (workflow) ")
    assert left_over() == []


@pytest.mark.slow
def test_a_workflow_that_ended_too_early_is_disturbed_once_more(play):
    imports = ("import argparse,", "import argparse, os,")
    from_environment = ("every=EVERY", 'every=int(os.environ.get("EVERY", 5))')
    once_too_seldom = (
        'print("seen by the log", flush=True)',
        'seen = pathlib.Path(options.out).parent / "seen"\n'
        '    if options.name == "disturbed" and not seen.exists():\n'
        '        seen.touch(); os.environ["EVERY"] = "1000"',
    )
    result, told = play(a=imports, b=from_environment, c=once_too_seldom)
    assert told.count("once more from the beginning") == 1
    assert result.line.startswith("demo: PASS kills=3 resumed=3 bit_identical=true ")
    assert [loss.kill for loss in result.losses] == [1, 2, 3]


@pytest.mark.slow
def test_a_workflow_that_ends_before_it_can_be_killed_fails(play):
    result, told = play(never=("EVERY = 5", "EVERY = 1000"))
    assert told.count("once more from the beginning") == 2
    assert result.failure is not None
    assert "before there was a task 'simulate' to interrupt; kills=0; see " in result.failure


@pytest.mark.slow
def test_a_workflow_that_fails_undisturbed_fails_the_demo(play):
    result, _ = play(fails=("    main()\n", "    main(); sys.exit(3)\n"))
    assert "the undisturbed run ended with status 3" in result.line
    assert result.line.startswith("demo: FAIL ")


def test_only_own_processes_are_victims(script, tmp_path):
    """A claim with the process of somebody else, here ours, makes no victim."""
    execution = Execution(script, "run", tmp_path, WORK, Path("local.toml"))
    assert not execution._owns(os.getpid())
    assert not execution._owns(-1)
    assert execution.interruptible("simulate") == []


def test_a_kill_without_a_victim_says_so(script, tmp_path):
    script.write_text("print('nothing to do')")
    execution = Execution(script, "run", tmp_path, WORK, Path("local.toml"))
    execution.start()
    with pytest.raises(
        WorkflowError, match="ended with status 0 before there was a task 'train'"
    ):
        execution.kill_worker("train", done=0.0)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path, monkeypatch, script):
    monkeypatch.setattr(demo, "workflow_script", lambda: script)
    mine = tmp_path / "out" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("do not delete")
    with pytest.raises(ConfigError, match="holds something else than an earlier demo"):
        demo.run_demo(mine.parent, console=Console(file=io.StringIO()))
    assert mine.read_text() == "do not delete"


def test_a_site_without_workers_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="kills workers, and site 'local_threads' has none"):
        demo.run_demo(
            tmp_path / "out", console=Console(file=io.StringIO()), site="local_threads"
        )
    assert not (tmp_path / "out").exists()


def test_the_script_is_found_beside_the_package(repository):
    assert demo.workflow_script().name == "sim_train_analyse.py"


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(demo, "NEEDED", ("json", "no_such_package"))
    with pytest.raises(ConfigError, match=r"needs no_such_package; install ckptflow\[demo\]"):
        demo.workflow_script()
