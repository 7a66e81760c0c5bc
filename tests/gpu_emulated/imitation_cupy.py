"""As much of CuPy as the product calls, over memory of the host and the emulated kernels.

It shows that every line is reached and that the calls make sense together. Whether CuPy
itself answers in the same way is what ``tests/gpu`` shows on a real device.
"""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from emulated import HostArray, library
from numpy.typing import NDArray

from ckptflow.gpu import plan
from ckptflow.gpu.plan import Shape


class CUDARuntimeError(RuntimeError):
    """What CuPy raises when the driver says no."""


class CompileException(Exception):
    """What CuPy raises when the compiler says no."""


class Event:
    def __init__(self, imitation: Imitation, stream: int) -> None:
        self.imitation, self.stream = imitation, stream

    def synchronize(self) -> None:
        self.imitation.log.append(f"wait for {self.stream}")
        self.imitation.catch_up(self.stream)


class Imitation:
    """What ``import cupy`` gives. ``log`` tells what was asked for, in order.

    Copies to the host happen when somebody waits for their stream, as late as they may.
    """

    def __init__(self, devices: int = 2) -> None:
        self.log: list[str] = []
        self.to_host_bytes = 0
        self._late: dict[int, list[tuple[int, int, int]]] = {}  # By stream.
        self.current_stream: Any = None
        self.current_device = 0
        self.memory: dict[int, HostArray] = {}
        log = self.log
        imitation = self

        class Stream:
            null: Any
            ptds: Any
            made = 100

            def __init__(self, *, non_blocking: bool, ptr: int | None = None) -> None:
                assert non_blocking, "it must not wait for the default stream"
                Stream.made += 1
                self.ptr = Stream.made if ptr is None else ptr
                self._outer: list[Any] = []

            @classmethod
            def from_external(cls, foreign: Any) -> Stream:
                version, address = foreign.__cuda_stream__()
                assert version == 0
                return cls(non_blocking=True, ptr=address)

            def __enter__(self) -> Self:
                self._outer.append(imitation.current_stream)
                imitation.current_stream = self
                return self

            def __exit__(self, *_: object) -> None:
                imitation.current_stream = self._outer.pop()

            def record(self) -> Event:
                return Event(imitation, self.ptr)

            def wait_event(self, event: Event) -> None:
                log.append(f"{self.ptr} after {event.stream}")
                imitation.catch_up(event.stream)

            def synchronize(self) -> None:
                log.append(f"wait for {self.ptr}")
                imitation.catch_up(self.ptr)

        Stream.null = Stream(non_blocking=True, ptr=0)
        Stream.ptds = Stream(non_blocking=True, ptr=2)
        self.current_stream = Stream.null

        class Device:
            def __init__(self, number: int | None = None) -> None:
                self.id = imitation.current_device if number is None else number

            def __enter__(self) -> None:
                self._outer, imitation.current_device = imitation.current_device, self.id

            def __exit__(self, *_: object) -> None:
                imitation.current_device = self._outer

        self.cuda = SimpleNamespace(
            Stream=Stream,
            Device=Device,
            get_current_stream=lambda: imitation.current_stream,
            compiler=SimpleNamespace(CompileException=CompileException),
            alloc=self._alloc,
            alloc_pinned_memory=self._alloc_pinned,
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                is_hip=False,
                getDeviceCount=lambda: devices,
                getDeviceProperties=lambda _: {
                    "name": b"Imitation", "multiProcessorCount": 1
                },
                pointerGetAttributes=self._attributes,
                memcpyHostToDevice=1, memcpyDeviceToHost=2, memcpyDeviceToDevice=3,
                memcpyAsync=self._copy,
                memsetAsync=self._set,
            ),
        )  # fmt: skip

    def asarray(self, data: NDArray[np.uint8]) -> LikeCupy:
        memory = self._alloc(data.nbytes)
        memory.view[:] = data
        return LikeCupy(memory)

    def array(
        self, values: NDArray[Any], *, device: int = 0, stream: int | None = None
    ) -> CupyArray:
        """An array of a device with the same elements, in the same order in memory."""
        with self.cuda.Device(device):
            return CupyArray(self._alloc(values.nbytes), values, stream)

    def _alloc(self, size_bytes: int) -> HostArray:
        memory = HostArray(size_bytes)
        memory.ptr, memory.device = memory.address, self.current_device  # type: ignore[attr-defined]
        self.memory[memory.address] = memory
        return memory

    def _alloc_pinned(self, size_bytes: int) -> Any:
        view = HostArray(size_bytes).view

        class Pinned(np.ndarray[Any, Any]):
            ptr: int

        pinned = view.view(Pinned)
        pinned.ptr = view.ctypes.data
        return pinned

    def _attributes(self, address: int) -> SimpleNamespace:
        if address == 13:
            raise CUDARuntimeError("cudaErrorInvalidValue")
        memory = self.memory.get(address)
        if memory is None:
            return SimpleNamespace(device=-2, devicePointer=0)
        return SimpleNamespace(device=memory.device, devicePointer=address)  # type: ignore[attr-defined]

    def _copy(self, target: int, source: int, size_bytes: int, kind: int, stream: int) -> None:
        assert kind in (1, 2, 3)
        self.log.append(f"copy on {stream}")
        if kind == 2:
            self.to_host_bytes += size_bytes
            self._late.setdefault(stream, []).append((target, source, size_bytes))
        else:
            ctypes.memmove(target, source, size_bytes)

    def catch_up(self, stream: int) -> None:
        """Do what is late on a stream."""
        for copy in self._late.pop(stream, ()):
            ctypes.memmove(*copy)

    def _set(self, target: int, value: int, size_bytes: int, stream: int) -> None:
        self.log.append(f"set on {stream}")
        ctypes.memset(target, value, size_bytes)

    def RawModule(self, *, code: str, options: tuple[str, ...]) -> SimpleNamespace:
        assert "ck_gather" in code
        assert "#include" not in re.sub(r"#include <\w+\.h>", "", code)
        sizes = dict(option.split("=") for option in options if option.startswith("-D"))
        shape = Shape(int(sizes["-DCK_CHUNK"]), int(sizes["-DCK_CELL"]))
        return SimpleNamespace(get_function=lambda name: self._kernel(name, shape))

    def _kernel(self, name: str, shape: Shape) -> Any:
        def launch(
            grid: tuple[int], block: tuple[int], arguments: tuple[np.uint64, ...]
        ) -> None:
            assert block == (plan.THREADS,)
            assert all(type(argument) is np.uint64 for argument in arguments)
            self.log.append(f"{name} on {self.current_stream.ptr}")
            words = (ctypes.c_uint64 * len(arguments))(*map(int, arguments))
            result = library(shape).emulate(
                name.encode(),
                ctypes.c_uint(grid[0]),
                ctypes.c_uint(2),
                ctypes.c_uint64(0),
                words,
                ctypes.c_size_t(len(words)),
            )
            assert result == 0

        return launch


class LikeCupy:
    """A flat array of bytes as CuPy would make it."""

    def __init__(self, memory: HostArray, stream: int | None = None) -> None:
        self.memory = memory
        self.device = SimpleNamespace(id=memory.device)  # type: ignore[attr-defined]
        self.__cuda_array_interface__ = {
            "version": 3, "shape": (memory.size_bytes,), "typestr": "|u1",
            "data": (memory.address, False), "stream": stream,
        }  # fmt: skip


class CupyArray:
    """An array of CuPy, as far as a state needs it. ``values`` is its memory."""

    def __init__(self, memory: HostArray, values: NDArray[Any], stream: int | None) -> None:
        memory.view[:] = values.ravel(order="K").view(np.uint8)
        self.values = np.ndarray(
            values.shape, values.dtype, memory.view.data, strides=values.strides
        )
        self.dtype, self.stream = values.dtype, stream
        self.device = SimpleNamespace(id=memory.device)  # type: ignore[attr-defined]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        shown = self.values.__array_interface__
        keys = ("shape", "typestr", "data", "strides")
        return {key: shown[key] for key in keys} | {"version": 3, "stream": self.stream}

    def get(self) -> NDArray[Any]:
        return self.values.copy()

    def set(self, values: NDArray[Any]) -> None:
        self.values[...] = values
