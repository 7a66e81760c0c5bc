"""The calls to CuPy make sense together: streams, events, copies, arguments.

Method: `imitation_cupy.Imitation` takes the place of CuPy and logs what it is asked for.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from imitation_cupy import Imitation, LikeCupy
from twin import Twin, edited

from ckptflow.errors import StateError
from ckptflow.gpu.arrays import device_array
from ckptflow.gpu.cuda import BLOCKS_PER_MULTIPROCESSOR, CudaDevice
from ckptflow.gpu.device import Device, DeviceArray
from ckptflow.gpu.plan import Shape

SHAPE = Shape(4096, 256)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Imitation:
    imitation = Imitation()
    monkeypatch.setitem(sys.modules, "cupy", imitation)
    return imitation


def noise(size_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, size_bytes, dtype=np.uint8)


def test_it_finds_what_the_cpu_finds(cupy: Imitation, rng: np.random.Generator) -> None:
    device: Device = CudaDevice(SHAPE)
    assert (device.name, device.blocks_max) == (
        "Imitation (device 0)", BLOCKS_PER_MULTIPROCESSOR
    )  # fmt: skip
    twin = Twin(device, history_limit=40)
    data = noise(70_000)
    for step in range(6):
        twin.diff(data, device_array(cupy.asarray(data)))
        twin.rollback() if step == 2 else twin.commit()
        data = edited(data, 4096, rng)
    assert twin.gpu.first_id > 0


def test_everything_runs_on_the_stream_of_the_array(cupy: Imitation) -> None:
    twin = Twin(CudaDevice(SHAPE))
    data = noise(5000)
    memory = cupy.asarray(data).memory
    twin.diff(data, device_array(LikeCupy(memory, stream=77)))
    twin.commit()
    launches = [line for line in cupy.log if line.startswith("ck_")]
    assert launches
    assert [line for line in launches if not line.endswith("on 77")] == []
    assert "77 after 0" in cupy.log, "what was begun on the stream before must be done"


def test_new_bytes_are_copied_aside(cupy: Imitation) -> None:
    twin = Twin(CudaDevice(SHAPE))
    data = noise(5000)
    twin.diff(data, device_array(cupy.asarray(data)), "a")
    gathered = cupy.log.index("ck_gather on 0")
    order, copy = cupy.log[gathered + 1 : gathered + 3]
    aside = order.removesuffix(" after 0")
    assert (order, copy) == (f"{aside} after 0", f"copy on {aside}")
    assert aside != "0"
    other = noise(6000)[::-1].copy()
    twin.diff(other, device_array(cupy.asarray(other)), "b")
    assert f"0 after {aside}" in cupy.log, "the buffer was filled again while it was read"


@pytest.mark.parametrize(("name", "pointer"), [(1, 0), (0, 0), (2, 2), (None, 0), (55, 55)])
def test_names_of_default_streams(cupy: Imitation, name: int | None, pointer: int) -> None:
    device = CudaDevice(SHAPE)
    memory = cupy.asarray(noise(100)).memory
    with device.using(device_array(LikeCupy(memory, stream=name))):
        device.zero(device.allocate(16))
    assert cupy.log[-1] == f"set on {pointer}"


def test_an_array_of_another_device_is_refused(cupy: Imitation) -> None:
    device = CudaDevice(SHAPE, 1)
    array = device_array(cupy.asarray(noise(10)))
    message = r"lies on CUDA device 0, but Imitation \(device 1\).*a DeviceDiff for each device"
    with pytest.raises(StateError, match=message), device.using(array):
        pass
    lies = DeviceArray(array.address, 10, 1, None, None)  # says 1, but the driver knows better
    with pytest.raises(StateError, match="lies on CUDA device 0, not on"), device.using(lies):
        pass


def test_an_array_that_was_freed_is_refused(cupy: Imitation) -> None:
    device = CudaDevice(SHAPE)
    freed = DeviceArray(0x1000, 10, 0, None, None)
    with pytest.raises(StateError, match=r"0x1000 .* the array was freed"), device.using(freed):
        pass
    broken = DeviceArray(13, 10, 0, None, None)
    with pytest.raises(StateError, match="cannot be used: cudaError"), device.using(broken):
        pass
    with device.using(DeviceArray(0, 0, 0, None, None)):  # Nothing is never freed.
        pass
