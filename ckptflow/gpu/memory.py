"""Memory of a diff that is used again and again: arrays that grow, and room on the host.

In steady state, when no region is new or larger than before, nothing is allocated:
``tests/gpu_emulated/test_device_diff.py`` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ckptflow.data.buffers import Bytes
from ckptflow.gpu.device import Device, HostMemory
from ckptflow.gpu.plain import Memory

_ALIGNMENT = 256  # bytes, as much as a device asks for
_BLOCK_BYTES_MIN = 1 << 20  # of page-locked memory


class Arrays:
    """Arrays on a device by name, each as large as it ever had to be."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory: dict[str, Memory] = {}

    def __getitem__(self, name: str) -> Memory:
        return self._memory[name]

    def ensure(self, name: str, size_bytes: int, *, keep_bytes: int = 0) -> bool:
        """Make an array at least so large, keeping its start; tell whether it is a new one."""
        old = self._memory.get(name)
        if old is not None and old.size_bytes >= size_bytes:
            return False
        if old is None or not keep_bytes:
            # Given back first, so that both never take memory at the same time.
            self._memory.pop(name, None)
            del old
            self._memory[name] = self._device.allocate(size_bytes)
            return True
        larger = self._device.allocate(size_bytes)
        self._device.copy(larger, old, keep_bytes)
        self._memory[name] = larger
        return True

    def swap(self, a: str, b: str) -> None:
        """Exchange two arrays."""
        self._memory[a], self._memory[b] = self._memory[b], self._memory[a]

    def addresses(self) -> dict[str, int]:
        """Return where each array starts."""
        return {name: memory.address for name, memory in self._memory.items()}

    @property
    def size_bytes(self) -> int:
        """All of them together."""
        return sum(memory.size_bytes for memory in self._memory.values())


class HostRoom:
    """Page-locked memory that is given out in pieces and taken back all at once.

    Allocating page-locked memory is slow, so what was needed once is kept as one block.
    """

    def __init__(self, allocate: Callable[[int], HostMemory]) -> None:
        self._allocate = allocate
        self._blocks: list[HostMemory] = []
        self._used_bytes = 0  # of the last block
        self._given_bytes = 0  # of all blocks, since all was taken back

    def take(self, sizes_bytes: Mapping[str, int]) -> dict[str, tuple[int, Bytes]]:
        """Return address and bytes of one piece for each name, valid until `take_back`."""
        starts, total = {}, 0
        for name, size in sizes_bytes.items():
            starts[name] = total
            total += -(-size // _ALIGNMENT) * _ALIGNMENT
        if not self._blocks or self._used_bytes + total > self._blocks[-1].size_bytes:
            self._blocks.append(self._allocate(max(total, self._given_bytes, _BLOCK_BYTES_MIN)))
            self._used_bytes = 0
        block, first = self._blocks[-1], self._used_bytes
        self._used_bytes += total
        self._given_bytes += total
        return {
            name: (
                block.address + first + start,
                block.view[first + start : first + start + sizes_bytes[name]],
            )
            for name, start in starts.items()
        }

    def take_back(self) -> None:
        """Forget all pieces; nothing may write to them any more."""
        if len(self._blocks) > 1:
            self._blocks = []
            self._blocks = [self._allocate(self._given_bytes)]
        self._used_bytes = self._given_bytes = 0


def as_words(data: Bytes) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return bytes of host memory as 64-bit numbers."""
    return data.view(np.uint64)
