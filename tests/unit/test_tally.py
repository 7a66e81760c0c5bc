"""Elements that differ: counted, measured, held against a tolerance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ckptflow.data.arrays import ArraySpec
from ckptflow.data.dtypes import dtype_name
from ckptflow.errors import ConfigError
from ckptflow.store.comparing.tally import Differences, Tally, Tolerance, numbers_of

NAN = math.nan


def tally(old: Any, new: Any, tolerance: Tolerance | None = None) -> Differences:
    """Compare two arrays of one type, as they come out of a region."""
    a, b = np.asarray(old), np.asarray(new, np.asarray(old).dtype)
    made = Tally(ArraySpec(dtype_name(a.dtype), a.shape, None, 0, 0, "numpy"), tolerance)
    x, y = (
        np.ascontiguousarray(side).reshape(-1).view(np.uint8).reshape(a.size, a.itemsize)
        for side in (a, b)
    )
    place = np.flatnonzero((x != y).any(axis=1))
    for some in np.array_split(place[::-1], 2):  # In any order, and not all at once.
        made.add(some, x[some], y[some])
    return made.found


def test_counts_and_errors() -> None:
    found = tally([[1.0, 2.0, 4.0], [8.0, 1.0, 0.0]], [[1.0, 2.5, 4.0], [8.0, -1.0, 0.0]])
    assert (found.changed_elements, found.beyond_elements) == (2, None)
    assert (found.max_abs_difference, found.max_rel_difference) == (2.0, 2.0)
    assert found.first_beyond is None
    assert found.first_change is not None
    assert found.first_change.index == (0, 1)
    assert (found.first_change.before, found.first_change.after) == (2.0, 2.5)
    assert found.first_change.bits_before == "4000000000000000"
    assert found.first_change.bits_after == "4004000000000000"


def test_within_and_beyond() -> None:
    old, new = [1.0, 1.0, 1.0, 100.0], [1.0625, 1.125, 1.25, 106.0]
    absolute = tally(old, new, Tolerance(atol=0.125))
    assert (absolute.changed_elements, absolute.beyond_elements) == (4, 2)
    assert absolute.first_beyond is not None
    assert absolute.first_beyond.index == (2,)
    relative = tally(old, new, Tolerance(rtol=0.0625))
    assert (relative.beyond_elements, relative.first_beyond.index) == (2, (1,))  # type: ignore[union-attr]
    assert tally(old, new, Tolerance(0.25, 0.0625)).beyond_elements == 0


def test_the_tolerance_is_relative_to_the_right_one() -> None:
    assert tally([1.0], [2.0], Tolerance(rtol=0.5)).beyond_elements == 0
    assert tally([2.0], [1.0], Tolerance(rtol=0.5)).beyond_elements == 1


def test_negative_zero() -> None:
    found = tally([0.0, 1.0], [-0.0, 1.0], Tolerance())
    assert (found.changed_elements, found.beyond_elements) == (1, 0)
    assert (found.max_abs_difference, found.max_rel_difference) == (0.0, 0.0)
    assert found.first_change.before == found.first_change.after == 0.0  # type: ignore[union-attr]
    assert found.first_change.bits_after == "8000000000000000"  # type: ignore[union-attr]


def test_any_nan_is_close_to_any_nan_and_to_nothing_else() -> None:
    payload = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    found = tally([NAN, NAN, 1.0], [payload, 1.0, NAN], Tolerance(atol=1e300))
    assert (found.changed_elements, found.beyond_elements, found.unmatched_nans) == (3, 2, 2)
    assert found.max_abs_difference is None
    assert found.max_rel_difference is None
    assert found.first_change.bits_after == "7ff8000000000001"  # type: ignore[union-attr]


def test_infinities() -> None:
    found = tally([np.inf, -np.inf, 1.0], [-np.inf, 1.0, np.inf], Tolerance(atol=1e300))
    assert found.beyond_elements == 3
    assert (found.max_abs_difference, found.max_rel_difference) == (np.inf, np.inf)
    assert tally([1.0], [0.0]).max_rel_difference == np.inf


def test_differences_too_large_for_a_double_are_infinite() -> None:
    found = tally([1.7e308], [-1.7e308], Tolerance(atol=1e308))
    assert (found.max_abs_difference, found.beyond_elements) == (np.inf, 1)


@pytest.mark.parametrize(
    ("dtype", "old", "new", "distance"),
    [
        ("<i8", -(2**63), 2**63 - 1, 2**64 - 1),
        ("<i8", 2**62, 2**62 + 1, 1),
        (">i8", 5, -5, 10),
        ("<u8", 0, 2**64 - 1, 2**64 - 1),
        ("<u8", 2**64 - 1, 2**64 - 2, 1),
        ("|i1", -128, 127, 255),
        ("|b1", True, False, 1),
    ],
)
def test_integers_are_exact(dtype: str, old: int, new: int, distance: int) -> None:
    found = tally(np.array([old], dtype), np.array([new], dtype), Tolerance(atol=1e300))
    assert found.max_abs_difference == distance
    assert type(found.max_abs_difference) is int
    assert found.beyond_elements is None, "no tolerance holds for integers"
    assert (found.first_change.before, found.first_change.after) == (old, new)  # type: ignore[union-attr]


def test_complex_numbers_have_a_distance() -> None:
    found = tally([3 + 4j, 1j], [0j, 1j + 1e-9], Tolerance(atol=1e-6))
    assert (found.changed_elements, found.beyond_elements) == (2, 1)
    assert found.max_abs_difference == 5.0
    assert found.first_beyond.before == 3 + 4j  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", ">f8", "bfloat16", "float8_e4m3fn"])
def test_floats_of_every_kind(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    old = np.array([1, 2, 4], np.float32).astype(kind)
    new = np.array([1, 2.5, 8], np.float32).astype(kind)
    found = tally(old, new, Tolerance(atol=0.5))
    assert (found.changed_elements, found.beyond_elements) == (2, 1)
    assert (found.max_abs_difference, found.max_rel_difference) == (4.0, 0.5)
    assert (found.first_beyond.index, found.first_beyond.after) == ((2,), 8.0)  # type: ignore[union-attr]


def test_long_doubles_keep_their_precision() -> None:
    """In their padding may be anything, which counts as bits, but not as values."""
    old = np.array([1, 2], np.longdouble)
    new = old.copy()
    new[1] = np.nextafter(old[1], np.longdouble(3))
    found = tally(old, new, Tolerance(atol=float(new[1] - old[1])))
    assert found.changed_elements >= 1
    assert found.beyond_elements == 0
    assert found.max_abs_difference == float(new[1] - old[1]) > 0
    assert tally(old, new, Tolerance()).first_beyond.index == (1,)  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", ["complex32", "bcomplex32", "int4", "uint4"])
def test_odd_types_of_ml_dtypes(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = getattr(ml_dtypes, dtype, None)
    if kind is None:
        pytest.skip(f"this ml_dtypes has no {dtype}")
    found = tally(np.array([1, 2]).astype(kind), np.array([1, 4]).astype(kind), Tolerance(1.0))
    assert (found.changed_elements, found.max_abs_difference) == (1, 2)
    assert found.beyond_elements == (1 if "complex" in dtype else None)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (np.array(["ab", "c"]), np.array(["ab", "d"]), ("c", "d")),
        (
            np.array(["2024", "2025"], "M8[Y]"),
            np.array(["2024", "2026"], "M8[Y]"),
            ("2025", "2026"),
        ),
        (np.array([b"x", b"y"]), np.array([b"x", b"z"]), ("b'y'", "b'z'")),
        (
            np.array([(1, 2.0)], "i4,f8"),
            np.array([(1, 3.0)], "i4,f8"),
            ("(1, 2.0)", "(1, 3.0)"),
        ),
    ],
    ids=["text", "date", "bytes", "record"],
)
def test_what_has_no_numbers(old: np.ndarray, new: np.ndarray, shown: tuple[str, str]) -> None:
    found = tally(old, new, Tolerance(atol=1e9))
    assert (found.changed_elements, found.max_abs_difference) == (1, None)
    assert found.beyond_elements is None
    assert (found.first_change.before, found.first_change.after) == shown  # type: ignore[union-attr]
    assert found.first_change.bits_before is None  # type: ignore[union-attr]


def test_an_array_of_no_dimension() -> None:
    assert tally(1.0, 2.0).first_change.index == ()  # type: ignore[union-attr]


def test_a_type_not_known_here_is_bits() -> None:
    dtype, numbers = numbers_of(ArraySpec("float4_e2m1fn_x2", (3,), None, 0, 0, "torch"))
    assert (dtype, numbers) == (np.dtype("u1"), "none")


@pytest.mark.parametrize("value", [-1e-9, -math.inf, math.inf, math.nan])
def test_a_tolerance_is_no_such_number(value: float) -> None:
    with pytest.raises(ConfigError, match="absolute tolerance has to be 0 or a positive"):
        Tolerance(atol=value)
    with pytest.raises(ConfigError, match=r"relative tolerance .* got"):
        Tolerance(rtol=value)
