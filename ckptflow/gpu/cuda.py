"""A CUDA device through CuPy: compiles the kernels at run time, no toolkit is needed.

Everything runs on the stream of the array that is compared, in order; the copy of new bytes to
the host has a stream of its own, and so has a capture beside the application. CuPy is imported
when a device is asked for.
``tests/gpu/test_device.py`` needs a real device; without one nothing here has been run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ckptflow.data.buffers import Bytes
from ckptflow.errors import ConfigError, StateError
from ckptflow.gpu import plan
from ckptflow.gpu.device import DeviceArray, Done, HostMemory
from ckptflow.gpu.plain import Memory, choose_device
from ckptflow.gpu.plan import Launch, Shape

BLOCKS_PER_MULTIPROCESSOR = 3  # That many with 80 registers for each thread fit at once.

_LEGACY_STREAM, _PER_THREAD_STREAM = (0, 1), 2  # not addresses but names of default streams


class _Memory:
    """Memory of CuPy's pool for devices, or for the host."""

    def __init__(self, pointer: Any, address: int, size_bytes: int) -> None:
        self._pointer = pointer  # gives the memory back when it goes
        self.address, self.size_bytes = address, size_bytes


class _HostMemory(_Memory):
    @property
    def view(self) -> Bytes:
        """All of it."""
        return np.frombuffer(self._pointer, np.uint8, count=self.size_bytes)


class _Foreign:
    """A stream of another library, by the protocol that CuPy asks for."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


class _Event:
    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> None:
        """Return when the device got there."""
        self.event.synchronize()


class CudaDevice:
    """One CUDA device with the kernels for one shape of chunks and cells.

    Args:
        shape: sizes of chunks and cells.
        number: which device; the current one if it is not given.

    Raises:
        ConfigError: CuPy is not installed, cannot compile, or there is no such device.
    """

    def __init__(self, shape: Shape, number: int | None = None) -> None:
        cupy, self._number = choose_device(number, purpose="Finding changes on a GPU")
        self._cupy = cupy
        self._shape = shape
        properties = cupy.cuda.runtime.getDeviceProperties(self._number)
        self._name = f"{properties['name'].decode()} (device {self._number})"
        self._blocks_max = properties["multiProcessorCount"] * BLOCKS_PER_MULTIPROCESSOR
        with cupy.cuda.Device(self._number):
            self._kernels = self._compile()
            self._aside = cupy.cuda.Stream(non_blocking=True)
            self._apart = cupy.cuda.Stream(non_blocking=True)
            self._stream = cupy.cuda.get_current_stream()

    def _compile(self) -> dict[str, Any]:
        cupy, shape = self._cupy, self._shape
        if cupy.cuda.runtime.is_hip:
            raise ConfigError(
                f"{self._name} is no CUDA device: the kernels are for warps of 32 threads."
            )
        try:
            module = cupy.RawModule(code=plan.source(), options=plan.options(shape))
            return {name: module.get_function(name) for name in plan.kernels(shape)}
        except (cupy.cuda.compiler.CompileException, OSError, RuntimeError) as error:
            raise ConfigError(
                f"The kernels for {self._name} cannot be compiled or loaded: {error}. CuPy "
                "needs NVRTC of its own CUDA version; see its installation guide."
            ) from error

    @property
    def name(self) -> str:
        """Model and number."""
        return self._name

    @property
    def shape(self) -> Shape:
        """What the kernels were compiled for."""
        return self._shape

    @property
    def blocks_max(self) -> int:
        """How many blocks the device can run at once."""
        return int(self._blocks_max)

    @property
    def stream(self) -> Any:
        """The stream, as CuPy has it, on which work is queued now."""
        return self._stream

    @contextmanager
    def using(self, array: DeviceArray) -> Iterator[None]:
        """Work on the device and the stream of ``array``; later work follows it there.

        Raises:
            StateError: it lies on another device, or its memory was freed.
        """
        self._require_here(array)
        with self._cupy.cuda.Device(self._number):
            self._go_on(self._stream_of(array))
            yield

    @contextmanager
    def apart(self, after: Done) -> Iterator[None]:
        """Work on a stream of our own, once ``after`` is done."""
        with self._cupy.cuda.Device(self._number):
            self._go_on(self._apart)
            self.hold(after)
            yield

    def _go_on(self, stream: Any) -> None:
        if stream.ptr != self._stream.ptr:
            stream.wait_event(self._stream.record())  # Our own earlier work comes first.
        self._stream = stream

    def so_far(self) -> Done:
        """Return what has finished when everything that was asked for has."""
        return _Event(self._stream.record())

    def _stream_of(self, array: DeviceArray) -> Any:
        streams = self._cupy.cuda.Stream
        if array.stream is None:
            return self._cupy.cuda.get_current_stream()
        if array.stream in _LEGACY_STREAM:
            return streams.null
        if array.stream == _PER_THREAD_STREAM:
            return streams.ptds
        return streams.from_external(_Foreign(array.stream))

    def _require_here(self, array: DeviceArray) -> None:
        if array.device != self._number:
            raise StateError(
                f"The array lies on CUDA device {array.device}, but {self.name} was asked to "
                "compare it. Make a DeviceDiff for each device."
            )
        if not array.size_bytes:
            return
        runtime = self._cupy.cuda.runtime
        try:
            found = runtime.pointerGetAttributes(array.address)
        except runtime.CUDARuntimeError as error:
            raise StateError(f"The memory of the array cannot be used: {error}") from error
        if found.devicePointer == 0:
            raise StateError(
                f"The memory at {array.address:#x} does not belong to any device any more: "
                "the array was freed. Pass the array that took its place."
            )
        if found.device != self._number:
            raise StateError(
                f"The memory at {array.address:#x} lies on CUDA device {found.device}, not on "
                f"{self.name}. Make a DeviceDiff for each device."
            )

    def allocate(self, size_bytes: int) -> Memory:
        """Return memory of the device with any content."""
        with self._cupy.cuda.Device(self._number), self._stream:
            pointer = self._cupy.cuda.alloc(max(size_bytes, 1))
        return _Memory(pointer, pointer.ptr, size_bytes)

    def allocate_host(self, size_bytes: int) -> HostMemory:
        """Return page-locked memory, to which kernels can write."""
        pointer = self._cupy.cuda.alloc_pinned_memory(max(size_bytes, 1))
        return _HostMemory(pointer, pointer.ptr, size_bytes)

    def zero(self, memory: Memory) -> None:
        """Set all bytes to 0."""
        self._cupy.cuda.runtime.memsetAsync(
            memory.address, 0, memory.size_bytes, self._stream.ptr
        )

    def write(self, target: Memory, data: Bytes) -> None:
        """Copy from the host to the start of ``target``."""
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(
            target.address, data.ctypes.data, data.nbytes,
            runtime.memcpyHostToDevice, self._stream.ptr,
        )  # fmt: skip
        self._stream.synchronize()

    def copy(self, target: Memory, source: Memory, size_bytes: int) -> None:
        """Copy the first bytes within the device."""
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(
            target.address, source.address, size_bytes,
            runtime.memcpyDeviceToDevice, self._stream.ptr,
        )  # fmt: skip

    def read(self, source: Memory, size_bytes: int) -> Bytes:
        """Return the first bytes, after everything so far is done."""
        runtime = self._cupy.cuda.runtime
        data = np.empty(size_bytes, np.uint8)
        runtime.memcpyAsync(
            data.ctypes.data, source.address, size_bytes,
            runtime.memcpyDeviceToHost, self._stream.ptr,
        )  # fmt: skip
        self._stream.synchronize()
        return data

    def launch(self, launch: Launch) -> None:
        """Start a kernel."""
        arguments = tuple(np.uint64(argument) for argument in launch.arguments)
        with self._cupy.cuda.Device(self._number), self._stream:
            self._kernels[launch.kernel]((launch.blocks,), (plan.THREADS,), arguments)

    def copy_aside(self, target: int, source: int, size_bytes: int) -> Done:
        """Copy to page-locked memory, after everything so far, while later work goes on."""
        with self._cupy.cuda.Device(self._number):
            so_far = self._stream.record()
            if not size_bytes:
                return _Event(so_far)
            self._aside.wait_event(so_far)
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(
                target, source, size_bytes, runtime.memcpyDeviceToHost, self._aside.ptr
            )
            return _Event(self._aside.record())

    def hold(self, done: Done) -> None:
        """Let later work begin after ``done``."""
        assert isinstance(done, _Event)
        self._stream.wait_event(done.event)
