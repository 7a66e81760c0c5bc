"""Nodes as real processes: each has an agent, one is killed with all it had, its task goes on.

A node is a folder, with an agent of its own that serves it on the loopback.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ckptflow.flush.agent.asking import ask, folder_of
from ckptflow.site import load_site
from ckptflow.store.redundancy.announce import announced

sys.path.insert(0, str(Path(__file__).parent))

from redundant_task import STEPS, site_of

pytestmark = pytest.mark.damaged_store

PROGRAM = Path(__file__).with_name("redundant_task.py")
LONG_S = 200.0


class Nodes:
    """The nodes of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, folder / "key"
        self.key.write_bytes(bytes(range(32)))
        self.key.chmod(0o600)
        self.names: set[str] = set()

    def start(self, node: str, action: str, task: str) -> subprocess.Popen[str]:
        self.names.add(node)
        (self.folder / node / "run").mkdir(parents=True, exist_ok=True, mode=0o700)
        command = [sys.executable, "-W", "error", str(PROGRAM), str(self.folder), node]
        return subprocess.Popen(
            [*command, action, task, str(self.key)],
            env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder / node / "run")},
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, node: str, action: str, task: str) -> str:
        process = self.start(node, action, task)
        said, _ = process.communicate(timeout=LONG_S)
        assert process.returncode == 0
        return said.strip()

    def agent(self, node: str) -> int:
        """Return the process of a node's agent."""
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = str(self.folder / node / "run")
        try:
            tiers = load_site(site_of(self.folder, node, self.key)).open_tiers()
            return int(ask(folder_of(tiers), "status")["pid"])
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before

    def lose(self, node: str) -> None:
        """Kill the agent of a node and take away all that is on it."""
        pid = self.agent(node)
        os.kill(pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], LONG_S)
        shutil.rmtree(self.folder / node)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "ckptflow.flush.agent" in line and any(str(tmp_path) in part for part in line):
            process.kill()


def test_a_lost_node_is_rebuilt_from_the_others(nodes: Nodes) -> None:
    saves = [nodes.start(f"node{n}", "save", f"task{n}") for n in range(3)]
    for process in saves:
        said, _ = process.communicate(timeout=LONG_S)
        assert (process.returncode, said.strip()) == (0, "protected")
    pfs = load_site(site_of(nodes.folder, "node0", nodes.key)).open_tiers()[-1]
    assert len(announced(pfs)) == 3
    nodes.lose("node1")
    assert nodes.run("node3", "restore", "task1") == str(STEPS)
    assert nodes.run("node0", "restore", "task0") == str(STEPS)


@pytest.mark.slow
def test_a_task_whose_node_is_alive_goes_on_elsewhere(nodes: Nodes) -> None:
    saves = [nodes.start(f"node{n}", "save", f"task{n}") for n in range(2)]
    for process in saves:
        said, _ = process.communicate(timeout=LONG_S)
        assert (process.returncode, said.strip()) == (0, "protected")
    assert nodes.run("node1", "restore", "task0") == str(STEPS)
