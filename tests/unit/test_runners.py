"""A tier that does not answer takes nobody along: saves go on elsewhere, and it is told."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.checkpointer.runners import STALL_S, Abandoned, Hanging, Runner, Turn
from ckptflow.errors import FlushError, FormatError, TierFull
from ckptflow.flush.flusher import Flusher, TierLock
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("default", "main")
SIZE = 2000


class Clock:
    """Stands still until it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Swamp:
    """Holds up the first call of a kind for a key until it is let go; meanwhile 1000 s pass."""

    def __init__(self, clock: Clock, operation: str, part: str) -> None:
        self._clock, self._operation, self._part = clock, operation, part
        self._sunk = False
        self.let_go = threading.Event()

    def __call__(self, operation: str, key: str) -> None:
        if operation == self._operation and self._part in key and not self._sunk:
            self._sunk = True
            self._clock.now_s += 1000.0
            assert self.let_go.wait(60)


def state_of(step: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(step).standard_normal(SIZE), "i": step}


def restored(tier: Tier) -> int:
    state = Checkpointer(tier, rng=False).restore({"w": np.zeros(SIZE), "i": 0})
    assert state["w"].tobytes() == state_of(state["i"])["w"].tobytes()
    return int(state["i"])


def steps_on(tier: Tier) -> list[int]:
    return [found.id.step for found in Lineage([tier], LINEAGE).valid()]


def begun(clock: Clock, *tiers: Tier, **options: Any) -> Checkpointer:
    seldom = {tier.name: 1000 for tier in tiers[1:]}
    ckpt = Checkpointer(list(tiers), keep=2, rng=False, flush_every=seldom, **options)
    ckpt.health.clock_s = clock
    ckpt.restore({"w": np.zeros(SIZE), "i": 0})
    return ckpt


@pytest.mark.parametrize(
    ("operation", "part"),
    [("put", "packs/000000000002"), ("put", "manifests/000000000002"), ("get", "store")],
)
@pytest.mark.parametrize("budget_bytes", [None, 40_000, 0])
def test_saves_go_on_while_a_tier_hangs(
    operation: str, part: str, budget_bytes: int | None
) -> None:
    """Whatever call hangs, and whether there is memory for one snapshot more, two, or none."""
    near, far, clock = MemoryTier("near", level=1), MemoryTier("far", level=3), Clock()
    swamp = Swamp(clock, operation, part)
    gate = FaultyTier(near, lambda operation, key: (armed and swamp(operation, key)) or None)
    armed: list[int] = []
    ckpt = begun(clock, gate, far, budget_bytes=budget_bytes)
    ckpt.save(1, state_of(1)).wait(3)
    armed.append(1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(2, 7):
            state = state_of(step)
            ckpt.save(step, state).wait()
            state["w"][:] = np.nan  # The application goes on.
    (text,) = (str(one.message) for one in told)
    assert "Tier 'near' (level 1) has not answered for 1000 s" in text
    assert steps_on(far)[:2] == [6, 5]
    back = threading.Event()
    ckpt.health.tell = lambda _text: back.set()
    swamp.let_go.set()
    assert back.wait(60)
    ckpt.save(7, state_of(7)).wait()
    ckpt.close()
    assert steps_on(near)[0] == 7
    assert (restored(far), restored(near)) == (6, 7)
    (trouble,) = ckpt.health.report()
    assert (trouble["condition"], trouble["missed"]) == ("hanging", 5)
    assert trouble["back"] is not None


def test_what_hung_before_its_commit_does_not_commit_when_it_comes_back() -> None:
    """With a state too large for a snapshot, the application has changed it since."""
    near, far, clock = MemoryTier("near", level=1), MemoryTier("far", level=3), Clock()
    swamp = Swamp(clock, "put", "packs/000000000001")
    ckpt = begun(clock, FaultyTier(near, swamp), far, budget_bytes=0)
    state = state_of(1)
    ckpt.save(1, state)
    state["w"][:] = np.nan
    swamp.let_go.set()
    with pytest.warns(CheckpointWarning, match="has not answered"):
        ckpt.close()
    ckpt._writer._runners["near"]._thread.join(60)  # type: ignore[union-attr]
    assert steps_on(near) == []
    assert not [key for key in near.iter_keys("") if "packs/" in key]
    assert restored(far) == 1


def test_a_fence_tier_that_hangs_is_the_one_to_blame() -> None:
    """The first save gets stuck in its look at the claims; those after it do not look."""
    near, far, clock = MemoryTier("near", level=1), MemoryTier("far", level=3), Clock()
    middle = MemoryTier("middle", level=2)
    swamp, asked = Swamp(clock, "iter_keys", "attempts"), list[int]()

    def watch(operation: str, key: str) -> None:
        if armed and operation == "iter_keys" and "attempts" in key:
            asked.append(1)
            swamp(operation, key)

    armed: list[int] = []
    ckpt = begun(clock, near, middle, FaultyTier(far, watch))
    ckpt.save(1, state_of(1)).wait(3)
    assert ckpt._writer is not None
    ckpt._writer.settle()
    while ckpt._writer._flusher.in_flight(LINEAGE):  # A prune after a copy looks, too.
        time.sleep(0.001)
    armed.append(1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in (2, 3, 4):
            ckpt.save(step, state_of(step)).wait_written()
        ckpt.wait()
    assert len(asked) == 1
    (text,) = (str(one.message) for one in told)
    assert "Tier 'far' (level 3) has not answered for 1000 s" in text
    ckpt._writer.settle()  # Room was to be made for the last one, too.
    assert {2, 3, 4} <= set(steps_on(middle))  # Nothing is pruned meanwhile.
    swamp.let_go.set()
    ckpt._writer._runners["near"]._turns.put(None)
    ckpt._writer._runners["near"]._thread.join(60)
    ckpt.close()
    assert steps_on(near) == [1]  # What was given up did not commit.


def test_a_single_tier_that_hangs_fails_its_saves_and_blocks_nothing() -> None:
    near, clock = MemoryTier("near", level=1), Clock()
    swamp = Swamp(clock, "put", "packs/000000000002")
    ckpt = begun(clock, FaultyTier(near, swamp))
    ckpt.save(1, state_of(1)).wait()
    for step in (2, 3, 4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ticket = ckpt.save(step, state_of(step))
            ticket.wait_written()
        assert not ticket.durable
        assert ticket.error is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ckpt.shut()  # Comes back although the call has not.
    swamp.let_go.set()
    ckpt._writer._runners["near"]._thread.join(60)  # type: ignore[union-attr]
    assert steps_on(near) == [1]


def test_a_runner_carries_results_and_errors() -> None:
    runner = Runner(MemoryTier("near"), Clock(), on_return=lambda: None)
    ended: list[int] = []
    assert runner.run(lambda _turn: 7, stall_s=60, after=lambda: ended.append(1)) == 7

    def fail(_turn: Turn[int]) -> int:
        raise ZeroDivisionError("its own")

    with pytest.raises(ZeroDivisionError, match="its own"):
        runner.run(fail, stall_s=60, after=lambda: ended.append(2))
    assert ended == [1, 2]
    runner.close()


def test_a_runner_that_is_left_takes_nothing_until_its_call_is_back() -> None:
    clock, returned, let_go = Clock(), threading.Event(), threading.Event()
    runner = Runner(MemoryTier("near"), clock, on_return=returned.set)
    seen: list[str] = []

    def hang(turn: Turn[None]) -> None:
        with runner.watch.call(runner.tier.inner):
            clock.now_s = 100.0
            assert let_go.wait(60)
        try:
            turn.check()
        except Abandoned:
            seen.append("abandoned")

    with pytest.raises(Hanging, match=r"'near' .* has not answered for 100 s"):
        runner.run(hang, stall_s=10)
    with pytest.raises(Hanging, match="has not answered for 100 s"):
        runner.run(lambda _turn: seen.append("never"), stall_s=10)
    let_go.set()
    assert returned.wait(60)
    runner.run(lambda _turn: seen.append("again"), stall_s=10)
    assert seen == ["abandoned", "again"]
    runner.close()


class HeldLock:
    """Another process holds it, and is stopped."""

    def acquire(self, timeout: float = -1) -> bool:
        assert timeout >= 0, "it would wait for ever"
        return False

    def release(self) -> None:
        raise AssertionError("it was not taken")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


def test_a_prune_that_lets_nobody_in_costs_a_tier_and_not_the_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, far = MemoryTier("near", level=1), MemoryTier("far", level=3)

    def tier_lock(_flusher: Flusher, _lineage: LineageId, tier: Tier) -> TierLock:
        return HeldLock() if tier is near else threading.Lock()

    monkeypatch.setattr(Flusher, "tier_lock", tier_lock)
    ckpt = Checkpointer([near, far], rng=False)
    ckpt.save(1, state_of(1)).wait()
    with pytest.warns(CheckpointWarning, match="does not let go of tier 'near'"):
        ckpt.close()
    assert (steps_on(near), steps_on(far)) == ([], [1])
    assert restored(far) == 1


@pytest.mark.parametrize("error", [FormatError("a newer manifest"), OSError(5, "no lock")])
def test_a_prune_that_fails_after_a_copy_has_arrived_is_a_warning_only(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = MemoryTier("near", level=1), MemoryTier("far", level=3)

    def prune(_lineage: Lineage, _tier: Tier, *_rest: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr("ckptflow.checkpointer.writer.prune", prune)
    ckpt = Checkpointer([near, far], rng=False, keep=2)
    ticket = ckpt.save(1, state_of(1))
    ticket.wait(3)
    with pytest.warns(CheckpointWarning, match=r"a newer manifest|no lock"):
        ckpt.close()
    assert ticket.unseen_error is None
    assert restored(far) == 1


def test_a_copy_between_that_fails_late_is_told_at_the_end() -> None:
    may_fail, begun = threading.Event(), list[str]()

    def full(operation: str, key: str) -> None:
        if operation == "put" and "packs" in key and not begun:
            begun.append(key)
            assert may_fail.wait(60)
            raise TierFull("no room left")

    near, far = MemoryTier("near", level=1), MemoryTier("far", level=3)
    middle = FaultyTier(MemoryTier("middle", level=2), full)
    ckpt = Checkpointer([near, middle, far], rng=False)
    first = ckpt.save(1, state_of(1))
    first.wait(3)
    assert not first.settled
    ckpt.save(2, state_of(2)).wait()
    may_fail.set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        with pytest.raises(FlushError, match="did not reach tier 'middle'"):
            ckpt.close()


class AskedClock(Clock):
    """Counts how often it was looked at."""

    asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now_s


def test_a_prune_may_take_longer_than_any_call_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptflow.checkpointer.runners.LOOK_EVERY_S", 0.01)
    near, clock, slow = MemoryTier("near", level=1), AskedClock(), list[str]()

    def take_time(operation: str, key: str) -> None:
        if operation == "delete":
            slow.append(key)
            clock.now_s += 0.7 * STALL_S
            before = clock.asked
            while clock.asked < before + 3:  # Somebody looks how long it takes.
                time.sleep(0.001)

    ckpt = begun(clock, FaultyTier(near, take_time))
    for step in (1, 2, 3):
        ckpt.save(step, state_of(step)).wait()
    ckpt.close()
    assert len(slow) > 2
    assert ckpt.health.report() == []
    assert steps_on(near) == [3, 2]
