"""A script is executed as Python would, and a restart knows how it was started."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ckptflow.cli import app
from ckptflow.errors import ConfigError, NotFoundError
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow.journal import Journal
from ckptflow.workflow.planning import plan_restart
from ckptflow.workflow.restart import PlannedTask
from ckptflow.workflow.script import Launch, execute, last_launch

REPORT = """
import json, os, sys
from pathlib import Path
import neighbour
NAMES = ("RUN", "SITE", "STORE", "ON_CHANGE")
seen = {"argv": sys.argv, "name": __name__, "file": __file__, "neighbour": neighbour.HERE}
seen |= {key: os.environ.get("CKPTFLOW_" + key) for key in NAMES}
Path("seen.json").write_text(json.dumps(seen))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that writes what it sees into its current folder."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "neighbour.py").write_text("HERE = True\n")
    (folder / "flow.py").write_text(REPORT)
    return folder / "flow.py"


def test_a_script_sees_what_it_expects(script: Path, tmp_path: Path) -> None:
    launch = Launch(script, ("--steps", "3"), tmp_path)
    before = (list(sys.argv), list(sys.path), Path.cwd(), dict(os.environ))
    outcome = execute(launch, name="exp", site="local", store=Path("store"), on_change="fail")
    assert (outcome.status, outcome.message, outcome.summary) == (0, None, None)
    assert json.loads((tmp_path / "seen.json").read_text()) == {
        "argv": [str(script), "--steps", "3"],
        "name": "__main__",
        "file": str(script),
        "neighbour": True,
        "RUN": "exp",
        "SITE": "local",
        "STORE": str(Path.cwd() / "store"),
        "ON_CHANGE": "fail",
    }
    assert (sys.argv, sys.path, Path.cwd(), dict(os.environ)) == before


def test_names_that_are_not_given_are_the_script_s(script: Path, tmp_path: Path) -> None:
    execute(Launch(script, (), tmp_path))
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert {seen[key] for key in ("RUN", "SITE", "STORE", "ON_CHANGE")} == {None}


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("sys.exit()", 0, None),
        ("sys.exit(0)", 0, None),
        ("sys.exit(17)", 17, None),
        ("sys.exit('no input')", 1, "no input"),
        ("sys.exit(True)", 1, None),
    ],
)
def test_exit_status(tmp_path: Path, line: str, status: int, message: str | None) -> None:
    (tmp_path / "s.py").write_text(f"import sys\n{line}\n")
    outcome = execute(Launch(tmp_path / "s.py", (), tmp_path))
    assert (outcome.status, outcome.message) == (status, message)
    result = CliRunner().invoke(app, ["run", str(tmp_path / "s.py")])
    assert result.exit_code == status
    assert message is None or message in result.stderr


def test_what_a_script_raises_goes_through(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import sys\nsys.argv = ['x']\n1 / 0\n")
    before = list(sys.argv)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        execute(Launch(tmp_path / "s.py", (), tmp_path))
    assert sys.argv == before


def test_a_script_that_is_not_there() -> None:
    result = CliRunner().invoke(app, ["run", "nil.py"])
    assert result.exit_code == 2
    assert "error (config) There is no script" in result.stderr


def test_json_leaves_stdout_to_the_document(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("print('hello')\n")
    result = CliRunner().invoke(app, ["run", str(tmp_path / "s.py"), "--json"])
    assert json.loads(result.stdout) == {"status": 0, "run": None}
    assert "hello" in result.stderr


# --- restart ---------------------------------------------------------------------------


def started(script: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    return {"event": "run-started", "argv": [str(script), *arguments], "folder": str(folder)}


def test_the_last_launch_counts(script: Path, tmp_path: Path) -> None:
    events = [
        started(script, tmp_path, "1"),
        {"event": "run-ended"},
        started(Path("scripts/flow.py"), tmp_path, "2"),
        {"event": "task-launched", "task": "a"},
    ]
    assert last_launch(events, "exp") == Launch(script, ("2",), tmp_path)


@pytest.mark.parametrize(
    "argv", [["-c"], [""], [], ["gone.py"], None, ["ipykernel_launcher.py"]]
)
def test_what_was_no_script_cannot_be_started_again(argv: object, tmp_path: Path) -> None:
    (tmp_path / "ipykernel_launcher.py").write_text("")
    event = {"event": "run-started", "argv": argv, "folder": str(tmp_path)}
    with pytest.raises(ConfigError, match="is no script that could be started again"):
        last_launch([event], "exp")


@pytest.fixture
def stopped_run(script: Path, tmp_path: Path, save_state: Callable[..., Lineage]) -> Path:
    """A store with a run that was killed: one task done, one at step 20, one not begun."""
    store = tmp_path / "store"
    with Journal(store / "runs" / "exp" / "journal.jsonl") as journal:
        launch = started(script, tmp_path, "--steps", "30")
        journal.add(launch.pop("event"), **launch)
        for task in ("done", "half", "queued"):
            journal.add("task-launched", task=task)
        journal.add("task-finished", task="done", remembered=True)
    tier = PosixTier(store)
    for task, step in (("done", 30), ("half", 10), ("half", 20)):
        save_state(tier, f"exp/{task}", step, {"w": np.arange(step)})
    save_state(tier, "other/x", 1, {"w": np.arange(2)})
    return store


def test_a_restart_plan_says_what_happens_and_why(
    stopped_run: Path, script: Path, tmp_path: Path
) -> None:
    plan = plan_restart("exp", store=stopped_run)
    assert plan.launch == Launch(script, ("--steps", "30"), tmp_path)
    assert plan.tasks == (
        PlannedTask("done", "reuse", None, "finished; its result comes from the Parsl memo"),
        PlannedTask(
            "half", "resume", 20, "was not finished; its newest checkpoint is of step 20"
        ),
        PlannedTask(
            "queued", "begin", None, "was not finished; it has no checkpoint to go on from"
        ),
    )


def test_restart_dry_run(stopped_run: Path, tmp_path: Path) -> None:
    arguments = ["restart", "exp", "--dry-run", "--store", str(stopped_run)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    rows = [line.split(maxsplit=3) for line in result.stdout.splitlines()]
    assert rows[2][:3] == ["half", "resume", "20"]
    assert rows[-1][:2] == ["run", "exp:"]
    assert not (tmp_path / "seen.json").exists()
    document = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert set(document) == {"plan"}
    assert [task["action"] for task in document["plan"]["tasks"]] == [
        "reuse",
        "resume",
        "begin",
    ]


def test_restart_starts_the_script_where_it_was(stopped_run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["restart", "exp", "--store", str(stopped_run)])
    assert result.exit_code == 0, result.stderr
    assert "was not finished" in result.stdout
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["argv"][1:], seen["RUN"]) == (["--steps", "30"], "exp")
    assert seen["STORE"] == str(stopped_run)


def test_an_unknown_run_names_those_that_are(stopped_run: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no run 'nil' in .*runs; there is exp"):
        plan_restart("nil", store=stopped_run)
    result = CliRunner().invoke(app, ["restart", "nil", "--store", str(stopped_run)])
    assert result.exit_code == 3
    with pytest.raises(NotFoundError, match="there is nothing"):
        plan_restart("exp")


def test_a_run_without_a_journal_was_not_started_by_us(stopped_run: Path) -> None:
    with pytest.raises(ConfigError, match="'other' has checkpoints, but no journal"):
        plan_restart("other", store=stopped_run)


def test_the_store_may_come_from_the_environment(
    stopped_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTFLOW_STORE", str(stopped_run))
    assert len(plan_restart("exp").tasks) == 3
