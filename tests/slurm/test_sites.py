"""Sites on a real Slurm: a check from both ends, blocks and what becomes of them, trouble.

The commands of Slurm go through scripts that note that they were called, and fail while told
to, as those of a cluster whose controller is away.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster

from ckptflow.site import load_site
from ckptflow.workflow.blocks.providers import provider_of
from ckptflow.workflow.blocks.slurm import SlurmBlocks

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("slurm-sites")]

LIMIT_S = 240.0
COMMAND = """#!/bin/bash
echo "$(basename "$0") $*" >> {folder}/asked
if [ -e {folder}/trouble ]; then
  echo "$(basename "$0"): error: Unable to contact slurm controller (connect failure)" >&2
  exit 1
fi
exec {program} "$@"
"""
SITE = """
[[tiers]]
kind = "posix"
name = "node"
path = "/local/${USER}-ckptflow"
level = 1

[[tiers]]
kind = "posix"
name = "shared"
path = "$SHARED/store"
level = 3

[executor]
workers = 1
walltime = "10min"
margin = "10s"
heartbeat_period = "2s"
heartbeat_threshold = "8s"
strategy_period = "1s"

[executor.allocation]
provider = "slurm"
exclusive = false
poll = "1s"
launch_options = ""
"""
WORKFLOW = """
import ckptflow

@ckptflow.python_app
def work(number, ckpt=None):
    state = ckpt.restore(lambda: {"number": number})
    ckpt.save(1, state)
    return number

with ckptflow.run("troubled", site="cluster.toml") as run:
    print(sorted(future.result() for future in [work(number) for number in range(3)]))
"""


@pytest.fixture
def here(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a site file, and the commands of Slurm, noted."""
    (tmp_path / "cluster.toml").write_text(SITE)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("sbatch", "squeue", "scancel"):
        script = commands / name
        script.write_text(COMMAND.format(folder=tmp_path, program=shutil.which(name)))
        script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARED", str(tmp_path))
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def asked(folder: Path, name: str) -> int:
    text = (folder / "asked").read_text() if (folder / "asked").exists() else ""
    return sum(line.split()[0] == name for line in text.splitlines())


def wait(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {LIMIT_S} s for {what}"
        time.sleep(0.1)


@contextlib.contextmanager
def jobs_of(provider: SlurmBlocks) -> Iterator[None]:
    try:
        yield
    finally:
        provider.cancel(list(provider.resources))


def test_what_becomes_of_real_jobs(slurm: SlurmCluster, here: Path) -> None:
    site = load_site("cluster.toml", overrides={"executor.allocation.launcher": "simple"})
    provider = provider_of(site.executor, "")
    provider.script_dir = str(here)

    def state(job: str) -> str:
        (status,) = provider.status([job])
        return str(status.state.name)

    with jobs_of(provider):
        failing, done, waiting = (
            provider.submit(command, 1, "block") for command in ("exit 3", "true", "sleep 600")
        )
        wait(lambda: state(failing) == "FAILED", "a job that fails")
        wait(lambda: state(done) == "COMPLETED", "a job that ends")
        wait(lambda: state(waiting) == "RUNNING", "a job that runs")
        (here / "trouble").touch()
        assert state(waiting) == "RUNNING", "no answer is no end"
        assert provider.cancel([waiting]) == [False]
        (here / "trouble").unlink()
        slurm.command("scancel", waiting)
        wait(lambda: state(waiting) == "CANCELLED", "a job that somebody else has cancelled")
        assert (state(failing), state(done)) == ("FAILED", "COMPLETED"), (
            "they are not forgotten"
        )
        assert provider.resources[waiting]["status"].lasted_s > 0
    slurm.wait_idle()


@pytest.mark.slow
def test_a_site_is_checked_from_both_ends(slurm: SlurmCluster, here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ckptflow.cli", "site", "check", "cluster.toml", "--json",
         "--there", "--timeout", "4min"],
        capture_output=True, text=True, check=False, timeout=LIMIT_S + 60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = {
        (one["what"], one["host"].startswith("node")): one for one in json.loads(done.stdout)
    }
    assert {one["verdict"] for one in found.values()} == {"ok"}
    assert "to start at" in found["Slurm takes such a job", False]["detail"]
    assert {what for what, on_node in found if on_node} == {
        "workers", "versions", "tier 'node'", "tier 'shared'",
    }  # fmt: skip
    assert ("tier 'node'", False) not in found, "the login node has another /local"
    wait(lambda: slurm.jobs() == [], "the allocation of the check to be given back")
    assert asked(here, "sbatch") == 2, "one test, and one allocation"


@pytest.mark.slow
def test_a_controller_that_is_away_makes_no_storm_and_ends_nothing(
    slurm: SlurmCluster, here: Path
) -> None:
    (here / "workflow.py").write_text(WORKFLOW)
    (here / "trouble").touch()
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "workflow.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait(lambda: asked(here, "sbatch") >= 2, "a second try")
    assert time.monotonic() - began_s >= 5, "the first pause"
    (here / "trouble").unlink()
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert out.splitlines()[-1] == "[0, 1, 2]"
    assert asked(here, "sbatch") <= 4, "Parsl alone asks every second"
    (journal,) = here.glob("store/runs/troubled/journal.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    told = [one["text"] for one in events if one["event"] == "scheduler"]
    assert "Unable to contact slurm controller" in told[0]
    assert "blocks are accepted again" in told[-1]
    assert not [
        one for one in events if one["event"] == "block-ended" and one["state"] == "FAILED"
    ]
    wait(lambda: slurm.jobs() == [], "the last block to be given back")
