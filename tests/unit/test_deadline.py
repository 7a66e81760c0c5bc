"""Deadlines are arithmetic; signals set a flag, and leave the process as they found it."""

from __future__ import annotations

import math
import os
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.workflow.deadline import (
    Deadline,
    StopSignals,
    StopWatch,
    deadlines_in,
    earliest,
)

seconds = st.floats(0, 1e6)


def send(number: signal.Signals) -> None:
    """Send a signal to this process; Python runs the handler before the next statement."""
    os.kill(os.getpid(), number)


@given(now_s=seconds, later_s=seconds, save_time_s=seconds)
def test_once_over_always_over(now_s: float, later_s: float, save_time_s: float) -> None:
    deadline = Deadline(1e5, margin_s=10)
    if deadline.reason(save_time_s, now_s):
        assert deadline.reason(save_time_s, now_s + later_s)


@given(save_time_s=st.floats(0, 1e3), margin_s=st.floats(0, 1e3))
def test_the_last_chance_leaves_room_for_a_slow_save(
    save_time_s: float, margin_s: float
) -> None:
    deadline = Deadline(1e6, margin_s)
    last_s = 1e6 - margin_s - 2 * save_time_s
    assert deadline.reason(save_time_s, last_s - 1) is None
    assert deadline.reason(save_time_s, last_s + 1)


def test_the_reason_says_what_ends_and_when() -> None:
    deadline = Deadline(100.0, 10.0, "allocation")
    assert deadline.reason(3.0, now_s=85.0) == (
        "the allocation ends in 15.0 s and a save takes about 3.0 s"
    )


def test_without_an_end_time_never_runs_out() -> None:
    assert Deadline().reason(1e9, now_s=1e9) is None
    assert Deadline().left_s(0) == math.inf


def test_the_earliest_end_counts() -> None:
    soon, late = Deadline(50.0, 5), Deadline(60.0, 30)
    assert earliest([Deadline(), soon, late]) is late  # Its margin begins at 30.
    assert earliest([]) == Deadline()


def test_ends_come_from_the_environment() -> None:
    found = deadlines_in({"SLURM_JOB_END_TIME": "2000", "CKPTFLOW_ENDS_AT": "1000.5"}, 30)
    assert list(found) == [Deadline(2000, 30, "allocation"), Deadline(1000.5, 30, "allocation")]
    assert list(deadlines_in({"SLURM_JOB_END_TIME": "Unknown"}, 30)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_sets_the_flag_and_nothing_else(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert stop.received is None
        send(number)
        assert stop.received is number
    assert signal.getsignal(number) is before


def test_the_handler_that_was_there_is_called_too() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: calls.append(number))
    try:
        with StopSignals() as stop:
            send(signal.SIGUSR1)
            assert calls == [signal.SIGUSR1]
            assert stop.received is signal.SIGUSR1
        send(signal.SIGUSR1)
        assert len(calls) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_ignored_signal_is_noticed_and_ignored_again_afterwards() -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            send(signal.SIGUSR2)
            assert stop.received is signal.SIGUSR2
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_handlers_are_put_back_when_the_task_fails() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="boom"), StopSignals():
        raise ValueError("boom")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_task_does_not_see_the_signal_of_the_first() -> None:
    with StopSignals() as first:
        send(signal.SIGUSR1)
    with StopSignals() as second:
        assert second.received is None
    assert first.received is signal.SIGUSR1


def test_other_threads_have_the_deadline_only() -> None:
    reasons: list[str | None] = []

    def task() -> None:
        with StopSignals() as stop:
            watch = StopWatch(stop, Deadline(100.0), clock=lambda: 101.0)
            reasons.append(watch())

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=task)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    assert reasons == ["the time ends in 0.0 s and a save takes about 0.0 s"]


def test_the_watch_names_the_signal() -> None:
    with StopSignals() as stop:
        watch = StopWatch(stop, Deadline())
        assert watch() is None
        send(signal.SIGUSR2)
        assert watch() == f"signal SIGUSR2 was received by process {os.getpid()}"


def test_the_watch_asks_how_long_a_save_takes() -> None:
    now_s, save_time_s = [0.0], [1.0]
    watch = StopWatch(
        StopSignals(), Deadline(100.0, 10.0), lambda: save_time_s[0], lambda: now_s[0]
    )
    assert watch() is None
    assert watch.left_s() == 90.0
    save_time_s[0] = 50.0
    assert watch() == "the time ends in 100.0 s and a save takes about 50.0 s"
