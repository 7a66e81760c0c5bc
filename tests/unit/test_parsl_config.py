"""The Parsl Config of a site: how losses are noticed, and when an executor is given up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from parsl.executors import HighThroughputExecutor, ThreadPoolExecutor

from ckptflow.errors import ConfigError
from ckptflow.site import Site, load_site
from ckptflow.workflow.blocks.config import build_config, worker_init


def site(**executor: Any) -> Site:
    return load_site("local", overrides={f"executor.{key}": v for key, v in executor.items()})


def htex(**executor: Any) -> HighThroughputExecutor:
    (found,) = build_config(site(**executor), run_dir="runs").executors
    assert isinstance(found, HighThroughputExecutor)
    return found


def test_a_site_with_threads() -> None:
    config = build_config(load_site("local_threads"), run_dir=Path("runs"), retries=2)
    (executor,) = config.executors
    assert isinstance(executor, ThreadPoolExecutor)
    assert executor.max_threads == 2
    assert (config.retries, config.run_dir, config.usage_tracking) == (2, "runs", 0)
    assert callable(config.retry_handler)


def test_heartbeats_are_whole_seconds_and_at_least_one() -> None:
    executor = htex(heartbeat_period="1s", heartbeat_threshold="4500ms")
    assert (executor.heartbeat_period, executor.heartbeat_threshold) == (1, 4)


def test_as_many_workers_as_the_site_says_on_any_machine() -> None:
    executor = htex(workers=50)
    assert executor.max_workers_per_node == 50
    assert 50 * executor.cores_per_worker < 1


def test_a_block_takes_no_tasks_when_its_end_is_near() -> None:
    assert htex(walltime="1h", margin="5min").drain_period == 3000
    assert htex().drain_period is None


def test_programs_are_run_by_this_python() -> None:
    executor = htex()
    leader, pool = executor.launch_cmd.split(" -- ")
    assert leader.startswith(f"exec {sys.executable} -m ckptflow.workflow.blocks.leader ")
    assert pool.startswith(f"{sys.executable} -m ckptflow.workflow.blocks.pool ")
    assert sys.executable in executor.interchange_launch_cmd


def shell(lines: str, command: str) -> str:
    done = subprocess.run(
        ["bash", "-c", f"{lines}\n{command}"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_workers_start_with_the_marks_and_the_end_of_the_block() -> None:
    executor = site(walltime="100s", margin="1s", worker_init="export MINE=1").executor
    lines = worker_init(executor, {"CKPTFLOW_SESSION": "a b'c"})
    assert shell(lines, 'echo "$CKPTFLOW_SESSION|$MINE"') == "a b'c|1"
    left = int(shell(lines, "echo $(( CKPTFLOW_ENDS_AT - $(date +%s) ))"))
    assert 98 <= left <= 100


def test_the_pool_survives_signals_that_are_meant_for_tasks() -> None:
    lines = worker_init(site().executor, {})
    kills = "kill -USR1 $$; kill -USR2 $$; kill -TERM $$"
    assert shell(lines, f"{kills}; echo alive") == "alive"


def test_workers_see_gpus_of_their_own_and_share_cores() -> None:
    executor = htex(workers=2, gpus_per_worker=2, cpu_affinity="block")
    assert executor.available_accelerators == ["0,1", "2,3"]
    assert executor.cpu_affinity == "block"


def test_another_python_runs_the_workers() -> None:
    executor = htex(python="/opt/my python/bin/python3")
    assert sys.executable not in executor.launch_cmd
    assert (
        "'/opt/my python/bin/python3' -m ckptflow.workflow.blocks.pool " in executor.launch_cmd
    )
    assert sys.executable in executor.interchange_launch_cmd


def test_an_interface_is_an_address_of_this_host() -> None:
    assert htex(interface="lo").address == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"no address on 'nope0'.*it has .*lo"):
        htex(interface="nope0")


def test_a_short_block_is_warned_late_enough_to_work() -> None:
    def options(walltime: str) -> str:
        slurm = {"executor.walltime": walltime, "executor.margin": "5s"}
        slurm["executor.address"] = "127.0.0.1"
        (found,) = build_config(load_site("slurm", overrides=slurm), run_dir="r").executors
        return str(found.provider.scheduler_options)

    assert "--signal=USR2@120\n" in options("1h")
    assert "--signal=USR2@30\n" in options("2min")
