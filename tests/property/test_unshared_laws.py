"""Ranges that may differ, against a model that gives every byte a meaning."""

from __future__ import annotations

import itertools
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data.extents import cut, union
from ckptflow.data.pack import FrameTable
from ckptflow.errors import CorruptionError
from ckptflow.model import FILL, ExtentTable, PackRef
from ckptflow.store.comparing.unshared import (
    by_frames,
    pack_numbers,
    to_elements,
    unshared,
)

SIZE = 60
PATTERNS = [0, 0x0101010101010101, 0x0102030405060708, 0x0506070801020304]


@st.composite
def tables(draw: st.DrawFn, *, kinds: str = "data fill repeat") -> ExtentTable:
    """A table of `SIZE` bytes; few places and patterns, so that some agree."""
    edges = sorted({0, SIZE, *draw(st.lists(st.integers(1, SIZE - 1), max_size=7))})
    rows = []
    for start, end in itertools.pairwise(edges):
        kind = draw(st.sampled_from(kinds.split()))
        pack = draw(st.sampled_from([0, 1]))
        if kind == "fill":
            rows.append((end - start, draw(st.sampled_from(PATTERNS)), FILL, 0))
        elif kind == "repeat":
            period = draw(st.sampled_from([3, 8, 10]))
            period = period if period < end - start else 0
            rows.append((end - start, draw(st.sampled_from([0, 3, 16])), pack, period))
        else:
            rows.append((end - start, start + draw(st.sampled_from([0, 0, 3])), pack, 0))
    length, source, pack, period = (list(column) for column in zip(*rows, strict=True))
    return ExtentTable(
        np.array(length, np.uint64),
        np.array(source, np.uint64),
        np.array(pack, np.uint32),
        np.array(period, np.uint64),
    )


def meaning(table: ExtentTable) -> list[tuple[int, int]]:
    """What every byte is: (pack, position), or (FILL, value of the byte)."""
    found = []
    rows = zip(table.length, table.source, table.pack, table.period, strict=True)
    for length, source, pack, period in rows:
        for offset in range(int(length)):
            if pack == FILL:
                found.append((FILL, int(source).to_bytes(8, "little")[offset % 8]))
            else:
                into = offset % int(period) if period else offset
                found.append((int(pack), int(source) + into))
    return found


def covered(start: np.ndarray, length: np.ndarray) -> set[int]:
    found = [int(a) + i for a, n in zip(start, length, strict=True) for i in range(int(n))]
    assert len(found) == len(set(found)), "ranges overlap"
    assert all(b > a + n for a, n, b in zip(start, length, start[1:], strict=False))
    return set(found)


@given(left=tables(), right=tables())
def test_what_is_not_named_is_the_same(left: ExtentTable, right: ExtentTable) -> None:
    apart = covered(*unshared(left, right))
    a, b = meaning(left), meaning(right)
    assert {i for i in range(SIZE) if a[i] != b[i]} <= apart


@given(left=tables(kinds="data"), right=tables(kinds="data"))
def test_of_places_in_packs_nothing_is_named_in_vain(
    left: ExtentTable, right: ExtentTable
) -> None:
    a, b = meaning(left), meaning(right)
    assert covered(*unshared(left, right)) == {i for i in range(SIZE) if a[i] != b[i]}


@given(table=tables(kinds="data fill"), cuts=st.sets(st.integers(1, SIZE - 1), max_size=6))
def test_cutting_a_table_makes_no_difference(table: ExtentTable, cuts: set[int]) -> None:
    edges = np.array([0, *sorted(cuts), SIZE], np.uint64)
    finer = cut(table, edges[:-1], np.diff(edges))[1]
    assert len(unshared(table, finer)[0]) == 0


@given(table=tables())
def test_a_table_is_like_itself(table: ExtentTable) -> None:
    assert len(unshared(table, table)[0]) == 0


def test_repeats_of_one_period_may_be_out_of_step() -> None:
    def begins_at(start: int) -> ExtentTable:
        rows = ((start, 0, FILL, 0), (SIZE - start, 16, 0, 10))
        columns = zip(*rows, strict=True)
        return ExtentTable(
            *(np.array(c, t) for c, t in zip(columns, ("u8", "u8", "u4", "u8"), strict=True))
        )

    found = unshared(begins_at(5), begins_at(8))
    assert covered(*found) == set(range(5, SIZE))
    assert covered(*unshared(begins_at(5), begins_at(15))) == set(range(5, 15))


def test_no_bytes() -> None:
    none = ExtentTable.of([])
    assert [len(column) for column in unshared(none, none)] == [0, 0]


@given(data=st.data(), itemsize=st.sampled_from([1, 2, 3, 8, 12]))
def test_ranges_are_widened_to_elements(data: st.DataObject, itemsize: int) -> None:
    points = sorted(data.draw(st.sets(st.integers(0, 96), max_size=8)))
    points = points[: len(points) // 2 * 2]
    start, end = np.array(points[::2], np.uint64), np.array(points[1::2], np.uint64)
    touched = {byte // itemsize for byte in covered(*union(start, end))}
    found = to_elements(start, end - start, itemsize)
    expected = {
        i for element in touched for i in range(element * itemsize, (element + 1) * itemsize)
    }
    assert covered(*found) == expected


# --- frames ----------------------------------------------------------------------------


CONTENTS = [b"abcdefgh", b"abcd", b"efgh", b"abcdefgi", b"xxxxxxxxxxxx"]


def frames_of(contents: list[int], codec: list[int]) -> FrameTable:
    """A pack whose frames hold some of `CONTENTS`; the number stands for the digest."""
    sizes = [len(CONTENTS[number]) for number in contents]
    edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    digest = np.zeros((len(contents), 2), np.uint64)
    digest[:, 0] = contents
    known = {
        "offset": edges + 16,
        "plain_start": edges,
        "codec": np.array(codec, np.uint8),
        "digest": digest.view("V16").reshape(-1),
    }
    nothing = np.zeros(len(contents), np.uint8)
    return FrameTable(
        **{field.name: known.get(field.name, nothing) for field in fields(FrameTable)}
    )


def plain(contents: list[int], codec: list[int]) -> bytes:
    """Another codec makes other bytes of the same stored ones."""
    return b"".join(
        bytes(255 - byte for byte in CONTENTS[number]) if kind else CONTENTS[number]
        for number, kind in zip(contents, codec, strict=True)
    )


PACKS = st.lists(
    st.tuples(st.integers(0, len(CONTENTS) - 1), st.sampled_from([0, 0, 0, 1])),
    min_size=12,
    max_size=16,
)


@given(packs=st.tuples(PACKS, PACKS, PACKS), data=st.data())
def test_frames_of_one_digest_are_the_same_bytes(packs, data: st.DataObject) -> None:
    """One pack on the left, two on the right, whose numbers mean nothing to the left."""
    tables_of = [frames_of(*map(list, zip(*pack, strict=True))) for pack in packs]
    streams = [plain(*map(list, zip(*pack, strict=True))) for pack in packs]
    size = 40
    split = data.draw(st.integers(1, size - 1))
    starts = [data.draw(st.sampled_from([0, 0, 4, 8])) for _ in range(3)]
    left = ExtentTable(
        np.array([size], np.uint64), np.array(starts[:1], np.uint64), np.zeros(1, np.uint32)
    )
    right = ExtentTable(
        np.array([split, size - split], np.uint64),
        np.array([starts[1], starts[2]], np.uint64),
        np.array([0, 1], np.uint32),
    )
    old = streams[0][starts[0] :][:size]
    new = streams[1][starts[1] :][:split] + streams[2][starts[2] :][: size - split]
    found = by_frames([left, right], [{0: tables_of[0]}, {0: tables_of[1], 1: tables_of[2]}])
    assert [int(table.length.sum()) for table in found] == [size, size]
    apart = covered(*unshared(*found))
    assert {i for i in range(size) if old[i] != new[i]} <= apart


def test_equal_packs_of_other_numbers_are_found_by_their_frames() -> None:
    frames = frames_of([0, 4, 3], [0, 0, 1])
    left = ExtentTable(*(np.array([n], t) for n, t in ((28, "u8"), (0, "u8"), (0, "u4"))))
    right = ExtentTable(*(np.array([n], t) for n, t in ((28, "u8"), (0, "u8"), (3, "u4"))))
    assert len(unshared(left, right)[0]) == 1
    assert len(unshared(*by_frames([left, right], [{0: frames}, {3: frames}]))[0]) == 0
    other = frames_of([0, 4, 3], [0, 0, 0])
    found = unshared(*by_frames([left, right], [{0: frames}, {3: other}]))
    assert [column.tolist() for column in found] == [[20], [8]]


def test_a_row_past_the_end_of_its_pack() -> None:
    frames = frames_of([0], [0])
    row = ExtentTable(*(np.array([n], t) for n, t in ((4, "u8"), (5, "u8"), (0, "u4"))))
    with pytest.raises(CorruptionError, match="past the end of its pack"):
        by_frames([row, row], [{0: frames}, {0: frames}])


def test_packs_are_known_by_their_seals() -> None:
    def ref(key: str, seal: int, size: int = 100) -> PackRef:
        return PackRef(key, size, 90, 1, bytes([seal]) * 16)

    left, right = pack_numbers(
        [ref("a", 1), ref("b", 2), ref("c", 3)], [ref("x", 3), ref("a", 4), ref("y", 1, 101)]
    )
    assert left.tolist() == [0, 1, 2]
    assert right.tolist() == [2, 3, 4]
