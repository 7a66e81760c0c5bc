"""The budget holds at every moment, memory is used again, and nobody waits in vain."""

from __future__ import annotations

import random
import threading

import pytest

from ckptflow.checkpointer import arena as arena_module
from ckptflow.checkpointer.arena import (
    BUDGET_BYTES_MIN,
    BUDGET_FRACTION,
    SNAPSHOTS_MAX,
    ArenaPool,
    default_budget_bytes,
)


def held_bytes(pool: ArenaPool) -> int:
    """All memory that the pool keeps alive: lent out, or waiting to be used again."""
    return pool._lent_bytes + sum(len(arena) for arena in pool._free)


def test_memory_is_used_again() -> None:
    pool = ArenaPool(100)
    first = pool.take(60)
    assert first is not None
    pool.give_back(first)
    assert pool.take(60) is first


def test_what_can_never_fit_gets_nothing() -> None:
    pool = ArenaPool(100)
    assert pool.take(101) is None
    assert ArenaPool(0).take(1) is None


def test_a_state_of_nothing_needs_no_budget() -> None:
    arena = ArenaPool(0).take(0)
    assert arena is not None
    assert len(arena) == 0


def test_a_buffer_that_does_not_fit_now_is_waited_for() -> None:
    pool, taken = ArenaPool(100), []
    first = pool.take(60)
    assert first is not None
    waiting = threading.Thread(target=lambda: taken.append(pool.take(50)), daemon=True)
    waiting.start()
    assert taken == []
    pool.give_back(first)
    waiting.join(60)
    assert [len(arena) for arena in taken] == [50]
    assert held_bytes(pool) == 50  # The other size was given up.


def test_sizes_that_come_and_go_stay_within_the_budget() -> None:
    rng, pool, lent = random.Random(3), ArenaPool(1000), []
    for _ in range(3000):
        size = rng.choice([10, 100, 101, 250, 333, 999])
        fits = len(lent) < SNAPSHOTS_MAX and pool._lent_bytes + size <= 1000
        if fits and rng.random() < 0.6:
            arena = pool.take(size)
            assert arena is not None
            assert len(arena) == size
            lent.append(arena)
        elif lent:
            pool.give_back(lent.pop(rng.randrange(len(lent))))
        assert held_bytes(pool) <= 1000


def test_the_number_of_snapshots_is_bounded_however_small_they_are() -> None:
    pool, entered, taken = ArenaPool(1 << 20), threading.Event(), threading.Event()
    lent = [pool.take(1) for _ in range(SNAPSHOTS_MAX)]

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


def test_threads_never_hold_more_than_the_budget_and_all_finish() -> None:
    pool, lock, held, peak = ArenaPool(100), threading.Lock(), 0, 0

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
