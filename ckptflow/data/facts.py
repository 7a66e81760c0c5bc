"""What the arrays of a state are, looked at all together: one call for many, not many for one.

Overlap analysis, regions and structure follow from a few facts about each array: its type,
dtype, shape, strides, the memory that it lies in, and its address there. :class:`Facts` holds
them, and no array. Asked again, it tells the addresses, as long as nothing else is different.

Arrays of NumPy answer through the buffer protocol, in one native call where there is one;
tensors of torch on the host by methods of their class, each mapped over all of them. What is
rarer is described as on the walk, one by one. ``tests/property/test_recorded_laws.py`` keeps it
true.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from ckptflow.data.arrays import LiveArray, describe
from ckptflow.data.backend import kernels
from ckptflow.data.buffers import I64s
from ckptflow.data.dtypes import Unsupported
from ckptflow.data.leaves import BYTES_LIMIT
from ckptflow.data.walk import Differs, Found

_dtype_of, _shape_of, _is_on_host = map(attrgetter, ("dtype", "shape", "is_cpu"))


class Facts:
    """What has to be so again for a walk to find the same arrays, but for their addresses.

    Args:
        found: the array leaves of a state.
    """

    def __init__(self, found: Sequence[Found]) -> None:
        leaves = [one.leaf for one in found]
        lives = [one.live for one in found]
        self._types = list(map(type, leaves))
        self._numpy, self._torch, self._others = [], [], []
        for number, (leaf, live) in enumerate(zip(leaves, lives, strict=True)):
            if type(leaf) is np.ndarray and leaf.dtype.names is None:
                self._numpy.append(number)
            elif live.kind == "torch" and live.on_host and live.owner is leaf:
                self._torch.append(number)
            else:
                self._others.append(number)
        self._complex = [i for i in self._torch if "c" in lives[i].dtype]
        self._other_facts = [_facts_of(lives[number]) for number in self._others]
        self._has_bytes = np.array([0 not in live.layout.shape for live in lives], np.bool_)
        addresses = np.zeros(len(leaves), np.int64)
        self._numpy_facts = self._look_at_numpy(leaves, addresses)
        self._torch_facts = self._look_at_torch(leaves, addresses)

    def look(self, leaves: Sequence[Any]) -> tuple[I64s, list[Any]]:
        """Return addresses and owners of the leaves that are where the first ones were.

        Returns:
            The address of the first element of each, int64 [n]; and what keeps the memory: the
            leaf itself, or what stands for it (a host copy, a view of bytes).

        Raises:
            Differs: something but an address is not as it was.
        """
        if list(map(type, leaves)) != self._types:
            raise Differs
        addresses, owners = np.zeros(len(leaves), np.int64), list(leaves)
        try:
            if self._look_at_numpy(leaves, addresses) != self._numpy_facts:
                raise Differs
            if self._look_at_torch(leaves, addresses) != self._torch_facts:
                raise Differs
            for number, facts in zip(self._others, self._other_facts, strict=True):
                live = _describe(leaves[number])
                if live is None or _facts_of(live) != facts:
                    raise Differs
                addresses[number], owners[number] = live.layout.address, live.owner
        except (Unsupported, RuntimeError, BufferError) as error:
            raise Differs from error  # The walk will tell, by name, what is wrong.
        if not addresses[self._has_bytes].all():
            raise Differs
        return addresses, owners

    def _look_at_numpy(self, leaves: Sequence[Any], addresses: I64s) -> object:
        arrays = _pick(leaves, self._numpy)
        column = np.empty(len(arrays), np.int64)
        facts = kernels().look_at(arrays, column), list(map(_dtype_of, arrays))
        addresses[self._numpy] = column
        return facts

    def _look_at_torch(self, leaves: Sequence[Any], addresses: I64s) -> object:
        if not self._torch:
            return None
        tensors, tensor = _pick(leaves, self._torch), sys.modules["torch"].Tensor
        facts = (
            list(map(_is_on_host, tensors)),
            list(map(_dtype_of, tensors)),
            list(map(_shape_of, tensors)),
            list(map(tensor.stride, tensors)),
            # Of what is lazily negated or conjugated the memory has another form.
            any(map(tensor.is_neg, tensors)),
            any(map(tensor.is_conj, _pick(leaves, self._complex))),
        )
        addresses[self._torch] = list(map(tensor.data_ptr, tensors))
        return facts


def _pick(leaves: Sequence[Any], numbers: list[int]) -> list[Any]:
    if len(numbers) < 2:
        return [leaves[number] for number in numbers]
    return list(itemgetter(*numbers)(leaves))


def _describe(leaf: Any) -> LiveArray | None:
    if isinstance(leaf, bytes | bytearray):
        return describe(np.frombuffer(leaf, np.uint8)) if len(leaf) > BYTES_LIMIT else None
    return describe(leaf)


def _facts_of(live: LiveArray) -> tuple[object, ...]:
    return live.kind, live.dtype, live.place, *live.layout[1:]
