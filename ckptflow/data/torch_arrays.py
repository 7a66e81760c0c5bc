"""What is particular to torch: types, tensors that are no memory, tensors over memory.

Nothing here imports torch; it takes it from ``sys.modules``.
``tests/unit/test_regions_torch.py`` keeps it true on the CPU. Tensors on a device take the
same calls with another ``device``; that is untested here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ckptflow.data import boxes
from ckptflow.data.dtypes import EXTENDED_BYTES, Unsupported
from ckptflow.data.leaves import segment
from ckptflow.data.memory import Bytes, Layout

_ORDER = "<" if sys.byteorder == "little" else ">"
_NAMES = {
    "bool": "|b1", "uint8": "|u1", "int8": "|i1",
    **{f"{kind}{8 * size}": f"{_ORDER}{code}{size}"
       for kind, code, sizes in (("uint", "u", (2, 4, 8)), ("int", "i", (2, 4, 8)),
                                 ("float", "f", (2, 4, 8)), ("complex", "c", (8, 16)))
       for size in sizes},
}  # fmt: skip
_TORCH_NAMES = {name: torch_name for torch_name, name in _NAMES.items()}


class Found(NamedTuple):
    """A tensor as memory. ``tensor`` is another one if the first had to be resolved."""

    tensor: Any
    dtype: str
    layout: Layout
    device: str


def is_tensor(value: Any) -> bool:
    """Tell whether ``value`` is a torch tensor."""
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor_type is not None and isinstance(value, tensor_type)


def version(value: Any) -> int | None:
    """Return how often a tensor was written to; ``None`` if it is none, or does not count."""
    if not is_tensor(value) or value.is_inference():
        return None
    return int(value._version)  # noqa: SLF001  Public in all but its name: autograd's notes.


def is_data_parallel(value: Any) -> bool:
    """Tell whether ``value`` is a module that data parallelism keeps alike on all ranks."""
    kind = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
    return kind is not None and isinstance(value, kind)


def buffer_names(prefix: str, module: Any) -> Iterator[str]:
    """Yield names of buffers that a data-parallel module takes from rank 0, with a prefix.

    With and without the name of the wrapper.
    """
    if module.broadcast_buffers:
        for name, _ in module.module.named_buffers():
            plain = ".".join(part for part in name.split(".") if part != "_orig_mod")
            yield from (f"{prefix}{segment(one)}" for one in (plain, f"module.{plain}"))


def describe(tensor: Any) -> Found:
    """Return where a tensor lies.

    A tensor that is conjugated or negated lazily has its memory in another form than its
    values; its resolved copy stands for it.

    Raises:
        Unsupported: it has no plain memory, or is more than a tensor.
    """
    torch: Any = sys.modules["torch"]
    if reason := _refusal(tensor, torch):
        raise Unsupported(reason)
    tensor_name = str(tensor.dtype).removeprefix("torch.")
    dtype = _NAMES.get(tensor_name, tensor_name)
    itemsize = tensor.element_size()
    if dtype == tensor_name and EXTENDED_BYTES.get(dtype) != itemsize:
        raise Unsupported(f"a tensor of dtype {tensor.dtype}, which has no stored form")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    strides = tuple(stride * itemsize for stride in tensor.stride())
    layout = Layout(tensor.data_ptr(), tuple(tensor.shape), strides, itemsize)
    if layout.address == 0 and tensor.numel():
        raise Unsupported("a tensor without memory of its own")
    return Found(tensor, dtype, layout, str(tensor.device))


def _refusal(tensor: Any, torch: Any) -> str | None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return (
            f"a tensor of class {type(tensor).__module__}.{type(tensor).__qualname__}; "
            "store the plain tensors it is made of"
        )
    if tensor.is_meta:
        return "a tensor on the meta device has a shape but no values; materialise it first"
    if tensor.layout != torch.strided or tensor.is_nested:
        return (
            f"a tensor of layout {tensor.layout} ; store its parts, "
            "such as indices() and values(), as dense tensors"
        ).replace(" ;", ";")
    if tensor.is_quantized:
        return "a quantized tensor; store int_repr() with its scale and zero point"
    return None


def over(region: Bytes, layout: Layout, dtype: str) -> Any:
    """Return a tensor whose elements are the bytes of ``region``.

    Args:
        region: all bytes of the region; the tensor keeps them alive.
        layout: of the tensor within the region, ``address`` counting from its start.
        dtype: name of the type, as stored.

    A view that starts between two elements of its own type, which torch cannot express,
    becomes a copy.
    """
    torch: Any = sys.modules["torch"]
    torch_dtype = getattr(torch, _TORCH_NAMES.get(dtype, dtype))
    address, shape, strides_bytes, itemsize = layout
    strides = tuple(stride // itemsize for stride in strides_bytes)
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=torch_dtype)
    if (address + region.ctypes.data) % itemsize or address % itemsize:
        region, address = region[address:].copy(), 0
    usable = region[: region.nbytes // itemsize * itemsize]
    flat = torch.frombuffer(usable.data, dtype=torch_dtype)
    return flat.as_strided(shape, strides, address // itemsize)


def assign(tensor: Any, source: Any) -> None:
    """Copy ``source`` into ``tensor``, on whatever device, outside of autograd."""
    with sys.modules["torch"].no_grad():
        tensor.copy_(source)


def mark_changed(tensor: Any) -> None:
    """Tell autograd that the memory of ``tensor`` was written behind its back."""
    if not tensor.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(tensor)


def optimizers_in(value: Any) -> list[Any]:
    """Return the torch optimizers among values in containers."""
    optimizer_type = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    if optimizer_type is None:
        return []
    if isinstance(value, optimizer_type):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [found for one in value for found in optimizers_in(one)]
    return []


def updated_by(optimizer: Any) -> set[int]:
    """Return the addresses of the tensors that only ``optimizer.step()`` is to change.

    These are the parameters that it was given, and the tensors of its state; on the host, or
    on a CUDA device, where addresses are other ones.
    """
    tensors = [one for group in optimizer.param_groups for one in group["params"]]
    for state in optimizer.state.values():
        values = state.values() if isinstance(state, dict) else ()
        tensors += [one for one in values if is_tensor(one)]
    local = (boxes.local_of(one) for one in tensors)
    return {one.data_ptr() for one in local if (one.is_cpu or one.is_cuda) and one.numel()}
