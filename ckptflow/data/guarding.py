"""Prevent writes to arrays for a while, or find out that there were some.

NumPy arrays are made read-only, with the arrays that they are views of, and put back exactly
as they were. Other views of the same memory, and what libraries write by address, still get
through: who must know for sure compares digests. Torch counts the writes to each tensor, but
for those behind the back of autograd. ``tests/unit/test_guarding.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ckptflow.data import torch_arrays


class ReadOnly:
    """Makes NumPy arrays read-only, until `lift`. Other arrays are left alone."""

    def __init__(self) -> None:
        self._frozen: dict[int, np.ndarray[Any, Any]] = {}  # By identity.

    def freeze(self, arrays: Iterable[object]) -> None:
        """Make arrays read-only, and what they are views of, that can be put back."""
        for array in arrays:
            if not isinstance(array, np.ndarray):
                continue
            if array.base is None:  # As nearly all.
                if array.flags.writeable:
                    array.flags.writeable = False
                    self._frozen[id(array)] = array
                continue
            for one in _chain(array):
                if one.flags.writeable and self._can_be_put_back(one):
                    one.flags.writeable = False
                    self._frozen[id(one)] = one

    def _can_be_put_back(self, array: np.ndarray[Any, Any]) -> bool:
        """Tell whether NumPy would make an array writable again.

        Not a view of what is read-only, nor over memory of somebody who does not say that it
        may be written, as that of a tensor.
        """
        views_of = _chain(array)[1:]
        if any(one.flags.writeable or id(one) in self._frozen for one in views_of):
            return True
        if array.flags.owndata or array.base is None:
            return True
        base: Any = _chain(array)[-1].base
        try:
            return not memoryview(base).readonly
        except TypeError:
            return False

    def lift(self) -> None:
        """Make everything writable that was so before."""
        # What an array is a view of has to be writable first.
        for array in sorted(self._frozen.values(), key=lambda one: len(_chain(one))):
            array.flags.writeable = True
        self._frozen.clear()


def _chain(array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Return an array and those that it is a view of, the outer ones first."""
    chain = [array]
    while isinstance(chain[-1].base, np.ndarray):
        chain.append(chain[-1].base)
    return chain


def versions(arrays: Sequence[object]) -> list[int | None]:
    """Return how often each tensor was written to; ``None`` for what does not count."""
    return [torch_arrays.version(array) for array in arrays]
