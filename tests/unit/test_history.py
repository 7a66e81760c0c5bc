"""A history numbers digests in the order they were met, forgets by rule, and can roll back."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.data import digest, history
from ckptflow.data.history import History, diff_region
from ckptflow.data.scan import Changes, Kind, Scratch, collect_runs, scan
from ckptflow.errors import ConfigError

CELL = 16


@pytest.fixture(
    params=digest.available(),
    ids=lambda backend: f"{backend.name}-{backend.detail}",
    autouse=True,
)
def backend(request: pytest.FixtureRequest):
    with digest.use(request.param.name, request.param.detail) as chosen:
        yield chosen


def cells(*numbers: int, kind: int = Kind.NEW) -> Changes:
    """Changed cells whose digests are numbers; equal numbers are equal cells."""
    count = len(numbers)
    digests = np.array([(n * 0x9E3779B97F4A7C15 % 2**64, n) for n in numbers], np.uint64)
    return Changes(
        CELL * count,
        CELL,
        np.empty((0, 2), np.uint64),
        np.arange(count, dtype=np.uint64),
        digests.reshape(-1, 2),
        np.full(count, kind, np.uint8),
        np.zeros(count, np.uint64),
    )


def found(met: History, *numbers: int) -> list[tuple[int, str]]:
    ids, kinds = met.find_or_add(cells(*numbers))
    return [(i, Kind(k).name) for i, k in zip(ids.tolist(), kinds.tolist(), strict=True)]


def test_ids_are_given_in_the_order_of_first_occurrence() -> None:
    met = History(CELL, limit=100)
    assert found(met, 7, 5, 7, 7, 3) == [
        (0, "NEW"), (1, "NEW"), (0, "KNOWN"), (0, "KNOWN"), (2, "NEW"),
    ]  # fmt: skip
    assert found(met, 3, 4, 5) == [(2, "KNOWN"), (3, "NEW"), (1, "KNOWN")]
    assert (met.first_id, met.next_id, len(met)) == (0, 4, 4)
    assert np.array_equal(met.digests, cells(7, 5, 3, 4).digest)


def test_the_first_id_may_be_any() -> None:
    met = History(CELL, limit=100, first_id=2**40)
    assert found(met, 7, 5, 7) == [(2**40, "NEW"), (2**40 + 1, "NEW"), (2**40, "KNOWN")]
    assert (met.first_id, met.next_id) == (2**40, 2**40 + 2)


def test_fills_are_not_in_the_history() -> None:
    met = History(CELL, limit=100)
    ids, kinds = met.find_or_add(cells(1, 1, kind=Kind.FILL))
    assert (ids.tolist(), kinds.tolist(), len(met)) == ([0, 0], [Kind.FILL] * 2, 0)


def test_what_was_found_does_not_change_the_changes() -> None:
    changes = cells(1, 1)
    History(CELL, limit=100).find_or_add(changes)
    assert changes.kind.tolist() == [Kind.NEW, Kind.NEW]


def test_nothing_changed() -> None:
    met = History(CELL, limit=1)
    assert found(met) == []
    met.commit()
    met.rollback()
    assert len(met) == 0


def test_rollback_leaves_everything_as_before(rng: np.random.Generator) -> None:
    met = History(CELL, limit=10**6)
    met.find_or_add(cells(*range(1000)))
    met.commit()
    before = met.digests.copy()
    met.find_or_add(cells(*range(500, 30_000)))
    met.find_or_add(cells(*rng.integers(0, 60_000, 1000).tolist()))
    met.rollback()
    assert np.array_equal(met.digests, before)
    assert (met.first_id, met.next_id) == (0, 1000)
    # Ids are given again, to other digests; none of those added in between is known.
    assert found(met, 29_999, 999, 1000) == [(1000, "NEW"), (999, "KNOWN"), (1001, "NEW")]


def test_rollback_after_commit_takes_nothing_back() -> None:
    met = History(CELL, limit=100)
    found(met, 1)
    met.commit()
    met.rollback()
    assert found(met, 1) == [(0, "KNOWN")]


def test_commit_forgets_the_older_half_of_too_many() -> None:
    met = History(CELL, limit=4)
    found(met, 0, 1, 2, 3)
    met.commit()
    assert (met.first_id, len(met)) == (0, 4)
    found(met, 4)
    assert len(met) == 5  # Until the commit, nothing is forgotten.
    met.commit()
    assert (met.first_id, met.next_id, len(met)) == (3, 5, 2)
    assert np.array_equal(met.digests, cells(3, 4).digest)
    assert found(met, 2, 3, 4, 2) == [(5, "NEW"), (3, "KNOWN"), (4, "KNOWN"), (5, "KNOWN")]


def test_commit_forgets_halves_until_the_limit_holds() -> None:
    met = History(CELL, limit=3)
    found(met, *range(50))
    met.commit()
    assert (met.first_id, met.next_id, len(met)) == (47, 50, 3)  # 50, 25, 12, 6, 3


def test_growth_keeps_every_digest(rng: np.random.Generator) -> None:
    met = History(CELL, limit=10**6)
    expected: dict[int, int] = {}
    for _ in range(20):
        numbers = rng.integers(0, 40_000, 3000).tolist()
        ids, kinds = met.find_or_add(cells(*numbers))
        news = []
        for number in numbers:
            news.append(Kind.KNOWN if number in expected else Kind.NEW)
            expected.setdefault(number, len(expected))
        assert ids.tolist() == [expected[number] for number in numbers]
        assert kinds.tolist() == news
        met.commit()
    assert met.nbytes >= 16 * len(met)


def test_digests_that_differ_in_one_half_only_are_different() -> None:
    same_slot = cells(0, 0, 0, 0)
    same_slot.digest[:, 0] = (5, 5, 5, 6)
    same_slot.digest[:, 1] = (1, 2, 1 + 2**32, 1)  # The third has the tag of the first.
    ids, kinds = History(CELL, limit=100).find_or_add(same_slot)
    assert ids.tolist() == [0, 1, 2, 3]
    assert kinds.tolist() == [Kind.NEW] * 4


def test_one_history_for_several_regions() -> None:
    met, scratch = History(CELL, limit=100), Scratch()
    sizes = {"chunk_bytes": 32, "scratch": scratch}
    text = bytes(range(80))
    _, first = diff_region(text, met, **sizes)
    _, second = diff_region(text[16:48] + bytes(16) + text[:16], met, **sizes)
    assert first.kind.tolist() == [Kind.NEW]
    assert second.kind.tolist() == [Kind.KNOWN, Kind.FILL, Kind.KNOWN]
    assert second.ref.tolist() == [1, 0, 0]
    assert second.length_bytes.tolist() == [32, 16, 16]


@pytest.mark.parametrize("limit", [0, -1, 2**32])
def test_a_limit_that_no_history_has(limit: int) -> None:
    with pytest.raises(ConfigError, match=f"holds 1 to 4294967294 digests, not {limit}"):
        History(CELL, limit)


def test_more_digests_than_can_be_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ENTRIES_MAX", 10)
    met = History(CELL, limit=5)
    found(met, *range(8))
    with pytest.raises(
        ConfigError, match=r"holds 10 digests; it has 8, and 3 cells.* more than 16 bytes"
    ):
        found(met, 8, 9, 10)
    assert len(met) == 8


def test_cells_of_another_size_are_not_found() -> None:
    with pytest.raises(ConfigError, match=r"of 16 bytes .* history of cells of 32 bytes"):
        History(32, limit=5).find_or_add(cells(1))


def test_runs_need_a_kind_and_an_id_for_each_cell() -> None:
    changes = cells(1, 2)
    kinds, ids = changes.kind, changes.index
    with pytest.raises(ValueError, match=r"2 changed cells have 2 kinds and ids, got \(1,\)"):
        collect_runs(changes, kinds[:1], ids, 32)
    with pytest.raises(ValueError, match=r"Cell 1 of 16 bytes lies outside of a region of 16"):
        collect_runs(changes, kinds, ids, 16)


@pytest.mark.parametrize("chunk", [0, 8, -64, 60])
def test_chunks_that_there_are_not(chunk: int) -> None:
    with pytest.raises(ConfigError, match=f"chunk_bytes must be .* got {chunk}"):
        scan(bytes(64), chunk_bytes=chunk, cell_bytes=16)


@pytest.mark.parametrize("cell", [0, 8, -16, 20, 24, 128])
def test_cells_that_there_are_not(cell: int) -> None:
    message = f"cell_bytes must be .* divide chunk_bytes, which is 64; got {cell}"
    with pytest.raises(ConfigError, match=message):
        scan(bytes(64), chunk_bytes=64, cell_bytes=cell)


def test_a_region_of_less_than_a_cell_is_fine() -> None:
    changes = scan(b"abc", chunk_bytes=1024, cell_bytes=1024)
    assert (changes.index.tolist(), changes.changed_bytes) == ([0], 3)
    assert len(scan(b"", chunk_bytes=1024, cell_bytes=1024)) == 0


@pytest.mark.parametrize(
    "bad", [np.zeros(4, np.uint64), np.zeros((2, 2)), np.zeros((2, 3), "u8")]
)
def test_old_digests_have_their_shape(bad: np.ndarray) -> None:
    for name in ("old_chunks", "old_cells"):
        with pytest.raises(ValueError, match=f"{name} must be uint64 of shape"):
            scan(bytes(64), chunk_bytes=64, cell_bytes=16, **{name: bad})


def test_cells_that_nobody_told_of() -> None:
    first = scan(bytes(range(64)), chunk_bytes=32, cell_bytes=16)
    same = scan(bytes(range(64)), chunk_bytes=32, cell_bytes=16, old_chunks=first.chunks)
    with pytest.raises(ValueError, match="4 unchanged cells have no digest: there are 0 old"):
        same.cells(None)
    assert np.array_equal(same.cells(first.digest), first.digest)
