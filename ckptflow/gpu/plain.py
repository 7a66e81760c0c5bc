"""Memory of a CUDA device without kernels: take it, fill it, read it. CuPy does it.

``tests/gpu_emulated/test_device_tier.py`` with an imitation of CuPy, and
``tests/gpu/test_device_tier.py`` on a device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError


class Memory(Protocol):
    """Memory of a device or page-locked memory, released with the last reference."""

    @property
    def address(self) -> int:
        """Where it starts, at a multiple of 256, as kernels see it."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its size."""
        ...


class DeviceFailedError(Exception):
    """The driver could not do it; ``full`` tells whether for lack of memory."""

    def __init__(self, reason: str, *, full: bool) -> None:
        super().__init__(reason)
        self.full = full


class PlainMemory(Protocol):
    """What a tier asks of a device. Each call returns when it is done."""

    def allocate(self, size_bytes: int) -> Memory:
        """Return memory with any content, given back with the last reference.

        Raises:
            DeviceFailedError: there is no more.
        """
        ...

    def upload(self, target: Memory, start_bytes: int, data: NDArray[np.uint8]) -> None:
        """Copy from the host into a part of ``target``."""
        ...

    def download(self, source: Memory, start_bytes: int, target: NDArray[np.uint8]) -> None:
        """Fill memory of the host from a part of ``source``."""
        ...


class _Pointer:
    def __init__(self, pointer: Any, size_bytes: int) -> None:
        self._pointer = pointer  # Gives the memory back when it goes.
        self.address, self.size_bytes = int(pointer.ptr), size_bytes


class CudaPlainMemory:
    """Memory of one CUDA device, copied on a stream of its own.

    So a copy waits for nothing that the application computes; what is copied lies on the host.

    Args:
        number: which device; the current one if it is not given.

    Raises:
        ConfigError: CuPy is not installed, or there is no such device.
    """

    def __init__(self, number: int | None = None) -> None:
        cupy, self.number = choose_device(number, purpose="A tier in the memory of a GPU")
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        with cupy.cuda.Device(self.number):
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._lock = threading.Lock()  # Contexts of CuPy's streams are not for several threads.

    def allocate(self, size_bytes: int) -> Memory:
        """Return memory of CuPy's pool."""
        with self._using():
            return _Pointer(self._cupy.cuda.alloc(max(size_bytes, 1)), size_bytes)

    def upload(self, target: Memory, start_bytes: int, data: NDArray[np.uint8]) -> None:
        """Copy from the host into a part of ``target``."""
        to_device = self._runtime.memcpyHostToDevice
        self._copy(target.address + start_bytes, data.ctypes.data, data.nbytes, to_device)

    def download(self, source: Memory, start_bytes: int, target: NDArray[np.uint8]) -> None:
        """Fill memory of the host from a part of ``source``."""
        to_host = self._runtime.memcpyDeviceToHost
        self._copy(target.ctypes.data, source.address + start_bytes, target.nbytes, to_host)

    def _copy(self, target: int, source: int, size_bytes: int, kind: int) -> None:
        if not size_bytes:
            return
        with self._using():
            self._runtime.memcpyAsync(target, source, size_bytes, kind, self._stream.ptr)
            self._stream.synchronize()

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            with self._lock, self._cupy.cuda.Device(self.number), self._stream:
                yield
        except MemoryError as error:  # CuPy's own is one.
            raise DeviceFailedError(str(error), full=True) from error
        except self._runtime.CUDARuntimeError as error:
            raise DeviceFailedError(str(error), full=False) from error


def choose_device(number: int | None, *, purpose: str) -> tuple[Any, int]:
    """Return CuPy and the number of a device that is there; the current one by default.

    Raises:
        ConfigError: CuPy is not installed, or there is no such device. It says for what
            ``purpose`` it is needed.
    """
    try:
        import cupy
    except ImportError as error:
        raise ConfigError(
            f"{purpose} needs CuPy, which is not installed: "
            "pip install 'ckptflow[cuda12]' or 'ckptflow[cuda13]', as your driver has it."
        ) from error
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ConfigError(
            f"{purpose} needs a CUDA device, and the driver shows none "
            f"({error}). Let nvidia-smi tell what is there."
        ) from error
    chosen = cupy.cuda.Device().id if number is None else number
    if not 0 <= chosen < count:
        raise ConfigError(
            f"There is no CUDA device {chosen}; the driver shows {count}, counted "
            "from 0. CUDA_VISIBLE_DEVICES can hide some."
        )
    return cupy, chosen
