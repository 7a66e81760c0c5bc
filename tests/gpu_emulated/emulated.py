"""A device that is no device: the kernels of the product, compiled for the host.

`library` builds ``native/kernels.cu`` with the fiber emulator for one shape of chunks and
cells; `EmulatedDevice` launches its kernels where the product would launch them on a GPU,
and counts what it is asked for.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from weakref import WeakSet

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptflow.errors import StateError
from ckptflow.gpu import plan
from ckptflow.gpu.device import DeviceArray
from ckptflow.gpu.plan import Launch, Shape

HERE = Path(__file__).resolve().parent
BUILT = HERE.parents[1] / "build" / "emulated"
Bytes = NDArray[np.uint8]


class Deadlock(Exception):
    """Threads of a block wait for each other for ever."""


def compiler() -> str:
    found = shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler here to build the emulated kernels")
    return found


def build(shape: Shape, native: Path = plan.NATIVE) -> ctypes.CDLL:
    """Compile the kernels in the folder ``native``, unless that was done before."""
    names = "".join(f"KERNEL({name})\n" for name in plan.kernels(shape))
    given = [option for option in plan.options(shape) if option.startswith("-D")]
    command = [
        compiler(), "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-U_FORTIFY_SOURCE",
        "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", *given,
    ]  # fmt: skip
    told = hashlib.sha256("\0".join([names, *command]).encode())
    for path in sorted([*native.iterdir(), *plan.NATIVE.iterdir(), *HERE.glob("*.cpp")]):
        if path.suffix in {".cu", ".cuh", ".h", ".hpp", ".inc", ".cpp"}:
            told.update(path.name.encode() + b"\0" + path.read_bytes())
    target = BUILT / f"{told.hexdigest()[:32]}.so"
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=BUILT) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Other processes wait, and find it.
        if not target.exists():
            Path(folder, "kernel_names.inc").write_text(names)
            made = Path(folder, "kernels.so")
            command += [f"-I{folder}", f"-I{native}", f"-I{plan.NATIVE}"]
            command += [str(HERE / "emulated_kernels.cpp"), "-o", str(made)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr
            made.replace(target)
    return ctypes.CDLL(str(target))


@cache
def library(shape: Shape) -> ctypes.CDLL:
    return build(shape)


NOISE = np.uint8(0xA5)


class HostArray:
    """Memory at a multiple of 256, as devices give it; noise, as devices give it, too."""

    def __init__(self, size_bytes: int) -> None:
        whole = np.full(size_bytes + 512, NOISE)
        start = -whole.ctypes.data % 256
        self.size_bytes = size_bytes
        self.view: Bytes = whole[start : start + size_bytes]
        self._beyond = whole[start + size_bytes :]

    @property
    def address(self) -> int:
        return self.view.ctypes.data

    def require_nothing_beyond(self) -> None:
        assert (self._beyond == NOISE).all(), f"written beyond {self.size_bytes} bytes"


class AlreadyDone:
    def wait(self) -> None:
        pass


class EmulatedDevice:
    """Implements `ckptflow.gpu.device.Device`."""

    name = "the emulator"

    def __init__(
        self,
        shape: Shape,
        *,
        blocks_max: int = 4,
        seed: int = 0,
        kernels: ctypes.CDLL | None = None,
    ) -> None:
        self.shape, self.blocks_max, self.seed = shape, blocks_max, seed
        self._kernels = kernels or library(shape)
        self.launched: list[str] = []
        self.allocations: Counter[str] = Counter()
        self._memory: WeakSet[HostArray] = WeakSet()
        self.fetched_bytes = 0
        self.blocks_used = 0  # by the last launch

    @contextmanager
    def using(self, array: DeviceArray) -> Iterator[None]:
        if array.device != 0:
            raise StateError(f"The array lies on device {array.device}, not on device 0.")
        yield

    def so_far(self) -> AlreadyDone:
        return AlreadyDone()

    @contextmanager
    def apart(self, after: AlreadyDone) -> Iterator[None]:
        after.wait()
        yield

    def allocate(self, size_bytes: int) -> HostArray:
        self.allocations["device"] += 1
        return self._new(size_bytes)

    def allocate_host(self, size_bytes: int) -> HostArray:
        self.allocations["host"] += 1
        return self._new(size_bytes)

    def _new(self, size_bytes: int) -> HostArray:
        memory = HostArray(size_bytes)
        self._memory.add(memory)
        return memory

    def zero(self, memory: HostArray) -> None:
        memory.view[:] = 0

    def write(self, target: HostArray, data: Bytes) -> None:
        target.view[: len(data)] = data

    def copy(self, target: HostArray, source: HostArray, size_bytes: int) -> None:
        target.view[:size_bytes] = source.view[:size_bytes]

    def read(self, source: HostArray, size_bytes: int) -> Bytes:
        self.fetched_bytes += size_bytes
        return source.view[:size_bytes].copy()

    def launch(self, launch: Launch) -> None:
        self.launched.append(launch.kernel)
        self.blocks_used = launch.blocks
        words = (ctypes.c_uint64 * len(launch.arguments))(*launch.arguments)
        result = self._kernels.emulate(
            launch.kernel.encode(),
            ctypes.c_uint(launch.blocks),
            ctypes.c_uint(2),
            ctypes.c_uint64(self.seed),
            words,
            ctypes.c_size_t(len(launch.arguments)),
        )
        assert result != 2, f"{launch.kernel} with {len(words)} arguments does not exist"
        if result == 1:
            raise Deadlock(launch.kernel)
        for memory in self._memory:
            memory.require_nothing_beyond()

    def copy_aside(self, target: int, source: int, size_bytes: int) -> AlreadyDone:
        self.fetched_bytes += size_bytes
        ctypes.memmove(target, source, size_bytes)
        return AlreadyDone()

    def hold(self, done: AlreadyDone) -> None:
        pass


class Late:
    """A copy that happens when somebody waits for it."""

    def __init__(self, target: int, source: int, size_bytes: int) -> None:
        self._what = target, source, size_bytes
        self._happened = False

    def wait(self) -> None:
        if not self._happened:
            self._happened = True
            ctypes.memmove(*self._what)


class LateDevice(EmulatedDevice):
    """Copies aside as late as a device may."""

    def copy_aside(self, target: int, source: int, size_bytes: int) -> Late:  # type: ignore[override]
        self.fetched_bytes += size_bytes
        return Late(target, source, size_bytes)


def on_device(data: Bytes, *, device: int = 0) -> DeviceArray:
    """Pretend that host memory lies on the device."""
    return DeviceArray(data.ctypes.data, data.nbytes, device, None, data)


def aligned(data: Bytes, offset: int = 0) -> Bytes:
    """A copy at an address that is ``offset`` beyond a multiple of 256."""
    memory = HostArray(data.nbytes + offset).view[offset:]
    memory[:] = data
    return memory
