"""What has arrived and rests is consolidated, inner tiers are pruned; neither too early.

Time passes when a test says so; what is waited for are events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from ckptflow.errors import TierFull
from ckptflow.flush import FlushRequest, copy_checkpoint
from ckptflow.flush.agent import upkeep as upkeeps
from ckptflow.flush.agent.upkeep import Upkeep
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.policy.consolidation import QUIET_GAPS, QUIET_S
from ckptflow.policy.retention import Retention, parse_retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.consolidate import plan_consolidation
from ckptflow.store.prune import prune
from ckptflow.store.resume import restore_newest
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]
LINEAGE = LineageId("exp", "task")
LONG_S = 60.0
LAST = 8


class World:
    """A task's checkpoints, time, and who looks after them."""

    def __init__(self, near: Tier, far: Tier) -> None:
        self.near, self.far, self.now_s = near, far, 1000.0
        self.in_use: set[str] = set()
        self.pruned: list[tuple[str, str]] = []
        self.upkeep = Upkeep(
            [near, far], prune=self.prune, in_use=lambda: self.in_use, clock=lambda: self.now_s
        )

    def prune(self, lineage: Lineage, _attempt: int, tier: Tier, retention: Retention) -> None:
        self.pruned.append((tier.name, str(retention)))
        prune(lineage, tier, retention)

    def arrive(self, step: int, keep: str = "2", after_s: float = 1.0) -> None:
        """Copy a checkpoint outward, prune, and tell."""
        self.now_s += after_s
        lineage, retention = Lineage([self.near, self.far], LINEAGE), parse_retention(keep)
        manifest = lineage.manifest_on(self.near, CheckpointId(step, 1))
        copy_checkpoint([self.near], self.far, LINEAGE, manifest)
        prune(lineage, self.far, retention)
        elsewhere = {"near": Retention(newest=1), "far": retention}
        self.upkeep.arrived(
            FlushRequest(
                manifest, self.far, lambda _error: None, retention, kept_elsewhere=elsewhere
            )
        )

    def pass_s(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.upkeep.look()

    def settle(self) -> None:
        """Wait until nothing is done and nothing could be."""
        pause = threading.Event()
        for _ in range(int(LONG_S / 0.005)):
            if not self.upkeep.busy:
                return
            pause.wait(0.005)
        raise AssertionError("the upkeep does not come to an end")

    def leave(self) -> None:
        """The task goes, and everything is done."""
        self.upkeep.gone("task")
        self.settle()

    def worth(self) -> list[int]:
        """Return the steps on the far tier that it would be worth consolidating."""
        lineage = Lineage([self.near, self.far], LINEAGE)
        plans = [
            plan_consolidation(lineage, self.far, one.id)
            for one in lineage.checkpoints_on(self.far)
        ]
        return sorted(plan.id.step for plan in plans if plan.verdict.worth)

    def check_restore(self) -> None:
        restored = restore_newest(Lineage([self.far], LINEAGE), None)
        assert restored is not None
        expected = state_of(restored.base.manifest.id.step)
        for name, value in expected.items():
            np.testing.assert_array_equal(restored.state[name], value)


def state_of(step: int) -> dict[str, np.ndarray]:
    state = {"same": np.random.default_rng(0).standard_normal(3000)}
    state["w"] = np.random.default_rng(1).standard_normal(20 * LAST)
    for earlier in range(step + 1):
        state["w"][20 * (earlier % LAST) :][:20] = earlier
    return state


@pytest.fixture
def near(save_state: SaveState) -> MemoryTier:
    tier = MemoryTier("near", level=1)
    for step in range(1, LAST + 1):
        save_state(tier, str(LINEAGE), step, state_of(step))
    return tier


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.upkeep.close()


@pytest.fixture
def world(near: MemoryTier, worlds: list[World]) -> World:
    worlds.append(World(near, MemoryTier("far", level=3)))
    return worlds[0]


def arrive_all(world: World, **more: object) -> None:
    """What a task does that stays."""
    world.upkeep.used_by(LINEAGE, "task")
    for step in range(1, LAST + 1):
        world.arrive(step, **more)


def test_the_newest_of_a_running_task_is_left_alone_until_the_task_has_gone(
    world: World,
) -> None:
    arrive_all(world)
    world.settle()
    assert world.worth() == [LAST - 1, LAST]
    assert world.upkeep.history() == []
    world.upkeep.gone("somebody else")
    world.settle()
    assert LAST in world.worth()
    world.leave()
    assert world.worth() == [LAST - 1]  # That one goes when the next arrives.
    (told,) = world.upkeep.history()
    assert (told.step, told.tier, told.error) == (LAST, "far", None)
    assert told.packs_after < told.packs_before
    assert told.written_bytes > 0
    world.check_restore()


@pytest.mark.parametrize("gap_s", [1.0, QUIET_S / 2])
def test_or_until_nothing_has_arrived_for_long(world: World, gap_s: float) -> None:
    arrive_all(world, after_s=gap_s)
    quiet_s = max(QUIET_S, QUIET_GAPS * gap_s)
    world.pass_s(quiet_s - 1)
    world.settle()
    assert LAST in world.worth()
    world.pass_s(2)
    world.settle()
    assert LAST not in world.worth()
    assert world.pruned == [("far", "newest=2")]  # The task is there, and prunes its own.
    world.leave()
    assert world.pruned[1:] == [("near", "newest=1")]
    assert world.upkeep._places == {}


def test_what_rules_keep_is_consolidated_while_the_task_runs(world: World) -> None:
    world.upkeep.used_by(LINEAGE, "task")
    for step in range(1, LAST + 1):
        world.arrive(step, keep="newest=2,every=2")
        world.settle()  # Between the next copy and its prune one more would seem to be kept.
    assert {one.step for one in world.upkeep.history()} == {2, 4, 6}
    world.check_restore()


def test_where_all_are_kept_only_the_newest_is_consolidated(world: World) -> None:
    arrive_all(world, keep="all")
    world.leave()
    assert LAST not in world.worth()
    assert len(world.worth()) >= LAST - 3


def test_copies_to_the_tier_go_first(world: World) -> None:
    world.in_use.add("far")
    arrive_all(world)
    world.leave()
    assert LAST in world.worth()
    world.in_use.clear()
    world.upkeep.look()
    world.settle()
    assert LAST not in world.worth()


def test_when_the_task_has_gone_the_inner_tiers_are_pruned(world: World) -> None:
    arrive_all(world)
    world.leave()
    assert ("near", "newest=1") in world.pruned
    there = Lineage([world.near], LINEAGE).checkpoints_on(world.near)
    assert [found.id.step for found in there] == [LAST]


def test_an_attempt_that_was_overtaken_is_not_looked_after(world: World) -> None:
    world.in_use.add("far")
    arrive_all(world)
    world.upkeep.gone("task")
    assert Lineage([world.near, world.far], LINEAGE).claim() == 2
    world.in_use.clear()
    world.upkeep.look()
    world.settle()
    assert world.pruned == []
    assert LAST in world.worth()


def test_it_is_given_up_when_time_is_short_and_done_afterwards(
    near: MemoryTier, worlds: list[World]
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def hold(operation: str, key: str) -> None:
        if operation == "put" and "/packs/" in key and "upkeep" in thread_name():
            reached.set()
            assert go_on.wait(LONG_S)

    far = MemoryTier("far", level=3)
    worlds.append(world := World(near, FaultyTier(far, hold)))
    arrive_all(world)
    world.upkeep.gone("task")
    assert reached.wait(LONG_S)
    world.upkeep.pause()
    go_on.set()
    assert world.upkeep.busy
    before = set(far.iter_keys(LINEAGE.prefix))
    world.check_restore()
    assert before
    world.upkeep.go_on()
    world.settle()
    assert LAST not in world.worth()
    world.check_restore()


def thread_name() -> str:
    return threading.current_thread().name


def test_a_failure_is_told_and_leaves_the_checkpoint_as_it_was(
    near: MemoryTier, worlds: list[World], caplog: pytest.LogCaptureFixture
) -> None:
    def full(operation: str, _key: str) -> None:
        if operation == "put" and "upkeep" in thread_name():
            raise TierFull("no room left")

    worlds.append(world := World(near, FaultyTier(MemoryTier("far", level=3), full)))
    arrive_all(world)
    world.leave()
    (told,) = world.upkeep.history()
    assert told.error is not None
    assert "no room left" in told.error
    assert "no room left" in caplog.text
    assert LAST in world.worth()
    world.check_restore()


def test_it_does_nothing_where_nothing_is_wanted(near: MemoryTier, worlds: list[World]) -> None:
    world = World(near, MemoryTier("far", level=3))
    world.upkeep = Upkeep(
        [near, world.far], prune=world.prune, in_use=set, consolidates=False, clock=lambda: 0.0
    )
    worlds.append(world)
    arrive_all(world)
    world.leave()
    assert LAST in world.worth()
    assert world.pruned == [("near", "newest=1")]


def test_no_more_is_remembered_than_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeeps, "PLACES_MAX", 3)
    world.in_use.add("far")
    manifest = Lineage([world.near], LINEAGE).manifest_on(world.near, CheckpointId(1, 1))
    for number in range(5):
        other = FlushRequest(
            _of(manifest, f"task{number}"), world.far, lambda _error: None, Retention()
        )
        world.upkeep.arrived(other)
    assert len(world.upkeep._places) == 3


def _of(manifest: Manifest, task: str) -> Manifest:
    return replace(manifest, lineage=LineageId("exp", task))
