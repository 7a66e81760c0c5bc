"""Repeats among rows are those that a search by definition finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckptflow.data import digest
from ckptflow.data.repeats import find_repeats

BACKENDS = digest.available()


def every_backend():
    for backend in BACKENDS:
        with digest.use(backend.name, backend.detail):
            yield backend


def columns(rows: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that are equal where the numbers are; each column alone tells little."""
    numbers = np.array(rows, np.uint64).reshape(-1)
    return numbers % 2 + 1, numbers // 2 % 3, (numbers // 6).astype(np.uint32)


def by_definition(rows: list[int]) -> list[tuple[int, int, int]]:
    found, i = [], 0
    while i < len(rows):
        earlier = [j for j in range(i) if rows[j] == rows[i]]
        count = 0
        if earlier:
            period = i - earlier[-1]
            while i + count < len(rows) and rows[i + count] == rows[i + count - period]:
                count += 1
            if count >= max(period, 3):
                found.append((i, period, count))
                i += count
                continue
        i += 1
    return found


def found_by_ours(rows: list[int]) -> list[tuple[int, int, int]]:
    repeats = find_repeats(*columns(rows))
    assert all(column.dtype == np.int64 for column in repeats)
    return list(zip(*(column.tolist() for column in repeats), strict=True))


pieces = st.lists(st.integers(0, 40), min_size=1, max_size=6)
periodic = st.lists(st.tuples(pieces, st.integers(1, 6)), max_size=6).map(
    lambda parts: [number for piece, times in parts for number in piece * times]
)


@given(st.one_of(periodic, st.lists(st.integers(0, 3), max_size=60)))
@example([])
@example([1])
@example([1] * 4)  # Three rows repeat the first one.
@example([1, 2, 1, 2])  # Two rows are too few.
@example([1, 2, 3, 9, 1, 2, 3])  # As long as the piece, but not as the period.
@example([1, 2, 3, 4, 8, 1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3, 4])
def test_repeats_are_those_of_the_definition(rows: list[int]) -> None:
    expected = by_definition(rows)
    for _ in every_backend():
        assert found_by_ours(rows) == expected


@pytest.mark.parametrize("size", [1, 64, 65, 700])
def test_long_repeats(size: int, rng: np.random.Generator) -> None:
    piece = rng.permutation(size).tolist()
    rows = [9999, *piece * 5, 9998]
    expected = [(1 + size, size, 4 * size)]
    for _ in every_backend():
        assert found_by_ours(rows) == expected


def test_many_repeats_that_lack_one_row() -> None:
    """Every row starts a repeat that is too short; what was tried in vain is remembered."""
    piece = list(range(3000))
    rows = [number for i in range(20) for number in (*piece, 5000 + i)]
    for _ in every_backend():
        assert found_by_ours(rows) == []


def test_columns_fit_each_other() -> None:
    length, source, pack = columns([1, 2, 3])
    message = "uint64, uint64 and uint32, all of one length"
    for bad in ((length[:2], source, pack), (length, source, source), (pack, source, pack)):
        with pytest.raises(ValueError, match=message):
            find_repeats(*bad)
