"""Runs say how every byte of a region comes back, in the fewest pieces.

The laws, over regions and edits of every kind, are in ``property/test_diff_laws.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.data import digest
from ckptflow.data.diff import Kind, diff_region
from ckptflow.errors import ConfigError

C = 64  # bytes in a chunk
SAME, DATA, FILL = Kind.SAME, Kind.DATA, Kind.FILL


@pytest.fixture(
    params=digest.available(),
    ids=lambda backend: f"{backend.name}-{backend.detail}",
    autouse=True,
)
def backend(request: pytest.FixtureRequest):
    with digest.use(request.param.name, request.param.detail) as chosen:
        yield chosen


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def runs_of(data: bytes, parent: bytes | None = None, **options: int):
    """Runs as (kind, start, length, pattern)."""
    before = None if parent is None else digest.chunk_digests(parent, C)
    runs = diff_region(data, digest.chunk_digests(data, C), before, chunk_bytes=C, **options)
    columns = (runs.kind, runs.start_bytes, runs.length_bytes, runs.pattern)
    assert [column.dtype for column in columns] == [np.uint8, *[np.uint64] * 3]
    assert len(runs) == len(runs.kind)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_nothing_has_no_runs() -> None:
    assert runs_of(b"") == []
    assert runs_of(b"", noise(3 * C)) == []


def test_without_a_parent_everything_is_new() -> None:
    assert runs_of(noise(3 * C + 5)) == [(DATA, 0, 3 * C + 5, 0)]


def test_an_unchanged_region_is_one_run_with_its_tail() -> None:
    data = noise(3 * C + 5)
    assert runs_of(data, data) == [(SAME, 0, 3 * C + 5, 0)]


def test_an_unchanged_fill_is_the_same_and_not_stored_again() -> None:
    assert runs_of(bytes(2 * C), bytes(2 * C)) == [(SAME, 0, 2 * C, 0)]


def test_a_changed_byte_changes_its_chunk_alone() -> None:
    old = noise(4 * C)
    new = bytearray(old)
    new[2 * C - 1] ^= 1
    assert runs_of(bytes(new), old) == [
        (SAME, 0, C, 0),
        (DATA, C, C, 0),
        (SAME, 2 * C, 2 * C, 0),
    ]


def test_neighbouring_fills_join_if_their_pattern_goes_on() -> None:
    data = bytes(2 * C) + b"\1\2\3\4\5\6\7\10" * (2 * C // 8) + noise(C) + b"\xff" * C
    assert runs_of(data) == [
        (FILL, 0, 2 * C, 0),
        (FILL, 2 * C, 2 * C, 0x0807060504030201),
        (DATA, 4 * C, C, 0),
        (FILL, 5 * C, C, 0xFFFFFFFFFFFFFFFF),
    ]


@pytest.mark.parametrize("at", [0, 7, 8, 63])
def test_one_byte_off_is_no_fill(at: int) -> None:
    data = bytearray(C)
    data[at] = 1
    assert runs_of(bytes(data)) == [(DATA, 0, C, 0)]


def test_doubles_that_are_all_equal_are_a_fill() -> None:
    data = np.full(5 * C // 8, 0.1)
    pattern = int(np.array(0.1).view(np.uint64))
    assert runs_of(data.tobytes()) == [(FILL, 0, 5 * C, pattern)]


@pytest.mark.parametrize(("tail", "kind"), [(8, FILL), (16, FILL), (1, DATA), (12, DATA)])
def test_a_last_chunk_is_a_fill_only_in_whole_eights(tail: int, kind: Kind) -> None:
    end = [] if kind == FILL else [(DATA, C, tail, 0)]
    assert runs_of(bytes(C + tail)) == [(FILL, 0, C + (tail if not end else 0), 0), *end]


def test_a_grown_region_keeps_what_it_had() -> None:
    data = noise(4 * C)
    assert runs_of(data, data[: 2 * C]) == [(SAME, 0, 2 * C, 0), (DATA, 2 * C, 2 * C, 0)]


def test_a_shrunk_region_keeps_what_is_left() -> None:
    data = noise(4 * C)
    assert runs_of(data[: 2 * C], data) == [(SAME, 0, 2 * C, 0)]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("before", "now"), [(2 * C - 8, 2 * C), (2 * C, 2 * C - 8), (C + 1, C + 2)]
)
def test_a_chunk_of_another_length_is_another_chunk(before: int, now: int, told: bool) -> None:
    data = bytes(noise(C)) + bytes(C)
    options = {"parent_bytes": before} if told else {}
    kind, start, length, _ = runs_of(data[:now], data[:before], **options)[-1]
    assert (start, length) == (C, now - C)
    assert kind != SAME


def test_the_length_counts_even_if_the_digest_agrees() -> None:
    """No real digests do that: the parent is made to claim ours for a shorter chunk."""
    data = noise(2 * C)
    ours = digest.chunk_digests(data, C)
    runs = diff_region(data, ours, ours, chunk_bytes=C, parent_bytes=2 * C - 1)
    assert runs.kind.tolist() == [SAME, DATA]


def test_digests_must_be_those_of_the_region() -> None:
    ours = digest.chunk_digests(noise(2 * C), C)
    with pytest.raises(ValueError, match=r"^digests of 129 bytes must be .* shape \(3, 2\)"):
        diff_region(noise(2 * C + 1), ours, None, chunk_bytes=C)
    with pytest.raises(ValueError, match=r"parent_digests of 64 bytes must .* shape \(1, 2\)"):
        diff_region(noise(2 * C), ours, ours, chunk_bytes=C, parent_bytes=C)
    with pytest.raises(ValueError, match="got int64"):
        diff_region(noise(2 * C), ours.view(np.int64), None, chunk_bytes=C)
    with pytest.raises(ConfigError, match="got 12"):
        diff_region(noise(2 * C), ours, None, chunk_bytes=12)
