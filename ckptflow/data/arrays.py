"""One array leaf of any library, seen as an address, a shape and strides.

========  ==================================  ======================================
kind      recognised by                       copied by
========  ==================================  ======================================
numpy     ``np.ndarray``                      NumPy, by address
buffer    buffer protocol, DLPack on the host  NumPy, by address
torch     ``torch.Tensor``, ``Parameter``     host: NumPy, by address; device: torch
cupy      ``__cuda_array_interface__``        its own ``get()`` and ``set()``
jax       ``jax.Array``                       ``np.asarray``; restored as a new array
========  ==================================  ======================================

Libraries are looked up in ``sys.modules``: an array of torch cannot exist unless torch is
imported, and a checkpoint never makes us import it. Element types travel by name and bits as
bits; a bf16 tensor never becomes a NumPy array of some other type.

``tests/unit/test_arrays.py`` and ``test_regions_torch.py`` keep it true for host memory. The
paths for devices follow the documented protocols; the tests drive them with stand-ins that
keep their memory on the host, so a real GPU, CuPy and JAX are untested here.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ckptflow.data import boxes, torch_arrays
from ckptflow.data.dtypes import (
    EXTENDED_BYTES,
    Unsupported,
    dtype_name,
    itemsize_bytes,
    numpy_dtype,
)
from ckptflow.data.memory import (
    Bytes,
    Layout,
    address_of,
    cells_at,
    contiguous_strides,
    same_strides,
)
from ckptflow.data.overlap import span
from ckptflow.errors import FormatError

Kind = Literal["numpy", "buffer", "torch", "cupy", "jax"]
KINDS: frozenset[str] = frozenset({"numpy", "buffer", "torch", "cupy", "jax"})

HOST = "host"

Access = Literal["memory", "library", "read-only", "immutable"]
"""How an array can be changed: at its address, by its library, not at all, by a new one."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What a checkpoint says about one array.

    ``offset_bytes`` is where element ``[0, 0, …]`` starts within the region; with a negative
    stride that is not the array's lowest byte. ``strides_bytes`` is None for C order.
    """

    dtype: str
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...] | None
    offset_bytes: int
    region: int
    kind: str

    @property
    def itemsize_bytes(self) -> int:
        """Bytes of one element in memory."""
        return itemsize_bytes(self.dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements, repeated ones counted each time."""
        return math.prod(self.shape) * self.itemsize_bytes

    def layout(self, base: int = 0) -> Layout:
        """Return where the elements lie when the region starts at address ``base``."""
        itemsize = itemsize_bytes(self.dtype)
        strides = self.strides_bytes
        if strides is None:
            strides = contiguous_strides(self.shape, itemsize)
        return Layout(base + self.offset_bytes, self.shape, strides, itemsize)

    def check(self, region_bytes: int) -> None:
        """Refuse an array that reaches outside its region.

        Raises:
            FormatError: it does; who wrote the checkpoint made a mistake.
        """
        if self.strides_bytes is None:
            low, high = self.offset_bytes, self.offset_bytes + self.size_bytes
        else:
            low, high = span(self.layout())
        if low != high and (low < 0 or high > region_bytes):
            raise FormatError(
                f"The checkpoint places an array {self.dtype}{list(self.shape)} at bytes "
                f"{low} to {high} of region {self.region}, which has {region_bytes}."
            )


class LiveArray(NamedTuple):
    """One array of the state, where it lies now."""

    kind: Kind
    dtype: str
    layout: Layout
    owner: Any  # The array itself, or the host copy that stands for it: keeps the memory.
    place: str = HOST  # Arrays in different places never share memory.
    access: Access = "memory"

    @property
    def on_host(self) -> bool:
        """Whether the address can be read here."""
        return self.place == HOST

    def fits(self, stored: Layout) -> bool:
        """Tell whether strides agree, so that the region's bytes can lie in this memory."""
        return (
            self.place == HOST
            and self.access == "memory"
            and same_strides(stored.shape, self.layout.strides_bytes, stored.strides_bytes)
        )


def describe(value: Any) -> LiveArray | None:
    """Return where an array lies, or None if ``value`` is no array.

    Raises:
        Unsupported: it is an array, but one that cannot be stored; says why and what to do.
    """
    if isinstance(value, np.ndarray):
        return _describe_numpy(value)
    value = boxes.checked_local(value)
    if isinstance(value, np.ndarray):
        return _describe_numpy(value)
    if torch_arrays.is_tensor(value):
        return _describe_torch(value)
    if is_jax_array(value):
        return _describe_jax(value)
    if hasattr(type(value), "__cuda_array_interface__"):
        return _describe_cuda(value)
    return _describe_exporter(value)


def is_jax_array(value: Any) -> bool:
    """Tell whether ``value`` is a jax.Array, without importing jax."""
    array_type = getattr(sys.modules.get("jax"), "Array", None)
    return isinstance(array_type, type) and isinstance(value, array_type)


def _describe_numpy(array: np.ndarray[Any, Any], kind: Kind = "numpy") -> LiveArray:
    if type(array) is not np.ndarray and type(array) not in (np.memmap, np.recarray, np.matrix):
        raise Unsupported(
            f"an array of class {type(array).__module__}.{type(array).__qualname__} may carry "
            "more than its elements (a mask, a unit); store its parts as plain arrays"
        )
    layout = Layout(address_of(array), array.shape, array.strides, array.itemsize)
    access: Access = "memory" if array.flags.writeable else "read-only"
    return LiveArray(kind, dtype_name(array.dtype), layout, array, access=access)


def _describe_torch(tensor: Any) -> LiveArray:
    found = torch_arrays.describe(tensor)
    return LiveArray(
        "torch",
        found.dtype,
        found.layout,
        found.tensor,
        place=HOST if found.device == "cpu" else found.device,
        access="memory" if found.device == "cpu" and found.tensor is tensor else "library",
    )


def _describe_jax(array: Any) -> LiveArray:
    if not getattr(array, "is_fully_addressable", True):
        raise Unsupported("a jax array with shards on other processes; store the local shards")
    try:
        host = np.asarray(array)
    except TypeError as error:
        raise Unsupported(
            f"a jax array of dtype {array.dtype}; store jax.random.key_data() of random keys"
        ) from error
    live = _describe_numpy(host, "jax")
    return LiveArray("jax", live.dtype, live.layout, host, access="immutable")


def _describe_cuda(array: Any) -> LiveArray:
    interface = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise Unsupported("a masked device array; store its data and its mask")
    if not (callable(getattr(array, "get", None)) and callable(getattr(array, "set", None))):
        raise Unsupported(
            f"{type(array).__qualname__} has no get() and set() to copy it; wrap it with "
            "cupy.asarray(), which shares its memory"
        )
    dtype = np.dtype(getattr(array, "dtype", interface["typestr"]))
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    address, read_only = interface["data"]
    layout = Layout(
        int(address or 0),
        shape,
        contiguous_strides(shape, dtype.itemsize) if strides is None else tuple(strides),
        dtype.itemsize,
    )
    device = getattr(getattr(array, "device", None), "id", 0)
    return LiveArray(
        "cupy",
        dtype_name(dtype),
        layout,
        array,
        place=f"cuda:{device}",
        access="read-only" if read_only else "library",
    )


def _describe_exporter(value: Any) -> LiveArray | None:
    """Describe host memory behind the buffer protocol or DLPack."""
    if isinstance(value, bytes | bytearray | str | np.generic | type):
        return None
    if hasattr(type(value), "__dlpack__"):
        try:
            return _describe_numpy(np.from_dlpack(value), "buffer")
        except (TypeError, RuntimeError, BufferError, ValueError) as error:
            raise Unsupported(f"its memory cannot be had through DLPack: {error}") from error
    try:
        view = memoryview(value)
    except TypeError:
        return None
    try:
        return _describe_numpy(np.asarray(view), "buffer")
    except (TypeError, ValueError) as error:
        raise Unsupported(f"a buffer of format {view.format!r} is no array") from error


# --- between an array and a region -------------------------------------------------------


def read_into(live: LiveArray, out: Bytes, spec: ArraySpec) -> None:
    """Copy the elements of ``live`` to their places in the region ``out``."""
    if not live.on_host and live.kind == "torch":
        torch_arrays.over(out, spec.layout(), spec.dtype).copy_(live.owner)
        return
    if live.on_host:
        source = cells_at(live.layout, live.owner)
    else:
        host = np.asarray(live.owner.get())
        layout = Layout(address_of(host), host.shape, host.strides, host.itemsize)
        source = cells_at(layout, host)
    target = spec.layout(address_of(out))
    np.copyto(cells_at(target, out, writable=True), source)


def write_from(live: LiveArray, array: Any, region: Bytes, spec: ArraySpec) -> None:
    """Copy the elements of one array in ``region`` into ``array``, which ``live`` describes."""
    if live.on_host and live.access == "memory":
        source = cells_at(spec.layout(address_of(region)), region)
        np.copyto(cells_at(live.layout, live.owner, writable=True), source)
    elif live.kind == "torch":
        torch_arrays.assign(
            boxes.local_of(array), torch_arrays.over(region, spec.layout(), spec.dtype)
        )
    else:
        boxes.local_of(array).set(
            np.ascontiguousarray(array_from(spec, region)).reshape(spec.shape)
        )


def array_from(
    spec: ArraySpec, region: Bytes | memoryview | bytes, *, as_bits: bool = False
) -> np.ndarray[Any, Any]:
    """Return one array of a region as a NumPy view, whatever library it came from.

    Args:
        spec: what the checkpoint says about the array.
        region: all bytes of its region.
        as_bits: show a type that NumPy lacks here (bf16 without ml_dtypes) as unsigned
            integers of its size instead of refusing.

    Raises:
        FormatError: the array reaches outside the region, or NumPy lacks the type.
    """
    flat = region if isinstance(region, np.ndarray) else np.frombuffer(region, np.uint8)
    spec.check(flat.nbytes)
    if as_bits and spec.dtype in EXTENDED_BYTES:
        try:
            dtype = numpy_dtype(spec.dtype)
        except FormatError:
            size = spec.itemsize_bytes
            dtype = np.dtype(f"u{size}" if size in (1, 2, 4, 8) else f"V{size}")
    else:
        dtype = numpy_dtype(spec.dtype)
    layout = spec.layout()
    if 0 in spec.shape:
        return np.empty(spec.shape, dtype)
    return np.ndarray(spec.shape, dtype, flat, layout.address, layout.strides_bytes)


def new_array(spec: ArraySpec, region: Bytes, like: Any = None) -> Any:
    """Return a new array of the library that the checkpoint's one came from.

    Arrays of NumPy and of torch lie in ``region``, so those of one region share memory as
    they did; CuPy and JAX get a copy each.

    Args:
        spec: what the checkpoint says about the array.
        region: all bytes of its region; the array keeps them alive.
        like: a jax array whose devices to put the new one on.

    Raises:
        FormatError: the type is not known here, or jax would narrow it.
    """
    if spec.kind == "torch":
        return torch_arrays.over(region, spec.layout(), spec.dtype)
    array = array_from(spec, region)
    if spec.kind == "cupy":
        return sys.modules["cupy"].asarray(array)
    if spec.kind != "jax":
        return array
    jax: Any = sys.modules["jax"]
    place = None if like is None else like.sharding
    new = jax.device_put(array.copy(), place)
    if np.dtype(new.dtype) != array.dtype:
        raise FormatError(
            f"jax made {new.dtype} of the {array.dtype} in the checkpoint; "
            "set jax_enable_x64 before restoring."
        )
    return new


def library_missing(kind: str) -> str | None:
    """Return the module to import before new arrays of ``kind`` can be made, if it is not."""
    return kind if kind in ("torch", "cupy", "jax") and kind not in sys.modules else None
