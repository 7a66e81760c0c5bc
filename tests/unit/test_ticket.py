"""A ticket tells captured from durable, level from level, and hands on what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ckptflow.checkpointer.ticket import Ticket
from ckptflow.errors import ConfigError, FlushError, TierFull

ERROR = TierFull("no room on 'nvme'")


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_new_ticket_promises_nothing() -> None:
    ticket = Ticket(7, (1, 3))
    assert (ticket.step, ticket.captured, ticket.durable, ticket.settled) == (
        7,
        False,
        False,
        False,
    )
    assert ticket.error is None
    assert repr(ticket) == "<Ticket step 7, new>"


def test_captured_comes_before_durable() -> None:
    ticket = Ticket(7, (1,))
    ticket.mark_captured()
    ticket.wait_captured()
    assert (ticket.captured, ticket.durable) == (True, False)
    assert repr(ticket) == "<Ticket step 7, captured>"


def test_durable_at_one_level_after_the_other() -> None:
    ticket = Ticket(7, (1, 3))
    ticket.mark_durable(1)
    ticket.wait()
    ticket.wait(1)
    assert (ticket.durable, ticket.settled) == (True, False)
    with pytest.raises(TimeoutError, match=r"Step 7 was not durable after 0\.0 s"):
        ticket.wait(3, timeout_s=0.0)
    ticket.mark_durable(3)
    ticket.wait(3)
    assert ticket.settled
    assert repr(ticket) == "<Ticket step 7, durable at level 3>"


def test_a_level_between_is_reached_by_the_next_above() -> None:
    ticket = Ticket(7, (1, 3))
    ticket.mark_durable(3)
    ticket.wait(2)


def test_a_copy_at_an_outer_tier_settles_it_although_the_inner_one_was_full() -> None:
    ticket = Ticket(7, (1, 3))
    ticket.mark_durable(3)
    assert ticket.settled


def test_a_level_that_it_does_not_go_to() -> None:
    with pytest.raises(
        ConfigError,
        match=r"step 7 goes to level 1 at most; it will never be durable at level 3",
    ):
        Ticket(7, (1,)).wait(3)


@pytest.mark.parametrize(
    ("wait", "finish"),
    [
        (lambda ticket: ticket.wait(), lambda ticket: ticket.mark_durable(1)),
        (lambda ticket: ticket.wait(3), lambda ticket: ticket.mark_durable(3)),
        (lambda ticket: ticket.wait_captured(), lambda ticket: ticket.mark_captured()),
        (lambda ticket: ticket.wait_captured(), lambda ticket: ticket.fail(ERROR)),
        (lambda ticket: ticket.wait_written(), lambda ticket: ticket.mark_durable(1)),
        (lambda ticket: ticket.wait_written(), lambda ticket: ticket.fail(ERROR)),
    ],
)
def test_whoever_waits_is_woken(
    wait: Callable[[Ticket], None], finish: Callable[[Ticket], None]
) -> None:
    ticket = Ticket(7, (1, 3))
    waiting = started(lambda: wait(ticket))
    finish(ticket)
    waiting.join(60)
    assert not waiting.is_alive()


def test_an_error_is_raised_by_wait_and_then_has_been_seen() -> None:
    ticket = Ticket(7, (1,))
    ticket.fail(ERROR)
    assert ticket.unseen_error is ERROR
    with pytest.raises(TierFull, match="no room on 'nvme'"):
        ticket.wait()
    assert ticket.unseen_error is None
    assert ticket.error is ERROR
    assert "failed: no room on 'nvme'" in repr(ticket)


def test_asking_for_the_error_is_seeing_it() -> None:
    ticket = Ticket(7, (1,))
    ticket.fail(ERROR)
    assert ticket.error is ERROR
    assert ticket.unseen_error is None


def test_the_first_error_stays() -> None:
    ticket = Ticket(7, (1, 3))
    ticket.fail(ERROR)
    ticket.fail(FlushError("later"))
    assert ticket.error is ERROR


def test_a_flush_that_fails_leaves_the_inner_promise_standing() -> None:
    ticket = Ticket(7, (1, 3))
    ticket.mark_durable(1)
    ticket.fail(FlushError("did not reach 'pfs'"))
    ticket.wait()
    ticket.wait(1)
    assert ticket.durable
    assert ticket.unseen_error is not None
    with pytest.raises(FlushError, match="did not reach 'pfs'"):
        ticket.wait(3)


def test_many_wait_for_one() -> None:
    ticket, woken = Ticket(7, (1,)), []
    threads = [started(lambda: woken.append(ticket.wait())) for _ in range(8)]
    ticket.mark_durable(1)
    for thread in threads:
        thread.join(60)
    assert len(woken) == 8


def test_to_ask_while_nothing_has_failed_is_not_to_have_met_what_fails_later() -> None:
    ticket = Ticket(7, (1, 3))
    assert ticket.error is None
    ticket.fail(ERROR)
    assert ticket.unseen_error is ERROR


def test_a_copy_between_that_is_still_on_its_way_is_not_settled() -> None:
    ticket = Ticket(7, (0, 2, 3))
    ticket.mark_durable(0)
    ticket.mark_durable(3)
    assert not ticket.settled
    ticket.fail(FlushError("did not reach 'pfs'"), 2)
    assert ticket.settled
    assert ticket.unseen_error is not None


def test_two_tiers_of_one_level_are_two() -> None:
    ticket = Ticket(7, (1, 3, 3))
    ticket.mark_durable(1)
    ticket.mark_durable(3)
    assert not ticket.settled
    ticket.mark_durable(3)
    assert ticket.settled


def test_a_save_that_went_elsewhere_says_where_it_is_copied_to_from_there() -> None:
    ticket = Ticket(7, (1, 3))
    ticket.mark_durable(3, outer=[3])  # Another tier of that level than it was to go to.
    assert not ticket.settled
    ticket.mark_durable(3)
    assert ticket.settled


def test_a_copy_that_failed_further_in_says_nothing_of_those_further_out() -> None:
    ticket = Ticket(7, (0, 2, 3))
    ticket.mark_durable(0)
    ticket.fail(FlushError("did not reach 'pfs'"), 2)
    with pytest.raises(TimeoutError):
        ticket.wait(3, timeout_s=0.0)
    with pytest.raises(TimeoutError):
        ticket.wait(2, timeout_s=0.0)
    ticket.fail(FlushError("did not reach 'bucket'"), 3)
    with pytest.raises(FlushError, match="bucket"):
        ticket.wait(3)
    with pytest.raises(FlushError, match="pfs"):
        ticket.wait(2)
    ticket.wait(0)


def test_a_level_that_it_was_to_reach_and_is_not_copied_to_is_no_wait_for_ever() -> None:
    ticket = Ticket(7, (2,))
    ticket.mark_durable(1, outer=[])
    with pytest.raises(FlushError, match="was saved below level 2"):
        ticket.wait(2)
