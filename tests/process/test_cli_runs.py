"""``ckptflow run`` and ``restart`` on a real workflow, and what their exit status says.

Method: the command in a process of its own, on the site of threads, whose tasks fail as told.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FLOW = '''
"""Two tasks; the second does what the folder's files tell it."""
import sys
from pathlib import Path

import numpy as np

import ckptflow as cf

STEPS = 6


@cf.python_app(key=("seed",), every=1)
def work(seed, ckpt):
    state = ckpt.restore({"step": 0, "w": np.random.default_rng(seed).standard_normal(500)})
    while state["step"] < STEPS:
        state["step"] += 1
        state["w"] += seed
        ckpt.step(state["step"], state)
        if seed and state["step"] == 3:
            ckpt.wait()
            if Path("fail").exists():
                raise ValueError("told to fail")
            if Path("spoil").exists():
                Path("spoil").unlink()
                packs = ckpt.lineage.tiers[0].root / ckpt.lineage.id.prefix / "packs"
                packs.rename(packs.with_name("moved"))
                packs.write_text("no folder any more")
    return float(state["w"].sum())


with cf.run("flow", site="local_threads", retries=0):
    futures = [work(seed) for seed in range(2)]
    print([future.result() for future in futures])
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
'''


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    (tmp_path / "flow.py").write_text(FLOW)
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ckptflow.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_failed_run_is_started_again_and_goes_on(flow: Path) -> None:
    (flow / "fail").touch()
    first = command(flow, "run", "flow.py", "--name", "exp")
    assert first.returncode == 1, first.stderr
    assert "ValueError: told to fail" in first.stderr
    assert "Traceback" in first.stderr
    assert "run exp: 1 finished, 1 failed" in first.stderr

    (flow / "fail").unlink()
    again = command(flow, "restart", "exp", "--json")
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert [
        (task["task"], task["action"], task["resume_step"])
        for task in document["plan"]["tasks"]
    ] == [
        ("work-seed=0", "reuse", None),
        ("work-seed=1", "resume", 3),
    ]
    done = {task["task"]: task for task in document["run"]["tasks"]}
    assert done["work-seed=0"]["status"] == "reused"
    assert done["work-seed=1"]["resumed_steps"] == [3]
    assert "[" in again.stderr  # What the script printed.

    undisturbed = command(flow, "run", "flow.py", "--name", "other")
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert undisturbed.stdout.strip() in again.stderr
    same = command(flow, "diff", "exp/work-seed=1", "other/work-seed=1")
    assert same.returncode == 0, same.stdout


def test_a_script_s_own_status_comes_first(flow: Path) -> None:
    done = command(flow, "run", "flow.py", "--", "9")
    assert done.returncode == 9
    assert "run flow: 2 finished" in done.stderr


@pytest.mark.damaged_store
def test_a_run_whose_saves_failed_says_so(flow: Path) -> None:
    (flow / "spoil").touch()
    done = command(flow, "run", "flow.py", "--name", "exp")
    assert done.returncode == 5, done.stderr
    assert "2 finished" in done.stderr
    assert "Cannot" in done.stderr


def test_a_run_that_is_alive_is_not_started_twice(flow: Path) -> None:
    """The script itself asks for a restart of its run while it holds the lock."""
    nested = FLOW.replace(
        "    futures =",
        "    import subprocess\n"
        "    again = [sys.executable, '-m', 'ckptflow.cli', 'restart', 'flow']\n"
        "    found = subprocess.run(again, capture_output=True, text=True)\n"
        "    print(found.returncode, found.stderr)\n"
        "    futures =",
    )
    (flow / "flow.py").write_text(nested)
    done = command(flow, "run", "flow.py", "--site", "local_threads")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 error (run-locked)")
