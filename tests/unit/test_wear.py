"""Which packs are left behind, and that what is needed of them is written once and found."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.model import FILL, KEEP, DeltaOp, ExtentTable
from ckptflow.store.planning import wear
from ckptflow.store.planning.drafting import GATHERED
from ckptflow.store.planning.lines import Layers
from ckptflow.store.planning.pieces import NOWHERE, OWN, Draft
from ckptflow.store.planning.wear import Worn, outworn


def table(*rows: tuple[int, ...]) -> ExtentTable:
    """Rows of length, source, pack, and maybe a period."""
    whole = np.array([(*row, 0)[:4] for row in rows], np.uint64).reshape(-1, 4)
    length, source, pack, period = whole.T
    return ExtentTable(length, source, pack.astype(np.uint32), period)


def rows_of(rows: ExtentTable) -> list[tuple[int, ...]]:
    columns = (rows.length, rows.source, rows.pack, rows.period)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def worn_of(sizes: list[int], *regions: Layers) -> list[bool]:
    return outworn(regions, np.array(sizes, np.uint64)).tolist()


def drafted(draft: Draft) -> list[tuple[int, int, int]]:
    """Region, start and length of everything in the draft."""
    whole = table((draft.size_bytes, 0, OWN))
    plan, _ = draft.plan(whole, raw=[0])
    assert set(plan.encoding.tolist()) <= {GATHERED}
    columns = (plan.region, plan.start, plan.length)
    return list(zip(*(column.tolist() for column in columns), strict=True))


# --- which ---


def test_a_pack_of_which_less_than_a_quarter_is_needed() -> None:
    assert worn_of([400, 400], Layers(table((99, 0, 0), (100, 300, 1)))) == [True, False]


def test_a_pack_that_nobody_needs_is_not_left_behind_but_gone() -> None:
    assert worn_of([400, 400], Layers(table((400, 0, 1)))) == [False, False]


def test_what_is_needed_twice_counts_once() -> None:
    """By rows that overlap, in several regions, and by periods."""
    rows = table((60, 0, 0), (60, 30, 0), (500, 80, 0, 10))
    assert worn_of([400], Layers(rows), Layers(table((90, 0, 0)))) == [True]
    assert worn_of([360], Layers(rows)) == [False]


def test_deltas_need_their_packs_too() -> None:
    bottom, delta = table((400, 0, 0)), table((200, 0, KEEP), (200, 0, 1))
    layers = Layers(bottom, ((DeltaOp.XOR, 8, delta),))
    assert worn_of([400, 400], layers) == [False, False]
    assert worn_of([400, 900], layers) == [False, True]


def test_new_bytes_and_fills_are_in_no_older_pack() -> None:
    assert worn_of([80], Layers(table((99, 0, OWN), (99, 0, FILL), (20, 0, 0)))) == [False]


def test_the_smallest_of_too_many_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wear, "PACKS_MAX", 3)
    sizes = [1000, 16, 300, 16, 900, 40]
    rows = Layers(table(*((size, 0, number) for number, size in enumerate(sizes))))
    # Three have to go; 300 is more than these have together, so it stays.
    assert worn_of(sizes, rows) == [False, True, False, True, False, True]
    rows = Layers(table(*((size, 0, number) for number, size in enumerate([*sizes, 60]))))
    # Four have to, and now those, with 132, are still less than 300.
    assert worn_of([*sizes, 60], rows) == [False, True, False, True, False, True, True]
    close = [100, 16, 20, 30, 70, 90]
    rows = Layers(table(*((size, 0, number) for number, size in enumerate(close))))
    # Three have to go, have 66 together, and 70 stays; one byte less, and it would go, too.
    assert worn_of(close, rows) == [False, True, True, True, False, False]
    close[4] = 66
    rows = Layers(table(*((size, 0, number) for number, size in enumerate(close))))
    assert worn_of(close, rows) == [True, True, True, True, True, True]


def test_large_packs_stay_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large state has many; were they counted, every delta would be a full checkpoint."""
    monkeypatch.setattr(wear, "PACKS_MAX", 3)
    monkeypatch.setattr(wear, "LARGE_BYTES", 900)
    sizes = [1000] * 40
    rows = Layers(table(*((900, 0, number) for number in range(40))))
    assert not any(worn_of(sizes, rows))
    rows = Layers(table(*((899, 0, number) for number in range(40))))
    assert all(worn_of(sizes, rows))
    sizes += [16, 300, 16, 40]
    rows = Layers(table(*((size, 0, number) for number, size in enumerate(sizes))))
    assert worn_of(sizes, rows) == [False] * 40 + [True, False, True, False]


# --- where to ---


def test_what_rows_share_is_written_once() -> None:
    regions = [
        Layers(table((30, 10, 0), (8, 0, FILL), (30, 20, 0))),
        Layers(table((40, 30, 0), (16, 0, 1))),
    ]
    draft = Draft()
    moving = Worn(np.array([True, False]), np.array([400, 16], np.uint64), draft, regions)
    first, second = (moving.replace(number, one) for number, one in enumerate(regions))
    assert drafted(draft) == [(0, 0, 30), (0, 58, 10), (1, 20, 20)]
    assert rows_of(first.bottom) == [(30, 0, OWN, 0), (8, 0, FILL, 0), (30, 10, OWN, 0)]
    assert rows_of(second.bottom) == [(40, 20, OWN, 0), (16, 0, 1, 0)]


def test_logs_follow_what_was_moved_and_lose_the_rest() -> None:
    regions = [Layers(table((30, 10, 0)))]
    draft = Draft()
    draft.add(0, np.zeros(1, np.uint64), np.array([100], np.uint64), 0)
    moving = Worn(np.array([True]), np.array([400], np.uint64), draft, regions)
    log = table((16, 0, 0), (16, 16, 0), (16, 5, OWN), (16, 300, 0))
    assert rows_of(moving.follow(log)) == [
        (10, 0, NOWHERE, 0),
        (6, 100, OWN, 0),
        (16, 106, OWN, 0),
        (16, 5, OWN, 0),
        (16, 300, NOWHERE, 0),
    ]


def test_periods_are_moved_in_one_piece_and_stay_periods() -> None:
    """Even where another row begins, or ends, inside of one."""
    regions = [
        Layers(table((100, 40, 0, 24), (30, 20, 0))),
        Layers(table((96, 48, 0, 48), (10, 60, 0))),
    ]
    draft = Draft()
    moving = Worn(np.array([True]), np.array([999], np.uint64), draft, regions)
    first, second = (moving.replace(number, one) for number, one in enumerate(regions))
    assert rows_of(first.bottom) == [(100, 20, OWN, 24), (30, 0, OWN, 0)]
    assert rows_of(second.bottom) == [(96, 28, OWN, 48), (10, 40, OWN, 0)]
    assert draft.size_bytes == 96 - 20


def test_under_deltas_ranges_are_written_as_they_are_now() -> None:
    """The bytes below are not in memory, only what all layers make of them."""
    bottom = table((64, 0, 0), (64, 0, 1), (64, 64, 0))
    lower = table((32, 0, KEEP), (64, 0, 2), (96, 0, KEEP))
    upper = table((120, 0, KEEP), (72, 0, 3))
    region = Layers(bottom, ((DeltaOp.XOR, 8, lower), (DeltaOp.SUB, 4, upper)))
    sizes = np.array([999, 64, 64, 72], np.uint64)
    draft = Draft()
    moving = Worn(np.array([True, False, False, False]), sizes, draft, [region])
    after = moving.replace(0, region)
    assert drafted(draft) == [(0, 0, 64), (0, 128, 64)]
    assert rows_of(after.bottom) == [(64, 0, OWN, 0), (64, 0, 1, 0), (64, 64, OWN, 0)]
    assert [rows_of(rows) for _, _, rows in after.deltas] == [
        [(64, 0, KEEP, 0), (32, 32, 2, 0), (32, 0, KEEP, 0), (64, 0, KEEP, 0)],
        [(64, 0, KEEP, 0), (56, 0, KEEP, 0), (8, 0, 3, 0), (64, 0, KEEP, 0)],
    ]


def test_a_delta_in_an_outworn_pack_takes_what_is_below_with_it() -> None:
    bottom = table((128, 0, 0))
    delta = table((32, 0, KEEP), (64, 0, 1), (32, 0, KEEP))
    region = Layers(bottom, ((DeltaOp.XOR, 8, delta),))
    draft = Draft()
    moving = Worn(np.array([False, True]), np.array([128, 999], np.uint64), draft, [region])
    after = moving.replace(0, region)
    assert drafted(draft) == [(0, 32, 64)]
    assert after.deltas == ()  # Of its layer nothing is left.
    assert rows_of(after.bottom) == [(32, 0, 0, 0), (64, 0, OWN, 0), (32, 96, 0, 0)]
