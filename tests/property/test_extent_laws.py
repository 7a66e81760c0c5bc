"""The interval arithmetic against a model that looks at single bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data.extents import cut, merge, split, starts_of
from ckptflow.data.pack import FRAME_BYTES, GATHER_BYTES, plan_packs
from ckptflow.model import FILL, ExtentTable

ROWS = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.integers(0, 2**64 - 1),
        st.sampled_from([0, 1, 2, FILL]),
        st.booleans(),  # Whether it continues the row before.
    ),
    max_size=12,
)


def table_of(rows: list[tuple[int, int, int, bool]]) -> ExtentTable:
    length, source, pack = [], [], []
    for size, where, number, continues in rows:
        if continues and length:
            source.append(source[-1] if pack[-1] == FILL else source[-1] + length[-1])
            pack.append(pack[-1])
        else:
            source.append(where if number == FILL else where % (1 << 40))
            pack.append(number)
        length.append(size)
    return ExtentTable(
        np.array(length, np.uint64), np.array(source, np.uint64), np.array(pack, np.uint32)
    )


def meaning(table: ExtentTable) -> list[tuple[int, int]]:
    """What every byte of the region is: (pack, position), or (FILL, byte value)."""
    bytes_ = []
    for length, source, pack in zip(table.length, table.source, table.pack, strict=True):
        for offset in range(int(length)):
            if pack == FILL:
                bytes_.append((FILL, int(source).to_bytes(8, "little")[offset % 8]))
            else:
                bytes_.append((int(pack), int(source) + offset))
    return bytes_


@given(rows=ROWS, data=st.data())
def test_cut_keeps_the_meaning_of_every_byte(rows, data) -> None:
    table = table_of(rows)
    size = int(table.length.sum())
    bounds = sorted(data.draw(st.sets(st.integers(0, size), max_size=8)))
    ranges = [(a, b - a) for a, b in zip(bounds[::2], bounds[1::2], strict=False) if b > a]
    start = np.array([a for a, _ in ranges], np.uint64)
    length = np.array([n for _, n in ranges], np.uint64)
    row_start, cut_table = cut(table, start, length)
    expected = [meaning(table)[a : a + n] for a, n in ranges]
    assert meaning(cut_table) == [byte for part in expected for byte in part]
    covered = [
        int(s) + i
        for s, n in zip(row_start, cut_table.length, strict=True)
        for i in range(int(n))
    ]
    assert covered == [a + i for a, n in ranges for i in range(n)]


@given(rows=ROWS)
def test_merge_keeps_the_meaning_and_leaves_nothing_to_merge(rows) -> None:
    table = table_of(rows)
    start, merged = merge(starts_of(table.length), table)
    assert meaning(merged) == meaning(table)
    assert start.tolist() == starts_of(merged.length).tolist()
    again_start, again = merge(start, merged)
    assert again == merged
    assert again_start.tolist() == start.tolist()


@given(
    lengths=st.lists(st.integers(1, 50), max_size=10),
    every=st.integers(1, 20),
    gap=st.integers(0, 30),
)
def test_split_cuts_at_every_multiple_and_nowhere_else(lengths, every, gap) -> None:
    length = np.array(lengths, np.uint64)
    position = starts_of(length) + np.uint64(gap)
    piece, skipped, size = split(position, length, every)
    begin = (position[piece] + skipped).tolist()
    end = [b + int(s) for b, s in zip(begin, size, strict=True)]
    assert all(b // every == (e - 1) // every for b, e in zip(begin, end, strict=True))
    edges = set(position.tolist()) | {b for b in begin if b % every == 0}
    assert set(begin) <= edges
    rejoined = [
        sum(int(s) for s, p in zip(size, piece, strict=True) if p == i)
        for i in range(len(lengths))
    ]
    assert rejoined == lengths


@given(
    sizes=st.lists(
        st.one_of(
            st.integers(1, 9000),
            st.integers(GATHER_BYTES - 2, GATHER_BYTES + 2),
            st.integers(FRAME_BYTES - 2, 3 * FRAME_BYTES + 2),
        ),
        max_size=30,
    )
)
def test_pack_plan_holds_every_byte_once_and_in_order(sizes) -> None:
    region = np.arange(len(sizes)) // 3
    length = np.array(sizes, np.uint64)
    start = starts_of(length)
    plan = plan_packs(region, start, length)
    assert int(plan.length.sum()) == sum(sizes)
    per_region = [
        np.flatnonzero(plan.region == number) for number in range(len(sizes) // 3 + 1)
    ]
    for rows in per_region:  # Back to back, in the order given.
        assert (plan.start[rows][1:] == plan.start[rows][:-1] + plan.length[rows][:-1]).all()
    position = 0
    for pack in range(plan.pack_count):
        expected = 0
        for pieces in plan.frames_of(pack):
            frame_bytes = int(plan.length[pieces].sum())
            assert 0 < frame_bytes <= FRAME_BYTES
            assert plan.source[pieces][0] == expected
            assert pieces.start == position
            gathered = pieces.stop - pieces.start > 1
            assert not gathered or plan.length[pieces].max() < GATHER_BYTES
            expected += frame_bytes
            position = pieces.stop
    assert position == len(plan.length)


def test_packs_are_closed_when_they_are_big_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptflow.data.pack.PACK_BYTES", 4 * FRAME_BYTES)
    sizes = np.full(11, FRAME_BYTES, np.uint64)
    plan = plan_packs(np.zeros(11, np.intp), starts_of(sizes), sizes)
    assert plan.pack.tolist() == [0] * 4 + [1] * 4 + [2] * 3
    assert plan.source[plan.pack == 1].tolist() == [n * FRAME_BYTES for n in range(4)]
