"""What cannot be is said before anything is started, with what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from parsl.executors import MPIExecutor

import ckptflow as cf
from ckptflow.errors import ConfigError
from ckptflow.site.executor import ExecutorModel, SlurmAllocation
from ckptflow.workflow.blocks.config import build_config
from ckptflow.workflow.ranks.options import Ranks, on_site, resources


def two_nodes(**options: Any) -> Any:
    @cf.python_app(key=(), **options)
    def app(ckpt: Any) -> None: ...

    return app


def slurm(nodes: int = 2, **options: Any) -> SlurmAllocation:
    return SlurmAllocation(provider="slurm", nodes=nodes, **options)


def executor(allocation: SlurmAllocation, **options: Any) -> ExecutorModel:
    return ExecutorModel(allocation=allocation, walltime_s=3600.0, **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ranks": 0}, "ranks is a number from 1 on, not 0"),
        ({"ranks": True}, "ranks is a number from 1 on, not True"),
        ({"ranks": 5, "nodes": 2}, "ranks must be a multiple of nodes"),
        ({"nodes": 2}, "nodes=2 is said of ranks; say ranks= as well"),
        ({"replicated": "w"}, "replicated= is said of ranks"),
        ({"ranks": 2, "launcher": "aprun"}, "launcher is one of"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        two_nodes(**options)


def test_what_is_replicated_is_said_where_ranks_attach() -> None:
    def command(ckpt: Any) -> str:
        return ""

    with pytest.raises(ConfigError, match=r"ckptflow.attach\(replicated=…\)"):
        cf.bash_app(key=(), ranks=2, replicated="w")(command)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (ExecutorModel(kind="threads"), "tasks of this site are threads"),
        (ExecutorModel(), "an allocation of this site has 1.*nodes = 2"),
        (executor(slurm(1)), "an allocation of this site has 1"),
        (executor(slurm()), 'has workers of its own.*kind = "mpi"'),
        (
            executor(slurm(), kind="mpi", rank_launcher="processes"),
            "'processes' starts ranks on one node",
        ),
    ],
)
def test_sites_that_have_no_place_for_two_nodes(model: ExecutorModel, match: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)app\\(\\) asks for nodes=2.*{match}"):
        on_site("app", Ranks(4, 2), model)


def test_a_call_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    app = two_nodes(ranks=2, nodes=2)
    with (
        cf.run("exp", site="local_threads", store=tmp_path) as run,
        pytest.raises(ConfigError, match="all on this computer"),
    ):
        app()
    assert run.summary().tasks == ()
    assert not (tmp_path / "lineages").exists()


@pytest.mark.parametrize(
    ("model", "launcher"),
    [
        (ExecutorModel(kind="threads"), "processes"),
        (executor(slurm(), kind="mpi"), "srun"),
        (executor(slurm(), kind="mpi", rank_launcher="mpiexec"), "mpiexec"),
        (executor(slurm(launcher="simple"), workers=1), "srun"),
    ],
)
def test_the_site_says_what_starts_them(model: ExecutorModel, launcher: str) -> None:
    nodes = model.allocation.nodes
    assert on_site("app", Ranks(2 * nodes, nodes), model).launcher == launcher
    own = Ranks(2, launcher="mpiexec")
    assert on_site("app", own, model).launcher == "mpiexec"


def test_parsl_gets_whole_numbers() -> None:
    assert resources(Ranks(8, 2)) == {"num_nodes": 2, "ranks_per_node": 4, "num_ranks": 8}
    assert resources(None) == {"num_nodes": 1, "ranks_per_node": 1, "num_ranks": 1}


def test_on_gives_the_same_tasks_other_ranks() -> None:
    app = two_nodes(ranks=8, nodes=2, every=7)
    fewer = app.on(ranks=2, nodes=1)
    assert (fewer.ranks.ranks, fewer.ranks.nodes, fewer.every) == (2, 1, 7)
    assert fewer.function.task_name((), {}) == app.function.task_name((), {})
    assert (app.ranks.ranks, app.ranks.nodes) == (8, 2)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"allocation": {"provider": "local"}}, "kind mpi shares out the nodes"),
        ({"allocation": slurm(launcher="single_node")}, "launcher is simple, not single_node"),
        ({"allocation": slurm(), "workers": 3}, "3 workers cannot be busy on 2 nodes"),
    ],
)
def test_executors_of_kind_mpi_that_cannot_be(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ExecutorModel(kind="mpi", walltime_s=3600.0, **options)


def test_the_executor_of_kind_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers on the first node only, as many as there are nodes, by the pool that can wait."""
    for name in ("sacct", "squeue", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    site = cf.load_site(
        "slurm",
        overrides={
            "executor.kind": "mpi",
            "executor.allocation.nodes": 4,
            "executor.workers": 3,
            "executor.address": "127.0.0.1",
        },
    )
    (made,) = build_config(site, run_dir=tmp_path).executors
    assert isinstance(made, MPIExecutor)
    assert (made.max_workers_per_block, made.mpi_launcher) == (3, "srun")
    assert type(made.provider.launcher).__name__ == "SimpleLauncher"
    assert "-m ckptflow.workflow.blocks.mpi_pool" in made.launch_cmd
