"""How much memory may be taken without a process being killed for it.

To take more than there is, is no error on Linux but the end of some process: so whoever takes
much at once has to look first. ``tests/unit/test_memory_left.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from ckptflow.tiers.numa import NODES

CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory_left_bytes(node: int | None = None) -> int:
    """Return what is left of the machine's memory, or a node's, and of our limits."""
    there = psutil.virtual_memory().available if node is None else of_node(node)
    limit = of_cgroups()
    return there if limit is None else min(there, limit)


def of_node(node: int, nodes: Path = NODES) -> int:
    """Return what a NUMA node has left: free memory, and files that it only caches."""
    text = (nodes / f"node{node}" / "meminfo").read_text()
    kib = {name: int(value) for name, value in re.findall(r"(\w+): +(\d+) kB", text)}
    return 1024 * (kib["MemFree"] + kib["FilePages"] - kib["Shmem"])


def of_cgroups(groups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """Return what the tightest control group above us leaves; ``None``: there is no limit.

    Batch systems limit the memory of an allocation so. What is used counts without the files
    that are only cached, which the kernel gives up first.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            left += _left(groups, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):  # The first version, a tree for each.
            names = "memory.limit_in_bytes", "memory.usage_in_bytes"
            left += _left(groups / "memory", path, *names)
    return max(0, min(left)) if left else None


def _left(top: Path, path: str, limit: str, usage: str) -> list[int]:
    """Return what each group on the way up leaves, of those that have a limit."""
    folder, left = top / path.lstrip("/"), []
    while folder != top and top in folder.parents:
        try:
            text = (folder / limit).read_text().strip()
            if text != "max":
                used_bytes = int((folder / usage).read_text()) - _cached_bytes(folder)
                left.append(int(text) - used_bytes)
        except (OSError, ValueError):
            pass  # A group without limits of memory, or one that is not shown to us.
        folder = folder.parent
    return left


def _cached_bytes(folder: Path) -> int:
    text = (folder / "memory.stat").read_text()
    found = {name: int(value) for name, value in re.findall(r"(?m)^(\w+) (\d+)$", text)}
    kinds = ("inactive_file", "active_file")
    return sum(found.get(f"total_{kind}", found.get(kind, 0)) for kind in kinds)
