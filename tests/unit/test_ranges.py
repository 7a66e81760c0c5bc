"""Range copies do what one slice per range does, and nothing at all if one is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.data import digest
from ckptflow.data.ranges import copy_ranges, fill_ranges, ranges_equal, repeat_ranges


@pytest.fixture(
    params=digest.available(),
    ids=lambda backend: f"{backend.name}-{backend.detail}",
    autouse=True,
)
def backend(request: pytest.FixtureRequest):
    with digest.use(request.param.name, request.param.detail) as chosen:
        yield chosen


def u64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def test_many_copies(rng: np.random.Generator) -> None:
    source = rng.bytes(5_000)
    target, expected = bytearray(7_000), bytearray(7_000)
    length = rng.integers(0, 200, 100, dtype=np.uint64)
    here = rng.integers(0, 4_800, 100, dtype=np.uint64)
    there = rng.integers(0, 6_800, 100, dtype=np.uint64)
    for a, b, n in zip(here.tolist(), there.tolist(), length.tolist(), strict=True):
        expected[b : b + n] = source[a : a + n]
    copy_ranges(source, target, here, there, length)
    assert target == expected


def test_many_fills(rng: np.random.Generator) -> None:
    target, expected = bytearray(rng.bytes(7_001)), bytearray()
    expected += target
    length = rng.integers(0, 200, 100, dtype=np.uint64)
    start = rng.integers(0, 6_800, 100, dtype=np.uint64)
    pattern = rng.integers(0, 1 << 63, 100, dtype=np.uint64)
    pattern[::3] = 0
    pattern[1::3] = 0x7F7F7F7F7F7F7F7F
    for a, n, p in zip(start.tolist(), length.tolist(), pattern.tolist(), strict=True):
        expected[a : a + n] = (p.to_bytes(8, "little") * (n // 8 + 1))[:n]
    fill_ranges(target, start, length, pattern)
    assert target == expected


def test_many_repeats(rng: np.random.Generator) -> None:
    target, expected = bytearray(rng.bytes(7_001)), bytearray()
    expected += target
    length = rng.integers(1, 400, 100, dtype=np.uint64)
    period = rng.integers(1, length + 1, 100, dtype=np.uint64)
    period[::4] = 1
    period[1::4] = np.minimum(length, 7)[1::4]
    start = rng.integers(0, 6_600, 100, dtype=np.uint64)
    for a, p, n in zip(start.tolist(), period.tolist(), length.tolist(), strict=True):
        for i in range(a + p, a + n):
            expected[i] = expected[i - p]
    repeat_ranges(target, start, period, length)
    assert target == expected


def test_many_comparisons(rng: np.random.Generator) -> None:
    ours = bytes(rng.integers(0, 2, 3_000, dtype=np.uint8))
    theirs = ours[5:] + bytes(5)
    length = rng.integers(0, 12, 300, dtype=np.uint64)
    here = rng.integers(5, 2_900, 300, dtype=np.uint64)
    there = here - np.uint64(5) + (np.arange(300) % 3 == 0)
    expected = [
        ours[a : a + n] == theirs[b : b + n]
        for a, b, n in zip(here.tolist(), there.tolist(), length.tolist(), strict=True)
    ]
    equal = ranges_equal(ours, theirs, here, there, length)
    assert equal.dtype == np.bool_
    assert equal.tolist() == expected
    assert 100 < sum(expected) < 300


def test_no_ranges_and_empty_buffers() -> None:
    repeat_ranges(bytearray(), u64(), u64(), u64())
    assert ranges_equal(b"", b"", u64(0), u64(0), u64(0)).tolist() == [True]
    copy_ranges(b"", bytearray(), u64(), u64(), u64())
    copy_ranges(b"", bytearray(), u64(0), u64(0), u64(0))
    fill_ranges(bytearray(), u64(0), u64(0), u64(1))


def test_arrays_of_any_type_are_bytes() -> None:
    target = np.zeros(2, np.float64)
    copy_ranges(np.array([1.5, 2.5]), target, u64(8), u64(0), u64(8))
    fill_ranges(target, u64(8), u64(8), np.array([3.5]).view(np.uint64))
    assert target.tolist() == [2.5, 3.5]


@pytest.mark.parametrize(
    ("start", "length"), [(9, 0), (8, 1), (0, 9), (1, 8), (2**64 - 1, 1), (1, 2**64 - 1)]
)
def test_a_range_outside_is_refused_before_anything_moves(start: int, length: int) -> None:
    target = bytearray(b"unharmed")
    inside = (u64(0, 0), u64(1, length))
    message = rf"Range 1 of the {{}}, {length} bytes from {start}, lies outside of its 8 bytes"
    with pytest.raises(ValueError, match=message.format("source")):
        copy_ranges(bytes(8), target, u64(0, start), *inside)
    if length <= 8:
        with pytest.raises(ValueError, match=message.format("target")):
            copy_ranges(bytes(8), target, u64(0, 0), u64(0, start), u64(1, length))
    with pytest.raises(ValueError, match=message.format("target")):
        fill_ranges(target, u64(0, start), u64(1, length), u64(0, 0))
    with pytest.raises(ValueError, match=message.format("target")):
        repeat_ranges(target, u64(0, start), u64(1, 1), u64(1, length))
    for other in (bytes(8), bytes(9)):
        with pytest.raises(ValueError, match="lies outside"):
            ranges_equal(other, bytes(8), u64(0, 0), u64(0, start), u64(1, length))
    assert target == b"unharmed"


def test_the_target_must_be_writable_and_apart() -> None:
    one = (u64(0), u64(0), u64(1))
    with pytest.raises(ValueError, match="read-only"):
        copy_ranges(bytes(8), bytes(8), *one)
    with pytest.raises(ValueError, match="read-only"):
        fill_ranges(bytes(8), *one)
    with pytest.raises(ValueError, match="read-only"):
        repeat_ranges(bytes(8), *one[:1], u64(1), u64(1))
    memory = bytearray(8)
    with pytest.raises(ValueError, match="overlap"):
        copy_ranges(memoryview(memory)[:5], memoryview(memory)[4:], *one)


@pytest.mark.parametrize(
    "columns",
    [
        (u64(0), u64(0), u64(0, 0)),
        (u64(0), u64(0), np.array([0])),
        (u64(0)[None], u64(0)[None], u64(0)[None]),
    ],
    ids=["longer", "signed", "two-dimensional"],
)
def test_columns_fit_each_other(columns: tuple[np.ndarray, ...]) -> None:
    with pytest.raises(ValueError, match="columns of uint64, all of one length"):
        copy_ranges(bytes(8), bytearray(8), *columns)
    with pytest.raises(ValueError, match="columns of uint64, all of one length"):
        fill_ranges(bytearray(8), *columns)
    with pytest.raises(ValueError, match="columns of uint64, all of one length"):
        repeat_ranges(bytearray(8), *columns)
    with pytest.raises(ValueError, match="columns of uint64, all of one length"):
        ranges_equal(bytes(8), bytes(8), *columns)


@pytest.mark.parametrize("period", [0, 6])
def test_a_period_lies_inside_its_range(period: int) -> None:
    target = bytearray(b"unharmed")
    with pytest.raises(ValueError, match="period"):
        repeat_ranges(target, u64(0, 0), u64(1, period), u64(5, 5))
    assert target == b"unharmed"
