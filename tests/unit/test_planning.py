"""The plan knows which code has changed, and where the run was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow.journal import Journal
from ckptflow.workflow.planning import plan_restart
from ckptflow.workflow.sources import parts_in

SaveState = Callable[..., Lineage]

FLOW = """
RATE = 1
def advance(x):
    return x * RATE
def work(x):
    return advance(x)
"""


def begin(journal: Journal, folder: Path, **more: object) -> None:
    at = {"argv": ["flow.py"], "folder": str(folder), "host": "login1"}
    journal.add("run-started", **at, **({"site": "local", "workers": 2, "nodes": 1} | more))


def define(journal: Journal, folder: Path, code: str = "c1", **more: object) -> None:
    file = folder / "flow.py"
    journal.add(
        "app-defined",
        app="work",
        code=code,
        parts=parts_in(file, "work", folder),
        file=str(file),
        name="work",
        folder=str(folder),
        **({"version": None} | more),
    )


@pytest.fixture
def run(tmp_path: Path, save_state: SaveState) -> Callable[..., Path]:
    """A run of which one task is finished, and another at step 10."""

    def make(**more: object) -> Path:
        (tmp_path / "flow.py").write_text(FLOW)
        store = tmp_path / "store"
        with Journal(store / "runs" / "exp" / "journal.jsonl") as journal:
            begin(journal, tmp_path)
            define(journal, tmp_path, **more)
            for task in ("done", "half", "new"):
                journal.add("task-launched", task=task, tries=1, code="c1", arguments={})
            journal.add("task-finished", task="done", remembered=True)
        save_state(PosixTier(store), "exp/half", 10, {"w": np.arange(3)})
        return store

    return make


def edit(folder: Path) -> None:
    path = folder / "flow.py"
    path.write_text(path.read_text().replace("x * RATE", "x + RATE"))


def actions(store: Path, **more: str) -> dict[str, str]:
    return {one.task: one.action for one in plan_restart("exp", store=store, **more).tasks}  # type: ignore[arg-type]


def test_code_that_has_changed_is_named(run: Callable[..., Path], tmp_path: Path) -> None:
    store = run()
    assert all(not one.changes for one in plan_restart("exp", store=store).tasks)
    edit(tmp_path)
    plan = {one.task: one for one in plan_restart("exp", store=store).tasks}
    assert {one.changes for one in plan.values()} == {("flow.py:advance has changed",)}
    assert plan["half"].action == "resume"
    assert plan["half"].reason.endswith(
        "half has changed since its checkpoint of step 10 was made (flow.py:advance has "
        "changed); it goes on from it all the same"
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("resume", {"done": "reuse", "half": "resume", "new": "begin"}),
        ("redo", {"done": "begin", "half": "begin", "new": "begin"}),
        ("fail", {"done": "fail", "half": "fail", "new": "begin"}),
    ],
)
def test_what_happens_to_changed_tasks(
    run: Callable[..., Path], tmp_path: Path, policy: str, expected: dict[str, str]
) -> None:
    store = run()
    edit(tmp_path)
    assert actions(store, on_change=policy) == expected


def test_versions(run: Callable[..., Path], tmp_path: Path) -> None:
    store = run(version="2")
    edit(tmp_path)
    assert actions(store, on_change="fail") == {
        "done": "reuse",
        "half": "resume",
        "new": "begin",
    }
    with Journal(store / "runs" / "exp" / "journal.jsonl") as journal:
        (tmp_path / "flow.py").write_text(FLOW)
        define(journal, tmp_path, version="auto:c1")
    edit(tmp_path)
    assert actions(store) == {"done": "begin", "half": "begin", "new": "begin"}


def test_tasks_that_come_and_go(run: Callable[..., Path], tmp_path: Path) -> None:
    store = run()
    with Journal(store / "runs" / "exp" / "journal.jsonl") as journal:
        begin(journal, tmp_path)
        for task in ("done", "late"):
            journal.add("task-launched", task=task, tries=1, code="c1", arguments={})
            journal.add("task-finished", task=task, remembered=True)
        journal.add("run-ended", error=None)
    reasons = {one.task: one.reason for one in plan_restart("exp", store=store).tasks}
    assert "the last start ended by itself and did not" in reasons["half"]
    assert reasons["late"].endswith("it came with the last start")
    assert "last start" not in reasons["done"]


def site_file(folder: Path, name: str, *tiers: Path) -> Path:
    lines = [f'name = "{name}"', f'run_dir = "{folder / "runs"}"']
    for level, path in enumerate(tiers):
        lines += ["[[tiers]]", 'kind = "posix"', f'name = "{path.name}"', f'path = "{path}"']
        lines += [f"level = {1 if level + 1 < len(tiers) else 3}"]
    lines += ["[executor]", f"workers = {len(tiers)}"]
    (folder / f"{name}.toml").write_text("\n".join(lines))
    return folder / f"{name}.toml"


@pytest.mark.damaged_store  # A manifest in name only.
def test_what_another_site_does_not_see(tmp_path: Path, save_state: SaveState) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    node, shared = tmp_path / "node", tmp_path / "shared"
    first, second = (
        site_file(tmp_path, "first", node, shared),
        site_file(tmp_path, "second", shared),
    )
    specs = [
        {"kind": "posix", "name": one.name, "path": str(one), "level": level}
        for one, level in ((node, 1), (shared, 3))
    ]
    with Journal(tmp_path / "runs" / "exp" / "journal.jsonl") as journal:
        begin(journal, tmp_path, site="first", tiers=specs)
        journal.add("task-launched", task="t", tries=1, arguments={})
    save_state(PosixTier(shared, name="shared"), "exp/t", 10, {"w": np.arange(3)})
    inner = PosixTier(node, name="node")
    ensure_store(inner)
    inner.put(f"{LineageId('exp', 't').prefix}/{CheckpointId(20, 1).manifest_key}", [b"x"])

    same = plan_restart("exp", site=str(first))
    assert (same.unseen, same.tasks[0].resume_step) == ((), 20)
    plan = plan_restart("exp", site=str(second))
    assert plan.tasks[0].resume_step == 10
    assert str(plan.before) == (
        "site first, 2 workers a node, 1 nodes an allocation, tiers node, shared, from login1"
    )
    assert str(plan.now) == "site second, 1 workers a node, 1 nodes an allocation, tiers shared"
    assert [text.partition(":")[0] for text in plan.unseen] == [
        "Tier 'node' (posix) of site 'first' is no part of site 'second'",
        "t",
    ]
    assert (
        "its checkpoint of step 20 is on node only. It will go on from step 10"
        in plan.unseen[1]
    )
