"""A task whose state lies on devices: captured there in every mode, or else by the library.

Method: an imitation of CuPy takes its place, with two devices that run the kernels emulated.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from imitation_cupy import CompileException, CUDARuntimeError, CupyArray, Imitation

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.errors import CheckpointError, TornCapture
from ckptflow.gpu.capture import DeviceCapture
from ckptflow.gpu.cuda import CudaDevice
from ckptflow.tiers.memory import MemoryTier
from ckptflow.units import MIB

COUNT = 6000  # Numbers in each large array: a dozen chunks.


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Imitation:
    imitation = Imitation()
    monkeypatch.setitem(sys.modules, "cupy", imitation)
    return imitation


def begun(tier: MemoryTier, **options: Any) -> Checkpointer:
    given = {"every": "never", "rng": False, "keep": "all"} | options
    return Checkpointer(tier, **given)


def state_on(cupy: Imitation) -> dict[str, Any]:
    """Arrays on two devices and on the host, small ones, and one with gaps."""
    rng = np.random.default_rng(1)
    return {
        "a": cupy.array(rng.random(COUNT)),
        "t": cupy.array(rng.random((COUNT // 100, 100)).T),
        "b": cupy.array(rng.random(COUNT), device=1, stream=77),
        "host": rng.random(COUNT),
        "small": cupy.array(np.arange(3.0)),
        "none": cupy.array(np.zeros(0)),
    }


def values(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of all elements, on the host."""
    return {
        name: (array.values if isinstance(array, CupyArray) else array).copy()
        for name, array in state.items()
    }


def write(array: Any, at: int, value: float) -> None:
    (array.values if isinstance(array, CupyArray) else array).reshape(-1, order="A")[at] = value


def launched(cupy: Imitation, kernel: str) -> int:
    return sum(line.startswith(kernel + " ") for line in cupy.log)


@pytest.mark.parametrize("capture", ["auto", "copy", "diff-first", "lazy"])
def test_what_is_saved_is_restored_bit_for_bit(cupy: Imitation, capture: str) -> None:
    tier, state, saved = MemoryTier(), state_on(cupy), {}
    with begun(tier, capture=capture) as ckpt:
        for step in range(1, 5):
            ckpt.save(step, state)
            if capture == "lazy":
                ckpt.wait_captured()
            saved[step] = values(state)
            for array in (state["a"], state["b"], state["host"]):
                write(array, step * 999, step)
            if step == 2:
                write(state["t"], 7, -1.0)
        ckpt.wait()
    assert ckpt.notes == []
    assert launched(cupy, "ck_scan_rows") >= 4
    for step, expected in saved.items():
        into = state_on(cupy)
        with begun(tier) as ckpt:
            ckpt.restore(into, step=step)
        for name, found in values(into).items():
            np.testing.assert_array_equal(found, expected[name], err_msg=f"{name} of {step}")


def test_only_what_changed_crosses_the_bus(cupy: Imitation) -> None:
    tier, state = MemoryTier(), {"a": cupy.array(np.random.default_rng(2).random(COUNT))}
    with begun(tier, capture="diff-first") as ckpt:
        ckpt.save(1, state)
        ckpt.wait()
        write(state["a"], 0, 5.0)
        cupy.to_host_bytes = 0
        ticket = ckpt.save(2, state)
        ckpt.wait()
    assert ticket.modes["a"].mode == "diff-first"
    assert not ticket.modes["a"].whole
    assert 4096 < cupy.to_host_bytes < 2 * 4096


def test_as_many_bytes_are_stored_as_of_arrays_on_the_host(cupy: Imitation) -> None:
    """Whatever unit the writer compares in: words change here and there, and whole chunks."""

    def stored_bytes(make: Any) -> int:
        rng = np.random.default_rng(4)
        state = {"a": make(rng.random(64 * 512)), "b": make(rng.random(64 * 512))}
        with begun(MemoryTier(), capture="diff-first") as ckpt:
            for step in range(1, 8):
                ckpt.save(step, state).wait()
                for at in rng.integers(0, 64 * 512, 40).tolist():
                    write(state["a"], at, rng.random())
                for at in range(5 * 512, 8 * 512):
                    write(state["b"], at, rng.random())
        return ckpt.written_bytes[1]

    on_device, on_host = stored_bytes(cupy.array), stored_bytes(np.copy)
    assert on_device <= 1.1 * on_host


def test_it_works_where_the_library_does(cupy: Imitation) -> None:
    """On its stream if the application may go on, else on one of our own, after it."""
    state = {"a": cupy.array(np.arange(float(COUNT)), stream=55)}
    with begun(MemoryTier(), capture="diff-first") as ckpt:
        ckpt.save(1, state)
    assert "ck_scan_rows on 55" in cupy.log
    cupy.log.clear()
    with begun(MemoryTier(), capture="lazy") as ckpt:
        ckpt.save(1, state).wait_captured()
    (scan, again) = [line for line in cupy.log if line.startswith("ck_scan_rows")]
    apart = scan.removeprefix("ck_scan_rows on ")
    assert again == scan, "what was left for later is looked at again"
    assert apart != "55"
    assert f"{apart} after 55" in cupy.log[: cupy.log.index(scan)]


def test_streams_wait_for_each_other(cupy: Imitation) -> None:
    """Libraries work on streams of their own, and read arrays of each other."""

    class OtherArray(CupyArray):
        pass

    state = {"a": cupy.array(np.arange(float(COUNT)), stream=55)}
    other = cupy.array(np.arange(float(COUNT)), stream=66)
    other.__class__ = OtherArray
    with begun(MemoryTier(), capture="diff-first") as ckpt:
        ckpt.save(1, state | {"b": other})
    scan = cupy.log.index("ck_scan_rows on 66")
    assert "66 after 55" in cupy.log[:scan]
    gathered = cupy.log.index("ck_take_chunks on 66")
    assert "55 after 66" in cupy.log[gathered:]


def test_a_write_during_a_lazy_capture_is_found(
    cupy: Imitation, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, state = MemoryTier(), {"a": cupy.array(np.zeros(COUNT))}
    torn = DeviceCapture.torn

    def written(*given: Any) -> list[int]:
        write(state["a"], 0, 1.0)
        return torn(*given)

    warns = pytest.warns(CheckpointWarning, match="was written to while it was captured")
    with warns, begun(tier, capture="lazy") as ckpt:
        ckpt.save(1, state).wait()
        write(state["a"], 3, 3.0)
        monkeypatch.setattr(DeviceCapture, "torn", written)
        with pytest.raises(TornCapture, match="'state/a' was written to"):
            ckpt.save(2, state).wait()
        monkeypatch.setattr(DeviceCapture, "torn", torn)
        ticket = ckpt.save(3, state)
        ticket.wait()
        assert ticket.modes["a"].mode == "copy"


# --- where it cannot be done -------------------------------------------------------------


def saves(state: dict[str, Any], capture: str = "diff-first") -> list[str]:
    """Save and restore twice; return the notes."""
    tier = MemoryTier()
    with begun(tier, capture=capture) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state)
            ckpt.wait_captured()
            expected = values(state)
            write(state["a"], step, -1.0)
        ckpt.wait()
    with begun(tier) as again:
        again.restore(state)
    np.testing.assert_array_equal(state["a"].values, expected["a"])
    return ckpt.notes


def only_a(cupy: Imitation) -> dict[str, Any]:
    return {"a": cupy.array(np.random.default_rng(3).random(COUNT))}


def test_without_cupy(cupy: Imitation, monkeypatch: pytest.MonkeyPatch) -> None:
    state = only_a(cupy)
    monkeypatch.setitem(sys.modules, "cupy", None)
    (note,) = saves(state)
    assert note.startswith(
        "What lies on cuda:0 is copied as a whole by its library in each save"
    )
    assert "needs CuPy, which is not installed" in note


@pytest.mark.parametrize(
    "error", [CompileException("no such thing"), OSError("libnvrtc.so: not found")]
)
def test_without_a_compiler(cupy: Imitation, error: Exception) -> None:
    def refuse(**_: object) -> None:
        raise error

    cupy.RawModule = refuse  # type: ignore[method-assign]
    (note,) = saves(only_a(cupy))
    assert f"cannot be compiled or loaded: {error}" in note


def test_on_another_kind_of_device(cupy: Imitation) -> None:
    cupy.cuda.runtime.is_hip = True
    (note,) = saves(only_a(cupy))
    assert "is no CUDA device: the kernels are for warps of 32 threads" in note


@pytest.mark.parametrize("capture", ["copy", "diff-first", "lazy"])
@pytest.mark.parametrize("calls", [0, 12, 14, 18])
def test_memory_runs_short(
    cupy: Imitation, monkeypatch: pytest.MonkeyPatch, capture: str, calls: int
) -> None:
    """Of the device, or page-locked; or in a launch of the first save, or of the second."""
    left = calls

    def count(name: str) -> None:
        call = getattr(CudaDevice, name)

        def counted(*given: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise MemoryError("out of memory on the device")
            return call(*given)

        monkeypatch.setattr(CudaDevice, name, counted)

    for name in ("allocate", "allocate_host", "launch"):
        count(name)
    (note,) = saves(only_a(cupy), capture)
    assert "out of memory on the device" in note


def test_a_device_that_fails_in_the_middle(
    cupy: Imitation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regions that were to be compared there are copied, in this save and later ones."""
    capture, calls = DeviceCapture.capture, 0

    def fails(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise CUDARuntimeError("cudaErrorLaunchOutOfResources")
        return capture(*given, **named)

    monkeypatch.setattr(DeviceCapture, "capture", fails)
    for mode in ("diff-first", "lazy"):
        calls = 0
        (note,) = saves(only_a(cupy), mode)
        assert "cudaErrorLaunchOutOfResources" in note
        assert calls == 2


def test_chunks_that_kernels_cannot_have(cupy: Imitation) -> None:
    with begun(MemoryTier(), packing=f"chunk={2 * MIB}") as ckpt:
        ckpt.save(1, only_a(cupy)).wait()
    (note,) = ckpt.notes
    assert "chunk_bytes must be at most 1048576 on a GPU, got 2097152" in note


def test_a_device_that_is_broken_fails_the_save(
    cupy: Imitation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise CUDARuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setattr("ckptflow.gpu.cuda._Event.wait", broken)
    warns = pytest.warns(CheckpointWarning, match="cudaErrorIllegalAddress")
    with warns, begun(MemoryTier(), capture="diff-first") as ckpt:
        ticket = ckpt.save(1, only_a(cupy))
        with pytest.raises(CheckpointError, match=r"step 1 broke.*cudaErrorIllegalAddress"):
            ticket.wait()
