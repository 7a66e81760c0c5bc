"""What may be taken is what the tightest of machine, node and control groups leaves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from ckptflow.tiers import memory_left
from ckptflow.units import GIB


def group(folder: Path, limit: int | str, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 1\n")


def test_the_tightest_group_above_decides(tmp_path: Path) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/slurm/uid_1/step_0\n")
    assert memory_left.of_cgroups(groups, own) is None
    group(groups / "slurm", "max", 1)
    group(groups / "slurm" / "uid_1", 1000, 301)
    group(groups / "slurm" / "uid_1" / "step_0", 900, 101)
    assert memory_left.of_cgroups(groups, own) == 700
    (groups / "slurm" / "uid_1" / "memory.current").write_text("1100\n")
    assert memory_left.of_cgroups(groups, own) == 0


def test_files_that_are_only_cached_count_as_left(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/a\n")
    group(tmp_path / "cgroup" / "a", 1000, 990, cached=500)
    assert memory_left.of_cgroups(tmp_path / "cgroup", tmp_path / "own") == 511


def test_groups_of_the_first_version_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("4:cpu,memory:/a\n1:cpuset:/b\n0::/\n")
    folder = tmp_path / "cgroup" / "memory" / "a"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("900\n")
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 50\n")
    assert memory_left.of_cgroups(tmp_path / "cgroup", tmp_path / "own") == 150


def test_a_path_that_climbs_out_of_the_groups_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/../..\n")  # As seen from some containers.
    assert memory_left.of_cgroups(tmp_path / "cgroup", tmp_path / "own") is None
    (tmp_path / "own").write_text("5:cpu:/x\n")
    assert memory_left.of_cgroups(tmp_path / "cgroup", tmp_path / "own") is None
    assert memory_left.of_cgroups(tmp_path / "cgroup", tmp_path / "nothing") is None


def test_cached_files_make_room_on_a_node_and_shared_memory_does_not(tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1" / "meminfo").write_text(
        "Node 1 MemTotal:  9999 kB\nNode 1 MemFree:  100 kB\n"
        "Node 1 FilePages:  50 kB\nNode 1 Shmem:   20 kB\n"
    )
    assert memory_left.of_node(1, tmp_path) == 130 * 1024


def test_no_more_is_left_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < memory_left.memory_left_bytes() <= psutil.virtual_memory().total
    monkeypatch.setattr(memory_left, "of_cgroups", lambda: GIB // 1024)
    assert memory_left.memory_left_bytes() == GIB // 1024
