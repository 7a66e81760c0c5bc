"""The commands that start ranks, as text; they are run in tests of processes and of Slurm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.workflow.ranks.launchers import command, flavour, hosts_in


def program(folder: Path, name: str, says: str) -> dict[str, str]:
    """Put a program on a PATH of its own."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return {"PATH": str(folder)}


def test_processes_of_this_node() -> None:
    words = command("processes", ranks=3, nodes=1, environ={})
    assert words == [sys.executable, "-m", "ckptflow.workflow.ranks.spawn", "--ranks=3", "--"]


def test_srun(tmp_path: Path) -> None:
    words = command(
        "srun",
        ranks=8,
        nodes=2,
        hosts=["n3", "n4"],
        options=["--mpi=pmix"],
        environ=program(tmp_path, "srun", ""),
    )
    assert words == [
        "srun", "--overlap", "--mem=0", "--kill-on-bad-exit=1", "--nodes=2", "--ntasks=8",
        "--ntasks-per-node=4", "--nodelist=n3,n4", "--mpi=pmix",
    ]  # fmt: skip


def test_mpiexec_of_open_mpi(tmp_path: Path) -> None:
    environ = {**program(tmp_path, "mpiexec", "mpiexec (Open MPI) 5.0.11"), "PYTHONPATH": "x"}
    words = command("mpiexec", ranks=4, nodes=2, hosts=["a", "b"], environ=environ)
    assert words == [
        str(tmp_path / "mpiexec"), "-n", "4", "--map-by", "ppr:2:node:oversubscribe",
        "--host", "a:2,b:2", "-x", "CKPTFLOW_STEWARD", "-x", "PATH", "-x", "PYTHONPATH",
    ]  # fmt: skip


def test_mpiexec_of_hydra(tmp_path: Path) -> None:
    environ = program(tmp_path, "mpiexec", "HYDRA build details:")
    words = command("mpiexec", ranks=4, nodes=2, hosts=["a", "b"], environ=environ)
    assert words == [
        str(tmp_path / "mpiexec"), "-n", "4", "-ppn", "2", "-hosts", "a,b",
    ]  # fmt: skip


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_a_launcher_that_is_not_there(launcher: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{launcher} is not on the PATH of the worker"):
        command(launcher, ranks=2, nodes=1, environ={"PATH": str(tmp_path)})  # type: ignore[arg-type]


def test_an_mpiexec_that_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--version fails"):
        flavour(str(tmp_path / "mpiexec"))


def test_the_nodes_that_parsl_has_chosen() -> None:
    assert hosts_in({"PARSL_MPI_NODELIST": "n1,n2"}) == ["n1", "n2"]
    assert hosts_in({}) == []
