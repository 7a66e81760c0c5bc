"""Arrays that are spread over ranks: which box of a global array lies here.

A leaf of the state may be a :class:`Box`, or a DTensor of torch, which says the same of itself.
What is captured is the local array; the box goes into the description of the shard. Only who
saves shards knows what to do with that, so anybody else refuses such leaves: see `allowed`.

Boxes are half-open, by the offset and the length of each axis. Of a DTensor only the public
members are asked: shape, mesh and placements. ``Shard(dim)`` cuts an axis as `torch.chunk`
does, in pieces of ``ceil(n / ranks)``; several mesh axes cut one after another.
``tests/unit/test_boxes.py``.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ckptflow.data.dtypes import Unsupported
from ckptflow.errors import ConfigError

_state = threading.local()
_made = threading.Event()  # Set with the first box.


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """A leaf of the state: the part of a global array that this rank holds.

    Args:
        array: its elements here, an array of any library; shape is the length of each axis.
        offset: index of its first element in the global array.
        shape: of the global array.
        name: of the global array; the path of the leaf if not given.

    Raises:
        ConfigError: the box does not lie in the global array.
    """

    array: Any
    offset: Sequence[int]
    shape: Sequence[int]
    name: str | None = None

    def __post_init__(self) -> None:
        lengths, offset, shape = (
            tuple(map(int, sizes)) for sizes in (self.array.shape, self.offset, self.shape)
        )
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "shape", shape)
        if not (len(lengths) == len(offset) == len(shape)) or any(
            start < 0 or length + start > whole
            for length, start, whole in zip(lengths, offset, shape, strict=True)
        ):
            raise ConfigError(
                f"A box of shape {list(lengths)} at {list(offset)} does not lie in an array of "
                f"shape {list(shape)}."
            )
        _made.set()


class Placed(NamedTuple):
    """Where a local array lies in its global array.

    Of ``replicas`` ranks that hold this same box, this one is number ``replica``.
    """

    name: str | None
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    lengths: tuple[int, ...]
    replica: int = 0
    replicas: int = 1


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Within this block, and in this thread, boxes are taken for their local arrays."""
    before = getattr(_state, "allowed", False)
    _state.allowed = True
    try:
        yield
    finally:
        _state.allowed = before


def is_box(leaf: Any) -> bool:
    """Tell whether a leaf is a part of a global array."""
    if type(leaf) is Box:
        return True
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(leaf, kind)


def may_be_somewhere() -> bool:
    """Tell whether a state may have boxes: some was made here, or DTensors could be."""
    return _made.is_set() or "torch.distributed.tensor" in sys.modules


def local_of(leaf: Any) -> Any:
    """Return the local array of a box; anything else as it is."""
    if not is_box(leaf):
        return leaf
    return leaf.array if type(leaf) is Box else leaf.detach().to_local()


def checked_local(leaf: Any) -> Any:
    """Like `local_of`, for who may meet a box where none can be stored.

    Raises:
        Unsupported: it is one, outside of an `allowed` block.
    """
    if is_box(leaf) and not getattr(_state, "allowed", False):
        raise Unsupported(
            f"a {type(leaf).__qualname__}, which is a part of an array that other ranks hold "
            "the rest of; save it with a ShardedCheckpointer"
        )
    return local_of(leaf)


def placed(leaf: Any) -> Placed | None:
    """Return where a box lies, or ``None`` if the leaf is none.

    Raises:
        Unsupported: it is a DTensor whose placements are neither ``Shard`` nor ``Replicate``.
    """
    if not is_box(leaf):
        return None
    if type(leaf) is Box:
        return Placed(leaf.name, tuple(leaf.shape), tuple(leaf.offset), tuple(leaf.array.shape))
    coordinate = leaf.device_mesh.get_coordinate()
    if coordinate is None:
        raise Unsupported("a DTensor of a mesh that this rank is no part of")
    shape = tuple(map(int, leaf.shape))
    offset, lengths = [0] * len(shape), list(shape)
    replica, replicas = 0, 1
    for axis, (placement, place) in enumerate(zip(leaf.placements, coordinate, strict=True)):
        ranks = leaf.device_mesh.size(axis)
        kind = type(placement).__name__
        if kind == "Replicate":
            replica, replicas = replica * ranks + place, replicas * ranks
        elif kind == "Shard":
            dim = placement.dim
            step = -(-lengths[dim] // ranks)
            first = min(place * step, lengths[dim])
            last = min(first + step, lengths[dim])
            offset[dim], lengths[dim] = offset[dim] + first, last - first
        else:
            raise Unsupported(
                f"a DTensor with the placement {placement}; redistribute it to Shard or "
                "Replicate before it is saved"
            )
    own = tuple(map(int, leaf.detach().to_local().shape))
    if own != tuple(lengths):
        raise Unsupported(
            f"a DTensor whose local part has the shape {list(own)} where its placements "
            f"{list(leaf.placements)} give {lengths}"
        )
    return Placed(None, shape, tuple(offset), tuple(lengths), replica, replicas)


def element_count(shape: Sequence[int]) -> int:
    """Return how many elements an array of a shape has."""
    return math.prod(shape)
