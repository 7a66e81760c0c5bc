"""A snapshot has what changed, on every backend, and its digests are those of the bytes.

What is expected is written from the definition, in plain Python over the bytes. Regions are of
every length from nothing to some chunks, come and go, grow and shrink; some are only copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.data import digest
from ckptflow.data import snapshot as snapshots
from ckptflow.data.buffers import I64s
from ckptflow.data.regions import flatten
from ckptflow.data.snapshot import (
    COMPARE,
    DIGEST,
    NOTHING,
    WHOLE,
    Parent,
    Places,
    Snapshot,
    capture,
    changed_fractions,
    digests_at,
    torn,
)

BACKENDS = digest.available()
CHUNK = 64


def every_backend() -> Iterator[None]:
    for backend in BACKENDS:
        with digest.use(backend.name, backend.detail):
            yield


def flat(state: dict[str, np.ndarray]) -> tuple[I64s, Snapshot]:
    """Return where the regions of a state lie, and a snapshot to be taken of them."""
    flattened = flatten(state)
    return flattened.table.address, Snapshot(
        flattened.names, Places.of(flattened.table.nbytes, CHUNK)
    )


def cut(data: np.ndarray) -> list[bytes]:
    whole = data.tobytes()
    return [whole[at : at + CHUNK] for at in range(0, len(whole), CHUNK)]


Hows = dict[str, tuple[int, int]]


@st.composite
def states(draw: st.DrawFn) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], Hows]:
    """Two states that follow each other; how each region of the second is captured."""
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    names = draw(st.sets(st.sampled_from("abcd"), min_size=1))
    old = {
        name: rng.integers(0, 256, draw(st.integers(0, 6 * CHUNK)), np.uint8)
        for name in sorted(names)
    }
    new, how = {}, {}
    for name in draw(st.permutations(sorted({*names, "e"}))):
        data = old.get(name, np.zeros(CHUNK, np.uint8))
        size = draw(st.sampled_from([len(data), len(data), len(data) // 2, len(data) + 70]))
        again = np.resize(data, size) if len(data) else np.zeros(size, np.uint8)
        for at in draw(st.lists(st.integers(0, max(0, size - 1)), max_size=3)):
            if size:
                again[at] ^= 1
        new[name] = again
        flags = draw(st.sampled_from([NOTHING, WHOLE, DIGEST, DIGEST, WHOLE | DIGEST]))
        how[name] = int(flags), draw(st.integers(1, 3))
    return old, new, how


@given(case=states())
def test_what_changed_is_held_in_whole_grains(
    case: tuple[dict[str, np.ndarray], dict[str, np.ndarray], Hows],
) -> None:
    old, new, how = case
    for _ in every_backend():
        address, before = flat(old)
        every = np.full(len(before.names), DIGEST, np.uint64)
        nothing = np.ones(len(before.names), np.uint64)
        arena = np.zeros(before.places.arena_bytes, np.uint8)
        taken = capture(
            before, address, every, arena=arena, parent=Parent(before, None),
            grain=nothing, limit_bytes=1 << 30,
        )  # fmt: skip
        assert taken == sum(data.nbytes for data in old.values())
        address, now = flat(new)
        flags = np.array([how[name][0] for name in now_names(now)], np.uint64)
        grain = np.array([how[name][1] for name in now_names(now)], np.uint64)
        arena = np.full(now.places.arena_bytes, 7, np.uint8)
        parent = Parent(now, before)
        taken = capture(
            now, address, flags, arena=arena, parent=parent, grain=grain,
            limit_bytes=1 << 30,
        )  # fmt: skip
        assert taken == check(old, new, how, now, arena)
        marks = {
            name: share for name, share in changed_fractions(now, parent).items()
            if how[name.removeprefix("/")][0] == DIGEST
        }  # fmt: skip
        for name, share in marks.items():
            changed = [a != b for a, b in zip(cut(new[name]), cut(old[name]), strict=False)]
            assert share == sum(changed) / len(changed)


def now_names(snapshot: Snapshot) -> list[str]:
    return [name.removeprefix("/") for name in snapshot.names]


def check(old: dict, new: dict, how: Hows, now: Snapshot, arena: np.ndarray) -> int:
    """Compare a snapshot with what it should be; return the bytes that it should hold."""
    held_bytes, in_arena = 0, np.full(len(arena), 7, np.uint8)
    for number, name in enumerate(now_names(now)):
        flags, grain = how[name]
        chunks, before = cut(new[name]), cut(old.get(name, np.empty(0, np.uint8)))
        if flags & int(DIGEST):
            assert now.digested[number] == bool(chunks)
            assert [digest.digest(chunk) for chunk in chunks] == [
                digest.digest_bytes(one) for one in now.digests_of(number)
            ]
        changed = [n >= len(before) or chunk != before[n] for n, chunk in enumerate(chunks)]
        wanted = [
            flags != NOTHING
            and (bool(flags & int(WHOLE)) or any(changed[n // grain * grain :][:grain]))
            for n in range(len(chunks))
        ]
        assert now.held_of(number).tolist() == wanted
        start = int(now.places.offset[number])
        for n, is_held in enumerate(wanted):
            if is_held:
                piece = np.frombuffer(chunks[n], np.uint8)
                in_arena[start + n * CHUNK :][: len(piece)] = piece
                held_bytes += len(piece)
    assert np.array_equal(arena, in_arena)
    return held_bytes


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_no_more_is_held_than_there_is_room_for(backend: digest.Backend) -> None:
    data = np.random.default_rng(0).integers(0, 256, 100 * CHUNK, np.uint8)
    with digest.use(backend.name, backend.detail):
        address, snapshot = flat({"w": data})
        arguments = {
            "arena": np.zeros(snapshot.places.arena_bytes, np.uint8),
            "parent": Parent(snapshot, None),
            "grain": np.ones(1, np.uint64),
        }
        how = np.array([DIGEST])
        short = capture(snapshot, address, how, limit_bytes=data.nbytes - 1, **arguments)
        enough = capture(snapshot, address, how, limit_bytes=data.nbytes, **arguments)
        assert (short, enough) == (None, data.nbytes)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_region_that_was_written_to_is_found(backend: digest.Backend) -> None:
    state = {name: np.arange(50 + n, dtype=np.float64) for n, name in enumerate("abc")}
    with digest.use(backend.name, backend.detail):
        address, snapshot = flat(state)
        capture(
            snapshot, address, np.full(3, DIGEST), arena=np.zeros(4096, np.uint8),
            parent=Parent(snapshot, None), grain=np.ones(3, np.uint64), limit_bytes=1 << 20,
        )  # fmt: skip
        every = np.ones(3, np.bool_)
        assert torn(snapshot, address, every) == []
        state["b"][49] += 1
        state["c"][0] += 1
        assert torn(snapshot, address, every) == [1, 2]
        assert torn(snapshot, address, np.array([True, True, False])) == [1]


@given(size=st.integers(0, 5 * CHUNK), seed=st.integers(0, 9), data=st.data())
def test_digests_of_some_chunks_are_those_of_all(
    size: int, seed: int, data: st.DataObject
) -> None:
    region = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    every = digest.chunk_digests(region, CHUNK)
    marks = data.draw(st.lists(st.booleans(), min_size=len(every), max_size=len(every)))
    numbers = np.flatnonzero(np.array(marks, np.bool_))
    assert np.array_equal(digests_at(region, numbers, CHUNK), every[numbers])


@given(sizes=st.lists(st.integers(0, 300_000), max_size=8))
def test_no_two_regions_share_a_byte_and_large_ones_share_no_page(sizes: list[int]) -> None:
    places = Places.of(sizes, 4096)
    spans = sorted(
        (places.bytes_of(n).start, places.bytes_of(n).stop, size)
        for n, size in enumerate(sizes)
        if size
    )
    page = snapshots.PAGE_BYTES
    for (_, end, size), (start, _, _) in pairwise(spans):
        assert end <= start
        if size >= snapshots.PAGED_BYTES_MIN:
            assert -(-end // page) * page <= start
    assert all(
        start % page == 0 for start, _, size in spans if size >= snapshots.PAGED_BYTES_MIN
    )
    assert places.arena_bytes >= max((end for _, end, _ in spans), default=0)
    assert places.chunks == sum(-(-size // 4096) for size in sizes)


def test_ten_thousand_tiny_arrays_are_one_call() -> None:
    arrays = [np.full(5, n, np.float32) for n in range(10_000)]
    address, snapshot = flat({"w": arrays})
    arena = np.zeros(snapshot.places.arena_bytes, np.uint8)
    how = np.where(np.arange(10_000) % 2, WHOLE, DIGEST)
    taken = capture(
        snapshot, address, how, arena=arena, parent=Parent(snapshot, None),
        grain=np.ones(10_000, np.uint64), limit_bytes=1 << 30,
    )  # fmt: skip
    assert taken == 200_000
    rows = snapshot.places.offset[:, np.newaxis] + np.arange(20, dtype=np.uint64)
    assert np.array_equal(arena[rows].view(np.float32), np.stack(arrays))


def test_an_arena_that_is_too_short_is_refused() -> None:
    address, snapshot = flat({"w": np.zeros(1000)})
    with pytest.raises(ValueError, match="has 10 bytes, the snapshot needs"):
        capture(
            snapshot, address, np.array([WHOLE]), arena=np.zeros(10, np.uint8),
            parent=Parent(snapshot, None), grain=np.ones(1, np.uint64), limit_bytes=1 << 30,
        )  # fmt: skip
    assert COMPARE == 4
