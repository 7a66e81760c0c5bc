"""A real device captures what the CPU captures, and a task whose state lies there comes back.

Skipped where CuPy or a device is missing; ``tests/gpu_emulated`` has the same without either.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from both import Both
from numpy.typing import NDArray

from ckptflow.checkpointer import Checkpointer
from ckptflow.data.snapshot import DIGEST, WHOLE
from ckptflow.errors import ConfigError
from ckptflow.gpu.arrays import device_array
from ckptflow.gpu.cuda import CudaDevice
from ckptflow.gpu.plan import Shape
from ckptflow.tiers.memory import MemoryTier
from ckptflow.units import MIB

pytestmark = pytest.mark.gpu

Bytes = NDArray[np.uint8]
COUNT = 3_000_000


@cache
def cuda(chunk_bytes: int) -> CudaDevice:
    try:
        return CudaDevice(Shape(chunk_bytes, chunk_bytes))
    except ConfigError as error:
        pytest.skip(str(error))


def to_cupy(data: Bytes, offset: int = 0) -> Any:
    import cupy

    memory = cupy.empty(data.size + offset, cupy.uint8)
    memory[offset:] = cupy.asarray(data)
    return memory[offset:]


@pytest.mark.parametrize("offset", [0, 4, 1])
@pytest.mark.parametrize("chunk_bytes", [72, 4096, 65536, 70_000])
def test_a_device_captures_what_the_cpu_captures(
    chunk_bytes: int, offset: int, rng: np.random.Generator
) -> None:
    """Much and little changes; ``Both`` also overwrites the arrays right after each call."""
    both = Both(cuda(chunk_bytes), lambda data: device_array(to_cupy(data, offset)))
    state = {
        name: rng.integers(0, 256, size, dtype=np.uint8)
        for name, size in (("a", 5 * MIB + 3), ("b", 100), ("c", 999_999), ("d", 0))
    }
    grain = np.array([1, 1, 3, 1], np.uint64)
    for step, how in enumerate((WHOLE | DIGEST, DIGEST, DIGEST, WHOLE, DIGEST, DIGEST)):
        both.see(state, on_host=["b"] if step == 2 else [])
        both.take(np.full(4, how), grain, limit_bytes=100 * MIB)
        both.keep()
        state = {name: data.copy() for name, data in state.items()}
        state["a"][rng.integers(0, len(state["a"]), 10 ** (step % 4))] ^= 1
        state["c"][-1] ^= 1


def test_a_capture_beside_the_application(rng: np.random.Generator) -> None:
    both = Both(cuda(4096), lambda data: device_array(to_cupy(data)))
    import cupy

    both.see({"a": rng.integers(0, 256, 32 * MIB, dtype=np.uint8)})
    ready = both.capture.now(both.regions)
    busy = cupy.random.random((4000, 4000))
    for _ in range(20):
        busy = busy @ busy / 4000
    both.take(np.array([DIGEST]), after=ready, spoil=False)
    every = np.ones(1, np.bool_)
    assert both.capture.torn(both.gpu, both.regions, every, ready) == []
    both.arrays[0].owner[12345] ^= 1
    cupy.cuda.get_current_stream().synchronize()
    assert both.capture.torn(both.gpu, both.regions, every, ready) == [0]


def state_of(library: str) -> tuple[dict[str, Any], Any]:
    """A state on the device, and what returns an array of it on the host."""
    cuda(4096)
    if library == "cupy":
        import cupy

        state = {"a": cupy.random.random(COUNT), "t": cupy.random.random((300, 700)).T}
        return state, lambda array: array.get()
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    state = {
        "a": torch.randn(COUNT, device="cuda").to(torch.bfloat16),
        "t": torch.randn(300, 700, device="cuda").t(),
    }
    return state, lambda array: array.detach().cpu().float().numpy().copy()


@pytest.mark.parametrize("capture", ["auto", "copy", "diff-first", "lazy"])
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_task_goes_back_to_what_it_saved(library: str, capture: str) -> None:
    state, on_host = state_of(library)
    tier, saved = MemoryTier(), {}
    options: dict[str, Any] = {"every": "never", "rng": False, "keep": "all"}
    with Checkpointer(tier, capture=capture, **options) as ckpt:
        for step in range(1, 5):
            saved[step] = {name: on_host(array) for name, array in state.items()}
            ckpt.save(step, state)
            if capture == "lazy":
                ckpt.wait_captured()
            state["a"][step * 1000 : step * 2000] += 1
        ckpt.wait()
    assert ckpt.notes == []
    for step, expected in saved.items():
        with Checkpointer(tier, **options) as again:
            state = again.restore(state, step=step)
        for name, array in state.items():
            np.testing.assert_array_equal(on_host(array), expected[name])


def test_parameters_are_captured_while_the_next_batch_runs() -> None:
    cuda(4096)
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    model = torch.nn.Linear(1000, 1000, device="cuda")
    optim = torch.optim.Adam(model.parameters())
    tier, saved = MemoryTier(), {}
    options: dict[str, Any] = {"every": "never", "rng": False, "keep": "all"}
    with Checkpointer(tier, **options, model=model, optim=optim) as ckpt:
        for step in range(1, 6):
            model(torch.randn(64, 1000, device="cuda")).square().sum().backward()
            optim.step()
            optim.zero_grad()
            saved[step] = model.weight.detach().cpu().clone()
            ticket = ckpt.save(step)
        assert ticket.modes["model/weight"].mode == "lazy"
    for step, expected in saved.items():
        with Checkpointer(tier, **options) as again:
            found = again.restore(step=step)
        assert torch.equal(found["model"]["weight"].cpu(), expected)
