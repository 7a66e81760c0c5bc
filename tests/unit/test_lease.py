"""Ranks that none waits for save and stop at the same step, whoever asks when."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.errors import FormatError
from ckptflow.workflow.ranks.lease import LEASE_S, Lease, Leases, answer, question


class Rank:
    """A rank with a clock of its own, whose messages arrive at once."""

    def __init__(self, number: int, leases: Leases, *, step_s: float, stride: int = 1) -> None:
        self._number, self._leases = number, leases
        self._step_s, self.stride = step_s, stride
        self.now_s, self.step, self.last_saved = 0.0, 0, None
        self.saved: list[int] = []
        self.stopped: int | None = None
        self.told: str | None = None
        self._answers: list[Mapping[str, Any]] = []
        self.asked = 0
        self.lease = Lease(
            self._send, lambda: self._answers.pop(0), told=lambda: self.told,
            clock=lambda: self.now_s,
        )  # fmt: skip

    def _send(self, fields: dict[str, Any]) -> None:
        self.asked += 1
        found = self._leases.ask(self._number, question(fields))
        self._answers.append(dataclasses.asdict(found))

    def go(self) -> None:
        """Do one step, as a loop of an application would."""
        if self.stopped is not None:
            return
        self.now_s += self._step_s
        self.step += self.stride
        self.lease.reach(self.step)
        if self.lease.stop is not None:
            self.stopped = self.step
        elif self.lease.is_save(self.last_saved):
            self.last_saved = self.step
            self.saved.append(self.step)


@given(
    times=st.lists(st.sampled_from([0.001, 0.01, 0.3, 2.0]), min_size=2, max_size=4),
    stride=st.sampled_from([1, 7]),
    turns=st.lists(st.integers(0, 3), max_size=300),
    told=st.integers(0, 200),
    wants=st.sets(st.integers(0, 200), max_size=6),
    data=st.data(),
)
def test_all_save_and_stop_at_the_same_steps(
    times: list[float],
    stride: int,
    turns: list[int],
    told: int,
    wants: set[int],
    data: st.DataObject,
) -> None:
    leases = Leases()
    ranks = [
        Rank(number, leases, step_s=step_s, stride=stride)
        for number, step_s in enumerate(times)
    ]
    victim = data.draw(st.integers(0, len(ranks) - 1))
    for turn, number in enumerate(turns):
        if turn == told:
            ranks[victim].told = "signal"
        if turn in wants:
            ranks[0].lease.want_save()
        ranks[number % len(ranks)].go()
    ranks[victim].told = "signal"
    for _ in range(200_000):
        if all(rank.stopped is not None for rank in ranks):
            break
        # The slowest goes first: others may be far ahead, never beyond their lease.
        min(ranks, key=lambda rank: (rank.stopped is not None, rank.step)).go()
    assert len({rank.stopped for rank in ranks}) == 1
    assert len({tuple(rank.saved) for rank in ranks}) == 1


def test_nobody_goes_beyond_a_lease_without_asking() -> None:
    leases = Leases()
    fast, slow = (Rank(number, leases, step_s=0.1) for number in (0, 1))
    slow.go()
    for _ in range(1000):
        fast.go()
        assert leases.until is not None
        assert fast.step < leases.until


def test_a_stop_is_soon() -> None:
    """Within about a lease, counted in steps of the rank that is told."""
    leases = Leases()
    rank = Rank(0, leases, step_s=0.01)
    for _ in range(500):
        rank.go()
    rank.told = "signal"
    before = rank.step
    while rank.stopped is None:
        rank.go()
    assert rank.stopped - before <= 1.5 * LEASE_S / 0.01 + 1


def test_long_steps_are_asked_for_one_by_one_and_short_ones_seldom() -> None:
    long, short = Rank(0, Leases(), step_s=10.0), Rank(0, Leases(), step_s=0.0001)
    for _ in range(100):
        long.go()
    for _ in range(20_000):
        short.go()
    assert long.asked == 100
    assert short.asked < 40


def test_a_slow_rank_hears_of_saves_that_others_have_made_long_ago() -> None:
    leases = Leases()
    first, slow = Rank(0, leases, step_s=1.0), Rank(1, leases, step_s=1.0)
    for _ in range(400):
        first.lease.want_save()
        first.go()
    for _ in range(first.step):
        slow.go()
    assert len(first.saved) > 100
    assert slow.saved == first.saved


@pytest.mark.parametrize(
    "fields", [{}, {"until": "9", "saves": [], "stop": None}, {"until": 9, "stop": 1}]
)
def test_an_answer_in_other_words_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="in other words"):
        answer(fields)


def test_a_question_in_other_words_is_refused() -> None:
    with pytest.raises(FormatError, match="in other words"):
        question({"step": True, "save": 1})
