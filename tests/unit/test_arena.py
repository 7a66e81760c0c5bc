"""The budget holds at any moment; memory is used again or given back; nobody waits in vain."""

from __future__ import annotations

import ctypes
import mmap
import random
import threading

import numpy as np
import pytest

from ckptflow.checkpointer import arena as arena_module
from ckptflow.checkpointer.arena import (
    BUDGET_BYTES_MIN,
    BUDGET_FRACTION,
    Arena,
    ArenaPool,
    default_budget_bytes,
)

FEW = 4
PAGE = mmap.PAGESIZE


def pool_of(budget_bytes: int) -> ArenaPool:
    return ArenaPool(budget_bytes, FEW)


def reserved_bytes(pool: ArenaPool) -> int:
    """All that could be resident: lent out, or waiting to be used again."""
    return pool.counted_bytes + sum(len(arena) for arena in pool._free)


def resident_bytes(arena: Arena) -> int:
    """What the kernel says of the pages of an arena; other memory does not count."""
    pages = -(-len(arena) // PAGE)
    found = (ctypes.c_ubyte * pages)()
    address = ctypes.c_void_p(arena.bytes.ctypes.data)
    assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(len(arena)), found) == 0
    return sum(one & 1 for one in bytes(found)) * PAGE


def test_memory_is_used_again() -> None:
    pool = pool_of(100)
    first = pool.take(60)
    assert first is not None
    pool.give_back(first)
    assert pool.take(60) is first


def test_what_can_never_fit_gets_nothing() -> None:
    pool = pool_of(100)
    assert pool.take(101) is None
    assert pool_of(0).take(1) is None


def test_a_state_of_nothing_needs_no_budget() -> None:
    arena = pool_of(0).take(0)
    assert arena is not None
    assert len(arena) == 0


def test_an_arena_takes_the_memory_that_was_written_and_gives_it_back() -> None:
    pool, size = pool_of(1 << 40), 1 << 30
    arena = pool.take(size, 10 * PAGE)
    assert arena is not None
    arena.scatter(few=True)
    arena.bytes[:: size // 16] = 1
    assert resident_bytes(arena) == 16 * PAGE
    arena.passing = [(0, size // 2)]
    pool.give_back(arena)
    assert resident_bytes(arena) == 8 * PAGE
    assert not arena.bytes[: size // 2 : size // 16].any()
    assert arena.bytes[size // 2 :: size // 16].all()


def test_memory_that_is_prepared_is_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for advice in (arena_module._POPULATE_WRITE, -1):  # As on a kernel that does not know it.
        monkeypatch.setattr(arena_module, "_POPULATE_WRITE", advice)
        pool, size = pool_of(1 << 30), 64 * PAGE
        pool.prepare(size)
        (arena,) = pool._free
        assert resident_bytes(arena) == size
        assert pool.take(size) is arena


def test_a_part_of_a_page_is_never_given_back() -> None:
    arena = Arena(3 * PAGE)
    arena.bytes[:] = 1
    arena.forget([(1, PAGE + 1), (PAGE + 1, 3 * PAGE - 1)])
    assert arena.bytes.all()
    arena.forget([(1, 3 * PAGE)])
    assert arena.bytes[:PAGE].all()
    assert not arena.bytes[PAGE:].any()


def test_what_is_held_counts_and_not_what_is_reserved() -> None:
    pool = pool_of(100)
    first = pool.take(1000, 40)
    assert first is not None
    assert pool.limit_bytes(first) == 100
    pool.count(first, 10)
    second = pool.take(1000, 90)
    assert second is not None
    assert pool.limit_bytes(second) == 90


def test_an_arena_may_come_to_hold_more_when_others_are_given_back() -> None:
    pool, grown = pool_of(100), threading.Event()
    first, second = pool.take(100, 40), pool.take(100, 40)
    assert first is not None
    assert second is not None
    assert not pool.expand(first, 101)

    def expand() -> None:
        assert pool.expand(first, 100)
        grown.set()

    thread = threading.Thread(target=expand, daemon=True)
    thread.start()
    assert not grown.wait(0.05)
    pool.give_back(second)
    thread.join(60)
    assert pool.counted_bytes == 100


def test_what_is_set_aside_counts_by_its_bytes_only() -> None:
    pool = pool_of(100)
    lent = [pool.take(10) for _ in range(FEW)]
    assert lent[0] is not None
    pool.set_aside(lent[0])
    assert pool.take(10) is not None
    assert pool.counted_bytes == 10 * (FEW + 1)
    pool.give_back(lent[0])
    assert pool.counted_bytes == 10 * FEW


def test_an_arena_that_does_not_fit_now_is_waited_for() -> None:
    pool, taken = pool_of(100), []
    first = pool.take(60)
    assert first is not None
    waiting = threading.Thread(target=lambda: taken.append(pool.take(50)), daemon=True)
    waiting.start()
    assert taken == []
    pool.give_back(first)
    waiting.join(60)
    assert [len(arena) for arena in taken] == [50]
    assert reserved_bytes(pool) == 50  # The other size was given up.


def test_sizes_that_come_and_go_stay_within_the_budget() -> None:
    rng, pool, lent = random.Random(3), pool_of(1000), []
    for _ in range(3000):
        size = rng.choice([10, 100, 101, 250, 333, 999])
        fits = len(lent) < FEW and pool.counted_bytes + size <= 1000
        if fits and rng.random() < 0.6:
            arena = pool.take(size)
            assert arena is not None
            assert len(arena) == size
            lent.append(arena)
        elif lent:
            pool.give_back(lent.pop(rng.randrange(len(lent))))
        assert reserved_bytes(pool) <= 1000


def test_the_number_of_snapshots_is_bounded_however_small_they_are() -> None:
    pool, entered, taken = pool_of(1 << 20), threading.Event(), threading.Event()
    lent = [pool.take(1) for _ in range(FEW)]

    def one_more() -> None:
        entered.set()
        pool.take(1)
        taken.set()

    thread = threading.Thread(target=one_more)
    thread.start()
    assert entered.wait(60)
    assert not taken.is_set()
    assert lent[0] is not None
    pool.give_back(lent[0])
    assert taken.wait(60)
    thread.join()


def test_what_never_comes_back_does_not_count_and_is_not_used_again() -> None:
    pool = pool_of(100)
    arena = pool.take(60)
    assert arena is not None
    pool.write_off(arena)
    assert pool.counted_bytes == 0
    pool.give_back(arena)
    assert pool.take(60) is not arena


def test_threads_never_hold_more_than_the_budget_and_all_finish() -> None:
    pool, lock, held, peak = pool_of(100), threading.Lock(), 0, 0

    def work(seed: int) -> None:
        nonlocal held, peak
        rng = random.Random(seed)
        for _ in range(50):
            arena = pool.take(rng.randrange(1, 101))
            assert arena is not None
            with lock:
                held += len(arena)
                peak = max(peak, held)
            with lock:
                held -= len(arena)
            pool.give_back(arena)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert 0 < peak <= 100


@pytest.mark.parametrize(
    ("available", "expected"),
    [(1 << 40, int(BUDGET_FRACTION * (1 << 40))), (0, BUDGET_BYTES_MIN)],
)
def test_the_default_is_a_part_of_what_is_available(
    monkeypatch: pytest.MonkeyPatch, available: int, expected: int
) -> None:
    monkeypatch.setattr(
        arena_module.psutil, "virtual_memory", lambda: type("M", (), {"available": available})
    )
    assert default_budget_bytes() == expected


def test_an_arena_is_as_long_as_it_was_asked_for() -> None:
    arena = Arena(PAGE + 5)
    assert len(arena) == PAGE + 5
    assert arena.bytes.dtype == np.uint8
