"""Which copy goes next, and that a slow tier holds up nobody but itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ckptflow.errors import CheckpointError, FlushError, TierFull, TierUnavailable
from ckptflow.flush import Flusher, Flushing, FlushRequest
from ckptflow.flush.copying import Superseded
from ckptflow.flush.lanes import is_superseded
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.policy.retention import BestOf, Retention
from ckptflow.store.catalog import Lineage
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]
LONG_S = 60.0


class Gate:
    """Holds up the puts on a tier until it is opened, and tells when the first has come."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, operation: str, key: str) -> None:
        if operation == "put":
            self.reached.set()
            assert self.opened.wait(LONG_S)


class Waiting:
    """Who waits for a flush."""

    def __init__(self) -> None:
        self.over, self.error = threading.Event(), None

    def __call__(self, error: CheckpointError | None) -> None:
        self.error = error
        self.over.set()


@pytest.fixture
def near(save_state: SaveState) -> MemoryTier:
    tier = MemoryTier("near", level=1)
    for task in ("a", "b"):
        for step in range(1, 6):
            state = {"w": np.random.default_rng(step).standard_normal(500), "i": step}
            save_state(tier, f"exp/{task}", step, state)
    return tier


@pytest.fixture
def opened() -> Iterator[Callable[..., Flusher]]:
    """Makes flushers that are closed at the end."""
    made: list[Flusher] = []

    def make(*tiers: Tier, **arguments) -> Flusher:
        made.append(Flusher(tiers, **arguments))
        return made[-1]

    yield make
    for flusher in made:
        flusher.close()


def manifest(tier: Tier, step: int, task: str = "a") -> Manifest:
    lineage = LineageId("exp", task)
    return Lineage([tier], lineage).manifest_on(tier, CheckpointId(step, 1))


def steps_on(tier: Tier, task: str = "a") -> list[int]:
    return sorted(found.id.step for found in Lineage([tier], LineageId("exp", task)).valid())


def test_a_slow_tier_does_not_block_a_fast_one(near: MemoryTier, opened) -> None:
    gate = Gate()
    slow = FaultyTier(MemoryTier("slow", level=3), gate)
    fast = MemoryTier("fast", level=4)
    flusher = opened(near, slow, fast, options=Flushing(budget_bytes=1))
    late = [Waiting() for _ in range(5)]
    for step in range(1, 6):
        flusher.submit(FlushRequest(manifest(near, step), slow, late[step - 1]))
    assert gate.reached.wait(LONG_S)
    for step in range(1, 6):
        done = Waiting()
        flusher.submit(FlushRequest(manifest(near, step), fast, done))
        assert done.over.wait(LONG_S)
    assert steps_on(fast) == [1, 2, 3, 4, 5]
    assert steps_on(slow.inner) == []
    gate.opened.set()
    for one in late:
        assert one.over.wait(LONG_S)
    assert steps_on(slow.inner) == [1, 2, 3, 4, 5]


def test_lineages_go_at_once_and_their_checkpoints_in_order(near: MemoryTier, opened) -> None:
    order: list[tuple[str, int]] = []
    both = threading.Barrier(2)

    def meet(operation: str, key: str) -> None:
        if operation == "put" and "/packs/000000000001" in key:
            both.wait(LONG_S)  # Passed only if both lineages are on their way.

    far = FaultyTier(MemoryTier("far", level=3), meet)
    flusher = opened(
        near, far, after_copy=lambda one: order.append((one.lineage.task, one.id.step))
    )
    waiting = []
    for task in ("a", "b"):
        for step in (1, 2, 3):
            waiting.append(Waiting())
            flusher.submit(FlushRequest(manifest(near, step, task), far, waiting[-1]))
    assert all(one.over.wait(LONG_S) and one.error is None for one in waiting)
    for task in ("a", "b"):
        assert [step for name, step in order if name == task] == [1, 2, 3]


def test_where_nobody_waits_the_newest_goes_first_and_useless_ones_are_skipped(
    near: MemoryTier, opened
) -> None:
    gate = Gate()
    far = FaultyTier(MemoryTier("far", level=3), gate)
    order: list[int] = []
    flusher = opened(near, far, after_copy=lambda request: order.append(request.id.step))
    waiting = []
    for step in range(1, 6):
        waiting.append(Waiting())
        flusher.submit(
            FlushRequest(
                manifest(near, step),
                far,
                waiting[-1],
                retention=Retention(newest=2),
                is_awaited=lambda step=step: step == 2,
            )
        )
        assert gate.reached.wait(LONG_S)  # The first is on its way when the others come.
    states = {one.step: one.state for one in flusher.progress()}
    assert states == {1: "copying", 2: "queued", 3: "queued", 4: "queued", 5: "queued"}
    gate.opened.set()
    assert all(one.over.wait(LONG_S) for one in waiting)
    assert [one.error for one in waiting[:2] + waiting[3:]] == [None] * 4
    assert isinstance(waiting[2].error, Superseded)
    assert order == [1, 2, 5, 4]
    assert {one.step for one in flusher.progress() if one.state == "skipped"} == {3}
    assert steps_on(far.inner) == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("retention", "arrived", "superseded"),
    [
        (Retention(newest=2), [(6, 1), (7, 1)], True),
        (Retention(newest=2), [(6, 1)], False),
        (Retention(newest=2), [(3, 1), (4, 1)], False),
        (Retention(newest=2), [(6, 2), (7, 2)], False),  # Another attempt may leave it void.
        (Retention(newest=None), [(6, 1), (7, 1)], False),
        (Retention(newest=1, every_steps=5), [(6, 1), (7, 1)], False),
        (Retention(newest=1, best=BestOf("loss", "min")), [(6, 1), (7, 1)], False),
        (None, [(6, 1), (7, 1)], False),
    ],
)
def test_what_counts_as_superseded(
    retention: Retention | None, arrived: list[tuple[int, int]], superseded: bool
) -> None:
    there = [CheckpointId(*one) for one in arrived]
    assert is_superseded(CheckpointId(5, 1), retention, there) is superseded


def test_a_tier_that_does_not_answer_is_tried_again(
    near: MemoryTier, opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptflow.flush.flusher._FIRST_PAUSE_S", 0.01)
    left = [3]

    def fail(operation: str, key: str) -> None:
        if operation == "put" and left[0]:
            left[0] -= 1
            raise TierUnavailable("no answer")

    far, done = FaultyTier(MemoryTier("far", level=3), fail), Waiting()
    flusher = opened(near, far, options=Flushing(streams=1, retry_s=LONG_S))
    flusher.submit(FlushRequest(manifest(near, 1), far, done))
    assert done.over.wait(LONG_S)
    assert done.error is None
    assert steps_on(far.inner) == [1]
    assert flusher.progress()[0].error is None


def test_a_tier_that_is_down_takes_its_time_once_and_not_for_each_request(
    near: MemoryTier, opened
) -> None:
    tries: list[str] = []

    def fail(operation: str, key: str) -> None:
        if operation == "create":
            tries.append(key)
            raise TierUnavailable("no answer")

    far = FaultyTier(MemoryTier("far", level=3), fail)
    flusher = opened(near, far, options=Flushing(retry_s=0.1))
    waiting = [Waiting() for _ in range(5)]
    for step, done in enumerate(waiting, start=1):
        flusher.submit(FlushRequest(manifest(near, step), far, done))
    assert all(one.over.wait(LONG_S) and one.error is not None for one in waiting)
    assert len(tries) <= len(waiting) + 1  # Only the first was tried twice.


def test_what_is_given_up_while_it_waits_for_its_tier_ends(near: MemoryTier, opened) -> None:
    failed = threading.Event()

    def fail(operation: str, key: str) -> None:
        if operation == "create":
            failed.set()
            raise TierUnavailable("no answer")

    far, done = FaultyTier(MemoryTier("far", level=3), fail), Waiting()
    flusher = opened(near, far, options=Flushing(retry_s=LONG_S))
    flusher.submit(FlushRequest(manifest(near, 1), far, done))
    assert failed.wait(LONG_S)
    flusher.cancel()
    assert done.over.wait(LONG_S)
    assert "given up" in str(done.error)


def test_what_cannot_pass_is_not_tried_again(near: MemoryTier, opened) -> None:
    tries = []

    def fail(operation: str, key: str) -> None:
        if operation == "put":
            tries.append(key)
            raise TierFull("no room")

    far, done = FaultyTier(MemoryTier("far", level=3), fail), Waiting()
    flusher = opened(near, far, options=Flushing(streams=1, retry_s=LONG_S))
    flusher.submit(FlushRequest(manifest(near, 1), far, done))
    assert done.over.wait(LONG_S)
    assert isinstance(done.error, FlushError)
    assert len(tries) == 1
    (told,) = flusher.progress()
    assert (told.state, told.target, told.step) == ("failed", "far", 1)
    assert "no room" in str(told.error)


def test_copies_are_given_up_when_told_so(near: MemoryTier, opened) -> None:
    gate = Gate()
    far = FaultyTier(MemoryTier("far", level=3), gate)
    flusher = opened(near, far, options=Flushing(streams=1))
    given_up, other = [Waiting(), Waiting()], Waiting()
    for step, done in zip((1, 2), given_up, strict=True):
        flusher.submit(FlushRequest(manifest(near, step), far, done))
    assert gate.reached.wait(LONG_S)
    flusher.submit(FlushRequest(manifest(near, 1, "b"), far, other))
    assert flusher.in_flight(LineageId("exp", "a")) == [CheckpointId(1, 1), CheckpointId(2, 1)]
    flusher.cancel(LineageId("exp", "a"))
    gate.opened.set()
    for one in (*given_up, other):
        assert one.over.wait(LONG_S)
    assert all("given up before it" in str(one.error) for one in given_up)
    assert other.error is None
    assert steps_on(far.inner) == []
    assert steps_on(far.inner, "b") == [1]
    flusher.close()  # Who waits is told a moment before.
    assert flusher.in_flight(LineageId("exp", "a")) == []


def test_a_lease_is_held_while_a_checkpoint_is_copied(near: MemoryTier, opened) -> None:
    far, lock, inside = MemoryTier("far", level=3), threading.Lock(), []
    watched = FaultyTier(far, lambda operation, key: inside.append(lock.locked()))
    done = Waiting()
    flusher = opened(near, watched, lease=lambda _flight: lock)
    flusher.submit(FlushRequest(manifest(near, 1), watched, done))
    assert done.over.wait(LONG_S)
    assert inside
    assert all(inside)
