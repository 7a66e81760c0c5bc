"""Prices of retries, and that the handler never waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsl.app.errors import AppTimeout, BashExitFailure
from parsl.config import Config
from parsl.dataflow.errors import DependencyError
from parsl.executors.errors import BadStateException
from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost
from parsl.executors.threads import ThreadPoolExecutor

from ckptflow.errors import (
    ConfigError,
    FencedError,
    FormatError,
    Preempted,
    RemoteTaskError,
    StateError,
    TaskExited,
    TierUnavailable,
)
from ckptflow.workflow.retry import (
    FREE,
    FULL,
    GIVE_UP,
    LITTLE,
    TURNS_FOR_NOTHING,
    Price,
    RetryHandler,
)

LOST = WorkerLost(0, "node1")


def task(number: int = 0) -> Any:
    return {"id": number, "func_name": "train"}


def preempted(step: int, resumed: int | None = None) -> Preempted:
    return Preempted("saved", task="train", step=step, resumed_step=resumed)


def test_stopping_in_time_with_progress_is_free() -> None:
    handler = RetryHandler()
    assert [handler(preempted(step, step - 5), task()) for step in (5, 10, 15)] == [FREE] * 3


@pytest.mark.parametrize("resumed", [None, 10])
def test_stopping_without_progress_costs_the_full_price(resumed: int | None) -> None:
    handler = RetryHandler()
    assert handler(preempted(10, 3), task()) == FREE
    assert handler(preempted(10, resumed), task()) == FULL


def test_the_first_try_of_a_rerun_must_get_further_than_where_it_resumed() -> None:
    assert RetryHandler()(preempted(10, 10), task()) == FULL


def test_when_the_time_of_the_run_is_over_a_stopped_task_is_left_alone() -> None:
    over = [False]
    handler = RetryHandler(is_over=lambda: over[0])
    assert handler(preempted(3), task()) == FREE
    over[0] = True
    assert handler(preempted(5), task()) == GIVE_UP
    assert handler(LOST, task()) == LITTLE


def turned_away() -> Preempted:
    return Preempted("not started", block="3", started=False)


def test_a_block_that_ends_is_held_before_the_task_goes_on() -> None:
    held: list[tuple[str, str]] = []
    handler = RetryHandler(hold=lambda _task, block, why: held.append((block, why)))
    assert handler(preempted(3), task()) == FREE
    assert held == []
    error = preempted(5)
    error.block = "7"
    assert handler(error, task()) == FREE
    assert handler(turned_away(), task()) == FREE
    assert held == [("7", "saved"), ("3", "not started")]


def test_a_task_that_was_not_started_is_not_charged_but_does_not_go_round_for_ever() -> None:
    handler = RetryHandler()
    assert handler(preempted(10), task()) == FREE
    costs = [handler(turned_away(), task()) for _ in range(TURNS_FOR_NOTHING + 1)]
    assert costs == [FREE] * TURNS_FOR_NOTHING + [FULL]
    assert handler(preempted(11), task()) == FREE  # What it had reached is still known.
    assert handler(turned_away(), task()) == FREE


def test_losses_with_blocks_that_ended_are_free_but_not_for_ever() -> None:
    handler = RetryHandler(was_ending=lambda error: isinstance(error, ManagerLost))
    lost = ManagerLost(b"m", "node1")
    prices = [handler(lost, task()) for _ in range(TURNS_FOR_NOTHING + 2)]
    assert prices == [FREE] * TURNS_FOR_NOTHING + [FULL] * 2
    assert handler(LOST, task()) == LITTLE  # Another kind of loss, the first of it.
    assert handler(preempted(10), task()) == FREE
    assert handler(lost, task()) == FREE  # It has got further meanwhile.


def test_each_task_has_its_own_history() -> None:
    handler = RetryHandler()
    assert handler(preempted(10), task(1)) == FREE
    assert handler(preempted(5), task(2)) == FREE


@pytest.mark.parametrize("error", [LOST, ManagerLost(b"m", "node1")])
def test_losses_cost_little_until_they_look_like_the_task_s_fault(error: Exception) -> None:
    handler = RetryHandler()
    assert [handler(error, task()) for _ in range(5)] == [LITTLE] * 3 + [FULL] * 2


def test_losses_stay_cheap_while_the_store_shows_progress() -> None:
    steps = iter(range(0, 100, 10))
    asked = threading.Semaphore(0)

    def progress(record: Any) -> int:
        assert record["func_name"] == "train"
        step = next(steps)
        asked.release()
        return step

    handler = RetryHandler(progress=progress)
    for _ in range(8):
        assert handler(LOST, task()) == LITTLE
        assert asked.acquire(timeout=10)
        join_lookups()


def test_losses_become_dear_when_the_store_shows_none() -> None:
    handler = RetryHandler(progress=lambda _: 7)
    costs = []
    for _ in range(6):
        costs.append(handler(LOST, task()))
        join_lookups()
    # The second loss learns of step 7; from there on nothing moves.
    assert costs == [LITTLE] * 4 + [FULL] * 2


def join_lookups() -> None:
    for thread in threading.enumerate():
        if thread.name == "ckptflow-progress":
            thread.join(timeout=10)


def test_a_storage_that_hangs_does_not_hold_up_the_handler() -> None:
    release = threading.Event()

    def hang(_: Any) -> int:
        release.wait(timeout=30)
        return 1

    handler = RetryHandler(progress=hang)
    assert [handler(LOST, task()) for _ in range(4)] == [LITTLE] * 3 + [FULL]
    release.set()
    join_lookups()


def test_a_storage_that_fails_counts_as_no_progress() -> None:
    def fail(_: Any) -> int:
        raise TierUnavailable("gone")

    handler = RetryHandler(progress=fail)
    for _ in range(3):
        assert handler(LOST, task()) == LITTLE
        join_lookups()
    assert handler(LOST, task()) == FULL


@pytest.mark.parametrize(
    "error",
    [
        TypeError(),
        NameError(),
        AttributeError(),
        ModuleNotFoundError(),
        SyntaxError(),
        ConfigError("key"),
        StateError("shape"),
        FormatError("newer"),
        FencedError("newer attempt"),
        RemoteTaskError("x", type_name="ModuleNotFoundError"),
        DependencyError([], 0),
        BadStateException(ThreadPoolExecutor(), ValueError("x")),
    ],
)
def test_what_another_try_cannot_mend_is_given_up(error: Exception) -> None:
    def never(*_: Any) -> float:
        raise AssertionError("not asked")

    assert RetryHandler(never)(error, task()) == GIVE_UP


def test_two_tasks_of_one_key_are_told_so() -> None:
    error = FencedError("attempt 2 has taken over")
    RetryHandler()(error, task())
    assert "two of its tasks have the same key" in error.__notes__[0]


OTHERS = [
    ValueError(),
    KeyError(),
    OSError(),
    MemoryError(),
    AppTimeout(),
    BashExitFailure("sim", 1),
    TaskExited("left"),
    RemoteTaskError("x", type_name="their.Error"),
]


@pytest.mark.parametrize("error", OTHERS)
def test_everything_else_costs_one_or_what_the_user_says(error: Exception) -> None:
    assert RetryHandler()(error, task()) == FULL
    assert RetryHandler(lambda *_: 0.25)(error, task()) == 0.25


def test_an_error_of_the_user_s_handler_is_the_user_s() -> None:
    def broken(*_: Any) -> float:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        RetryHandler(broken)(ValueError(), task())


def test_prices_are_told_with_reasons() -> None:
    told: list[Price] = []
    handler = RetryHandler(notice=lambda _task, _error, price: told.append(price))
    handler(preempted(3), task())
    handler(preempted(3), task())
    handler(TypeError(), task())
    assert [price.reason for price in told] == [
        "stopped in time, saved at step 3",
        "stopped in time, but got no further than step 3",
        "TypeError is a mistake, not bad luck",
    ]


def test_parsl_accepts_it() -> None:
    handler = RetryHandler()
    assert Config(retries=3, retry_handler=handler).retry_handler is handler


@given(st.lists(st.integers(0, 20), max_size=30))
def test_a_task_that_gets_nowhere_is_given_up_after_a_bounded_number_of_tries(
    steps: list[int],
) -> None:
    """However it fails: tries are free only as often as it gets further."""
    handler, spent = RetryHandler(), 0.0
    for step in steps:
        spent += handler(preempted(step), task())
    records = sum(step > max([-1, *steps[:at]]) for at, step in enumerate(steps))
    assert spent == len(steps) - records
