"""A real device finds what the CPU finds, in arrays of CuPy, torch and JAX.

Skipped where CuPy or a device is missing; ``tests/gpu_emulated`` runs the same kernels and
the same comparisons without either.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from twin import Twin, edited

from ckptflow.data.digest import digest_bytes
from ckptflow.errors import ConfigError, StateError
from ckptflow.gpu import plan
from ckptflow.gpu.arrays import device_array
from ckptflow.gpu.cuda import CudaDevice
from ckptflow.gpu.diff import DeviceDiff
from ckptflow.gpu.plan import Shape

pytestmark = pytest.mark.gpu

SHAPES = [Shape(4096, 4096), Shape(4096, 256), Shape(4096, 64), Shape(72, 24)]
Bytes = NDArray[np.uint8]


@cache
def cuda(shape: Shape) -> CudaDevice:
    try:
        return CudaDevice(shape)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(params=SHAPES, ids=str)
def device(request: pytest.FixtureRequest) -> CudaDevice:
    return cuda(request.param)


def to_cupy(data: Bytes, offset: int = 0) -> Any:
    import cupy

    memory = cupy.empty(data.size + offset, cupy.uint8)
    memory[offset:] = cupy.asarray(data)
    return memory[offset:]


def test_the_golden_digests(repository: Path) -> None:
    golden = json.loads((repository / "tests" / "golden" / "ckh128.json").read_text())
    shape = Shape(70_000, 70_000)
    for length, expected in golden["digests"].items():
        if not 0 < int(length) <= shape.chunk_bytes:
            continue
        i = np.arange(int(length))
        message = ((7 * i * i + 3 * i + (i >> 8)) % 256).astype(np.uint8)
        for offset in (0, 4, 1):
            diff = DeviceDiff(cuda(shape), history_limit=10)
            found = diff.diff(to_cupy(message, offset))
            assert digest_bytes(found.chunk_digests).hex() == expected


def test_edits_commits_and_rollbacks(device: CudaDevice, rng: np.random.Generator) -> None:
    twin = Twin(device, history_limit=4 * device.shape.cells_per_chunk)
    states = {"a": rng.integers(0, 256, 300_003, dtype=np.uint8), "b": np.zeros(0, np.uint8)}
    for _ in range(40):
        changed = {
            name: edited(data, device.shape.chunk_bytes, rng) for name, data in states.items()
        }
        for name, data in changed.items():
            array = to_cupy(data, int(rng.choice([0, 0, 4, 1])))
            twin.diff(data, device_array(array), name)
        if rng.integers(0, 4):
            twin.commit()
            states = changed
        else:
            twin.rollback()


def test_a_large_state_with_repeats(device: CudaDevice, rng: np.random.Generator) -> None:
    """More than one block, more new bytes than are staged, and many equal cells at once."""
    data = rng.integers(0, 256, 48 << 20, dtype=np.uint8)
    data[20 << 20 : 30 << 20] = np.tile(data[: 1 << 16], 160)
    data[40 << 20 : 41 << 20] = 7
    twin = Twin(device, history_limit=plan.default_history_limit(device.shape, data.size))
    for _ in range(3):
        twin.diff(data, device_array(to_cupy(data)))
        twin.commit()
        data = data.copy()
        data[rng.integers(0, data.size, 500)] ^= 1


def test_arrays_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    device = cuda(SHAPES[1])
    values = torch.randn(333_333).to(torch.bfloat16)
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor = values.cuda() * 1
        data = values.view(torch.uint8).numpy()
        twin = Twin(device)
        twin.diff(data, device_array(tensor))
        assert device_array(tensor).address == tensor.data_ptr()
    with pytest.raises(StateError, match="not C-contiguous"):
        device_array(torch.zeros(4, 6, device="cuda").t())


def test_arrays_of_jax() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    if not any(found.platform == "gpu" for found in jax.devices()):
        pytest.skip("jax sees no CUDA device")
    array = jax.numpy.arange(100_000, dtype=jax.numpy.bfloat16)
    data = np.asarray(array).view(np.uint8)
    Twin(cuda(SHAPES[1])).diff(data, device_array(array))
    array.delete()
    with pytest.raises(StateError, match="was deleted"):
        device_array(array)


def test_the_array_may_change_once_the_diff_is_queued() -> None:
    device = cuda(SHAPES[1])
    import cupy

    data = np.random.default_rng(3).integers(0, 256, 32 << 20, dtype=np.uint8)
    array = to_cupy(data)
    diff = DeviceDiff(device, history_limit=1000)
    found = diff.diff(array)
    array[:] = 0
    cupy.cuda.get_current_stream().synchronize()
    np.testing.assert_array_equal(found.payload, data)


def test_memory_is_given_back() -> None:
    device = cuda(SHAPES[1])
    import cupy

    pool = cupy.get_default_memory_pool()
    array = to_cupy(np.zeros(8 << 20, np.uint8))
    before = pool.used_bytes()
    diff = DeviceDiff(device, history_limit=1000)
    diff.diff(array)
    diff.commit()
    assert 0 < diff.memory_bytes <= pool.used_bytes() - before
    del diff
    assert pool.used_bytes() == before
