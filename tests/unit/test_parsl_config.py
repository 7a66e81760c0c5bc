"""The Parsl Config of a site: how losses are noticed, and when an executor is given up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from parsl.executors import HighThroughputExecutor, ThreadPoolExecutor

from ckptflow.errors import WorkflowError
from ckptflow.site import Site, load_site
from ckptflow.workflow.blocks.config import build_config, give_up_after, worker_init


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
    assert pool.startswith(f"{sys.executable} -m parsl.")
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


class Executor:
    """What an error handler sees of an executor."""

    def __init__(self) -> None:
        self.failed_with: list[Exception] = []
        self.run_dir = "runs/000"

    @property
    def bad_state_is_set(self) -> bool:
        return bool(self.failed_with)

    def set_bad_state_and_fail_all(self, error: Exception) -> None:
        self.failed_with.append(error)


def blocks(*states: str) -> dict[str, Any]:
    return {
        str(number): SimpleNamespace(
            state=SimpleNamespace(name=state), message=None, stderr_summary=f"log of {number}"
        )
        for number, state in enumerate(states)
    }


@pytest.mark.parametrize(
    ("states", "gives_up"),
    [
        ([], False),
        (["FAILED"], False),
        (["FAILED", "FAILED"], False),
        (["FAILED", "MISSING", "FAILED"], True),
        (["COMPLETED"] * 9 + ["FAILED"] * 3, True),
        (["FAILED"] * 5 + ["RUNNING"], False),
        (["FAILED", "FAILED", "COMPLETED", "FAILED"], False),
    ],
)
def test_an_executor_is_given_up_after_failures_in_a_row(
    states: list[str], gives_up: bool
) -> None:
    executor = Executor()
    give_up_after(3)(executor, blocks(*states))
    assert executor.bad_state_is_set == gives_up


def test_the_reason_holds_what_the_blocks_printed() -> None:
    executor = Executor()
    handler = give_up_after(2)
    handler(executor, blocks("FAILED", "FAILED"))
    handler(executor, blocks("FAILED", "FAILED", "FAILED"))
    (error,) = executor.failed_with
    assert isinstance(error, WorkflowError)
    assert "The last 2 blocks" in str(error)
    assert "log of 0; log of 1" in str(error)
