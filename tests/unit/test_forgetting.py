"""Tasks run again on demand: which, from where, and never while the run goes on."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ckptflow.cli import app
from ckptflow.errors import ConfigError, NotFoundError, RunLocked
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow.forgetting import (
    Forgotten,
    dependents_of,
    forget,
    go_back,
    needs_in,
    parse_step,
)
from ckptflow.workflow.journal import Journal
from ckptflow.workflow.lock import RunLock
from ckptflow.workflow.memo_file import MemoFile, read_results
from ckptflow.workflow.planning import plan_restart

SaveState = Callable[..., Lineage]


@pytest.fixture
def store(tmp_path: Path, save_state: SaveState) -> Path:
    """A run of sim -> two trainings -> plot, all finished; the trainings have checkpoints."""
    place = tmp_path / "store"
    folder = place / "runs" / "exp"
    (tmp_path / "flow.py").write_text("")
    needs = {"sim": [], "train-n=1": ["sim"], "train-n=2": ["sim"], "plot": ["train-n=2"]}
    with Journal(folder / "journal.jsonl") as journal:
        journal.add("run-started", argv=["flow.py"], folder=str(tmp_path), site="local")
        for task, needed in needs.items():
            known = {"needs": needed} if needed else {}
            journal.add("task-launched", task=task, tries=1, arguments={}, **known)
            journal.add("task-finished", task=task, remembered=True)
    memo = MemoFile(folder / "memo")
    for number, task in enumerate(needs):
        memo.add(f"{number:032x}", pickle.dumps(task), task=task)
    memo.close()
    tier = PosixTier(place)
    for task in ("train-n=1", "train-n=2"):
        for step in (10, 20):
            save_state(tier, f"exp/{task}", step, {"w": np.arange(step)})
    return place


def remembered(store: Path) -> set[str | None]:
    return {one.task for one in read_results(store / "runs" / "exp" / "memo").values()}


def newest(store: Path, task: str) -> int | None:
    found = Lineage([PosixTier(store)], LineageId("exp", task)).newest()
    return found.id.step if found else None


def test_a_task_begins_anew(store: Path) -> None:
    assert forget("exp", ["train-n=1"], store=store) == [
        Forgotten("train-n=1", True, 20, None, "was named")
    ]
    assert remembered(store) == {"sim", "train-n=2", "plot"}
    assert (newest(store, "train-n=1"), newest(store, "train-n=2")) == (None, 20)
    plan = {one.task: one for one in plan_restart("exp", store=store).tasks}
    assert plan["train-n=1"].action == "begin"
    assert plan["train-n=1"].reason.startswith("its result was forgotten on demand")
    assert plan["train-n=2"].action == "reuse"


def test_patterns_and_dependents(store: Path) -> None:
    done = forget("exp", ["train-*"], store=store, dependents=True, keep_checkpoints=True)
    assert [(one.task, one.goes_on_from, one.reason) for one in done] == [
        ("train-n=1", 20, "was named"),
        ("train-n=2", 20, "was named"),
        ("plot", None, "takes the result of train-n=2"),
    ]
    assert remembered(store) == {"sim"}
    assert newest(store, "train-n=2") == 20


def test_a_dry_run_tells_the_same_and_changes_nothing(store: Path) -> None:
    def everything() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in store.rglob("*") if p.is_file()}

    before = everything()
    planned = forget("exp", ["sim"], store=store, dependents=True, dry_run=True)
    back = go_back("exp", ["train-n=2"], step=10, store=store, dry_run=True)
    assert everything() == before
    assert forget("exp", ["sim"], store=store, dependents=True) == planned
    assert [one.goes_on_from for one in back] == [10]


def test_a_task_is_set_back_to_a_step(store: Path) -> None:
    (done,) = go_back("exp", ["train-n=2"], step=10, store=store)
    assert (done.newest_step, done.goes_on_from, done.had_result) == (20, 10, True)
    assert newest(store, "train-n=2") == 10
    assert "train-n=2" not in remembered(store)
    manifests = store / LineageId("exp", "train-n=2").prefix / "manifests"
    assert len(list(manifests.iterdir())) == 2


def test_a_step_that_is_not_there_changes_nothing(store: Path) -> None:
    with pytest.raises(
        NotFoundError, match="no checkpoint of step 15 that counts; it has 20, 10"
    ):
        go_back("exp", ["train-*"], step=15, store=store)
    assert remembered(store) == {"sim", "train-n=1", "train-n=2", "plot"}
    assert (newest(store, "train-n=1"), newest(store, "train-n=2")) == (20, 20)


def test_names_that_fit_nothing(store: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no task 'nil-\*'; it has sim, train-n=1"):
        forget("exp", ["sim", "nil-*"], store=store)
    assert "sim" in remembered(store)
    with pytest.raises(NotFoundError, match="no run 'nil'"):
        forget("nil", ["sim"], store=store)


def test_it_is_refused_while_the_run_goes_on(store: Path) -> None:
    lock = RunLock(store / "runs" / "exp" / "lock", run="exp", session="s")
    lock.acquire()
    for again in (
        lambda: forget("exp", ["sim"], store=store),
        lambda: go_back("exp", ["sim"], step=None, store=store),
    ):
        with pytest.raises(RunLocked, match="is held by process"):
            again()
    assert "sim" in remembered(store)
    assert len(forget("exp", ["sim"], store=store, dry_run=True)) == 1
    lock.release()
    forget("exp", ["sim"], store=store)


def test_steps_as_they_are_written() -> None:
    assert [parse_step(text) for text in ("beginning", "0", "10")] == [None, None, 10]
    with pytest.raises(ConfigError, match="or 'beginning', not '-1'"):
        parse_step("-1")


def test_who_needs_whom_is_as_in_the_last_start() -> None:
    events = [
        {"event": "task-launched", "task": "a", "tries": 1},
        {"event": "task-launched", "task": "b", "tries": 1, "needs": ["a"]},
        {"event": "task-launched", "task": "c", "tries": 1, "needs": ["a"]},
        {"event": "task-launched", "task": "c", "tries": 2},
        {"event": "run-started"},
        {"event": "task-reused", "task": "b", "needs": ["c"]},
    ]
    needs = needs_in(events)
    assert needs == {"a": (), "b": ("c",), "c": ("a",)}
    assert list(dependents_of(["a"], needs)) == [("c", "a"), ("b", "c")]
    assert list(dependents_of(["a", "b"], {"a": ("b",), "b": ("a",)})) == []


def test_the_commands(store: Path, tmp_path: Path) -> None:
    at = ["--store", str(store)]
    shown = CliRunner().invoke(app, ["invalidate", "exp", "train-n=1", "--dry-run", *at])
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines()[1].split() == [
        "train-n=1", "forgotten", "20", "beginning", "was", "named",
    ]  # fmt: skip
    (tmp_path / "flow.py").write_text("from pathlib import Path; Path('ran').touch()")
    back = ["rerun", "exp", "train-n=2", "--from", "10", "--json", *at]
    document = json.loads(CliRunner().invoke(app, [*back, "--dry-run"]).stdout)
    assert (document["dry_run"], document["tasks"][0]["goes_on_from"]) == (True, 10)
    assert not (tmp_path / "ran").exists()
    result = CliRunner().invoke(app, back)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "ran").exists()
    document = json.loads(result.stdout)
    planned = {one["task"]: one for one in document["plan"]["tasks"]}
    assert (planned["train-n=2"]["action"], planned["train-n=2"]["resume_step"]) == (
        "resume",
        10,
    )
    missing = CliRunner().invoke(app, ["invalidate", "exp", "nil", *at])
    assert missing.exit_code == 3
