"""Real nodes: processes that serve their folders over TCP, killed with SIGKILL, disks deleted.

What was saved on a node that is gone comes back on a new one, bit by bit, over the network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nodes import restored_step, save

from ckptflow.errors import TierUnavailable
from ckptflow.store.redundancy.rebuild import rebuild
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.set import RedundancySet
from ckptflow.store.redundancy.survey import Member, look, member_of
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.peer import PeerTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.storekey import StoreKey

HERE = Path(__file__).resolve().parent
XOR = Scheme(name="xor", set_size=4, losses=1)
RS = Scheme(name="rs", set_size=4, losses=2)


class Node:
    """A process with a folder, and the tier that reaches it."""

    def __init__(self, folder: Path, key_file: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "peer_node.py"), str(folder), str(key_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        )
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        self.tier = PeerTier(address, StoreKey.from_file(key_file), name=folder.name)

    def power_off(self) -> None:
        """Kill the process with SIGKILL, and delete what was on its disk."""
        self.kill()
        shutil.rmtree(self.folder)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.tier.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(os.urandom(32).hex() + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def start(tmp_path: Path, key_file: Path) -> Iterator[Callable[[str], Node]]:
    started: list[Node] = []

    def start(name: str) -> Node:
        started.append(Node(tmp_path / name, key_file))
        return started[-1]

    yield start
    for node in started:
        node.end()


@pytest.mark.parametrize(("scheme", "lost"), [(XOR, [2]), (RS, [1, 3])], ids=["xor", "rs"])
def test_nodes_that_are_gone_come_back_on_new_ones(
    start: Callable[[str], Node], scheme: Scheme, lost: list[int]
) -> None:
    nodes = [start(f"node{number}") for number in range(4)]
    members = [member_of(node.tier) for node in nodes]
    for number, node in enumerate(nodes):  # Tasks save on their own disk.
        base = save(PosixTier(node.folder), number, 1)
        save(PosixTier(node.folder), number, 2, base)
    one = RedundancySet(own=members[0], others=members[1:], scheme=scheme)
    assert one.protect_now().reasons == []
    for number in lost:
        nodes[number].power_off()
    survey = look(members)
    assert set(survey.silent) == {members[number].id for number in lost}
    for number in lost:
        new = start(f"spare{number}")
        done = one.rebuild(new.tier, lost=[members[number].id])
        assert done.failed == []
        assert [checkpoint.step for _, checkpoint in done.checkpoints] == [2, 1]
        assert restored_step(PosixTier(new.folder), number) == 2


def test_a_node_that_is_killed_while_it_is_written_to_stops_nobody(
    start: Callable[[str], Node],
) -> None:
    """And what it had, and what the others have, survives it."""
    nodes = [start(f"node{number}") for number in range(4)]
    members = [member_of(node.tier) for node in nodes]
    for number, node in enumerate(nodes):
        save(PosixTier(node.folder), number, 1)

    def kill_first(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(".parity"):
            nodes[2].kill()

    members[2] = Member(members[2].id, FaultyTier(members[2].tier, kill_first))
    one = RedundancySet(own=members[0], others=members[1:], scheme=RS)
    done = one.protect_now()
    assert nodes[2].process.poll() is not None
    assert any("Tier 'node2' at" in reason for reason in done.reasons)
    with pytest.raises(TierUnavailable, match="does not answer"):
        nodes[2].tier.size("x")
    gone = frozenset({members[2].id})
    RedundancySet(own=members[0], others=members[1:], scheme=RS, gone=gone).protect_now()
    for number in (0, 1, 3):
        assert restored_step(nodes[number].tier, number) == 1
        left = [members[other] for other in (0, 1, 3) if other != number]
        target = PosixTier(nodes[number].folder.with_name(f"new{number}"))
        rebuild(look(left), target, lost=[members[number].id])
        assert restored_step(target, number) == 1
