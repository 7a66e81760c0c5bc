"""Which short runs become new bytes: those that touch new ones and cost less than a row."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.data.scan import Kind, Runs
from ckptflow.store.planning.short_runs import NO_CELL, SHORT_BYTES_MAX, without_short_runs

N, F, K = Kind.NEW, Kind.FILL, Kind.KNOWN


def runs_of(*runs: tuple[int, Kind, int]) -> Runs:
    """Runs of (gap before, kind, length)."""
    kind, start, length, at = [], [], [], 0
    for gap, what, size in runs:
        at += gap
        kind.append(what)
        start.append(at)
        length.append(size)
        at += size
    ref = np.arange(len(runs), dtype=np.uint64) + np.uint64(70)
    return Runs(
        np.array(kind, np.uint8), np.array(start, np.uint64), np.array(length, np.uint64), ref
    )


def kinds(runs: Runs, ratio: float) -> list[int]:
    result = without_short_runs(runs, ratio=ratio)
    assert result.start_bytes.tolist() == runs.start_bytes.tolist()
    assert result.length_bytes.tolist() == runs.length_bytes.tolist()
    for before, after, ref, new_ref in zip(
        runs.kind, result.kind, runs.ref, result.ref, strict=True
    ):
        assert new_ref == (ref if before == after else NO_CELL)
    return result.kind.tolist()


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (runs_of((0, N, 640), (0, K, 64), (0, N, 64)), [N, N, N]),
        (runs_of((0, N, 640), (0, F, 64), (0, K, 64)), [N, N, N]),
        (runs_of((0, K, 64), (0, F, 64), (0, N, 64)), [N, N, N]),
        (runs_of((0, N, 64), (64, K, 64)), [N, K]),  # Not beside it.
        (runs_of((0, K, 64), (0, F, 64)), [K, F]),  # Nothing new.
        (runs_of((0, N, 64), (0, K, 128), (0, F, 64), (0, N, 64)), [N, K, N, N]),
        (runs_of((0, N, 64), (0, K, 128), (0, F, 64)), [N, K, F]),  # Behind a long one.
    ],
)
def test_at_a_ratio_of_ten_less_than_eighty_bytes_are_short(
    runs: Runs, expected: list[int]
) -> None:
    assert kinds(runs, 10.0) == expected


def test_bytes_that_do_not_shrink_are_worth_a_row() -> None:
    runs = runs_of((0, N, 64), (0, K, 16), (0, F, 16))
    assert kinds(runs, 1.0) == [N, K, F]


def test_however_well_they_shrink_long_runs_stay() -> None:
    runs = runs_of((0, N, 64), (0, K, SHORT_BYTES_MAX), (0, N, 64))
    assert kinds(runs, 1e6) == [N, K, N]
    assert kinds(runs_of(), 1e6) == []
