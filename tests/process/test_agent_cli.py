"""The agent at the command line, in a site file, and at the end of a run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

import ckptflow as cf
from ckptflow.cli import app
from ckptflow.errors import CheckpointError
from ckptflow.flush.agent.asking import ask, folder_of
from ckptflow.flush.agent.folder import LOCK, is_locked, make_agent_folder
from ckptflow.flush.agent.ledger import Entry, Ledger, in_flight_of
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention
from ckptflow.site import Site, load_site
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.tier import Tier

LONG_S = 60.0
SITE = """
[[tiers]]
kind = "posix"
name = "disk"
path = "{folder}/disk"
level = 1

[[tiers]]
kind = "posix"
name = "pfs"
path = "{folder}/pfs"
level = 3

[executor]
kind = "threads"

[flush]
agent = {agent}
budget = "1 MiB"
grace = "20s"
"""


def until(is_so: Any, what: str) -> None:
    ends_s = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < ends_s, what
        time.sleep(0.02)


@pytest.fixture
def site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    file = tmp_path / "mine.toml"
    file.write_text(SITE.format(folder=tmp_path, agent="true"))
    yield file
    folder = folder_of(load_site(file).open_tiers())
    with contextlib.suppress(CheckpointError, psutil.Error):
        agent = psutil.Process(ask(folder, "status")["pid"])
        agent.kill()
        agent.wait(LONG_S)
    until(lambda: not is_locked(folder / LOCK), "the agent did not end")


@pytest.fixture
def site(site_file: Path) -> Site:
    return load_site(site_file)


def steps_on(tier: Tier, task: str = "task") -> list[int]:
    lineage = Lineage([tier], LineageId("exp", task))
    return sorted(found.id.step for found in lineage.valid())


def saved(tiers: list[Tier], *, steps: int, **arguments: Any) -> None:
    with cf.Checkpointer(tiers, run="exp", task="task", keep="all", **arguments) as ckpt:
        for step in range(1, steps + 1):
            ckpt.save(step, {"w": np.random.default_rng(step).standard_normal(100)})


def command(site_file: Path, *arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(app, [*arguments, "--site", str(site_file), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, json.loads(result.stdout)


def test_what_goes_on_is_shown_waited_for_and_ended(site_file: Path, site: Site) -> None:
    tiers = site.open_tiers()
    saved(tiers, steps=3, flushing=site.flush.options)
    code, document = command(site_file, "flushes", "--wait")
    assert code == 0
    assert {(one["target"], one["state"]) for one in document["progress"]} == {("pfs", "done")}
    assert steps_on(tiers[1]) == [1, 2, 3]
    code, document = command(site_file, "agent", "status")
    assert code == 0
    agent = psutil.Process(document["agent"]["pid"])
    assert Path(document["agent"]["log"]).stat().st_mode & 0o777 == 0o600
    for arguments in (["flushes"], ["agent", "status"]):
        shown = CliRunner().invoke(app, [*arguments, "--site", str(site_file)])
        assert "exp/task@3.1" in shown.stdout or f"agent {agent.pid}" in shown.stdout
    code, document = command(site_file, "agent", "stop", "--grace", "0")
    assert (code, document["pid"]) == (0, agent.pid)
    agent.wait(LONG_S)
    code, document = command(site_file, "agent", "status")
    assert document == {"agent": None, "progress": [], "failures": [], "consolidations": []}
    assert command(site_file, "agent", "stop")[0] == 5


def test_failures_are_shown_and_change_the_exit_status(site_file: Path, site: Site) -> None:
    tiers = site.open_tiers()
    saved(tiers, steps=1)
    ledger = Ledger(make_agent_folder([tier.spec for tier in tiers]))
    entry = Entry(LineageId("exp", "task"), CheckpointId(1, 1), "pfs", Retention(), 5.0)
    ledger.fail(entry, "no room for exp/task step 1", reported=False)
    code, document = command(site_file, "flushes")
    assert code == 5
    assert [one["error"] for one in document["failures"]] == ["no room for exp/task step 1"]
    shown = CliRunner().invoke(app, ["agent", "status", "--site", str(site_file)])
    assert "failed: no room for exp/task step 1" in shown.stdout


def test_consolidations_are_shown(
    site_file: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = {
        "lineage": "exp/task", "step": 3, "attempt": 1, "tier": "pfs", "at": 5.0,
        "packs_before": 7, "packs_after": 1, "written_bytes": 2048, "error": None,
    }  # fmt: skip
    answer = {
        "pid": 5, "since": 5.0, "progress": [], "failures": [],
        "consolidations": [done, {**done, "step": 2, "error": "no room left"}],
    }  # fmt: skip
    saved(site.open_tiers(), steps=1)
    monkeypatch.setattr("ckptflow.cli.flushing.ask", lambda _folder, _op: answer)
    _, document = command(site_file, "agent", "status")
    assert document["consolidations"] == answer["consolidations"]
    shown = CliRunner().invoke(app, ["agent", "status", "--site", str(site_file)]).stdout
    text = " ".join(shown.split())
    assert "consolidated: exp/task@3.1 on tier 'pfs', 7 -> 1 packs, wrote 2.00 KiB" in text
    assert "not consolidated: exp/task@2.1 on tier 'pfs': no room left" in text


def test_scavenging_without_an_agent_saves_what_nobody_asked_for(
    site_file: Path, site: Site
) -> None:
    disk, pfs = site.open_tiers()
    saved([disk], steps=2)
    code, document = command(site_file, "scavenge", "--grace", "50s")
    assert code == 0
    assert [one["step"] for one in document["rescues"]] == [2, 1]
    assert steps_on(pfs) == [1, 2]
    shown = CliRunner().invoke(app, ["scavenge", "--site", str(site_file)])
    assert "everything was safe already" in shown.stdout


def test_without_time_nothing_is_saved_and_that_is_said(site_file: Path, site: Site) -> None:
    disk, pfs = site.open_tiers()
    saved([disk], steps=2)
    code, document = command(site_file, "scavenge", "--grace", "0")
    assert code == 7
    assert document["unseen"] or {one["outcome"] for one in document["rescues"]} == {"late"}
    assert steps_on(pfs) == []


@pytest.mark.slow
def test_an_agent_in_the_foreground_scavenges_when_it_is_told_to_end(
    site_file: Path, site: Site
) -> None:
    disk, pfs = site.open_tiers()
    saved([disk], steps=3)
    arguments = [sys.executable, "-m", "ckptflow.cli", "agent", "--site", str(site_file)]
    log = site_file.with_name("agent.log")
    with log.open("w") as stderr:
        agent = subprocess.Popen([*arguments, "--grace", "50s"], stderr=stderr)
    folder = folder_of([disk, pfs])
    until((folder / "socket").exists, "the agent did not begin")
    second = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert second.returncode == 8
    assert "an agent runs already" in second.stderr
    assert ask(folder, "status")["options"]["budget_bytes"] == 1 << 20
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(LONG_S) == 0
    assert steps_on(pfs) == [1, 2, 3]
    assert "scavenged: " in log.read_text()


@cf.python_app(key=("seed",), every=1)
def count(seed: int, ckpt: Any) -> int:
    state = ckpt.restore({"i": 0, "w": np.ones(50) * seed})
    while state["i"] < 3:
        state["i"] += 1
        ckpt.step(state["i"], state)
    return seed


def test_a_run_waits_for_what_its_tasks_have_left_to_the_agent(site: Site) -> None:
    with cf.run("exp", site=site) as run:
        assert [future.result() for future in [count(seed) for seed in (1, 2)]] == [1, 2]
    assert run.exit_code == 0
    disk, pfs = site.open_tiers()
    tasks = sorted(pfs.iter_folders("lineages/exp"))
    assert len(tasks) == 2
    for task in tasks:
        assert 3 in steps_on(pfs, task)
        assert in_flight_of([disk, pfs], LineageId("exp", task)) == []
    agent = psutil.Process(ask(folder_of([disk, pfs]), "status")["pid"])
    assert agent.pid != os.getpid()  # It outlives the run.


def test_a_run_reports_copies_that_failed_after_their_task(site: Site) -> None:
    ledger = Ledger(make_agent_folder([tier.spec for tier in site.open_tiers()]))
    for run, text in (("exp", "exp/t step 1 did not arrive"), ("other", "not ours")):
        entry = Entry(LineageId(run, "t"), CheckpointId(1, 1), "pfs", Retention(), 5.0)
        ledger.fail(entry, text, reported=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cf.CheckpointWarning)
        with cf.run("exp", site=site) as run:
            count(1).result()
    assert run.exit_code == 5
    assert run.summary().problems == ("exp/t step 1 did not arrive",)
    with cf.run("exp", site=site) as again:
        count(1).result()
    assert again.exit_code == 0
