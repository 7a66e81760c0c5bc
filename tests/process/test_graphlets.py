"""The graphlet workflow, killed without warning, writes the result of an undisturbed run.

Method: the script runs in a process of its own and is sent SIGKILL as soon as it has committed
a checkpoint that is not its last; then the same command is given again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ckptflow.store.catalog import Lineage, lineages
from ckptflow.tiers.posix import PosixTier

pytest.importorskip("numba", reason="graphlets are counted by compiled code")

GRAPHS = ("road", "mesh")
VERTICES, PARTS = 30_000, 300
PATIENCE_S = 200.0


def command(repository: Path, out: Path, site: str) -> list[str]:
    script = repository / "workflows" / "graphlets.py"
    return [
        sys.executable, "-m", "ckptflow.cli", "run", str(script), "--json", "--",
        f"--site={site}", f"--out={out}", f"--vertices={VERTICES}", f"--parts={PARTS}",
        "--seed=3", "--graphs", *GRAPHS,
    ]  # fmt: skip


def newest_steps(store: Path) -> list[int]:
    tier = PosixTier(store)
    found = [Lineage([tier], lineage).valid() for lineage in lineages([tier])]
    return [checkpoints[0].id.step for checkpoints in found if checkpoints]


def start_and_kill(arguments: list[str], store: Path, *, beyond: int) -> int:
    """Start; kill once a step greater than ``beyond`` is committed; return the newest step."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + PATIENCE_S
    while max(newest_steps(store), default=0) <= beyond:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < limit, "no checkpoint was committed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    return max(newest_steps(store))


def run(arguments: list[str]) -> dict[str, dict[str, object]]:
    """Run to the end; return the reports of the tasks that count, by their graph."""
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tasks = {task["task"]: task for task in json.loads(done.stdout)["run"]["tasks"]}
    return {
        graph: tasks[f"count_graph-graph={graph}-vertices={VERTICES}-seed=3"]
        for graph in GRAPHS
    }


def check(repository: Path, folder: Path, site: str) -> None:
    undisturbed, killed = folder / "a", folder / "b"
    run(command(repository, undisturbed, site))
    first = start_and_kill(command(repository, killed, site), killed / "store", beyond=0)
    second = start_and_kill(command(repository, killed, site), killed / "store", beyond=first)
    assert 0 < first < second < VERTICES
    tasks = run(command(repository, killed, site))
    resumed = [step for task in tasks.values() for step in task["resumed_steps"] if step]
    assert any(step >= second for step in resumed)
    results = [(out / "result.json").read_bytes() for out in (undisturbed, killed)]
    assert results[0] == results[1]
    assert set(json.loads(results[0])) == set(GRAPHS)


@pytest.mark.slow
def test_killed_twice_it_writes_the_same_result(repository: Path, tmp_path: Path) -> None:
    check(repository, tmp_path, "local_threads")


@pytest.mark.slow
def test_killed_twice_with_workers_of_its_own(repository: Path, tmp_path: Path) -> None:
    check(repository, tmp_path, "local")


@pytest.mark.slow
def test_more_parts_go_on_from_fewer(repository: Path, tmp_path: Path) -> None:
    """How often it saves is no part of the task, and no part of what comes out."""
    arguments = command(repository, tmp_path, "local_threads")
    run([*arguments, "--parts=3"])
    first = json.loads((tmp_path / "result.json").read_text())
    tasks = run([*arguments, "--parts=7"])
    assert all(task["resumed_steps"] == [VERTICES] for task in tasks.values())
    assert json.loads((tmp_path / "result.json").read_text()) == first
    code = (
        f"import sys; sys.path.insert(0, {str(repository / 'workflows')!r})\n"
        "import graphlets, hashlib\n"
        f"for counts in graphlets.snapshots('road', {VERTICES}, 3, seed=3): pass\n"
        "print(hashlib.sha256(counts.tobytes()).hexdigest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == first["road"]["sha256"]
    assert np.sum(first["road"]["graphlets"]) > VERTICES
