"""Memory is bound to a NUMA node, and its pages are found there; what cannot be is said."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from ckptflow.tiers import numa


@pytest.fixture
def node() -> int:
    """A node whose memory may be had here."""
    nodes = sorted(int(path.name[4:]) for path in numa.NODES.glob("node[0-9]*"))
    if not nodes:
        pytest.skip(f"no NUMA nodes in {numa.NODES}")
    if reason := numa.why_not(nodes[-1]):
        pytest.skip(reason)
    return nodes[-1]


def test_pages_lie_where_they_were_bound_to(node: int) -> None:
    size_bytes = 100 * mmap.PAGESIZE
    with mmap.mmap(-1, size_bytes) as memory:
        numa.bind(memory, node)
        memory[:] = b"x" * size_bytes
        assert numa.nodes_of(memory, size_bytes) == {node: 64}


def test_a_node_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert numa.why_not(1000, tmp_path) == f"there is no NUMA node 1000 ({tmp_path})"


def test_a_node_that_the_kernel_refuses_is_said(tmp_path: Path, node: int) -> None:
    (tmp_path / "node999").mkdir()
    assert "NUMA node 999 cannot be bound to: " in numa.why_not(999, tmp_path)


def test_an_unknown_processor_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    (tmp_path / "node0").mkdir()
    assert "not known for vax" in numa.why_not(0, tmp_path)
