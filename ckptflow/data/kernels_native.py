"""The compiled core as a backend: which instruction set, and how many threads.

One core reads less than the memory delivers (measured here: 16 GB/s of hashing on one core,
27 on two, at 4 KiB chunks), so large regions are hashed by several threads. They live only
as long as the call, in which the caller waits anyway.
"""

from __future__ import annotations

import os

from ckptflow.data.backend import RunColumns
from ckptflow.data.buffers import Bytes, U64s
from ckptflow.native import _core

THREADS_MAX = 4  # Beyond, the memory is the limit, and the cores belong to other tasks.
BYTES_PER_THREAD = 32 << 20  # Below, starting a thread costs more than it saves.


def variants() -> tuple[str, ...]:
    """Return the instruction sets this CPU can use, fastest first."""
    return _core.variants()


class NativeKernels:
    """The functions of ``native/module.cpp`` with one instruction set."""

    def __init__(self, variant: str) -> None:
        self._variant = variants().index(variant)

    def digest_chunks(self, data: Bytes, chunk_bytes: int, out: U64s) -> None:
        """See :class:`ckptflow.data.backend.Kernels`."""
        _core.digest_chunks(data, chunk_bytes, out, self._variant, _threads_for(data.size))

    digest_parents = staticmethod(_core.digest_parents)
    classify_chunks = staticmethod(_core.classify_chunks)
    copy_ranges = staticmethod(_core.copy_ranges)
    fill_ranges = staticmethod(_core.fill_ranges)

    def collect_runs(
        self, data: Bytes, chunk_bytes: int, kinds: Bytes, columns: RunColumns
    ) -> None:
        """See :class:`ckptflow.data.backend.Kernels`."""
        _core.collect_runs(data, chunk_bytes, kinds, *columns)


def _threads_for(size_bytes: int) -> int:
    wanted = min(size_bytes // BYTES_PER_THREAD, THREADS_MAX)
    return min(wanted, _cores_allowed()) if wanted > 1 else 1


def _cores_allowed() -> int:
    """Return how many cores this process may use: a worker is often pinned to a few."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
