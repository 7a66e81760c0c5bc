"""Tell what differs between two checkpoints, of one lineage or of two.

Roots come first: arrays in regions of equal root are equal, and nothing is read. The others
are read one by one and compared bit by bit, so that -0.0 and NaN payloads count; values are
summarised for people. ``tests/unit/test_compare.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.dtypes import EXTENDED_BYTES
from ckptflow.data.leaves import encode_plain, is_plain
from ckptflow.store.arrays import StoredArrays

BLOCK_ELEMENTS = 1 << 20  # Compared at once: bounds the memory that temporaries take.

Change = Literal["same", "changed", "retyped", "added", "removed"]
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Values:
    """The values of an array in short; NaNs are counted, and left out of the rest."""

    min: float
    max: float
    mean: float
    nan_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayChange:
    """What became of one array.

    Attributes:
        name: its name.
        change: ``retyped`` means that its dtype or shape is another one.
        before: dtype and shape on the left; ``None`` where it is not.
        after: the same of the right.
        elements: how many it has, on the right if it is there.
        changed_elements: how many differ in some bit; all, where it is not ``changed``.
        max_abs_difference: greatest difference of two values; ``None`` where there is none.
        values_before: its values on the left, in short; ``None`` if the same or no numbers.
        values_after: the same of the right.
    """

    name: str
    change: Change
    before: str | None
    after: str | None
    elements: int
    changed_elements: int
    max_abs_difference: float | None = None
    values_before: Values | None = None
    values_after: Values | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainChange:
    """A plain leaf that differs."""

    name: str
    change: Change
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """All arrays, and the plain leaves that differ."""

    arrays: tuple[ArrayChange, ...]
    plain: tuple[PlainChange, ...]

    @property
    def same(self) -> bool:
        """Whether both hold the same arrays, bit for bit, and the same plain leaves."""
        return not self.plain and all(array.change == "same" for array in self.arrays)


def compare(
    left: StoredArrays,
    right: StoredArrays,
    *,
    on_array: Callable[[str], None] = lambda _name: None,
) -> Comparison:
    """Compare two checkpoints; ``on_array`` is told the name of each array before it is read.

    Raises:
        CorruptionError: an array that has to be read has no sound copy.
    """
    names = [*left, *(name for name in right if name not in left.specs)]
    arrays = []
    for name in names:
        on_array(name)
        arrays.append(_compare_array(name, left, right))
    return Comparison(tuple(arrays), tuple(plain_changes(left.plain, right.plain)))


def type_of(stored: StoredArrays, name: str) -> str | None:
    """Return dtype and shape as people write it, ``<f4[64, 33]``; ``None`` if it is absent."""
    spec = stored.specs.get(name)
    return f"{spec.dtype}{list(spec.shape)}" if spec else None


def _compare_array(name: str, left: StoredArrays, right: StoredArrays) -> ArrayChange:
    before, after = type_of(left, name), type_of(right, name)
    elements = element_count(right if after else left, name)
    if before == after and not may_differ(name, left, right):
        return ArrayChange(
            name=name, change="same", before=before, after=after,
            elements=elements, changed_elements=0,
        )  # fmt: skip
    old = left.read(name) if before else None
    new = right.read(name) if after else None
    changed, difference = elements, None
    change: Change = "removed" if new is None else "added" if old is None else "retyped"
    if old is not None and new is not None and before == after:
        changed, difference = _differences(old, new, numeric=_is_numeric(name, left))
        change = "changed" if changed else "same"
    return ArrayChange(
        name=name,
        change=change,
        before=before,
        after=after,
        elements=elements,
        changed_elements=changed,
        max_abs_difference=difference,
        values_before=None if change == "same" else _values(name, left, old),
        values_after=None if change == "same" else _values(name, right, new),
    )


def element_count(stored: StoredArrays, name: str) -> int:
    """Return how many elements an array has."""
    return int(np.prod(stored.specs[name].shape, dtype=np.int64))


def may_differ(name: str, left: StoredArrays, right: StoredArrays) -> bool:
    """Tell whether the bytes have to be looked at: roots or places are not the same."""
    (a, b), (old, new) = (
        (left.specs[name], right.specs[name]),
        (left.region_of(name), right.region_of(name)),
    )
    return (
        (old.root, old.size_bytes, left.manifest.chunk_bytes)
        != (new.root, new.size_bytes, right.manifest.chunk_bytes)
        or (a.offset_bytes, a.strides_bytes) != (b.offset_bytes, b.strides_bytes)
    )  # fmt: skip


def _is_numeric(name: str, stored: StoredArrays) -> bool:
    """Tell whether NumPy here can make numbers of the elements."""
    name_stored, dtype = stored.specs[name].dtype, stored.read(name).dtype
    if name_stored in EXTENDED_BYTES and dtype.kind not in "fc":
        return dtype.name == name_stored  # Else it is not known here, and came as bits.
    return dtype.kind in "biufc"


def blocks_of(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the elements in C order, some at a time, as flat arrays."""
    flat: Any = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for start in range(0, array.size, BLOCK_ELEMENTS):
        yield flat[start : start + BLOCK_ELEMENTS]


def _differences(
    old: NDArray[Any], new: NDArray[Any], *, numeric: bool
) -> tuple[int, float | None]:
    """Return how many elements differ in some bit, and the greatest difference of values."""
    changed, greatest = 0, None
    for a, b in zip(blocks_of(old), blocks_of(new), strict=True):
        differs = (_bytes(a) != _bytes(b)).any(axis=1)
        changed += int(differs.sum())
        if not numeric or not differs.any():
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(_numbers(a[differs]) - _numbers(b[differs]))
        known = distance[~np.isnan(distance)]
        if known.size:
            greatest = max(float(known.max()), greatest or 0.0)
    return changed, greatest


def _bytes(block: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(block).view(np.uint8).reshape(len(block), -1)


def _numbers(block: NDArray[Any]) -> NDArray[Any]:
    return block.astype(np.complex128 if block.dtype.kind == "c" else np.float64)


def _values(name: str, stored: StoredArrays, array: NDArray[Any] | None) -> Values | None:
    """Summarise an array of real numbers; in double precision, so large integers round."""
    if array is None or array.dtype.kind == "c" or not _is_numeric(name, stored):
        return None
    least, greatest, total, count = np.inf, -np.inf, 0.0, 0
    for block in blocks_of(array):
        numbers = _numbers(block)
        numbers = numbers[~np.isnan(numbers)]
        if numbers.size:
            least = min(least, float(numbers.min()))
            greatest = max(greatest, float(numbers.max()))
            with np.errstate(invalid="ignore", over="ignore"):
                total += float(numbers.sum())
            count += numbers.size
    if not count:
        return None
    return Values(least, greatest, total / count, array.size - count)


def plain_changes(left: dict[str, Any], right: dict[str, Any]) -> Iterator[PlainChange]:
    """Yield the plain leaves that are not of one type and one value, to the last bit."""
    for name in [*left, *(name for name in right if name not in left)]:
        before, after = left.get(name, _ABSENT), right.get(name, _ABSENT)
        if before is _ABSENT:
            yield PlainChange(name=name, change="added", before=None, after=after)
        elif after is _ABSENT:
            yield PlainChange(name=name, change="removed", before=before, after=None)
        elif _bits(before) != _bits(after):
            yield PlainChange(name=name, change="changed", before=before, after=after)


def _bits(value: Any) -> object:
    """Return what is equal for two leaves of one type and one value, to the last bit."""
    return json.dumps(encode_plain(value)) if is_plain(value) else value
