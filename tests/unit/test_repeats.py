"""Rows folded to repeats mean what they meant; what is cheaper left alone is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.data.extents import U64, cut, merge, starts_of
from ckptflow.model import FILL, ExtentTable
from ckptflow.store.planning import repeats
from ckptflow.store.planning.pieces import OWN
from ckptflow.store.planning.repeats import PERIOD_BYTES_MAX, fold

PATTERN = 0x0807060504030201


def table(*rows: tuple[int, ...]) -> ExtentTable:
    """Rows of length, source, pack, and maybe a period."""
    whole = np.array([(*row, 0)[:4] for row in rows], np.uint64).reshape(-1, 4)
    length, source, pack, period = whole.T
    return ExtentTable(length, source, pack.astype(np.uint32), period)


def rows_of(rows: ExtentTable) -> list[tuple[int, ...]]:
    columns = (rows.length, rows.source, rows.pack, rows.period)
    return list(zip(*(column.tolist() for column in columns), strict=True))


class State:
    """Bytes of two packs, and a draft of what is written once more."""

    def __init__(self, rows: ExtentTable) -> None:
        rng = np.random.default_rng(1)
        self.packs = {number: rng.bytes(4096) for number in (0, 1)}
        self.draft = b""
        self.data = self.meaning(rows)
        self.asked: list[tuple[int, int]] = []

    def meaning(self, rows: ExtentTable) -> bytes:
        result = b""
        for length, source, pack, period in rows_of(rows):
            if pack == FILL:
                piece = source.to_bytes(8, "little")
            else:
                stream = self.draft if pack == OWN else self.packs[pack]
                piece = stream[source : source + (period or length)]
            result += (piece * (length // len(piece) + 1))[:length]
        return result

    def again(self, start: U64, length: U64) -> U64:
        position = starts_of(length) + np.uint64(len(self.draft))
        for a, n in zip(start.tolist(), length.tolist(), strict=True):
            self.draft += self.data[a : a + n]
            self.asked.append((a, n))
        return position


def folded(*rows: tuple[int, ...]) -> list[tuple[int, ...]]:
    before = table(*rows)
    state = State(before)
    after = fold(before, state.again)
    assert state.meaning(after) == state.data
    return rows_of(after)


def test_one_row_again_and_again_needs_no_bytes() -> None:
    again = [(64, 128, 0)] * 5
    assert folded((40, 0, 1), *again, (8, 3, 1)) == [
        (40, 0, 1, 0),
        (64, 128, 0, 0),
        (256, 128, 0, 64),
        (8, 3, 1, 0),
    ]


def test_a_sequence_again_and_again_is_written_once_more() -> None:
    period = [(16, 0, 0), (16, 512, 1), (16, PATTERN, FILL)]
    before = table(*period * 10)
    state = State(before)
    after = fold(before, state.again)
    assert rows_of(after) == [*((*row, 0) for row in period), (48 * 9, 0, OWN, 48)]
    assert state.asked == [(48, 48)]
    assert state.meaning(after) == state.data


def test_a_last_repetition_may_be_cut() -> None:
    period = [(16, 0, 0), (16, 512, 1)]
    after = folded(*period * 6, period[0])
    assert after[-1] == (16 * 11, 0, OWN, 32)


def test_a_period_that_costs_more_than_its_rows_is_left_alone() -> None:
    """1 KiB stored once more, for the sake of six rows."""
    period = [(512, 0, 0), (512, 512, 1)]
    assert folded(*period * 4) == [(*row, 0) for row in period * 4]
    assert len(folded(*period * 40)) == 3


def test_a_period_too_long_for_a_frame_is_left_alone() -> None:
    row = (PERIOD_BYTES_MAX + 8, 0, 0)
    rows = table(*[row] * 9)
    assert fold(rows, lambda _start, _length: None) == rows


def test_fewer_than_four_rows_are_never_folded() -> None:
    assert folded(*[(64, 0, 0)] * 3) == [(64, 0, 0, 0)] * 3


def test_where_nothing_can_be_written_only_single_rows_are_folded() -> None:
    """Under deltas the bytes of the bottom are not those of the state."""
    period = [(16, 0, 0), (16, 512, 1)]
    rows = table(*period * 20, *[(16, 80, 0)] * 20)
    after = fold(rows, lambda _start, _length: None)
    assert rows_of(after) == [
        *((*row, 0) for row in period * 20),
        (16, 80, 0, 0),
        (304, 80, 0, 16),
    ]


def test_fills_have_no_period() -> None:
    """They are joined, and a fill that is cut later is turned, not moved."""
    rows = table(*[(24, PATTERN, FILL)] * 6)
    after = fold(rows, lambda _start, _length: None)
    assert not after.period.any()
    start, whole = merge(starts_of(after.length), after)
    assert rows_of(whole) == [(144, PATTERN, FILL, 0)]
    _, part = cut(after, np.array([20], np.uint64), np.array([100], np.uint64))
    assert set(part.source.tolist()) <= {PATTERN, 0x0403020108070605}
    assert start.tolist() == [0]


def test_rows_with_a_period_are_like_no_other() -> None:
    rows = [(96, 0, 0, 16)] * 6
    assert folded(*rows) == rows


@pytest.mark.parametrize("seed", range(40))
def test_any_rows_mean_the_same_after(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few different rows, so that sequences come back; periods inside of periods, too."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(repeats, "ROW_BYTES", int(rng.integers(1, 100)))
    kinds = [
        (16, 0, 0),
        (32, 16, 0),
        (16, 0, 1),
        (16, PATTERN, FILL),
        (8, 40, 1),
        (96, 5, 0, 24),
    ]
    rows: list[tuple[int, ...]] = []
    while len(rows) < 60:
        unit = [kinds[k] for k in rng.integers(0, len(kinds), rng.integers(1, 5))]
        rows += unit * int(rng.integers(1, 9))
    rows.append((13, 7, 1))
    after = folded(*rows)
    assert len(after) <= len(rows)
