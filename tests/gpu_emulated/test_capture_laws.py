"""A device captures what the CPU captures: the same digests, the same chunks, the same bytes.

Method: `snapshot.capture` and `DeviceCapture.capture` get the same states, one after the other,
with some regions on the device and others not; arenas, digests and what is held must be equal.
The device copies to the host as late as it may, and the states change before that, so that
nothing is read too late, and no buffer is used again too early.
"""

from __future__ import annotations

import numpy as np
import pytest
from both import Both
from emulated import LateDevice, aligned, on_device
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ckptflow.data.digest import Backend, available, use
from ckptflow.data.snapshot import DIGEST, NOTHING, WHOLE
from ckptflow.gpu.plan import Shape

Bytes = NDArray[np.uint8]
Step = tuple[dict[str, Bytes], list[tuple[int, int]]]

HOW = [int(how) for how in (NOTHING, WHOLE, DIGEST, DIGEST, WHOLE | DIGEST)]
SHAPES = [Shape(72, 24), Shape(192, 64)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Shape, list[Step]]:
    """Some states that follow each other, and how each region of them is captured."""
    shape = draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    names = draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1))
    sizes = [draw(st.integers(0, 6 * shape.chunk_bytes)) for _ in names]
    state = {
        name: rng.integers(0, 256, size, np.uint8)
        for name, size in zip(names, sizes, strict=True)
    }
    steps = []
    for _ in range(draw(st.integers(1, 4))):
        how = [(draw(st.sampled_from(HOW)), draw(st.integers(1, 3))) for _ in state]
        steps.append(({name: data.copy() for name, data in state.items()}, how))
        for data in state.values():
            for at in draw(st.lists(st.integers(0, max(0, len(data) - 1)), max_size=3)):
                data[at : at + 1] ^= 1
        match draw(st.integers(0, 5)):
            case 0:
                state["e"] = rng.integers(0, 256, 2 * shape.chunk_bytes + 5, np.uint8)
            case 1:
                state[names[0]] = np.resize(state[names[0]], draw(st.integers(0, 400)))
            case _:
                pass
    return shape, steps


@given(
    history=histories(),
    on_host=st.sets(st.sampled_from("abe"), max_size=2),
    seed=st.integers(0, 3),
    offset=st.sampled_from([0, 0, 8, 4, 1]),
)
def test_a_device_captures_what_the_cpu_captures(
    history: tuple[Shape, list[Step]], on_host: set[str], seed: int, offset: int
) -> None:
    shape, steps = history
    device = LateDevice(shape, blocks_max=3, seed=seed)
    both = Both(device, lambda data: on_device(aligned(data, offset)))
    for state, how in steps:
        both.see(state, sorted(on_host))
        flags, grain = np.array(how, np.uint64).T
        both.take(flags, grain)
        both.keep()


@pytest.mark.parametrize("backend", available(), ids=str)
def test_with_every_backend_of_the_cpu(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    state = {
        name: rng.integers(0, 256, size, np.uint8)
        for name, size in (("a", 200_003), ("b", 70_000), ("c", 5), ("d", 81_920))
    }
    both = Both(LateDevice(Shape(4096, 4096)), lambda data: on_device(aligned(data)))
    with use(backend.name, backend.detail):
        for how in (WHOLE, DIGEST, DIGEST):
            both.see(state)
            both.take(np.full(4, how), np.array([1, 2, 1, 3], np.uint64))
            both.keep()
            state = {name: data.copy() for name, data in state.items()}
            state["a"][[0, 8191, 150_000]] ^= 1
            state["d"][-1] ^= 1
