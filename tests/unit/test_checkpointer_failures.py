"""Whatever fails behind a task's back: it goes on, is told, and no older checkpoint suffers."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.data.regions import Region
from ckptflow.errors import (
    CheckpointError,
    ConfigError,
    FencedError,
    FlushError,
    NotFoundError,
    Preempted,
    RestoreError,
    TierFull,
    TierUnavailable,
)
from ckptflow.flush import Flushing
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("default", "main")
PREFIX = f"{LINEAGE.prefix}/"
SIZE = 2000
FULL = TierFull("No room to write on tier 'disk': No space left on device.")
DOWN = TierUnavailable("The file server is down.")

WARNS_OF_FULL = pytest.warns(
    CheckpointWarning, match=r"No space left on device\. The task goes"
)


def state_of(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    state = {"w": rng.standard_normal(SIZE), "i": step}
    state["w"][: 20 * step] = step
    state["w"][-20:] = np.random.default_rng(step).standard_normal(20)
    return state


def blank() -> dict[str, Any]:
    return {"w": np.zeros(SIZE), "i": 0}


def restored(*tiers: Tier) -> int:
    """Restore from some tiers alone, check the bits, and return the step; 0 for nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        state = Checkpointer(list(tiers)).restore(blank())
    expected = state_of(state["i"]) if state["i"] else blank()
    assert state["w"].tobytes() == expected["w"].tobytes()
    return state["i"]


def steps_on(tier: Tier) -> list[int]:
    return [found.id.step for found in Lineage([tier], LINEAGE).valid()]


def contents(tier: Tier) -> dict[str, bytes]:
    return {key: tier.get(key) for key in tier.iter_keys("")}


class Switch:
    """Makes the calls of a tier fail while it is on."""

    def __init__(self, error: CheckpointError, *, calls: str = "put", part: str = "") -> None:
        self.on, self.error, self._calls, self._part = False, error, calls.split(), part

    def __call__(self, operation: str, key: str) -> None:
        if self.on and operation in self._calls and self._part in key:
            raise self.error


class Gate:
    """Holds up the first put of a pack until it is opened, so that a save is in flight."""

    def __init__(self, part: str = "packs/") -> None:
        self.reached, self._open, self._part = threading.Event(), threading.Event(), part

    def __call__(self, operation: str, key: str) -> None:
        if operation == "put" and self._part in key:
            self.reached.set()
            assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


class Clock:
    """Stands still until it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def disk() -> MemoryTier:
    return MemoryTier("disk", level=1)


def begun(*tiers: Tier, **options: Any) -> Checkpointer:
    """A checkpointer that has looked where to go on."""
    ckpt = Checkpointer(list(tiers), **options)
    ckpt.restore(blank())
    return ckpt


def settle(ckpt: Checkpointer) -> None:
    """Wait until what follows a save, a prune, is over, too."""
    assert ckpt._writer is not None
    ckpt._writer.settle()


# --- a full disk ---


def test_a_full_disk_costs_a_checkpoint_and_not_the_task(disk: MemoryTier) -> None:
    """The older one stays, the task goes on, a warning is seen, and the exit tells."""
    full = Switch(FULL)
    ckpt = begun(FaultyTier(disk, full), every="never")
    ckpt.save(1, state_of(1)).wait()
    held = contents(disk)
    full.on = True
    ckpt.save(2, state_of(2)).wait_written()
    assert contents(disk) == held
    with WARNS_OF_FULL:
        assert not ckpt.step(3, state_of(3))
    full.on = False
    ckpt.save(4, state_of(4)).wait()
    assert ckpt.failures == [FULL]
    with pytest.raises(TierFull, match="No space left on device"):
        ckpt.close()
    assert steps_on(disk) == [4, 1]
    assert restored(disk) == 4


def test_a_memory_tier_that_overflows() -> None:
    small = MemoryTier("small", capacity_bytes=30_000)
    ckpt = begun(small, rng=False)
    ckpt.save(1, state_of(1)).wait()
    with pytest.raises(TierFull, match=r"Tier 'small' has no room for .*pack.*Prune it"):
        ckpt.save(2, {"w": np.random.default_rng(1).standard_normal(9 * SIZE)}).wait()
    with pytest.warns(CheckpointWarning, match="has no room"):
        ckpt.save(3, state_of(3)).wait()
    ckpt.close()
    assert restored(small) == 3


@pytest.mark.parametrize("part", ["packs/", "manifests/", ".resume"])
def test_a_disk_that_is_full_for_any_object(disk: MemoryTier, part: str) -> None:
    with begun(disk) as ckpt:
        ckpt.save(1, state_of(1))
    full = Switch(FULL, part=part)
    ckpt = begun(FaultyTier(disk, full))
    full.on = True
    with pytest.raises(TierFull, match="No space left"):
        ckpt.save(2, state_of(2)).wait()
    full.on = False
    with WARNS_OF_FULL:
        ckpt.save(3, state_of(3)).wait()
    ckpt.close()
    assert restored(disk) == 3


def test_an_error_that_was_met_is_not_raised_again(disk: MemoryTier) -> None:
    full = Switch(FULL)
    full.on = True
    with WARNS_OF_FULL, Checkpointer(FaultyTier(disk, full)) as ckpt:
        ticket = ckpt.save(1, state_of(1))
        ticket.wait_written()
        assert ticket.error is FULL


def test_wait_raises_what_went_wrong_once(disk: MemoryTier) -> None:
    full = Switch(FULL)
    ckpt = begun(FaultyTier(disk, full))
    full.on = True
    ckpt.save(1, state_of(1))
    with pytest.raises(TierFull, match="No space left"):
        ckpt.wait()
    full.on = False
    with WARNS_OF_FULL:
        ckpt.save(2, state_of(2))
    ckpt.wait()  # What has been met is not in the way of what comes later.
    ckpt.close()
    assert restored(disk) == 2


def failing_task(tier: Tier, full: Switch) -> None:
    with Checkpointer(tier) as ckpt:
        full.on = True
        ckpt.save(1, state_of(1))
        raise ZeroDivisionError("the task's own")


def test_the_tasks_own_exception_is_not_hidden(disk: MemoryTier) -> None:
    full = Switch(FULL)
    with WARNS_OF_FULL, pytest.raises(ZeroDivisionError, match="the task's own") as caught:
        failing_task(FaultyTier(disk, full), full)
    assert caught.value.__notes__ == [f"checkpointing: {FULL}"]


def test_several_failures_are_told_at_once(disk: MemoryTier) -> None:
    full = Switch(FULL)
    full.on = True
    ckpt = Checkpointer(FaultyTier(disk, full))
    ckpt.save(1, state_of(1)).wait_written()
    full.error = DOWN
    with WARNS_OF_FULL:
        ckpt.save(2, state_of(2)).wait_written()
    with (
        pytest.warns(CheckpointWarning, match="server is down"),
        pytest.raises(TierFull, match="No space left") as caught,
    ):
        ckpt.close()
    assert caught.value.__notes__ == [f"also: {DOWN}"]
    assert ckpt.failures == [FULL, DOWN]


def test_a_bug_in_a_tier_is_no_silence(disk: MemoryTier) -> None:
    def broken(operation: str, key: str) -> None:
        if operation == "put" and "packs/" in key:
            raise KeyError("a bug")

    ckpt = Checkpointer(FaultyTier(disk, broken))
    with pytest.raises(CheckpointError, match=r"the save of step 1 broke: KeyError\('a bug'\)"):
        ckpt.save(1, state_of(1)).wait()
    with pytest.warns(CheckpointWarning, match="broke"):
        ckpt.close()


def test_pruning_that_fails_is_a_warning_only(disk: MemoryTier) -> None:
    stuck = Switch(TierUnavailable("cannot delete"), calls="delete")
    stuck.on = True
    ckpt = begun(FaultyTier(disk, stuck), keep=1)
    ckpt.save(1, state_of(1)).wait()
    ckpt.save(2, state_of(2)).wait()
    with pytest.warns(CheckpointWarning, match=r"cannot delete The task goes on"):
        ckpt.close()
    assert steps_on(disk) == [2, 1]
    assert restored(disk) == 2


def test_a_capture_that_fails_gives_its_memory_back(
    disk: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next save would wait for ever for memory that nobody holds."""
    copy_into = Region.copy_into

    def lost_device(self: Region, out: Any) -> None:
        monkeypatch.setattr(Region, "copy_into", copy_into)
        raise RuntimeError("the device is lost")

    gathered = np.zeros((SIZE, 2))[:, 0]

    # Without random states, whose size depends on whether torch has been imported.
    with Checkpointer(disk, budget_bytes=SIZE * 8 + 10_000, rng=False) as ckpt:
        monkeypatch.setattr(Region, "copy_into", lost_device)
        with pytest.raises(RuntimeError, match="the device is lost"):
            ckpt.save(1, state_of(1) | {"far": gathered})
        ckpt.save(2, state_of(2)).wait()
    assert restored(disk) == 2


def test_random_states_that_have_no_generator_here_are_told(
    disk: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    with Checkpointer(disk) as ckpt:
        ckpt.save(1, state_of(1))
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.warns(CheckpointWarning, match="torch's random state was not restored"):
        Checkpointer(disk).restore(blank())


# --- several tiers ---


def test_when_the_inner_tier_is_full_the_outer_one_takes_it(disk: MemoryTier) -> None:
    """The full one is left alone for a while; when it is back it gets all that it lacks."""
    pfs, full, clock = MemoryTier("pfs", level=3), Switch(FULL), Clock()
    ckpt = begun(FaultyTier(disk, full), pfs, keep="all", rng=False)
    ckpt.health.clock_s = clock
    for step in (1, 2):
        ckpt.save(step, state_of(step)).wait(3)
    full.on = True
    ckpt.save(3, state_of(3)).wait(3)
    full.on = False
    with WARNS_OF_FULL:
        ckpt.save(4, state_of(4)).wait(3)
    clock.now_s = 31.0
    ckpt.save(5, state_of(5)).wait(3)
    ckpt.close()  # Steps 3 and 4 are safe, so nothing is raised.
    assert steps_on(disk) == [5, 2, 1]
    assert steps_on(pfs) == [5, 4, 3, 2, 1]
    assert restored(disk) == restored(pfs) == 5
    four, five = (Lineage([tier], LINEAGE) for tier in (pfs, disk))
    assert four.manifest(four.valid()[1]).kind == "delta"  # Against what pfs has.
    assert five.manifest(five.valid()[0]).kind == "delta"  # Against step 2, which it has.
    (trouble,) = ckpt.health.report()
    assert trouble.pop("since") <= trouble.pop("back")
    assert trouble == {
        "tier": "disk", "level": 1, "condition": "full", "error": str(FULL), "missed": 2
    }  # fmt: skip
    assert any("'disk' (level 1) was found full" in note for note in ckpt.notes)


def test_a_tier_that_fails_is_not_asked_at_every_save(disk: MemoryTier) -> None:
    """It is asked after 5 s, 10 s more, 20 s more; the user hears of it once."""
    down, clock, asked = Switch(DOWN), Clock(), []

    def watch(operation: str, key: str) -> None:
        if operation == "put" and "packs/" in key:
            asked.append(int(clock.now_s))
            down(operation, key)

    pfs = MemoryTier("pfs", level=3)
    ckpt = begun(FaultyTier(disk, watch), pfs, rng=False)
    ckpt.health.clock_s, down.on = clock, True
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(1, 51):
            clock.now_s = float(step)
            ckpt.save(step, state_of(step)).wait()
        ckpt.close()
    assert asked == [1, 6, 16, 36]
    assert [str(one.message) for one in told] == [f"{DOWN} The task goes on."]
    assert ckpt.failures == [DOWN]
    assert ckpt.health.report()[0]["missed"] == 50


def test_a_full_tier_is_tried_at_once_when_a_prune_made_room(disk: MemoryTier) -> None:
    """Of three checkpoints two waited for their copies; those are deleted first."""
    full, gate = Switch(FULL, part="packs/000000000004"), Gate()
    pfs = FaultyTier(MemoryTier("pfs", level=3), gate)
    ckpt = begun(FaultyTier(disk, full), pfs, keep=1, rng=False)
    ckpt.health.clock_s = Clock()
    for step in (1, 2, 3):
        ckpt.save(step, {"w": np.random.default_rng(step).standard_normal(SIZE)}).wait()
    full.on = True
    gate.open()
    ckpt.wait(3)
    with WARNS_OF_FULL:
        ckpt.save(4, {"w": np.random.default_rng(4).standard_normal(SIZE)}).wait()
        assert steps_on(pfs)[0] == 4
        settle(ckpt)
        assert steps_on(disk) == [3]
        ckpt.save(5, state_of(5)).wait()
        ckpt.close()
    assert steps_on(disk) == [5]
    assert restored(disk) == 5


def test_a_fence_tier_that_is_away_holds_no_commit_up(disk: MemoryTier) -> None:
    """Once it says where the attempt went on from: all that comes too late is void then."""
    away = Switch(DOWN, calls="iter_keys get put size")
    pfs = FaultyTier(MemoryTier("pfs", level=3), away)
    ckpt = begun(disk, pfs, keep=2, flush_every={"pfs": 100})
    ckpt.save(1, state_of(1)).wait(3)
    settle(ckpt)
    away.on = True
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in (2, 3):
            ckpt.save(step, state_of(step)).wait()
        ckpt.wait()
    assert [str(one.message) for one in told] == [f"{DOWN} The task goes on."]
    away.on = False
    ckpt.save(4, state_of(4)).wait()
    ckpt.close()
    assert steps_on(disk)[0] == 4
    assert restored(disk) == 4


def test_before_that_nothing_is_committed_without_it(disk: MemoryTier) -> None:
    away = Switch(DOWN, calls="iter_keys get put size")
    ckpt = begun(disk, FaultyTier(MemoryTier("pfs", level=3), away))
    away.on = True
    with pytest.raises(TierUnavailable, match="server is down"):
        ckpt.save(1, state_of(1)).wait()
    assert steps_on(disk) == []
    away.on = False
    with pytest.warns(CheckpointWarning, match="server is down"):
        ckpt.save(2, state_of(2)).wait(3)
    ckpt.close()
    assert restored(disk) == 2


def test_a_base_that_the_outer_tier_has_pruned_is_not_built_upon(disk: MemoryTier) -> None:
    """The outer tier held all of what was restored, but not any more when it is needed."""
    pfs, full = MemoryTier("pfs", level=3), Switch(FULL)
    with begun(disk, pfs) as ckpt:
        ckpt.save(1, state_of(1))
    ckpt = begun(FaultyTier(disk, full), pfs, keep=1)
    for step in range(2, 6):
        whole = np.random.default_rng(step).standard_normal(SIZE)
        ckpt.save(step, {"w": whole, "i": step}).wait(3)
    full.on = True
    ckpt.save(9, state_of(9)).wait(3)
    with WARNS_OF_FULL:
        ckpt.close()
    assert restored(pfs) == 9


def test_a_copy_that_does_not_arrive(disk: MemoryTier) -> None:
    down = Switch(DOWN)
    pfs = FaultyTier(MemoryTier("pfs", level=3), down)
    ckpt = begun(disk, pfs, flushing=Flushing(retry_s=0.01))
    ckpt.save(1, state_of(1)).wait(3)
    down.on = True
    ticket = ckpt.save(2, state_of(2))
    ticket.wait(1)
    with pytest.raises(FlushError, match=r"step 2 .* did not reach tier 'pfs' \(level 3\)"):
        ticket.wait(3)
    down.on = False
    with pytest.warns(CheckpointWarning, match="server is down"):
        ckpt.save(3, state_of(3)).wait(3)
    down.on = True
    ckpt.save(4, state_of(4)).wait()
    with (
        pytest.warns(CheckpointWarning, match="server is down"),
        pytest.raises(FlushError, match=r"step 4 .* did not reach tier 'pfs'"),
    ):
        ckpt.close()
    assert steps_on(pfs.inner) == [3, 1]
    assert restored(disk) == 4


def test_waiting_for_a_level_waits_for_the_copies_of_all_saves(disk: MemoryTier) -> None:
    gate = Gate()
    pfs = FaultyTier(MemoryTier("pfs", level=3), gate)
    ckpt = begun(disk, pfs)
    for step in (1, 2, 3):
        ckpt.save(step, state_of(step)).wait()
    assert steps_on(pfs.inner) == []
    gate.open()
    ckpt.wait(3)
    assert steps_on(pfs.inner)[0] == 3
    ckpt.close()


def test_what_waits_for_its_copy_is_not_pruned(disk: MemoryTier) -> None:
    gate = Gate()
    pfs = FaultyTier(MemoryTier("pfs", level=3), gate)
    with begun(disk, pfs, keep=1) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, state_of(step)).wait()
        assert steps_on(disk) == [3, 2, 1]
        gate.open()
        ckpt.wait(3)
        wait_until(lambda: not ckpt._writer._flusher.in_flight(ckpt.lineage.id))
        ckpt.save(4, state_of(4)).wait(3)
    assert steps_on(disk) == [4]
    assert steps_on(pfs.inner) == [4]


# --- memory ---


def wait_until(condition: Callable[[], bool]) -> None:
    """Yield to other threads until something holds; the limit is no timing, but a hang."""
    for _ in range(600_000):
        if condition():
            return
        threading.Event().wait(1e-4)
    pytest.fail("it never happened")


def test_a_state_larger_than_the_budget_blocks_until_it_is_written(disk: MemoryTier) -> None:
    returned_before_put = []
    returned = threading.Event()

    def watch(operation: str, _key: str) -> None:
        if operation == "put":
            returned_before_put.append(returned.is_set())

    with begun(FaultyTier(disk, watch), budget_bytes=100) as ckpt:
        for step in (1, 2):
            state = state_of(step)
            returned.clear()
            ticket = ckpt.save(step, state)
            returned.set()
            assert (ticket.captured, ticket.durable) == (True, True)
            state["w"][:] = -1
    assert returned_before_put
    assert not any(returned_before_put)
    assert restored(disk) == 2


def test_a_state_larger_than_the_budget_and_a_full_disk(disk: MemoryTier) -> None:
    full = Switch(FULL)
    full.on = True
    ckpt = Checkpointer(FaultyTier(disk, full), budget_bytes=0)
    ticket = ckpt.save(1, state_of(1))  # Returns, although it failed.
    assert ticket.error is FULL
    with WARNS_OF_FULL:
        ckpt.close()


def test_saves_in_flight_keep_within_the_budget(disk: MemoryTier) -> None:
    """Room for one and a half: the second save waits until the first is written."""
    gate = Gate()
    ckpt = begun(FaultyTier(disk, gate), rng=False, budget_bytes=12 * SIZE, keep="all")
    first = ckpt.save(1, state_of(1))
    assert gate.reached.wait(60)
    tickets = []
    saving = threading.Thread(target=lambda: tickets.append(ckpt.save(2, state_of(2))))
    saving.start()
    arenas = ckpt._capturing.capturer.arenas
    wait_until(lambda: len(arenas._changed._waiters) == 1)
    assert (tickets, first.durable) == ([], False)
    gate.open()
    saving.join(60)
    ckpt.wait()
    assert arenas.counted_bytes == 0
    ckpt.close()
    assert steps_on(disk) == [2, 1]


def test_memory_does_not_grow_with_the_number_of_saves(disk: MemoryTier) -> None:
    ckpt = begun(disk, budget_bytes=60 * SIZE)
    for step in range(1, 80):
        ckpt.save(step, state_of(step))
        arenas = ckpt._capturing.capturer.arenas
        held = arenas.counted_bytes + sum(len(arena) for arena in list(arenas._free))
        assert held <= 60 * SIZE
        assert len(ckpt._tickets) <= 8  # Settled ones are let go.
    ckpt.close()
    assert arenas.counted_bytes == 0
    assert restored(disk) == 79


# --- two attempts ---


def test_whoever_is_overtaken_stops_at_its_next_call(disk: MemoryTier) -> None:
    old = begun(disk)
    old.save(1, state_of(1)).wait()
    settle(old)  # Its prune would notice, too.
    new = begun(disk)
    assert (old.attempt, new.attempt, new.restored_step) == (1, 2, 1)
    ticket = old.save(2, state_of(2))
    with pytest.raises(FencedError, match="attempt 2 has taken over from attempt 1"):
        ticket.wait()
    for use in (
        lambda: old.save(3, state_of(3)),
        lambda: old.step(3, state_of(3)),
        lambda: old.restore(blank()),
        old.wait,
        old.close,
    ):
        with pytest.raises(FencedError, match="attempt 2 has taken over"):
            use()
    new.save(2, state_of(2)).wait()
    new.close()
    assert restored(disk) == 2
    assert {found.id.attempt for found in new.lineage.valid()} == {1, 2}


def overtaken_task(disk: Tier) -> None:
    with begun(disk) as ckpt:
        Lineage([disk], LINEAGE).claim()
        ckpt.save(1, state_of(1)).wait_written()
        raise ZeroDivisionError("the task's own")


def test_being_overtaken_does_not_hide_the_tasks_own_exception(disk: MemoryTier) -> None:
    with pytest.raises(ZeroDivisionError, match="the task's own") as caught:
        overtaken_task(disk)
    assert "attempt 2 has taken over" in caught.value.__notes__[0]


def test_leaving_the_block_tells_that_one_was_overtaken(disk: MemoryTier) -> None:
    ckpt = begun(disk)
    ckpt.save(1, state_of(1)).wait()
    settle(ckpt)
    Lineage([disk], LINEAGE).claim()
    ckpt.save(2, state_of(2))
    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        ckpt.close()


def test_whoever_is_overtaken_after_its_commit_does_not_prune(disk: MemoryTier) -> None:
    """It does not know what the newer attempt has restored and still needs."""
    tier, claimed = disk, []

    def overtake(operation: str, key: str) -> None:
        if operation == "put" and "000000000002.00000001.ckpt" in key:
            claimed.append(Lineage([tier], LINEAGE).claim())

    old = begun(FaultyTier(tier, overtake), keep=1)
    old.save(1, state_of(1)).wait()
    old.save(2, state_of(2)).wait()
    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        old.close()
    assert claimed == [2]
    assert steps_on(disk) == [2, 1]


def test_a_late_commit_does_not_stop_an_attempt_that_began_anew(disk: MemoryTier) -> None:
    """The older attempt was past its last look at the claims when the new one looked around."""
    late: list[Callable[[], Any]] = []

    def new_attempt(operation: str, key: str) -> None:
        if operation == "put" and "manifests/" in key and not late:
            late.append(new.save)
            new.restore(blank())

    new = Checkpointer(disk)
    old = begun(FaultyTier(disk, new_attempt))
    old.save(5, state_of(5)).wait()
    assert new.restored_step is None
    assert steps_on(disk) == [5]
    new.save(1, state_of(1)).wait()
    new.close()
    assert steps_on(disk) == [1]  # The late one is void.
    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        old.close()


CONTENDER = """
import sys
from ckptflow.checkpointer import Checkpointer
ckpt = Checkpointer(sys.argv[1])
state = ckpt.restore({"i": 0})
print(ckpt.attempt, ckpt.restored_step, flush=True)
for line in sys.stdin:
    try:
        ckpt.save(int(line), {"i": int(line)}).wait()
        print("saved", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


class Contender:
    """Another process that works on the same task."""

    def __init__(self, store: Path) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-W", "error", "-c", CONTENDER, str(store)]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.start = self.answer()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def save(self, step: int) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()
        return self.answer()


def test_two_processes_on_one_task(tmp_path: Path) -> None:
    old = Contender(tmp_path / "store")
    assert old.start == "1 None"
    assert old.save(1) == "saved"
    new = Contender(tmp_path / "store")
    assert new.start == "2 1"
    assert old.save(2).startswith("FencedError default/main: attempt 2 has taken over from")
    assert new.save(2) == "saved"
    assert old.save(3).startswith("FencedError")
    for contender in (old, new):
        contender.process.communicate(timeout=60)
    lineage = Lineage([PosixTier(tmp_path / "store")], LINEAGE)
    assert [found.id for found in lineage.valid()] == [CheckpointId(2, 2), CheckpointId(1, 1)]


# --- going back ---


def test_going_back_leaves_what_came_after(disk: MemoryTier) -> None:
    ckpt = begun(disk, keep="all")
    for step in range(1, 6):
        ckpt.save(step, state_of(step))
    state = blank()
    assert ckpt.restore(state, step=2)["i"] == 2
    assert (ckpt.attempt, ckpt.last_step, ckpt.restored_step) == (2, 2, 2)
    assert steps_on(disk) == [5, 4, 3, 2, 1]  # Until the task goes on from there.
    ckpt.save(3, state_of(3))
    ckpt.close()
    assert [found.id for found in ckpt.lineage.valid()] == [
        CheckpointId(3, 2),
        CheckpointId(2, 1),
        CheckpointId(1, 1),
    ]
    assert restored(disk) == 3
    assert sum(ckpt.written_bytes) > 0


def test_going_back_while_saves_are_in_flight(disk: MemoryTier) -> None:
    """`restore` finds what was saved before it was called."""
    for _ in range(20):
        disk = MemoryTier("disk")
        ckpt = begun(disk)
        for step in (1, 2, 3):
            ckpt.save(step, state_of(step))
        assert ckpt.restore(blank())["i"] == 3
        ckpt.save(4, state_of(4))
        ckpt.close()
        assert restored(disk) == 4


def test_going_back_to_what_is_not_there_changes_nothing(disk: MemoryTier) -> None:
    ckpt = begun(disk)
    for step in (1, 2, 3):
        ckpt.save(step, state_of(step))
    with pytest.raises(NotFoundError, match=r"no checkpoint of step 1; it has 3, 2"):
        ckpt.restore(blank(), step=1)
    ckpt.save(4, state_of(4))
    ckpt.close()
    assert steps_on(disk) == [4, 3]
    assert ckpt.attempt == 1


# --- damage ---


def damage(tier: Tier, step: int) -> None:
    (key,) = (key for key in tier.iter_keys(f"{PREFIX}manifests") if f"{step:012d}" in key)
    tier.put(key, [tier.get(key)[:-1]])


def test_a_damaged_checkpoint_is_skipped_and_told(disk: MemoryTier) -> None:
    with begun(disk) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, state_of(step))
    damage(disk, 3)
    ckpt = Checkpointer(disk)
    with pytest.warns(
        CheckpointWarning, match=r"default/main step 3 \(attempt 1\) was skipped: The manifest"
    ):
        assert ckpt.restore(blank())["i"] == 2
    assert any("'disk'" in note for note in ckpt.notes)
    ckpt.save(3, state_of(3))
    ckpt.close()
    assert restored(disk) == 3


def test_nothing_but_damage(disk: MemoryTier) -> None:
    with begun(disk) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state_of(step))
    damage(disk, 1)
    damage(disk, 2)
    ckpt = Checkpointer(disk)
    with pytest.raises(RestoreError, match="None of the 2 checkpoints of default/main could"):
        ckpt.restore(blank())
    with pytest.raises(ConfigError, match=r"has checkpoints up to step 2 .* did not restore"):
        ckpt.save(1, state_of(1))


# --- stopping ---


def stopped(ckpt: Checkpointer, step: int) -> Preempted:
    with pytest.raises(Preempted, match="time is up") as caught:
        ckpt.step(step, state_of(step))
    return caught.value


def test_a_stop_while_the_disk_is_full(disk: MemoryTier) -> None:
    full = Switch(FULL)
    ckpt = begun(FaultyTier(disk, full), stop=lambda: "time is up")
    ckpt.save(1, state_of(1)).wait()
    full.on = True
    preempted = stopped(ckpt, 2)
    assert str(preempted).endswith("stopped at step 2 (time is up); step 1 is saved.")
    assert (preempted.step, preempted.resumed_step) == (1, None)
    assert preempted.__notes__ == [f"A save failed: {FULL}"]
    with WARNS_OF_FULL:
        ckpt.close()


def test_a_stop_before_anything_could_be_saved(disk: MemoryTier) -> None:
    full = Switch(FULL)
    ckpt = begun(FaultyTier(disk, full), stop=lambda: "time is up")
    full.on = True
    preempted = stopped(ckpt, 2)
    assert str(preempted).endswith("nothing is saved.")
    assert preempted.step == -1
    with WARNS_OF_FULL:
        ckpt.close()


def test_a_stop_at_a_step_whose_save_has_failed(disk: MemoryTier) -> None:
    full = Switch(FULL)
    ckpt = begun(FaultyTier(disk, full), stop=lambda: "time is up")
    ckpt.save(1, state_of(1)).wait()
    full.on = True
    ckpt.save(2, state_of(2)).wait_written()
    with WARNS_OF_FULL:
        preempted = stopped(ckpt, 2)
    assert preempted.step == 1
    assert preempted.__notes__ == [f"A save failed: {FULL}"]
    ckpt.close()


def test_a_stop_of_an_attempt_that_was_overtaken(disk: MemoryTier) -> None:
    ckpt = begun(disk, stop=lambda: "time is up")
    Lineage([disk], LINEAGE).claim()
    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        ckpt.step(1, state_of(1))


def test_a_prune_by_the_flusher_waits_for_a_save_that_had_to_go_outward() -> None:
    """It would delete the parent, which is not the newest there, while a delta is written."""
    inner, outer = MemoryTier("disk"), MemoryTier("lustre", level=3)
    saving, copied = threading.Event(), threading.Event()

    def on_inner(operation: str, key: str) -> None:
        if operation == "put" and "packs/000000000001" not in key and "/packs/" in key:
            raise DOWN

    def on_outer(operation: str, key: str) -> None:
        if operation == "put" and "packs/000000000001" in key:  # Copied from the inner tier
            saving.wait(60)  # while the next save is written.
        if operation == "put" and "manifests/000000000001" in key:
            copied.set()
        if operation == "put" and "packs/000000000002" in key:
            saving.set()
            copied.wait(60)
            time.sleep(0.3)  # The prune comes behind the copy.

    tiers = [FaultyTier(inner, on_inner), FaultyTier(outer, on_outer)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        with Checkpointer(tiers, every="never", keep=1, packing="chunk=64", rng=False) as ckpt:
            ckpt.health.clock_s = itertools.count(step=10_000).__next__  # Each save tries both.
            for step in range(3):
                ckpt.save(step, state_of(step)).wait()
            assert not [failure for failure in ckpt.failures if failure is not DOWN]
    assert restored(outer) == 2
