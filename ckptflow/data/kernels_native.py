"""The compiled core as a backend: which instruction set, and how many threads.

One core reads less than the memory delivers (measured here: 16 GB/s of hashing on one core,
27 on two, at 4 KiB chunks), so large regions are hashed by several threads. They live only
as long as the call, in which the caller waits anyway.
"""

from __future__ import annotations

import os

import numpy as np

from ckptflow.data.backend import CellColumns, DigestTable, RepeatColumns, RunColumns
from ckptflow.data.buffers import Bytes, U32s, U64s
from ckptflow.native import _core

THREADS_MAX = 4  # Beyond, the memory is the limit, and the cores belong to other tasks.
BYTES_PER_THREAD = 32 << 20  # Below, starting a thread costs more than it saves.
SLOTS_MIN = 1 << 12
GROWTH_MAX = 16  # Times the slots; what is entered again is then little.


def variants() -> tuple[str, ...]:
    """Return the instruction sets this CPU can use, fastest first."""
    return _core.variants()


class NativeKernels:
    """The functions of ``native/py_*.cpp`` with one instruction set."""

    def __init__(self, variant: str) -> None:
        self._variant = variants().index(variant)

    def digest_chunks(self, data: Bytes, chunk_bytes: int, out: U64s) -> None:
        """See :class:`ckptflow.data.backend.Kernels`."""
        _core.digest_chunks(data, chunk_bytes, out, self._variant, _threads_for(data.size))

    digest_parents = staticmethod(_core.digest_parents)
    copy_ranges = staticmethod(_core.copy_ranges)
    look_at = staticmethod(_core.look_at)
    place_memory = staticmethod(_core.place_memory)
    fill_ranges = staticmethod(_core.fill_ranges)
    repeat_ranges = staticmethod(_core.repeat_ranges)
    ranges_equal = staticmethod(_core.ranges_equal)
    make_delta = staticmethod(_core.make_delta)
    apply_delta = staticmethod(_core.apply_delta)

    def copy_memory(self, address: U64s, length: U64s, target: Bytes, start: U64s) -> None:
        """See :class:`ckptflow.data.backend.Kernels`."""
        _core.copy_memory(address, length, target, start, _threads_for(int(length.sum())))

    def digest_memory(self, address: U64s, length: U64s, chunk_bytes: int, out: U64s) -> None:
        """See :class:`ckptflow.data.backend.Kernels`."""
        threads = _threads_for(int(length.sum()))
        _core.digest_memory(address, length, chunk_bytes, out, self._variant, threads)

    def scan_pieces(
        self,
        address: U64s,
        length: U64s,
        chunk_bytes: int,
        old: tuple[U64s, Bytes],
        digests: U64s,
        columns: tuple[Bytes, U64s],
        *,
        given: bool,
    ) -> int:
        """See :class:`ckptflow.data.backend.Kernels`."""
        threads = _threads_for(int(length.sum()))
        return _core.scan_pieces(
            address,
            length,
            chunk_bytes,
            *old,
            digests,
            given,
            *columns,
            self._variant,
            threads,
        )

    def scan(
        self,
        data: Bytes,
        chunk_bytes: int,
        cell_bytes: int,
        old_chunks: U64s,
        old_cells: U64s,
        chunks: U64s,
        columns: CellColumns,
        *,
        given: bool,
    ) -> int:
        """See :class:`ckptflow.data.backend.Kernels`."""
        return _core.scan(
            data,
            chunk_bytes,
            cell_bytes,
            old_chunks,
            old_cells,
            chunks,
            *columns,
            given,
            self._variant,
            _threads_for(data.size),
        )

    def capture(
        self,
        rows: U64s,
        chunk_bytes: int,
        arena: Bytes,
        parent: U64s,
        digests: U64s,
        held: Bytes,
        limit_bytes: int,
    ) -> int:
        """See :class:`ckptflow.data.backend.Kernels`."""
        threads = _threads_for(int(rows[:, 1].sum()))
        return _core.capture(
            rows, chunk_bytes, arena, parent, digests, held, limit_bytes, self._variant, threads
        )

    def digest_table(self) -> DigestTable:
        """See :class:`ckptflow.data.backend.Kernels`."""
        return NativeTable()

    def collect_runs(
        self,
        cells: tuple[U64s, Bytes, U64s, U64s],
        cell_bytes: int,
        size_bytes: int,
        columns: RunColumns,
    ) -> int:
        """See :class:`ckptflow.data.backend.Kernels`."""
        return _core.collect_runs(*cells, cell_bytes, size_bytes, *columns)

    def find_repeats(
        self, length: U64s, source: U64s, pack: U32s, columns: RepeatColumns
    ) -> int:
        """See :class:`ckptflow.data.backend.Kernels`."""
        return _core.find_repeats(length, source, pack, *columns)


class NativeTable:
    """Slots of eight bytes, a power of two of them, two thirds full at most."""

    def __init__(self) -> None:
        self._slots: U64s = np.zeros(SLOTS_MIN, np.uint64)

    @property
    def nbytes(self) -> int:
        """See :class:`ckptflow.data.backend.DigestTable`."""
        return self._slots.nbytes

    def find_or_add(
        self, digests: U64s, kinds: Bytes, ids: U64s, log: U64s, count: int, first_id: int
    ) -> int:
        """See :class:`ckptflow.data.backend.DigestTable`."""
        done, before = 0, count
        while True:
            step, count = _core.find_or_add(
                digests[done:], kinds[done:], ids[done:], log, count, self._slots, first_id
            )
            done += step
            if done == len(kinds):
                return count
            # The rest will bring new digests as often as these did, but a look at few says
            # little of many, and a table that stays almost empty costs memory.
            expected = count + (count - before) * (len(kinds) - done) // max(done, 1)
            most = GROWTH_MAX * len(self._slots) // 2
            self._grow(log[:count], max(min(expected, most), len(self._slots)))

    def rebuild(self, log: U64s) -> None:
        """See :class:`ckptflow.data.backend.DigestTable`."""
        self._grow(log, len(log))

    def _grow(self, log: U64s, expected: int) -> None:
        wanted = max(SLOTS_MIN, expected * 3 // 2 + 2)
        self._slots = np.zeros(1 << (wanted - 1).bit_length(), np.uint64)
        _core.fill_table(log, self._slots)


def _threads_for(size_bytes: int) -> int:
    wanted = min(size_bytes // BYTES_PER_THREAD, THREADS_MAX)
    return min(wanted, _cores_allowed()) if wanted > 1 else 1


def _cores_allowed() -> int:
    """Return how many cores this process may use: a worker is often pinned to a few."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
