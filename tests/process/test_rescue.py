"""What lies on a node only is copied outward before its block ends, whoever wrote it.

A real leader; its pool is a script that never looks after what it has saved.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ckptflow import Checkpointer
from ckptflow.model import LineageId
from ckptflow.site import Site, load_site
from ckptflow.site.tiers import open_tiers
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow.blocks.rescue import RESCUE, rescue_environment

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 250.0

SITE = """
name = "two"
[[tiers]]
kind = "posix"
name = "near"
path = "{folder}/near"
level = 1
[[tiers]]
kind = "posix"
name = "far"
path = "{folder}/far"
level = 3
[executor]
walltime = "1h"
[executor.allocation]
provider = "{provider}"
[flush]
agent = {agent}
idle = "2s"
grace = "20s"
"""

# A task that saves when it is asked to stop, and is not asked before it is killed.
BUSY = """
import pathlib, sys, time
from ckptflow.workflow.blocks.board import HEARS, presence
with presence().as_one_that(HEARS):
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(1000)
"""


class Node:
    """A folder with a site of two tiers, and a checkpoint that is on the inner one only."""

    def __init__(self, folder: Path, *, agent: bool) -> None:
        self.folder = folder
        path = folder / "two.toml"
        text = SITE.format(folder=folder, agent=str(agent).lower(), provider="slurm")
        path.write_text(text)
        self.site: Site = load_site(path)
        self.process: subprocess.Popen[bytes] | None = None
        near = open_tiers(self.site.sealed_tiers)[0]  # The site itself opens it on a node.
        with Checkpointer(near, run="exp", task="one") as ckpt:
            ckpt.save(3, {"x": np.arange(1000)})
        assert self.far_steps() == []

    def far_steps(self) -> list[int]:
        lineage = Lineage([PosixTier(self.folder / "far", level=3)], LineageId("exp", "one"))
        return [found.id.step for found in lineage.checkpoints()]

    def start(self, code: str, *options: str) -> None:
        self.log = self.folder / "log"
        script = self.folder / "pool.py"
        script.write_text(code)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ckptflow.workflow.blocks.leader"),
                    *("--rescue", *options, "--"),
                    *(sys.executable, str(script), str(self.folder / "up")),
                ],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "TMPDIR": str(self.folder),
                    **rescue_environment(self.site, "exp"),
                },
                stderr=log,
            )

    def until(self, condition: Callable[[], object]) -> None:
        limit_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < limit_s, self.log.read_text()
            time.sleep(0.02)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    made = Node(tmp_path, agent=False)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


@pytest.mark.slow
def test_before_the_kill_although_a_task_does_not_stop(node: Node) -> None:
    node.start(BUSY, "--kill-wait-s=120")
    assert node.process is not None
    node.until((node.folder / "up").exists)
    # The half that tasks have is over at once.
    node.process.send_signal(signal.SIGTERM)
    node.until(lambda: node.far_steps() == [3])
    assert node.process.poll() is None  # The task may still save.


def test_when_the_pool_ends_and_its_exit_code_is_passed_on(node: Node) -> None:
    node.start("raise SystemExit(5)")
    assert node.process is not None
    assert node.process.wait(timeout=LIMIT_S) == 5
    assert node.far_steps() == [3]
    assert "exp/one@3.1 copied to tier 'far'" in node.log.read_text()


def test_after_a_warning_when_nothing_is_left_to_do(node: Node) -> None:
    node.start("import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(1000)")
    assert node.process is not None
    node.until((node.folder / "up").exists)
    node.process.send_signal(signal.SIGUSR2)
    assert node.process.wait(timeout=LIMIT_S) == 0
    assert node.far_steps() == [3]


def test_the_agent_of_the_node_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken a copy, and is killed with everything else when the leader ends."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    node = Node(tmp_path, agent=True)
    node.start(SAVES_BY_AGENT)
    assert node.process is not None
    assert node.process.wait(timeout=LIMIT_S) == 0
    assert sorted(node.far_steps()) == [3, 4]


SAVES_BY_AGENT = """
import json, os, sys
import numpy as np
from ckptflow import Checkpointer, Flushing
from ckptflow.site.tiers import open_tiers, tier_model
fields = json.loads(os.environ["CKPTFLOW_RESCUE"])
tiers = open_tiers([tier_model(one) for one in json.loads(fields["tiers"])])
ckpt = Checkpointer(tiers, run="exp", task="one", flushing=Flushing(**fields["options"]))
ckpt.restore()
ckpt.save(4, {"x": np.arange(1000)})
ckpt.close()  # It is on the inner tier, and the agent has the rest.
"""


def test_a_site_without_tiers_of_the_node_has_nothing_to_rescue(tmp_path: Path) -> None:
    assert rescue_environment(load_site("local").with_store(tmp_path), "exp") == {}
    path = tmp_path / "two.toml"
    path.write_text(SITE.format(folder=tmp_path, agent="true", provider="local"))
    assert rescue_environment(load_site(path), "exp") == {}  # This computer stays.
    path.write_text(SITE.format(folder=tmp_path, agent="true", provider="slurm"))
    assert set(rescue_environment(load_site(path), "exp")) == {RESCUE}
