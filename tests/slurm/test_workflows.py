"""The example workflows run on real Slurm, with the site file that is shipped for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKFLOWS = {
    "sim_train_analyse": ("--sim-steps=60", "--train-steps=100", "--size=48", "--seeds=2"),
    "graphlets": ("--vertices=600", "--parts=3", "--graphs", "mesh", "road"),
}
NEEDS = {"sim_train_analyse": ("sklearn", "matplotlib"), "graphlets": ("numba", "scipy")}


def run(repository: Path, name: str, site: str, out: Path, env: dict[str, str]) -> bytes:
    """Run a workflow as a user would; return the bytes of its result."""
    out.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ckptflow.cli", "run"),
            *(str(repository / "workflows" / f"{name}.py"), "--site", site),
            *("--", *WORKFLOWS[name], "--out", str(out / "results")),
        ],
        cwd=out,
        env={**os.environ, "PYTHONPATH": str(repository), **env},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return (out / "results" / "result.json").read_bytes()


@pytest.mark.parametrize("name", list(WORKFLOWS))
def test_a_workflow_gives_the_same_bytes_on_slurm(
    name: str, repository: Path, slurm: SlurmCluster, tmp_path: Path
) -> None:
    for module in NEEDS[name]:
        pytest.importorskip(module)
    before = slurm.command("squeue", "-h", "-t", "all", "-o", "%A").split()
    site = str(repository / "site_configs" / "slurm.toml")
    there = run(repository, name, site, tmp_path / "slurm", slurm.env)
    here = run(repository, name, "local_threads", tmp_path / "here", {})
    assert there == here
    assert json.loads(there)
    after = slurm.command("squeue", "-h", "-t", "all", "-o", "%A").split()
    assert set(after) > set(before), "nothing was asked of Slurm"
    slurm.wait_idle()  # It has given its nodes back.
