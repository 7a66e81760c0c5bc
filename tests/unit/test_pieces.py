"""Drafts: what is planned of them, and where each position ends up."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.data import pack as pack_module
from ckptflow.model import FILL, KEEP, ExtentTable
from ckptflow.store.planning.pieces import NOWHERE, OWN, Draft


def u64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def table(*rows: tuple[int, ...]) -> ExtentTable:
    whole = np.array([(*row, 0)[:4] for row in rows], np.uint64).reshape(-1, 4)
    length, source, pack, period = whole.T
    return ExtentTable(length, source, pack.astype(np.uint32), period)


def rows_of(rows: ExtentTable) -> list[tuple[int, ...]]:
    columns = (rows.length, rows.source, rows.pack, rows.period)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of 64 bytes, which end packs of 128."""
    monkeypatch.setattr(pack_module, "GATHER_BYTES", 128)
    monkeypatch.setattr(pack_module, "FRAME_BYTES", 64)
    monkeypatch.setattr(pack_module, "PACK_BYTES", 128)


def test_positions_count_through_the_pieces() -> None:
    draft = Draft()
    assert draft.add(0, u64(0, 64), u64(16, 8), 0).tolist() == [0, 16]
    assert draft.add(1, u64(8), u64(40), 1).tolist() == [24]
    assert draft.size_bytes == 64


def test_pieces_of_one_encoding_lie_together() -> None:
    draft = Draft()
    for region, encoding in enumerate([1, 0, 1, 0]):
        draft.add(region, u64(0), u64(16), encoding)
    plan, placed = draft.plan(table((64, 0, OWN)), raw=[0])
    assert plan.region.tolist() == [1, 3, 0, 2]
    assert plan.encoding.tolist() == [0, 0, 1, 1]
    _, rows = placed.final(table(*((16, 16 * n, OWN) for n in range(4))), 7)
    assert rows_of(rows) == [(16, 32, 7, 0), (16, 0, 7, 0), (16, 48, 7, 0), (16, 16, 7, 0)]


def test_what_no_row_refers_to_is_left_out() -> None:
    draft = Draft()
    draft.add(0, u64(0, 100, 200), u64(16, 16, 16), 0)
    needed = table((8, 0, OWN), (16, 9, FILL), (8, 40, OWN), (4, 40, OWN), (9, 16, 0))
    plan, placed = draft.plan(needed, raw=[0])
    assert plan.start.tolist() == [0, 208]
    assert plan.length.tolist() == [8, 8]
    origin, rows = placed.final(needed, 3)
    assert origin.tolist() == [0, 1, 2, 3, 4]
    assert rows_of(rows) == [
        (8, 0, 3, 0),
        (16, 9, FILL, 0),
        (8, 8, 3, 0),
        (4, 8, 3, 0),
        (9, 16, 0, 0),
    ]


def test_logs_say_nowhere_for_what_was_left_out() -> None:
    draft = Draft()
    draft.add(0, u64(0, 100, 200), u64(16, 16, 16), 0)
    _, placed = draft.plan(table((20, 4, OWN)), raw=[0])
    log = table((48, 0, OWN), (16, 5, 0), (16, 8, OWN))
    assert rows_of(placed.written(log)) == [
        (4, 0, NOWHERE, 0),
        (12, 4, OWN, 0),
        (8, 16, OWN, 0),
        (24, 24, NOWHERE, 0),
        (16, 5, 0, 0),
        (8, 8, OWN, 0),
        (8, 16, OWN, 0),
    ]


def test_nothing_to_write() -> None:
    plan, placed = Draft().plan(table((16, 0, 0), (8, 0, FILL)), raw=[0])
    assert plan.pack_count == 0
    assert len(placed.written(table())) == 0
    assert rows_of(placed.final(table((16, 0, 0)), 1)[1]) == [(16, 0, 0, 0)]


def test_rows_are_cut_where_a_pack_ends(small_packs: None) -> None:
    draft = Draft()
    draft.add(0, u64(0), u64(300), 0)
    needed = table((8, 1, 0), (300, 0, OWN), (8, 0, KEEP))
    plan, placed = draft.plan(needed, raw=[0])
    assert plan.pack_edges.tolist() == [0, 128, 256, 300]
    origin, rows = placed.final(needed, 5)
    assert origin.tolist() == [0, 1, 1, 1, 2]
    assert rows_of(rows) == [
        (8, 1, 0, 0),
        (128, 0, 5, 0),
        (128, 0, 6, 0),
        (44, 0, 7, 0),
        (8, 0, KEEP, 0),
    ]


def test_a_period_in_one_pack_stays_a_period(small_packs: None) -> None:
    draft = Draft()
    draft.add(0, u64(*range(0, 400, 40)), np.full(10, 40, np.uint64), 0)
    needed = table(*((200, 40 * n, OWN, 40) for n in range(10)))
    plan, placed = draft.plan(needed, raw=[0])
    assert plan.pack_count > 2
    _, rows = placed.final(needed, 0)
    assert len(rows) == 10
    assert (rows.period == 40).all()
    assert (rows.source + np.uint64(40) <= np.diff(plan.pack_edges)[rows.pack]).all()


def test_a_period_in_two_packs_is_written_out(small_packs: None) -> None:
    """It consists of several pieces, so that a pack may end inside of it."""
    draft = Draft()
    draft.add(0, u64(*range(0, 400, 40)), np.full(10, 40, np.uint64), 0)
    needed = table((8, 9, 0), (190, 120, OWN, 80), (400, 0, OWN))
    plan, placed = draft.plan(needed, raw=[0])
    assert plan.pack_edges.tolist() == [0, 160, 280, 400]
    origin, rows = placed.final(needed, 0)
    head, tail = (40, 120, 0, 0), (40, 0, 1, 0)
    assert rows_of(rows.rows(1, 6)) == [head, tail, head, tail, (30, 120, 0, 0)]
    assert origin[:7].tolist() == [0, 1, 1, 1, 1, 1, 2]
