"""Memory and bandwidth of copies: never more than was said, and in turn."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.flush.limits import (
    FREE_MAX,
    NICE_MAX,
    Bandwidth,
    Buffers,
    ByteBudget,
    step_back,
)


class Clock:
    """Time passes only when somebody pauses."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pause(self, duration_s: float) -> None:
        self.now_s += duration_s


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=50))
def test_on_average_no_more_than_the_limit_goes(sizes: list[int]) -> None:
    clock = Clock()
    bandwidth = Bandwidth(1000, clock=clock)
    for number, size in enumerate(sizes):
        bandwidth.take(size, clock.pause)
        gone = sum(sizes[:number])  # The last has just been let through.
        assert gone <= 1000 * (clock.now_s - 100.0 + 1.0) + 1e-6


def test_a_rest_earns_a_second_s_worth_and_no_more() -> None:
    clock = Clock()
    bandwidth = Bandwidth(1000, clock=clock)
    clock.now_s += 3600
    for _ in range(2):
        bandwidth.take(500, clock.pause)
    assert clock.now_s == 3700.0
    bandwidth.take(1000, clock.pause)
    bandwidth.take(1, clock.pause)
    assert clock.now_s == 3701.0


def test_without_a_limit_nothing_waits() -> None:
    clock = Clock()
    Bandwidth(None, clock=clock).take(1 << 60, clock.pause)
    assert clock.now_s == 100.0


def test_the_budget_is_kept_by_many_threads() -> None:
    budget, lock = ByteBudget(100), threading.Lock()
    held, most = 0, 0

    def work(size: int) -> None:
        nonlocal held, most
        for _ in range(50):
            with budget.hold(size):
                with lock:
                    held += size
                    most = max(most, held)
                with lock:
                    held -= size

    threads = [threading.Thread(target=work, args=(size,)) for size in (10, 30, 40, 60, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most <= 100
    assert budget.held_bytes == 0


def test_what_is_larger_than_the_budget_goes_alone_and_in_its_turn() -> None:
    budget, inside = ByteBudget(10), threading.Event()
    order: list[str] = []

    def work(name: str, size: int) -> None:
        with budget.hold(size):
            order.append(name)
            assert budget.held_bytes == size or size < 10
            inside.set()

    with budget.hold(1):
        threads = [threading.Thread(target=work, args=("large", 1000))]
        threads[0].start()
        while len(budget._waiting) < 1:
            pass
        threads.append(threading.Thread(target=work, args=("small", 1)))
        threads[1].start()
        assert not inside.wait(0.05)  # The small one does not slip by for ever.
    for thread in threads:
        thread.join()
    assert order == ["large", "small"]


def test_an_error_gives_the_memory_back() -> None:
    budget = ByteBudget(10)
    try:
        with budget.hold(7):
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert budget.held_bytes == 0


def test_memory_is_used_again_and_given_back() -> None:
    buffers = Buffers(100)
    with buffers.lend(40) as first:
        first[:] = b"x" * 40
        with buffers.lend(40) as second:
            second[:] = b"y" * 40
            assert bytes(first) == b"x" * 40
    assert buffers.free_bytes == 80
    with buffers.lend(30) as again:
        assert len(again) == 30
        assert bytes(again[:1]) in {b"x", b"y"}  # No fresh pages.
        assert buffers.free_bytes == 40
    with buffers.lend(70):  # None of them is large enough, and with both it would be too much.
        assert buffers.free_bytes == 0
    assert buffers.free_bytes == 70
    buffers.release()
    assert buffers.free_bytes == 0


def test_memory_of_what_failed_is_not_used_again() -> None:
    buffers = Buffers(100)
    with pytest.raises(OSError, match="no answer"), buffers.lend(40):
        raise OSError("no answer")
    assert buffers.free_bytes == 0


@given(sizes=st.lists(st.integers(0, 300), max_size=50))
def test_no_more_memory_is_kept_than_was_said(sizes: list[int]) -> None:
    buffers = Buffers(200)
    for size in sizes:
        with buffers.lend(size) as data:
            assert len(data) == size
        assert buffers.free_bytes <= 200
        assert len(buffers._free) <= FREE_MAX


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_a_thread_steps_back_alone() -> None:
    before, seen = os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), []

    def work() -> None:
        for nice in (0, 3, 1000):
            step_back(nice)
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, min(before + 3, NICE_MAX), NICE_MAX]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
