"""The interval arithmetic against a model that looks at single bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data.extents import (
    covered,
    cut,
    gaps,
    look_up,
    merge,
    overlay,
    split,
    starts_of,
    union,
)
from ckptflow.data.pack import FRAME_BYTES, GATHER_BYTES, plan_packs
from ckptflow.model import FILL, KEEP, ExtentTable
from ckptflow.units import MIB

Row = tuple[int, int, int, bool, int]


def row_lists(*packs: int, periods: bool = True) -> st.SearchStrategy[list[Row]]:
    return st.lists(
        st.tuples(
            st.integers(1, 40),
            st.integers(0, 2**64 - 1),
            st.sampled_from(packs),
            st.booleans(),  # Whether it continues the row before.
            st.integers(1, 12) if periods else st.just(0),
        ),
        max_size=12,
    )


ROWS = row_lists(0, 1, 2, FILL, KEEP)
ROWS_WITHOUT_PERIODS = row_lists(0, 1, 2, FILL, KEEP, periods=False)


def table_of(rows: list[Row]) -> ExtentTable:
    """A table of such rows; a period is kept where a row in a pack is longer."""
    columns: list[list[int]] = [[], [], [], []]
    length, source, pack, period = columns
    for size, where, number, continues, repeated in rows:
        if continues and length:
            on = pack[-1] < KEEP and not period[-1]
            source.append(source[-1] + length[-1] if on else source[-1])
            pack.append(pack[-1])
            period.append(period[-1] if period[-1] <= size else 0)
        else:
            source.append(where if number == FILL else 0 if number == KEEP else where % 60)
            pack.append(number)
            period.append(repeated if number < KEEP and 2 * repeated <= size else 0)
        length.append(size)
    return ExtentTable(
        np.array(length, np.uint64),
        np.array(source, np.uint64),
        np.array(pack, np.uint32),
        np.array(period, np.uint64),
    )


def meaning(table: ExtentTable) -> list[tuple[int, int]]:
    """What every byte of the region is: (pack, position), (FILL, byte value), or kept."""
    columns = (table.length, table.source, table.pack, table.period)
    bytes_ = []
    for length, source, pack, period in zip(*(c.tolist() for c in columns), strict=True):
        for offset in range(length):
            if pack == FILL:
                bytes_.append((FILL, source.to_bytes(8, "little")[offset % 8]))
            elif pack == KEEP:
                bytes_.append((KEEP, 0))
            else:
                bytes_.append((pack, source + (offset % period if period else offset)))
    return bytes_


def draw_ranges(data: st.DataObject, size: int) -> list[tuple[int, int]]:
    """Start and length of ranges inside of a region, rising and apart."""
    bounds = sorted(data.draw(st.sets(st.integers(0, size), max_size=8)))
    return [(a, b - a) for a, b in zip(bounds[::2], bounds[1::2], strict=False) if b > a]


def columns_of(ranges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([a for a, _ in ranges], np.uint64),
        np.array([n for _, n in ranges], np.uint64),
    )


@given(rows=ROWS, data=st.data())
def test_cut_keeps_the_meaning_of_every_byte(rows, data) -> None:
    table = table_of(rows)
    ranges = draw_ranges(data, int(table.length.sum()))
    row_start, cut_table = cut(table, *columns_of(ranges))
    expected = [meaning(table)[a : a + n] for a, n in ranges]
    assert meaning(cut_table) == [byte for part in expected for byte in part]
    places = [
        int(s) + i
        for s, n in zip(row_start, cut_table.length, strict=True)
        for i in range(int(n))
    ]
    assert places == [a + i for a, n in ranges for i in range(n)]
    assert (cut_table.period < cut_table.length).all()


@given(rows=ROWS_WITHOUT_PERIODS, data=st.data())
def test_look_up_takes_ranges_in_any_order(rows, data) -> None:
    table = table_of(rows)
    size = int(table.length.sum())
    place = st.integers(0, size).flatmap(
        lambda start: st.tuples(st.just(start), st.integers(0, size - start))
    )
    ranges = data.draw(st.lists(place, max_size=8))
    of, skipped, found = look_up(table, *columns_of(ranges))
    assert (np.diff(of) >= 0).all()
    bytes_ = meaning(table)
    for number, (a, n) in enumerate(ranges):
        here = of == number
        assert meaning(found.take(here)) == bytes_[a : a + n]
        assert skipped[here].tolist() == starts_of(found.length[here]).tolist()


@given(rows=ROWS)
def test_merge_keeps_the_meaning_and_leaves_nothing_to_merge(rows) -> None:
    table = table_of(rows)
    start, merged = merge(starts_of(table.length), table)
    assert meaning(merged) == meaning(table)
    assert start.tolist() == starts_of(merged.length).tolist()
    again_start, again = merge(start, merged)
    assert again == merged
    assert again_start.tolist() == start.tolist()


@given(rows=ROWS_WITHOUT_PERIODS, data=st.data())
def test_merge_of_what_was_cut_gives_the_rows_back(rows, data) -> None:
    table = table_of(rows)
    plain = merge(starts_of(table.length), table)[1]
    size = int(plain.length.sum())
    edges = sorted({0, size, *data.draw(st.sets(st.integers(0, size), max_size=6))})
    ranges = [(a, b - a) for a, b in itertools.pairwise(edges)]
    again = merge(*cut(plain, *columns_of(ranges)))[1]
    assert meaning(again) == meaning(plain)
    if not (plain.pack == FILL).any():  # A fill cut inside of its 8 bytes is not joined again.
        assert again == plain


@given(data=st.data(), size=st.integers(0, 100))
def test_gaps_are_what_ranges_leave(data, size) -> None:
    ranges = draw_ranges(data, size)
    start, length = gaps(*columns_of(ranges), size)
    taken = {a + i for a, n in ranges for i in range(n)}
    left = [int(a) + i for a, n in zip(start, length, strict=True) for i in range(int(n))]
    assert left == [place for place in range(size) if place not in taken]
    assert (length > 0).all()


@given(rows=ROWS, data=st.data())
def test_overlay_puts_rows_in_the_place_of_others(rows, data) -> None:
    table = table_of(rows)
    size = int(table.length.sum())
    on_top = table_of(data.draw(ROWS))
    starts, position = [], 0
    for length in on_top.length.tolist():
        # Gaps inside of the region only, since what lies beyond its end has to be covered.
        position += data.draw(st.integers(0, max(0, min(20, size - position))))
        starts.append(position)
        position += length
    expected = meaning(table)
    for number, start in enumerate(starts):
        piece = meaning(on_top.rows(number, number + 1))
        expected[start : start + len(piece)] = piece
    result = overlay(table, np.array(starts, np.uint64), on_top)
    assert meaning(result) == expected


@given(rows=ROWS, data=st.data())
def test_covered_counts_the_bytes_of_some_rows(rows, data) -> None:
    table = table_of(rows)
    which = np.array([data.draw(st.booleans()) for _ in range(len(table))], np.bool_)
    marks = np.repeat(which, table.length.astype(np.intp))
    ranges = [
        (a, data.draw(st.integers(0, 30)))  # Maybe beyond the end, where nothing is covered.
        for a in data.draw(st.lists(st.integers(0, len(marks) + 5), max_size=6))
    ]
    expected = [int(marks[a : a + n].sum()) for a, n in ranges]
    assert covered(table, which, *columns_of(ranges)).tolist() == expected


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
    encoding = np.arange(len(sizes)) // 7
    length = np.array(sizes, np.uint64)
    start = starts_of(length)
    plan = plan_packs(region, start, length, encoding, raw={0, 2})
    assert int(plan.length.sum()) == sum(sizes) == int(plan.pack_edges[-1])
    per_region = [
        np.flatnonzero(plan.region == number) for number in range(len(sizes) // 3 + 1)
    ]
    for rows in per_region:  # Back to back, in the order given.
        assert (plan.start[rows][1:] == plan.start[rows][:-1] + plan.length[rows][:-1]).all()
    position, stream = 0, 0
    for pack in range(plan.pack_count):
        assert int(plan.pack_edges[pack]) == stream
        for pieces in plan.frames_of(pack):
            frame_bytes = int(plan.length[pieces].sum())
            assert 0 < frame_bytes <= FRAME_BYTES
            assert pieces.start == position
            assert len({*plan.encoding[pieces].tolist()}) == 1
            gathered = pieces.stop - pieces.start > 1
            raw = int(plan.encoding[pieces.start]) in {0, 2}
            assert not (gathered and raw) or plan.length[pieces].max() < GATHER_BYTES
            # Words lie from the start of a piece on, so none is cut in two.
            assert not (plan.length[pieces][:-1] % 8).any()
            stream += frame_bytes
            position = pieces.stop
    assert position == len(plan.length)


def test_packs_are_closed_when_they_are_big_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptflow.data.pack.PACK_BYTES", 4 * FRAME_BYTES)
    sizes, zeros = np.full(11, FRAME_BYTES, np.uint64), np.zeros(11, np.intp)
    plan = plan_packs(zeros, starts_of(sizes), sizes, zeros, raw={0})
    assert plan.pack.tolist() == [0] * 4 + [1] * 4 + [2] * 3
    assert plan.pack_edges.tolist() == [n * FRAME_BYTES for n in (0, 4, 8, 11)]


@pytest.mark.parametrize("raw", [set(), {0}])
def test_a_long_piece_is_cut_by_packs_however_it_is_encoded(
    monkeypatch: pytest.MonkeyPatch, raw: set[int]
) -> None:
    monkeypatch.setattr("ckptflow.data.pack.PACK_BYTES", 4 * FRAME_BYTES)
    size, zero = np.array([11 * FRAME_BYTES], np.uint64), np.zeros(1, np.intp)
    plan = plan_packs(zero, starts_of(size), size, zero, raw=raw)
    assert plan.pack_edges.tolist() == [n * FRAME_BYTES for n in (0, 4, 8, 11)]


@pytest.mark.parametrize(
    ("size_mib", "raw", "packs_mib"),
    [
        (256, {0}, [256]),  # Raw bytes are there at once.
        (600, {0}, [256, 256, 88]),
        (32, set(), [32]),
        (100, set(), [32, 32, 32, 4]),
        (256, set(), [64] * 4),  # One is encoded while another is put.
        (1024, set(), [256] * 4),
        (1100, set(), [256] * 4 + [76]),
    ],
)
def test_what_is_encoded_goes_into_a_few_packs(
    size_mib: int, raw: set[int], packs_mib: list[int]
) -> None:
    size, zero = np.array([size_mib * MIB], np.uint64), np.zeros(1, np.intp)
    plan = plan_packs(zero, starts_of(size), size, zero, raw=raw)
    assert (np.diff(plan.pack_edges) // MIB).tolist() == packs_mib


def test_encoded_pieces_share_frames_however_long_they_are() -> None:
    sizes, zeros = np.full(4, GATHER_BYTES, np.uint64), np.zeros(4, np.intp)
    assert plan_packs(zeros, starts_of(sizes), sizes, zeros, raw=()).frame.max() == 0
    assert plan_packs(zeros, starts_of(sizes), sizes, zeros, raw={0}).frame.max() == 3


def test_no_small_piece_is_cut_by_a_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A period must not lie in two packs; and packs end, wherever frames do."""
    monkeypatch.setattr("ckptflow.data.pack.FRAME_BYTES", 64)
    monkeypatch.setattr("ckptflow.data.pack.PACK_BYTES", 128)
    sizes, zeros = np.full(20, 40, np.uint64), np.zeros(20, np.intp)
    plan = plan_packs(zeros, starts_of(sizes), sizes, zeros, raw={0})
    assert plan.pack_edges.tolist() == [0, 160, 280, 400, 520, 640, 800]


@given(ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_a_union_has_the_bytes_of_its_ranges_once(ranges: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in ranges], np.uint64)
    length = np.array([n for _, n in ranges], np.uint64)
    begin, size = union(start, start + length)
    found = [
        byte for a, n in zip(begin, size, strict=True) for byte in range(int(a), int(a + n))
    ]
    assert found == sorted({byte for a, n in ranges for byte in range(a, a + n)})
    assert (begin[1:] > (begin + size)[:-1]).all()  # Apart: none could be joined.
