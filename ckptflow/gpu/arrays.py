"""Take an array on a device as plain memory, in place, whichever library made it.

=======  ==========================================================================
torch    address and stream from the tensor itself, so every dtype is welcome
CuPy,    ``__cuda_array_interface__``, and so everything else that has it
Numba
JAX      DLPack, since its interface lacks bfloat16; it has finished computing then
=======  ==========================================================================

Nothing here imports these libraries or talks to a driver.
``tests/gpu_emulated/test_device_arrays.py`` keeps it true with imitations, and
``tests/gpu/test_device.py`` with the libraries, where there is a device.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any

from ckptflow.data import torch_arrays
from ckptflow.data.dtypes import Unsupported
from ckptflow.errors import StateError
from ckptflow.gpu.device import DeviceArray

_CUDA, _CUDA_MANAGED = 2, 13  # kinds of DLPack devices


def device_array(value: Any) -> DeviceArray:
    """Return where ``value`` lies on its device, without copying it.

    Raises:
        StateError: it lies on the host, is not C-contiguous, or has no memory any more.
    """
    what = f"{type(value).__module__}.{type(value).__qualname__}"
    if torch_arrays.is_tensor(value):
        return _from_torch(value)
    deleted = getattr(value, "is_deleted", None)
    if callable(deleted) and deleted():
        raise StateError(f"The {what} was deleted; pass the array that took its place.")
    if hasattr(type(value), "__dlpack__") and not hasattr(type(value), "set"):
        # JAX; CuPy has both, and its interface tells the stream.
        return _from_dlpack(value, what)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        raise StateError(f"A {what} does not lie on a CUDA device; compare it on the host.")
    return _from_interface(value, interface, what)


def stream_of(value: Any) -> int | None:
    """Return the stream on which the library of an array works now; ``None``: that of CuPy."""
    if torch_arrays.is_tensor(value):
        return int(sys.modules["torch"].cuda.current_stream(value.device).cuda_stream)
    stream = value.__cuda_array_interface__.get("stream")
    return None if stream is None else int(stream)


def _from_torch(tensor: Any) -> DeviceArray:
    if not tensor.is_cuda:
        raise StateError(
            f"The tensor lies on {tensor.device}, not on a CUDA device; compare it on the host."
        )
    try:
        found = torch_arrays.describe(tensor)
    except Unsupported as error:
        raise StateError(f"What changed cannot be found in {error}.") from error
    address, shape, strides, itemsize = found.layout
    _require_contiguous(shape, strides, itemsize, "tensor", "tensor.contiguous()")
    size = math.prod(shape) * itemsize
    return DeviceArray(address, size, tensor.device.index, stream_of(tensor), found.tensor)


def _from_interface(value: Any, interface: dict[str, Any], what: str) -> DeviceArray:
    if interface.get("mask") is not None:
        raise StateError(f"A {what} with a mask is two arrays; pass its data and its mask.")
    shape = tuple(interface["shape"])
    itemsize = int(interface["typestr"][2:])
    if interface.get("strides") is not None:
        _require_contiguous(
            shape, interface["strides"], itemsize, what, "cupy.ascontiguousarray(array)"
        )
    size = math.prod(shape) * itemsize
    address = int(interface["data"][0] or 0)
    _require_memory(address, size, what)
    device = getattr(value, "device", None)
    number = getattr(device, "id", device if isinstance(device, int) else 0)
    return DeviceArray(address, size, number, stream_of(value), value)


def _require_contiguous(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, what: str, remedy: str
) -> None:
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected and 0 not in shape:
            raise StateError(
                f"The {what} of shape {shape} and strides {tuple(strides)} bytes is not "
                f"C-contiguous, so chunks cannot be cut from its memory; pass {remedy}."
            )
        expected *= length


def _require_memory(address: int, size_bytes: int, what: str) -> None:
    if size_bytes and not address:
        raise StateError(
            f"The {what} of {size_bytes} bytes has no memory any more: it was freed, or its "
            "storage was resized. Pass the array that took its place."
        )


# --- DLPack ------------------------------------------------------------------------------


class _Tensor(ctypes.Structure):
    """``DLTensor``, at the start of the managed tensor that a capsule holds."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _from_dlpack(value: Any, what: str) -> DeviceArray:
    kind, number = value.__dlpack_device__()
    if int(kind) not in (_CUDA, _CUDA_MANAGED):
        raise StateError(f"A {what} does not lie on a CUDA device; compare it on the host.")
    ready = getattr(value, "block_until_ready", None)
    if callable(ready):
        ready()
    capsule = value.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    itemsize = -(-tensor.bits * tensor.lanes // 8)
    if tensor.strides:
        strides = tuple(tensor.strides[i] * itemsize for i in range(tensor.ndim))
        _require_contiguous(shape, strides, itemsize, what, "jax.numpy.array(array, copy=True)")
    size = math.prod(shape) * itemsize
    address = (tensor.data or 0) + tensor.byte_offset
    _require_memory(address, size, what)
    # A capsule that nobody consumes gives the tensor back when it goes.
    return DeviceArray(address, size, int(number), None, (value, capsule))
