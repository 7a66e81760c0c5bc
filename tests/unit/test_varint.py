"""Columns of integers, against a loop over values and over bits."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow import varint

EDGES = [0, 1, 127, 128, 129, 2**14 - 1, 2**14, 2**32, 2**56, 2**63 - 1, 2**63, 2**64 - 1]


def by_hand(value: int) -> bytes:
    codes = []
    while value >= 128:
        codes.append(value % 128 + 128)
        value //= 128
    return bytes([*codes, value])


def some_values(rng: np.random.Generator) -> list[int]:
    sizes = rng.integers(1, 65, 500).tolist()
    return [*EDGES, *(int(rng.integers(2**63)) >> (63 - min(63, bits)) for bits in sizes)]


def test_each_value_has_its_bytes(rng: np.random.Generator) -> None:
    values = some_values(rng)
    data = varint.encode(np.array(values, np.uint64))
    assert data == b"".join(map(by_hand, values))
    assert varint.decode(data).tolist() == values
    assert varint.decode(memoryview(data)).dtype == np.uint64


def test_no_values_take_no_bytes() -> None:
    assert varint.encode(np.empty(0, np.uint64)) == b""
    assert varint.decode(b"").tolist() == []


@pytest.mark.parametrize("data", [b"\x80", b"\1\xff", b"\xff" * 9])
def test_a_column_that_is_cut_short(data: bytes) -> None:
    with pytest.raises(ValueError, match="a column of integers is cut short"):
        varint.decode(data)


@pytest.mark.parametrize(
    "data", [b"\xff" * 9 + b"\2", b"\x80" * 10 + b"\0", b"\xff" * 30 + b"\1"]
)
def test_more_than_64_bits(data: bytes) -> None:
    with pytest.raises(ValueError, match="an integer has more than 64 bits"):
        varint.decode(b"\5" + data)


def test_zigzag_counts_to_both_sides() -> None:
    values = np.array([0, -1, 1, -2, 2, 2**63 - 1, -(2**63)], np.int64).view(np.uint64)
    assert varint.zigzag(values).tolist() == [0, 1, 2, 3, 4, 2**64 - 2, 2**64 - 1]
    np.testing.assert_array_equal(varint.unzigzag(varint.zigzag(values)), values)


def test_zigzag_of_anything_comes_back(rng: np.random.Generator) -> None:
    values = np.frombuffer(rng.bytes(8000), np.uint64)
    np.testing.assert_array_equal(varint.unzigzag(varint.zigzag(values)), values)
    np.testing.assert_array_equal(varint.zigzag(varint.unzigzag(values)), values)
