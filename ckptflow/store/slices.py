"""Read a part of one stored array: about the bytes asked for, each frame of them checked.

``tests/unit/test_slices.py`` compares with NumPy's indexing, and counts what is read.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.arrays import ArraySpec, array_from
from ckptflow.data.runs import Index, Runs, runs_of, select

_NEAR_MAX = 3


def read_slice(
    spec: ArraySpec, index: Index, fill: Callable[[Runs, memoryview], None]
) -> NDArray[Any]:
    """Return what ``index`` picks of an array; of a type that NumPy lacks, as integers.

    Args:
        spec: the array.
        index: by the rules of NumPy's basic indexing.
        fill: reads runs of bytes of the array's region, in their order, into a buffer.

    Raises:
        ConfigError: ``index`` picks by lists or masks, or beyond the array.
        And what ``fill`` raises.
    """
    layout = select(spec.layout(), index)
    part = replace(spec, shape=layout.shape, strides_bytes=None, offset_bytes=0, region=0)
    data = np.empty(part.size_bytes, np.uint8)
    if part.size_bytes:
        fill(runs_of(layout), data.data)
    return array_from(part, data, as_bits=True)


def near(name: str, names: Iterable[str]) -> str:
    """Say what names are like one that is not there."""
    known = list(names)
    found = difflib.get_close_matches(name, known, n=_NEAR_MAX, cutoff=0.6)
    found += [one for one in known if one.endswith(f"/{name}") and one not in found][:_NEAR_MAX]
    if found:
        return f"did you mean {' or '.join(repr(one) for one in found)}?"
    return "`ckptflow show` lists those it has."
