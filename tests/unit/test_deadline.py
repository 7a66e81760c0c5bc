"""Deadlines are arithmetic; signals set a flag, and leave the process as they found it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.workflow.blocks.board import Board, End, make_board
from ckptflow.workflow.deadline import (
    LOOK_EVERY_S,
    Deadline,
    StopSignals,
    StopWatch,
    allocation_in,
    earliest,
    stop_signals,
    stop_tasks_here,
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


def test_the_end_comes_from_the_environment() -> None:
    both = {"SLURM_JOB_END_TIME": "1000.5", "CKPTFLOW_ENDS_AT": "2000"}
    assert allocation_in(both, 30) == Deadline(1000.5, 30, "allocation")
    del both["SLURM_JOB_END_TIME"]
    assert allocation_in(both, 30) == Deadline(2000, 30, "allocation")
    assert allocation_in({"SLURM_JOB_END_TIME": "Unknown"}, 30) == Deadline()


def test_a_site_may_name_its_signals() -> None:
    assert stop_signals({}) == (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    assert stop_signals({"CKPTFLOW_STOP_SIGNALS": "USR2"}) == (signal.SIGTERM, signal.SIGUSR2)
    assert stop_signals({"CKPTFLOW_STOP_SIGNALS": "TERM"}) == (signal.SIGTERM,)


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


@pytest.fixture
def board() -> Iterator[Board]:
    made = make_board()
    yield made
    made.remove()


def test_what_the_leader_posts_counts_within_a_second(board: Board) -> None:
    now_s = [0.0]
    watch = StopWatch(StopSignals(), Deadline(), clock=lambda: now_s[0], board=board)
    watch.set_ends(Deadline(), Deadline(1e6, 10, "allocation"), 10)
    assert watch() is None
    board.post_end(End(50.0, "squeue"))
    now_s[0] = LOOK_EVERY_S
    assert watch() is None
    assert watch.left_s() == 39.0
    board.post_stop("the block got SIGUSR2")
    now_s[0] = 2 * LOOK_EVERY_S
    assert watch() == "the block got SIGUSR2"


def test_an_end_that_moved_away_is_followed(board: Board) -> None:
    board.post_end(End(1000.0, "squeue"))
    watch = StopWatch(StopSignals(), Deadline(), clock=lambda: 95.0, board=board)
    watch.set_ends(Deadline(5000, 0, "walltime"), Deadline(100, 10, "allocation"), 10)
    assert watch() is None
    assert watch.left_s() == 895.0


def test_a_task_that_runs_out_of_time_closes_its_block(board: Board) -> None:
    watch = StopWatch(StopSignals(), Deadline(), clock=lambda: 95.0, board=board)
    watch.set_ends(Deadline(), Deadline(100, 10, "allocation"), 10)
    assert watch() == "the allocation ends in 5.0 s and a save takes about 0.0 s"
    assert board.closed() is None
    assert watch.block_ends()
    assert board.closed() == "a task has stopped, since the allocation ends soon"


def test_a_task_whose_own_time_is_over_leaves_the_block_open(board: Board) -> None:
    watch = StopWatch(StopSignals(), Deadline(), clock=lambda: 95.0, board=board)
    watch.set_ends(Deadline(100, 10, "walltime"), Deadline(1e6, 10, "allocation"), 10)
    assert watch() is not None
    assert not watch.block_ends()
    assert board.closed() is None


def test_a_signal_from_hand_does_not_close_the_block(board: Board) -> None:
    with StopSignals() as stop:
        watch = StopWatch(stop, Deadline(), board=board)
        send(signal.SIGUSR2)
        assert not watch.block_ends()
        board.post_stop("the block got SIGUSR2")
        assert watch.block_ends()


def test_a_forked_child_does_with_the_signal_what_it_did_before() -> None:
    """A process that loads data, and is told to end, ends."""
    with StopSignals() as stop:
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(3)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert stop.received is None


def test_tasks_in_threads_are_stopped_together() -> None:
    watch = StopWatch(StopSignals(), Deadline())
    stop_tasks_here("the run is given up")
    try:
        assert watch() == "the run is given up"
    finally:
        stop_tasks_here(None)
    assert watch() is None


def test_a_signal_that_another_thread_got_ends_the_wait_of_the_main_one() -> None:
    with StopSignals([signal.SIGUSR1]) as signals:
        watch = StopWatch(signals, Deadline())
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])

        def work() -> None:
            # To this thread, and not to the process: the kernel's choice, made certain.
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            while watch() is None:
                time.sleep(0.01)
            child.kill()

        thread = threading.Thread(target=work)
        thread.start()
        child.wait()  # Until the other thread knows.
        thread.join()
        assert signals.received is signal.SIGUSR1
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
