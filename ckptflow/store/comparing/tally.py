"""Count how two arrays differ, element by element, and by how much.

Elements that differ in no bit never get here; so a NaN equals itself, bit for bit, always.
With a tolerance, floating-point and complex elements are close when ``numpy.isclose(a, b,
rtol, atol, equal_nan=True)`` says so of them as double precision, that is ``|a - b| <= atol +
rtol * |b|``, where ``b`` is the right one; an infinity is close to itself only, and any NaN to
any NaN.
``tests/unit/test_tally.py``; ``tests/property/test_value_laws.py`` compares with NumPy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.arrays import ArraySpec, array_from
from ckptflow.data.dtypes import EXTENDED_BYTES
from ckptflow.errors import ConfigError

Numbers = Literal["none", "exact", "float", "complex"]
"""What the elements of an array are: no numbers, integers and booleans, real, complex."""

Shown: TypeAlias = bool | int | float | complex | str
"""A value as JSON and people see it."""

_BITS_MAX = 32  # Bytes of an element whose bits are worth showing.


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two floating-point numbers may be apart and still count as equal.

    Attributes:
        atol: absolute, in the unit of the values.
        rtol: relative to the right one.

    Raises:
        ConfigError: one of them is negative, NaN or infinite.
    """

    atol: float = 0.0
    rtol: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("absolute", self.atol), ("relative", self.rtol)):
            if not 0 <= value < math.inf:
                raise ConfigError(
                    f"The {name} tolerance has to be 0 or a positive, finite number, "
                    f"got {value!r}."
                )

    def close(self, a: Any, b: Any) -> NDArray[np.bool_]:
        """Tell which elements of ``a`` are close to those of ``b``, bool of their shape."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(
                np.isclose(a, b, rtol=self.rtol, atol=self.atol, equal_nan=True), np.bool_
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One element that differs.

    Attributes:
        index: where it is in the array; ``()`` in an array of no dimension.
        before: its value on the left.
        after: its value on the right.
        bits_before: the bits of a number on the left in hex, the highest first; else ``None``.
        bits_after: those of the right.
    """

    index: tuple[int, ...]
    before: Shown
    after: Shown
    bits_before: str | None
    bits_after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """All about the elements of two arrays that differ.

    Attributes:
        changed_elements: how many differ in some bit.
        beyond_elements: how many of them are not close; ``None`` where no tolerance holds.
        first_change: the first one, in C order, that differs in some bit.
        first_beyond: the first one that is not close.
        max_abs_difference: greatest ``|a - b|``, exact for integers, of double precision else;
            NaN left out; ``None`` if there is none, or the elements are no numbers.
        max_rel_difference: greatest ``|a - b| / |b|``, infinite if only ``b`` is 0; likewise.
        unmatched_nans: how many are NaN on one side only, and so no difference.
    """

    changed_elements: int = 0
    beyond_elements: int | None = None
    first_change: Difference | None = None
    first_beyond: Difference | None = None
    max_abs_difference: int | float | None = None
    max_rel_difference: float | None = None
    unmatched_nans: int = 0


class Tally:
    """Adds up the differences of two arrays of one dtype and shape, some elements at a time."""

    def __init__(self, spec: ArraySpec, tolerance: Tolerance | None) -> None:
        self._shape = spec.shape
        self.dtype, self.numbers = numbers_of(spec)
        self.tolerance = tolerance if self.numbers in ("float", "complex") else None
        self._found = Differences(beyond_elements=None if self.tolerance is None else 0)
        self._first = self._first_beyond = -1

    @property
    def found(self) -> Differences:
        """What was found so far."""
        return self._found

    def add(
        self, index: NDArray[np.intp], old: NDArray[np.uint8], new: NDArray[np.uint8]
    ) -> None:
        """Take in elements that differ in some bit.

        Args:
            index: which ones, counted in C order, intp [n]; any order.
            old: their bytes on the left, uint8 [n, itemsize].
            new: those on the right.
        """
        if not len(index):
            return
        a, b = (np.ascontiguousarray(side).view(self.dtype).reshape(-1) for side in (old, new))
        at = int(index.argmin())
        if self._first < 0 or index[at] < self._first:
            self._first = int(index[at])
            first = self._difference(self._first, a[at], b[at])
            self._found = replace(self._found, first_change=first)
        changed = self._found.changed_elements + len(index)
        self._found = replace(self._found, changed_elements=changed)
        if self.numbers != "none":
            self._measure(index, a, b)

    def _measure(self, index: NDArray[np.intp], a: NDArray[Any], b: NDArray[Any]) -> None:
        found = self._found
        x, y = as_numbers(a, self.numbers), as_numbers(b, self.numbers)
        distance, ratio = _errors(x, y)
        known = ~np.isnan(distance) if self.numbers != "exact" else np.ones(len(x), np.bool_)
        if known.any():
            kind = int if self.numbers == "exact" else float
            found = replace(
                found,
                max_abs_difference=max(
                    kind(distance[known].max()), found.max_abs_difference or 0
                ),
                max_rel_difference=max(
                    float(ratio[known].max()), found.max_rel_difference or 0.0
                ),
            )
        if self.numbers != "exact":
            odd = int((np.isnan(x) != np.isnan(y)).sum())
            found = replace(found, unmatched_nans=found.unmatched_nans + odd)
        self._found = found
        if self.tolerance is not None:
            self._count_beyond(index, a, b, ~self.tolerance.close(x, y))

    def _count_beyond(
        self,
        index: NDArray[np.intp],
        a: NDArray[Any],
        b: NDArray[Any],
        far: NDArray[np.bool_],
    ) -> None:
        which = np.flatnonzero(far)
        if not len(which):
            return
        at = int(which[index[which].argmin()])
        if self._first_beyond < 0 or index[at] < self._first_beyond:
            self._first_beyond = int(index[at])
            first = self._difference(self._first_beyond, a[at], b[at])
            self._found = replace(self._found, first_beyond=first)
        beyond = (self._found.beyond_elements or 0) + len(which)
        self._found = replace(self._found, beyond_elements=beyond)

    def _difference(self, flat: int, before: Any, after: Any) -> Difference:
        index = tuple(int(axis) for axis in np.unravel_index(flat, self._shape))
        return Difference(
            index=index,
            before=_shown(before, self.numbers),
            after=_shown(after, self.numbers),
            bits_before=_bits(before, self.dtype, self.numbers),
            bits_after=_bits(after, self.dtype, self.numbers),
        )


def numbers_of(spec: ArraySpec) -> tuple[np.dtype[Any], Numbers]:
    """Return the dtype of an array, and what its elements are.

    A type that NumPy lacks here is shown as unsigned integers of its size, no numbers.
    """
    none = replace(spec, shape=(0,), strides_bytes=None, offset_bytes=0)
    dtype = array_from(none, b"", as_bits=True).dtype
    if spec.dtype in EXTENDED_BYTES:
        if dtype.kind not in "fc" and dtype.name != spec.dtype:
            return dtype, "none"  # Not known here: it came as bits.
        if "complex" in spec.dtype or spec.dtype.startswith("clong"):
            return dtype, "complex"
        return dtype, "exact" if "int" in spec.dtype else "float"
    kinds: dict[str, Numbers] = {
        "b": "exact", "i": "exact", "u": "exact", "f": "float", "c": "complex",
    }  # fmt: skip
    return dtype, kinds.get(dtype.kind, "none")


def as_numbers(values: NDArray[Any], numbers: Numbers) -> NDArray[Any]:
    """Return elements as double precision, or better if they are; integers as 64 bits."""
    if numbers == "complex":
        return values.astype(np.result_type(values.dtype, np.complex128))
    if numbers == "float":
        wide = values.dtype.newbyteorder("=") if values.dtype.char == "g" else np.float64
        return values.astype(wide)
    if numbers == "exact" and values.dtype.kind not in "biu":
        return values.astype(np.int64)  # The small integers of ml_dtypes.
    return values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)


def _errors(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return ``|a - b|``, and that over ``|b|``; NaN where a value is NaN or both infinite."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if a.dtype.kind in "iu":
            # Modulo 2^64 the greater less the smaller is right, also across the sign.
            x, y = a.view(np.uint64), b.view(np.uint64)
            distance: NDArray[Any] = np.where(a > b, x - y, y - x)
            size = np.abs(b.astype(np.float64))
        else:
            distance = np.abs(a - b)
            size = np.abs(b)
        ratio = distance / size
    ratio = np.where(np.isinf(distance.astype(np.float64)), np.inf, ratio)
    return distance, np.where(distance == 0, 0.0, ratio).astype(np.float64)


def _shown(element: Any, numbers: Numbers) -> Shown:
    if numbers == "exact":
        return bool(element) if element.dtype.kind == "b" else int(element)
    if numbers == "float":
        return float(element)
    return complex(element) if numbers == "complex" else str(element)


def _bits(element: Any, dtype: np.dtype[Any], numbers: Numbers) -> str | None:
    if numbers == "none" or dtype.itemsize > _BITS_MAX:
        return None
    stored: bytes = element.tobytes()
    return (stored if dtype.byteorder == ">" else stored[::-1]).hex()
