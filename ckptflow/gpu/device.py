"""What a diff asks of a device: memory, launches, copies. Nothing about chunks or digests.

:mod:`ckptflow.gpu.cuda` asks CuPy for it. The tests in ``tests/gpu_emulated`` give another
device, which runs the same launches of the same kernels on the host.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from ckptflow.data.buffers import Bytes
from ckptflow.gpu.plain import Memory
from ckptflow.gpu.plan import Launch, Shape


@dataclass(frozen=True, slots=True, eq=False)
class DeviceArray:
    """An array on a device as plain memory; ``owner`` keeps it alive."""

    address: int
    size_bytes: int
    device: int
    stream: int | None  # where the owner's library writes it; None: the current one of CuPy
    owner: Any


class HostMemory(Memory, Protocol):
    """Page-locked memory of the host that kernels may write to."""

    @property
    def view(self) -> Bytes:
        """All of it."""
        ...


class Done(Protocol):
    """Something that a device will have finished at some time."""

    def wait(self) -> None:
        """Return when it has."""
        ...


class Device(Protocol):
    """A device with the kernels for one shape of chunks and cells.

    Work is done in the order in which it is asked for, except `copy_aside`.
    """

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    @property
    def shape(self) -> Shape:
        """What its kernels were compiled for."""
        ...

    @property
    def blocks_max(self) -> int:
        """How many blocks it can run at once."""
        ...

    def using(self, array: DeviceArray) -> AbstractContextManager[None]:
        """Work where ``array`` is used: on its device, after what its stream has begun.

        Raises:
            StateError: it lies on another device, or its memory was freed.
        """
        ...

    def so_far(self) -> Done:
        """Return what has finished when everything that was asked for has."""
        ...

    def apart(self, after: Done) -> AbstractContextManager[None]:
        """Work beside what applications do on the device, once ``after`` is done."""
        ...

    def allocate(self, size_bytes: int) -> Memory:
        """Return memory of the device with any content."""
        ...

    def allocate_host(self, size_bytes: int) -> HostMemory:
        """Return page-locked memory with any content."""
        ...

    def zero(self, memory: Memory) -> None:
        """Set all bytes to 0."""
        ...

    def write(self, target: Memory, data: Bytes) -> None:
        """Copy from the host to the start of ``target``."""
        ...

    def copy(self, target: Memory, source: Memory, size_bytes: int) -> None:
        """Copy the first bytes within the device."""
        ...

    def read(self, source: Memory, size_bytes: int) -> Bytes:
        """Return the first bytes, after everything so far is done."""
        ...

    def launch(self, launch: Launch) -> None:
        """Start a kernel."""
        ...

    def copy_aside(self, target: int, source: int, size_bytes: int) -> Done:
        """Copy to page-locked memory, after everything so far, while later work goes on.

        What it returns has finished when that copy and everything before it have.
        """
        ...

    def hold(self, done: Done) -> None:
        """Let later work begin after ``done``, without making the host wait."""
        ...
