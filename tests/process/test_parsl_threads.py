"""Tasks as threads of this process: starts at once, so what a run does is tried out here."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import parsl
import pytest

import ckptflow as cf
from ckptflow.errors import (
    ConfigError,
    FencedError,
    Preempted,
    RunLocked,
    TaskExited,
    TierFull,
)
from ckptflow.model import LineageId
from ckptflow.site import Site, load_site
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow import active, journal
from ckptflow.workflow.run import Run, last_run
from ckptflow.workflow.summary import FAILED, FINISHED, REUSED


def start() -> dict[str, Any]:
    return {"i": 0, "w": np.ones(50)}


@cf.python_app(key=("seed",), every=1)
def count(seed: int, steps: int, ckpt: Any) -> list[Any]:
    state = ckpt.restore(start())
    while state["i"] < steps:
        state["i"] += 1
        state["w"] *= 1.5
        ckpt.step(state["i"], state)
    return [ckpt.restored_step, float(state["w"].sum())]


@cf.python_app(key=(), capture={"w": "diff-first"})
def captures(ckpt: Any) -> str:
    return str(ckpt.save(1, ckpt.restore(start())).modes["w"].mode)


@cf.python_app(key=("seed",), every=1)
def breaks(seed: int, at: int, ckpt: Any) -> int | None:
    """Fails at step ``at``, in every attempt that has not got further."""
    state = ckpt.restore(start())
    for i in range(state["i"] + 1, 10):
        state["i"] = i
        ckpt.step(i, state)
        if i == at:
            ckpt.wait()
            raise ValueError(f"at step {i}")
    restored: int | None = ckpt.restored_step
    return restored


@cf.python_app
def leave() -> None:
    raise SystemExit(2)


@cf.python_app
def double(x: Any) -> Any:
    return 2 * x


@pytest.fixture(autouse=True)
def no_run_is_left() -> Iterator[None]:
    yield
    assert active._run is None
    assert parsl.dataflow.dflow.DataFlowKernelLoader._dfk is None


def run(store: Path, name: str = "exp", **options: Any) -> Run:
    return cf.run(name, site="local_threads", store=store, **options)


def lineage(store: Path, task: str, name: str = "exp") -> Lineage:
    return Lineage([PosixTier(store, level=3)], LineageId(name, task))


def status(summary: Any, prefix: str) -> str:
    return str(next(one.status for one in summary.tasks if one.task.startswith(prefix)))


def test_results_are_computed_once(tmp_path: Path) -> None:
    with run(tmp_path) as first:
        results = [future.result() for future in [count(seed, 5) for seed in range(3)]]
    assert results == [[None, 50 * 1.5**5]] * 3
    assert first.exit_code == 0
    with run(tmp_path) as second:
        assert [count(seed, 5).result() for seed in range(3)] == results
    assert [one.status for one in second.summary().tasks] == [REUSED] * 3
    assert len(lineage(tmp_path, "count-seed=0").attempts()) == 1
    assert last_run() is second


def test_an_unfinished_task_goes_on_in_the_next_run(tmp_path: Path) -> None:
    with run(tmp_path, retries=0) as first:
        assert isinstance(breaks(1, 4).exception(), ValueError)
    assert first.exit_code == 1
    with run(tmp_path, retries=0) as second:
        assert breaks(1, 4).result() == 4
    assert second.exit_code == 0
    assert status(second.summary(), "breaks") == FINISHED
    told = [e["event"] for e in journal.read(second.folder / "journal.jsonl")]
    assert [one for one in told if one.startswith(("run-", "app-", "task-"))] == [
        "run-started", "app-defined", "task-launched", "task-try-failed", "task-failed",
        "run-ended",
        "run-started", "app-defined", "task-launched", "task-finished", "run-ended",
    ]  # fmt: skip


def test_a_run_that_is_over_leaves_no_thread_of_ours_and_no_file_open(tmp_path: Path) -> None:
    def ours() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name.startswith("ckptflow-")}

    before = ours()
    for number in range(3):
        with run(tmp_path):
            count(number, 5).result()
    assert ours() - before == set()
    files = list(Path("/proc/self/fd").iterdir())
    opened = [str(file.readlink()) for file in files if file.is_symlink()]
    assert [name for name in opened if name.startswith(str(tmp_path / "runs"))] == []


def test_an_app_says_how_its_state_is_captured(tmp_path: Path) -> None:
    with run(tmp_path):
        assert captures().result() == "diff-first"


def test_retries_resume(tmp_path: Path) -> None:
    with run(tmp_path, retries=1) as the_run:
        assert breaks(1, 4).result() == 4
    (report,) = the_run.summary().tasks
    assert (report.tries, report.resumed_steps) == (2, [None, 4])


def test_a_deadline_stops_tasks_in_time(tmp_path: Path) -> None:
    """Threads get no signals; the walltime of the site still stops them."""

    @cf.python_app(key=(), every=1_000_000)
    def endless(ckpt: Any) -> None:
        state = ckpt.restore(start())
        while True:
            state["i"] += 1
            ckpt.step(state["i"], state)
            time.sleep(0.001)

    limits = {"executor.walltime": 0.5, "executor.margin": 0.1}
    with run(tmp_path, retries=0, overrides=limits) as the_run:
        error = endless().exception(timeout=60)
    assert isinstance(error, Preempted)
    assert "the time of the run ends in 0." in str(error)
    assert the_run.exit_code == 7
    assert the_run.summary().tasks[0].status == "stopped"
    newest = lineage(tmp_path, "endless").valid()[0]
    assert newest.id.step == error.step


def test_the_walltime_of_a_call_stops_it_in_time_and_progress_is_free(tmp_path: Path) -> None:
    @cf.python_app(key=(), every=1_000_000)
    def slow(ckpt: Any, walltime: float = 4) -> int:
        state = ckpt.restore(start())
        while ckpt.attempt < 2:
            state["i"] += 1
            ckpt.step(state["i"], state)
            time.sleep(0.001)
        return int(state["i"])

    with run(tmp_path, retries=0) as the_run:
        assert slow().result(timeout=60) > 1
    (report,) = the_run.summary().tasks
    assert (report.tries, report.preempted) == (2, 1)
    assert report.resumed_steps[0] is None
    assert report.resumed_steps[1] > 0


def test_leaving_by_exit_completes_the_future(tmp_path: Path) -> None:
    with run(tmp_path, retries=0) as the_run:
        error = leave().exception(timeout=60)
    assert isinstance(error, TaskExited)
    assert the_run.exit_code == 1


def test_two_live_tasks_of_one_key_do_not_mix(tmp_path: Path) -> None:
    gate = threading.Event()

    @cf.python_app(key=("seed",), every=1, cache=False)
    def waits(seed: int, number: int, ckpt: Any) -> int:
        state = ckpt.restore(start())
        if number == 1:
            ckpt.save(1, state)
            ckpt.wait()
            started.set()
            assert gate.wait(timeout=60)
            ckpt.save(2, state)
        return number

    started = threading.Event()
    with run(tmp_path, retries=3):
        first = waits(1, 1)
        assert started.wait(timeout=60)
        second = waits(1, 2)
        assert ckpt_claims(tmp_path, "waits-seed=1", 2)
        assert second.result(timeout=60) == 2
        gate.set()
        error = first.exception(timeout=60)
    assert isinstance(error, FencedError)
    assert "two of its tasks have the same key" in error.__notes__[0]


def ckpt_claims(store: Path, task: str, number: int) -> bool:
    limit = time.monotonic() + 60
    while len(lineage(store, task).attempts()) < number:
        assert time.monotonic() < limit
        time.sleep(0.005)
    return True


def test_a_task_that_never_uses_its_checkpointer_leaves_nothing_in_the_store(
    tmp_path: Path,
) -> None:
    @cf.python_app
    def idle(x: int, ckpt: Any) -> int:
        return x

    with run(tmp_path) as the_run:
        assert [f.result() for f in [idle(x) for x in range(5)]] == list(range(5))
    assert the_run.exit_code == 0
    assert not (tmp_path / "lineages").exists()


def test_a_full_disk_warns_and_the_exit_code_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = PosixTier.put

    def full(self: PosixTier, key: str, parts: Any) -> None:
        if "000000000003." in key:
            raise TierFull(f"No room to write {key!r}.")
        put(self, key, parts)

    monkeypatch.setattr(PosixTier, "put", full)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with run(tmp_path) as the_run:
            assert count(1, 3).result() == [None, 50 * 1.5**3]
    assert the_run.exit_code == 5
    assert the_run.summary().tasks[0].status == FINISHED
    assert "No room to write" in the_run.summary().failures[0]
    assert any(
        issubclass(one.category, cf.CheckpointWarning) and "run exp: count" in str(one.message)
        for one in caught
    )
    assert lineage(tmp_path, "count-seed=1").valid()[0].id.step == 2


def test_a_disk_without_room_for_the_record_of_the_end_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = PosixTier.put

    def full(self: PosixTier, key: str, parts: Any) -> None:
        if key.endswith(".end"):
            raise TierFull(f"No room to write {key!r}.")
        put(self, key, parts)

    monkeypatch.setattr(PosixTier, "put", full)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cf.CheckpointWarning)
        with run(tmp_path) as the_run:
            assert count(1, 3).result()[0] is None
    assert the_run.exit_code == 5
    assert "could not write to the store" in the_run.summary().failures[0]


def test_one_run_at_a_time_in_a_process(tmp_path: Path) -> None:
    with run(tmp_path, "one"):
        with pytest.raises(ConfigError, match="Run 'one' is active in this process"):
            run(tmp_path, "two").__enter__()
        assert double(4).result() == 8


def test_a_run_that_is_held_elsewhere_is_refused(tmp_path: Path) -> None:
    with run(tmp_path) as outer:
        active.leave(outer)
        try:
            with pytest.raises(RunLocked, match=rf"held by process {os.getpid()}"):
                run(tmp_path).__enter__()
        finally:
            active.enter(outer)


def test_an_error_in_the_script_gives_the_tasks_up_and_frees_the_run(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="division"), run(tmp_path):
        raise ZeroDivisionError("division")
    events = list(journal.read(tmp_path / "runs" / "exp" / "journal.jsonl"))
    assert events[-1]["error"].startswith("ZeroDivisionError")
    with run(tmp_path):
        assert double(1).result() == 2


def test_a_store_that_cannot_be_made_frees_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((ConfigError, OSError), match="file"):
        run(tmp_path / "file").__enter__()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "../up"}, "cannot be the name of a run"),
        ({"name": "a/b"}, "cannot be the name of a run"),
        ({"name": ""}, "cannot be the name of a run"),
        ({"retries": -1}, "retries is a number from 0 on"),
        ({"retries": 1.5}, "retries is a number from 0 on"),
        ({"overrides": {"executor.wrkers": 2}}, "unknown key"),
    ],
)
def test_wrong_arguments_start_nothing(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        run(tmp_path, **options)
    assert not (tmp_path / "runs").exists()


def test_an_app_needs_a_run_and_leaves_ckpt_to_us(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"double\(\) was called outside of a run"):
        double(1)
    with (
        run(tmp_path),
        pytest.raises(ConfigError, match=r"count\(\) gets `ckpt` from ckptflow"),
    ):
        count(1, 2, ckpt=None)


def test_two_apps_of_one_name_are_refused(tmp_path: Path) -> None:
    def other() -> int:
        return 1

    other.__name__ = "double"
    app = cf.python_app(other)
    with run(tmp_path):
        assert double(1).result() == 2
        with pytest.raises(ConfigError, match="Two apps of run 'exp' have the name 'double'"):
            app()


def test_a_policy_of_the_site_is_used_by_name(tmp_path: Path) -> None:
    site = load_site("local_threads", overrides={"policies.often.every": 2})

    @cf.python_app(key=(), policy="often", keep="all")
    def steps(ckpt: Any) -> None:
        state = ckpt.restore(start())
        for i in range(1, 8):
            ckpt.step(i, state)

    @cf.python_app(policy="offen")
    def typo() -> None: ...

    with cf.run("exp", site=site, store=tmp_path):
        steps().result()
        with pytest.raises(ConfigError, match=r"policy 'offen'; site .* has: often"):
            typo()
    found = [one.id.step for one in lineage(tmp_path, "steps").valid()]
    assert found == [6, 4, 2]


def test_the_command_line_s_choice_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTFLOW_RUN", "other")
    monkeypatch.setenv("CKPTFLOW_STORE", str(tmp_path / "there"))
    monkeypatch.setenv("CKPTFLOW_SITE", "local_threads")
    with cf.run("exp", site="local", store=tmp_path / "here") as the_run:
        assert double(1).result() == 2
    assert the_run.name == "other"
    assert the_run.folder == tmp_path / "there" / "runs" / "other"
    assert not (tmp_path / "here").exists()


def test_one_s_own_parsl_config_is_used_as_it_is(tmp_path: Path) -> None:
    config = parsl.Config(
        executors=[parsl.ThreadPoolExecutor(label="mine", max_threads=1)],
        retries=1,
        retry_handler=cf.retry_handler(),
        run_dir=str(tmp_path / "parsl"),
    )
    with run(tmp_path, config=config) as the_run:
        assert breaks(1, 4).result() == 4
        assert list(parsl.dfk().executors) == ["mine", "_parsl_internal"]
    assert the_run.exit_code == 0


def test_keys_may_come_from_other_tasks(tmp_path: Path) -> None:
    with run(tmp_path) as the_run:
        assert count(double(2), 3).result() == [None, 50 * 1.5**3]
    assert "count-seed=4" in [one.task for one in the_run.summary().tasks]


def test_an_argument_without_canonical_bytes_asks_for_a_key(tmp_path: Path) -> None:
    @cf.python_app
    def take(lock: Any, ckpt: Any) -> None:
        ckpt.restore(start())

    with run(tmp_path) as the_run:
        error = take(threading.Lock()).exception(timeout=60)
    assert isinstance(error, ConfigError)
    assert "key=(...)" in str(error)
    assert the_run.summary().tasks[0].tries == 1


def test_join_apps_of_parsl_work_inside_a_run(tmp_path: Path) -> None:
    @parsl.join_app
    def fan_out(n: int) -> Any:
        return [double(x) for x in range(n)]

    with run(tmp_path) as the_run:
        assert fan_out(3).result(timeout=60) == [0, 2, 4]
    assert the_run.exit_code == 0


def test_the_summary_is_json_and_text(tmp_path: Path) -> None:
    with run(tmp_path, retries=0) as the_run:
        breaks(1, 4).exception()
        double(1).result()
    assert json.loads(json.dumps(the_run.summary().as_json()))["exit_code"] == 1
    assert str(the_run.summary()).startswith("run exp: 1 finished, 1 failed")
    assert status(the_run.summary(), "breaks") == FAILED


def test_a_memory_tier_serves_retries_in_one_process(tmp_path: Path) -> None:
    site = Site.model_validate(
        {
            "name": "ram",
            "run_dir": str(tmp_path / "runs"),
            "tiers": [{"kind": "memory", "name": "test-threads-ram", "level": 0}],
            "executor": {"kind": "threads"},
        }
    )
    with cf.run("exp", site=site, retries=1):
        assert breaks(1, 4).result() == 4
