"""Arrays of every library are taken as memory, and what cannot be is refused with a remedy.

Method: imitations have the attributes through which the libraries show their memory; it is
memory of the host, which nothing here reads. ``tests/gpu`` has the libraries themselves.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ckptflow.errors import ConfigError, StateError
from ckptflow.gpu.arrays import device_array
from ckptflow.gpu.cuda import CudaDevice
from ckptflow.gpu.plan import Shape

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


class LikeCupy:
    """Shows an array of the host as if it were on a device."""

    def __init__(self, array: np.ndarray[Any, Any] = VALUES, **changes: object) -> None:
        shown = array.__array_interface__
        keys = ("shape", "typestr", "data", "strides")
        self.__cuda_array_interface__ = {key: shown[key] for key in keys} | {
            "version": 3, **changes
        }  # fmt: skip
        self.device = SimpleNamespace(id=1)

    def set(self) -> None: ...


class LikeJax:
    """Gives the capsule of an array of the host, with another device written into it."""

    def __init__(self, array: np.ndarray[Any, Any] = VALUES, kind: int = 2) -> None:
        self.array, self.kind, self.waited = array, kind, False

    def is_deleted(self) -> bool:
        return False

    def block_until_ready(self) -> None:
        self.waited = True

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 3

    def __dlpack__(self) -> object:
        return self.array.__dlpack__()


def test_the_cuda_array_interface() -> None:
    found = device_array(LikeCupy(stream=77))
    assert (found.address, found.size_bytes) == (VALUES.ctypes.data, VALUES.nbytes)
    assert (found.device, found.stream) == (1, 77)


def test_dlpack() -> None:
    array = LikeJax(VALUES[1:])
    found = device_array(array)
    assert (found.address, found.size_bytes) == (VALUES[1:].ctypes.data, 48)
    assert (found.device, found.stream) == (3, None)
    assert array.waited, "JAX computes when it likes"
    assert found.owner[0] is array


def test_a_torch_tensor_on_the_host() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(StateError, match="lies on cpu, not on a CUDA device"):
        device_array(torch.zeros(3))


def test_a_tensor_knows_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class OnDevice(torch.Tensor):  # type: ignore[misc, name-defined]
        is_cuda = True

    tensor = torch.zeros(4, 6, dtype=torch.bfloat16)
    fake = tensor.as_subclass(OnDevice)
    monkeypatch.setattr("ckptflow.data.torch_arrays._refusal", lambda *_: None)
    current = SimpleNamespace(cuda_stream=1234)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    found = device_array(fake)
    assert (found.address, found.size_bytes) == (tensor.data_ptr(), 48)
    assert found.stream == 1234
    with pytest.raises(StateError, match=r"not C-contiguous.*pass tensor.contiguous\(\)"):
        device_array(fake.t())


@pytest.mark.parametrize("value", [np.zeros(3), b"abc", [1, 2], LikeJax(kind=1)])
def test_what_lies_on_the_host_is_refused(value: object) -> None:
    with pytest.raises(
        StateError, match="does not lie on a CUDA device; compare it on the host"
    ):
        device_array(value)


@pytest.mark.parametrize("make", [LikeCupy, LikeJax])
@pytest.mark.parametrize("view", [VALUES[:, ::2], VALUES.T, VALUES[..., 1:]])
def test_what_is_not_contiguous_is_refused(make: Any, view: np.ndarray[Any, Any]) -> None:
    with pytest.raises(StateError, match=r"not C-contiguous.*pass (cupy|jax)\."):
        device_array(make(view))


@pytest.mark.parametrize("make", [LikeCupy, LikeJax])
def test_strides_of_nothing_do_not_matter(make: Any) -> None:
    for view in (VALUES[:0, ::2], VALUES[:1], VALUES[1:, :1, :]):
        assert device_array(make(view)).size_bytes == view.nbytes


def test_what_was_freed_is_refused() -> None:
    with pytest.raises(StateError, match="of 96 bytes has no memory any more: it was freed"):
        device_array(LikeCupy(data=(0, False)))
    assert device_array(LikeCupy(VALUES[:0], data=(0, False))).size_bytes == 0


def test_what_was_deleted_is_refused() -> None:
    array = LikeJax()
    array.is_deleted = lambda: True  # type: ignore[method-assign]
    with pytest.raises(StateError, match="was deleted; pass the array that took its place"):
        device_array(array)


def test_what_is_masked_is_refused() -> None:
    with pytest.raises(StateError, match="pass its data and its mask"):
        device_array(LikeCupy(mask=LikeCupy()))


# --- CUDA is not there ---------------------------------------------------------------------


def test_without_cupy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ConfigError, match=r"CuPy, which is not installed: pip install"):
        CudaDevice(Shape(4096, 256))


def imitation_of_cupy(count: int | None) -> SimpleNamespace:
    class CUDARuntimeError(RuntimeError):
        pass

    def get_device_count() -> int:
        if count is None:
            raise CUDARuntimeError("cudaErrorInsufficientDriver")
        return count

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError, getDeviceCount=get_device_count
    )
    device = lambda: SimpleNamespace(id=0)  # noqa: E731
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Device=device))


def test_without_a_driver_the_message_says_where_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", imitation_of_cupy(None))
    with pytest.raises(
        ConfigError, match=r"needs a CUDA device.*InsufficientDriver.*nvidia-smi"
    ):
        CudaDevice(Shape(4096, 256))


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", imitation_of_cupy(2))
    with pytest.raises(ConfigError, match="There is no CUDA device 2; the driver shows 2"):
        CudaDevice(Shape(4096, 256), 2)


def test_nothing_of_a_gpu_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, ckptflow.gpu.diff, ckptflow.gpu.cuda, ckptflow.gpu.arrays\n"
        "sys.exit(any(name in sys.modules for name in ('cupy', 'torch', 'jax')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_capsule_is_given_back() -> None:
    array = np.zeros(1000)
    before = sys.getrefcount(array)
    found = device_array(LikeJax(array))
    assert sys.getrefcount(array) > before
    del found
    assert sys.getrefcount(array) == before


def test_the_capsule_has_the_layout_that_we_read() -> None:
    from ckptflow.gpu.arrays import _Tensor

    assert ctypes.sizeof(_Tensor) == 48
