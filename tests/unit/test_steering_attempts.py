"""What steers a task over several attempts: which failures count, and what was lost."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import ckptflow
from ckptflow.checkpointer.pace import Pace
from ckptflow.checkpointer.steering import PlanChange, Steering
from ckptflow.checkpointer.surroundings import boot_id
from ckptflow.model import LineageId
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.multilevel.search import best_pattern
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

HOUR = 3600.0
PATTERN = (("shm", 1), ("disk", 2), ("pfs", 4))
RULE = MultiLevel(
    rates=Rates((1 / HOUR, 0.0, 1 / HOUR, 1 / (24 * HOUR), 0.0)),
    interval_s=10.0,
    counts=PATTERN,
)


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class Task:
    """A steering with a clock of its own, on a node that was started as ``boot``."""

    def __init__(self, rule: MultiLevel = RULE, *, boot: str = "boot-1") -> None:
        self.clock, self.told = Clock(), list[PlanChange]()
        self.tiers: list[Tier] = [
            MemoryTier("shm", level=0), MemoryTier("disk", level=1), MemoryTier("pfs", level=3)
        ]  # fmt: skip
        self.pace = Pace(self.clock, measured_on="here")
        self.steering = Steering(
            rule,
            self.tiers,
            {tier.name: Retention() for tier in self.tiers},
            pace=self.pace,
            told=self.told.append,
            clock=self.clock,
            apart=lambda work: work(),
            boot=boot,
        )
        self.ordinal = 0

    def start(
        self,
        kept: Mapping[str, Any] | None = None,
        *,
        level: int | None = None,
        silent: int = 0,
        holds: Collection[str] | None = None,
    ) -> None:
        tier = next((one for one in self.tiers if one.level == level), None)
        self.steering.start(
            kept or {}, restored_step=None if tier is None else 1, restored_from=tier,
            restore_s=1.0, was_failure=True, silent=silent, holds=holds,
        )  # fmt: skip

    def place(self, step: int) -> dict[str, bool]:
        """Save, and let no tier have its copy yet."""
        verdicts = self.steering.place(self.ordinal, step, last=False, left_s=None)
        self.pace.saved(step, blocked_s=0.5)
        self.ordinal += 1
        return {one.tier: one.goes for one in verdicts}

    def arrives(self, step: int, *names: str, after_s: float = 1.0) -> None:
        """Let tiers have their copies."""
        for tier in self.tiers:
            if tier.name in names:
                self.clock.now_s += after_s
                self.steering.copied(step, tier)
                self.steering.stored(step, state_bytes=10**8, stored_bytes=10**7)

    def save(self, step: int) -> dict[str, bool]:
        goes = self.place(step)
        self.arrives(step, *(name for name, one in goes.items() if one))
        return goes

    def kept(self) -> dict[str, Any]:
        return {**self.pace.kept(), **self.steering.kept()}


def failures_after(
    counts: tuple[tuple[str, int], ...], *, level: int, boot: str, silent: int = 0
) -> list[float]:
    """Return the failures that an attempt knows of after one that saved by some counts."""
    rule = replace(RULE, counts=counts, replan=False)
    before = Task(rule)
    before.start()
    before.save(1)
    after = Task(rule, boot=boot)
    after.start(before.kept(), level=level, silent=silent)
    found: list[float] = after.steering.kept()["failures"]
    return found


# --- the class of a failure ---


def test_a_process_that_died_is_one_though_the_plan_does_not_use_its_level() -> None:
    without = (("shm", 0), ("disk", 1), ("pfs", 2))
    assert failures_after(without, level=1, boot="boot-1") == [1, 0, 0, 0, 0]
    outermost = (("shm", 0), ("disk", 0), ("pfs", 1))
    assert failures_after(outermost, level=3, boot="boot-1") == [1, 0, 0, 0, 0]


def test_a_node_that_was_started_anew_is_told_by_the_level_that_survived() -> None:
    assert failures_after(PATTERN, level=1, boot="boot-2") == [0, 1, 0, 0, 0]
    assert failures_after(PATTERN, level=3, boot="another node") == [0, 0, 0, 1, 0]


def test_where_an_inner_copy_is_gone_more_than_a_process_was_lost() -> None:
    assert failures_after(PATTERN, level=1, boot="boot-1") == [0, 1, 0, 0, 0]


def test_where_nobody_knows_the_start_of_a_node_the_level_tells() -> None:
    without = (("shm", 0), ("disk", 1), ("pfs", 2))
    assert failures_after(without, level=1, boot="") == [0, 1, 0, 0, 0]


def test_attempts_that_saved_nothing_count_too() -> None:
    assert failures_after(PATTERN, level=0, boot="boot-1", silent=2) == [3, 0, 0, 0, 0]
    assert failures_after(PATTERN, level=3, boot="boot-2", silent=1) == [1, 0, 0, 1, 0]


def test_this_start_of_this_node_has_a_name_of_its_own() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) in {0, 36}


# --- what was lost with the attempt before ---


@pytest.mark.parametrize("arrived", [True, False])
def test_a_tier_that_never_got_the_newest_gets_the_next(arrived: bool) -> None:
    before = Task(replace(RULE, replan=False))
    before.start()
    before.place(1)
    after = Task(replace(RULE, replan=False))
    after.start(before.kept(), level=0, holds={"shm", "disk", *(["pfs"] if arrived else [])})
    assert after.save(2) == {"shm": True, "disk": not arrived, "pfs": not arrived}


def test_tiers_that_were_lost_get_the_next() -> None:
    before = Task(replace(RULE, replan=False))
    before.start()
    before.save(1)
    before.save(2)
    after = Task(replace(RULE, replan=False), boot="another node")
    after.start(before.kept(), level=3, holds={"pfs"})
    assert after.save(3) == {"shm": True, "disk": True, "pfs": False}


# --- plans ---


def test_a_given_pattern_holds_until_its_tiers_are_measured() -> None:
    task = Task()
    task.start()
    task.place(1)
    task.arrives(1, "shm", "disk")
    assert task.told == [], "what is guessed of a tier is no reason to leave the pattern"
    task.arrives(1, "pfs", after_s=30.0)
    assert len(task.told) == 1
    assert [level.latency_s for level in task.told[0].plan.system.levels] == [1.0, 2.0, 32.0]


def test_a_copy_that_failed_holds_no_plan_up() -> None:
    task = Task()
    task.start()
    task.place(1)
    task.arrives(1, "shm", "disk")
    task.steering.missed(1, task.tiers[2])
    task.clock.now_s += 10
    assert task.place(2)["pfs"], "it is tried again"
    task.steering.consider(2)
    assert task.told


def test_a_copy_that_never_comes_does_not_hold_plans_up_for_ever() -> None:
    task = Task()
    task.start()
    task.place(1)
    task.arrives(1, "shm", "disk")
    task.clock.now_s += 100
    task.steering.consider(1)
    assert not task.told
    task.clock.now_s += 100
    task.steering.consider(1)
    assert task.told


def test_a_plan_on_its_way_to_another_goes_on_with_the_next_save() -> None:
    task = Task(replace(RULE, interval_s=1.0))
    task.start()
    task.save(1)
    assert [change.plan.is_step for change in task.told] == [True]
    task.clock.now_s += 10
    task.steering.consider(1)
    assert len(task.told) == 1, "nothing was saved by it yet"
    for step in range(2, 12):
        task.save(step)
        task.clock.now_s += 10
    intervals = [1.0, *(change.plan.interval_s for change in task.told)]
    ratios = [after / before for before, after in itertools.pairwise(intervals)]
    assert max(ratios) <= 2.0001
    assert not task.told[-1].plan.is_step
    assert intervals[-1] > 10


def test_the_last_step_to_a_plan_is_taken_however_small_it_is() -> None:
    task = Task(replace(RULE, interval_s=1.0))
    task.start()
    for step in range(1, 30):
        task.save(step)
        task.clock.now_s += 10
    plan = task.told[-1].plan
    best = best_pattern(plan.system, [plan.pattern])
    assert plan.interval_s == pytest.approx(best.pattern.interval_s, rel=0.02)


# --- a whole checkpointer ---


def state(step: int) -> dict[str, Any]:
    return {"step": step, "w": np.full(1000, step, dtype=np.float64)}


def test_each_attempt_since_the_checkpoint_is_counted() -> None:
    tier = MemoryTier("pfs", level=3)

    def attempt(*, saves: int | None) -> list[float]:
        """Begin, save perhaps, and say nothing of the end, as a killed one."""
        ckpt = ckptflow.Checkpointer(tier, every=RULE_OF_ONE)
        restored = ckpt.restore(state(0))
        if saves is not None:
            ckpt.save(saves, state(saves)).wait()
        ckpt.shut()
        lineage = Lineage([tier], LineageId("default", "main"))
        newest = lineage.newest()
        assert newest is not None
        assert restored["step"] <= newest.id.step
        return list(lineage.manifest(newest).pace["failures"])

    attempt(saves=1)
    attempt(saves=None)
    attempt(saves=None)
    assert attempt(saves=2) == [3, 0, 0, 0, 0] if boot_id() else [2, 0, 0, 1, 0]


def test_attempts_that_were_stopped_in_time_are_not_counted() -> None:
    tier = MemoryTier("pfs", level=3)
    lineage = Lineage([tier], LineageId("default", "main"))
    for step, outcome in ((1, None), (None, "preempted"), (None, None), (2, None)):
        ckpt = ckptflow.Checkpointer(tier, every=RULE_OF_ONE)
        ckpt.restore(state(0))
        if step is not None:
            ckpt.save(step, state(step)).wait()
        ckpt.shut()
        if outcome is not None:
            lineage.record_end(ckpt.attempt, {"outcome": outcome})
    newest = lineage.newest()
    assert newest is not None
    assert sum(lineage.manifest(newest).pace["failures"]) == pytest.approx(2)


RULE_OF_ONE = MultiLevel(interval_s=1.0, counts=(("pfs", 1),), replan=False)
