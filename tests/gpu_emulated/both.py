"""Snapshots of the same states, taken on a device and by the CPU, and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckptflow.data import snapshot as snapshots
from ckptflow.data.buffers import U64s
from ckptflow.data.snapshot import NOTHING, Parent, Places, Snapshot
from ckptflow.gpu.capture import DeviceCapture, DeviceRegions
from ckptflow.gpu.device import Device, DeviceArray, Done

Bytes = NDArray[np.uint8]
NO_LIMIT = 1 << 40


@dataclass
class Both:
    """``see`` takes a state; ``take`` captures regions of it on both, and compares."""

    device: Device
    place: Callable[[Bytes], DeviceArray]  # Puts bytes on the device; ``owner`` can be changed.
    gpu_before: Snapshot | None = field(default=None, init=False)
    cpu_before: Snapshot | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.capture = DeviceCapture(self.device)

    def see(self, state: dict[str, Bytes], on_host: Sequence[str] = ()) -> None:
        """Take over a state; the next snapshots are of it."""
        self.names, self.data = list(state), list(state.values())
        self.places = Places.of(
            [one.nbytes for one in self.data], self.device.shape.chunk_bytes
        )
        self.numbers = np.array(
            [
                n
                for n, (name, one) in enumerate(state.items())
                if name not in on_host and one.size
            ],
            np.int64,
        )
        self.arrays = [self.place(self.data[n]) for n in self.numbers]
        address = np.array([array.address for array in self.arrays], np.uint64)
        self.regions = DeviceRegions(self.numbers, address, self.arrays[:2])
        self.begin()

    def begin(self) -> None:
        """Begin a new snapshot of the same state."""
        self.cpu, self.gpu = (Snapshot(self.names, self.places) for _ in range(2))
        self.arenas = [np.full(self.places.arena_bytes, 7, np.uint8) for _ in range(2)]

    def take(
        self,
        how: U64s,
        grain: U64s | None = None,
        *,
        limit_bytes: int = NO_LIMIT,
        after: Done | None = None,
        spoil: bool = True,
    ) -> int | None:
        """Capture, and compare all that comes of it; return the bytes."""
        grain = np.ones(len(how), np.uint64) if grain is None else grain
        mine = np.zeros(len(how), np.bool_)
        mine[self.numbers] = True
        how = np.where(mine, how, NOTHING)
        address = np.array([one.ctypes.data for one in self.data], np.int64)
        taken = snapshots.capture(
            self.cpu, address, how, arena=self.arenas[0], grain=grain, limit_bytes=limit_bytes,
            parent=Parent(self.cpu, self.cpu_before),
        )  # fmt: skip
        if not mine.any():
            return taken
        transfer = self.capture.capture(
            self.gpu, self.regions, how, arena=self.arenas[1], grain=grain,
            limit_bytes=limit_bytes, parent=Parent(self.gpu, self.gpu_before), after=after,
        )  # fmt: skip
        if taken is None or transfer is None:
            assert taken is transfer
            return None
        for array in self.arrays if spoil else ():
            array.owner[:] ^= 0xFF  # The application goes on.
        transfer.finish()
        for array in self.arrays if spoil else ():
            array.owner[:] ^= 0xFF
        assert transfer.taken_bytes == taken
        self._compare(how)
        return taken

    def _compare(self, how: U64s) -> None:
        np.testing.assert_array_equal(*self.arenas)
        np.testing.assert_array_equal(self.cpu.digested, self.gpu.digested)
        for number in self.numbers[how[self.numbers] != NOTHING]:
            np.testing.assert_array_equal(self.cpu.held_of(number), self.gpu.held_of(number))
            if self.cpu.digested[number]:
                ours, theirs = self.gpu.digests_of(number), self.cpu.digests_of(number)
                np.testing.assert_array_equal(ours, theirs)

    def keep(self) -> None:
        """Compare the next snapshots with this one."""
        self.cpu_before, self.gpu_before = self.cpu, self.gpu
