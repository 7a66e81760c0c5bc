"""Where memory lies among NUMA nodes: ask for a node, and look where the pages are.

These are the system calls themselves (``mbind(2)``, ``get_mempolicy(2)``), without libnuma.
Memory of a CXL expander is a node without processors to Linux, and is named by its number.
``tests/unit/test_numa.py``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections import Counter
from pathlib import Path

import numpy as np

NODE_MAX = 1023
NODES = Path("/sys/devices/system/node")

# Numbers of mbind and get_mempolicy (Linux: syscall tables, asm-generic/unistd.h).
_CALLS = {
    "x86_64": (237, 239),
    "aarch64": (235, 236),
    "riscv64": (235, 236),
    "ppc64le": (259, 260),
}
_BIND, _OF_ADDRESS = 2, 1 | 2  # MPOL_BIND; MPOL_F_NODE | MPOL_F_ADDR (linux/mempolicy.h)
_SAMPLES = 64


def why_not(node: int, nodes: Path = NODES) -> str:
    """Return why memory of a node cannot be had, or ``""``: one page is bound to try it."""
    if not (nodes / f"node{node}").is_dir():
        return f"there is no NUMA node {node} ({nodes})"
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            bind(page, node)
        except OSError as error:
            return f"NUMA node {node} cannot be bound to: {error.strerror or error}"
    return ""


def bind(memory: mmap.mmap, node: int) -> None:
    """Have all pages of a mapping that are not there yet come from one node.

    The policy of shared memory is kept with the file, so it holds for all processes.

    Raises:
        OSError: the kernel has no NUMA, forbids it, or the node has no memory for us.
    """
    mask = (ctypes.c_ulong * ((NODE_MAX + 1) // 64))()
    mask[node // 64] = 1 << node % 64
    address = np.frombuffer(memory, np.uint8).ctypes.data
    bits = ctypes.c_ulong(NODE_MAX + 2)  # The kernel takes one off.
    size = ctypes.c_ulong(len(memory))
    _call(0, ctypes.c_void_p(address), size, ctypes.c_int(_BIND), mask, bits, ctypes.c_uint(0))


def nodes_of(memory: mmap.mmap, size_bytes: int) -> dict[int, int]:
    """Return how many of some pages, spread evenly, lie on which node.

    Raises:
        OSError: the kernel does not tell.
    """
    address = np.frombuffer(memory, np.uint8).ctypes.data
    pages = max(1, size_bytes // mmap.PAGESIZE)
    found: Counter[int] = Counter()
    for page in {number * pages // _SAMPLES for number in range(_SAMPLES)}:
        node = ctypes.c_int(-1)
        place = ctypes.c_void_p(address + page * mmap.PAGESIZE)
        flags = ctypes.c_ulong(_OF_ADDRESS)
        _call(1, ctypes.byref(node), ctypes.c_void_p(None), ctypes.c_ulong(0), place, flags)
        found[node.value] += 1
    return dict(sorted(found.items()))


def _call(which: int, *arguments: object) -> None:
    machine = platform.machine()
    if machine not in _CALLS:
        raise OSError(f"the numbers of its system calls are not known for {machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(_CALLS[machine][which]), *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
