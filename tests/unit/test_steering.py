"""What makes plans while a task runs: what it measures, and what it hands on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import ckptflow
from ckptflow.checkpointer.neighbours import pace_of_others
from ckptflow.checkpointer.pace import Pace
from ckptflow.checkpointer.steering import PlanChange, Steering
from ckptflow.errors import ConfigError, TierUnavailable
from ckptflow.model import LineageId
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

HOUR = 3600.0
RULE = MultiLevel(rates=Rates((1 / HOUR, 0.0, 1 / HOUR, 1 / (24 * HOUR), 0.0)))


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class Task:
    """A steering with a clock of its own, and what it told."""

    def __init__(self, rule: MultiLevel = RULE, tiers: list[Tier] | None = None) -> None:
        self.clock, self.told = Clock(), list[PlanChange]()
        self.tiers: list[Tier] = tiers or [
            MemoryTier("shm", level=0), MemoryTier("disk", level=2), MemoryTier("pfs", level=3)
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
        )
        self.ordinal = 0

    def start(
        self,
        kept: Mapping[str, Any] | None = None,
        *,
        step: int | None = None,
        level: int | None = None,
        was_failure: bool = True,
    ) -> None:
        tier = next((one for one in self.tiers if one.level == level), None)
        self.steering.start(
            kept or {}, restored_step=step, restored_from=tier, restore_s=1.0,
            was_failure=was_failure,
        )  # fmt: skip

    def save(self, step: int, *, blocked_s: float = 0.5, **takes_s: float) -> dict[str, bool]:
        """Save, and let each tier have its copy after some time."""
        verdicts = self.steering.place(self.ordinal, step, last=False, left_s=None)
        self.pace.saved(step, blocked_s=blocked_s)
        self.ordinal += 1
        began_s = self.clock.now_s
        goes = {one.tier: one.goes for one in verdicts}
        for tier in self.tiers:
            if goes[tier.name]:
                self.clock.now_s = began_s + takes_s.get(tier.name, 1.0)
                self.steering.copied(step, tier)
                self.steering.stored(step, state_bytes=10**8, stored_bytes=10**7)
        return goes


def test_the_first_save_goes_everywhere_and_makes_a_plan() -> None:
    task = Task()
    task.start()
    assert task.steering.planned_s is None
    assert all(task.save(1, shm=0.5, disk=2.0, pfs=60.0).values())
    assert task.told
    assert task.told[0].before is None
    plan = task.told[-1].plan
    assert task.steering.planned_s == plan.interval_s
    assert plan.counts["shm"] == 1
    assert plan.counts["pfs"] > 1


def test_later_saves_go_where_the_plan_says() -> None:
    task = Task(
        replace(
            RULE, interval_s=10.0, counts=(("shm", 1), ("disk", 2), ("pfs", 4)), replan=False
        )
    )
    task.start()
    sent = [task.save(step) for step in range(9)]
    assert [one["shm"] for one in sent] == [True] * 9
    assert [at for at, one in enumerate(sent) if one["disk"]] == [0, 2, 4, 6, 8]
    assert [at for at, one in enumerate(sent) if one["pfs"]] == [0, 4, 8]
    assert task.told == []


def test_a_copy_that_is_on_its_way_makes_the_next_one_go() -> None:
    task = Task(replace(RULE, interval_s=10.0, counts=(("shm", 1), ("disk", 1), ("pfs", 2))))
    task.start()
    place = task.steering.place
    assert [one.goes for one in place(0, 1, last=False, left_s=None)] == [True, True, True]
    second = place(1, 2, last=False, left_s=None)
    assert [one.goes for one in second] == [True, False, False]
    assert "still on its way" in second[1].reason
    task.steering.copied(1, task.tiers[1])
    task.steering.copied(1, task.tiers[2])
    assert [one.goes for one in place(2, 3, last=False, left_s=None)] == [True, True, True]


def test_a_copy_that_failed_is_made_up_for_by_the_next() -> None:
    task = Task(replace(RULE, interval_s=10.0, counts=(("shm", 1), ("disk", 1), ("pfs", 9))))
    task.start()
    task.steering.place(0, 1, last=False, left_s=None)
    task.steering.missed(1, task.tiers[2])
    after = task.steering.place(1, 2, last=False, left_s=None)
    assert after[2].goes
    assert "the first one" in after[2].reason


def lives(rule: MultiLevel = RULE, *levels: int, planned: int | None = None) -> Task:
    """A task that is interrupted after a minute, again and again; returns its last life."""
    task = Task(rule)
    task.start()
    for number, level in enumerate(levels):
        task.save(10 * number + 1)
        task.clock.now_s += 60
        kept = {**task.pace.kept(), **task.steering.kept()}
        task = Task(rule)
        task.start(kept, step=10 * number + 1, level=level, was_failure=number != planned)
    return task


def test_what_was_met_goes_on_from_attempt_to_attempt() -> None:
    kept = lives(RULE, 0, 0, 2, 3).steering.kept()
    assert kept["failures"] == [2.0, 0.0, 1.0, 1.0, 0.0]
    assert kept["failures_observed_s"] == pytest.approx(4 * 61, rel=0.02)


def test_a_planned_stop_is_no_failure() -> None:
    assert lives(RULE, 0, 3, planned=1).steering.kept()["failures"] == [1.0, 0, 0, 0, 0]


def test_many_failures_make_the_old_ones_count_less() -> None:
    kept = lives(RULE, *([0] * 30)).steering.kept()
    assert sum(kept["failures"]) == pytest.approx(16, abs=0.1)
    assert kept["failures_observed_s"] == pytest.approx(16 * 61, rel=0.1)


def test_an_attempt_begins_with_the_plan_of_the_one_before_and_changes_it_in_steps() -> None:
    task = Task()
    task.start()
    task.save(1)
    task.clock.now_s += 20
    for step in range(2, 30):
        task.save(step)
    before = task.steering.plan
    assert before is not None
    kept = {**task.pace.kept(), **task.steering.kept()}
    after = Task()
    after.start(
        {**kept, "failures": [6, 0, 0, 0, 0], "failures_observed_s": 60.0}, step=29, level=0
    )
    assert after.told, "it has a plan before its first save"
    change = after.told[0]
    assert change.before is not None
    assert change.before.interval_s == pytest.approx(before.interval_s, rel=1e-4)
    assert before.interval_s / 2.001 < change.plan.interval_s < before.interval_s
    assert any("7 failures" in reason for reason in change.plan.reasons)


def test_counts_go_on_from_attempt_to_attempt() -> None:
    rule = replace(
        RULE, interval_s=10.0, counts=(("shm", 1), ("disk", 1), ("pfs", 8)), replan=False
    )
    task = Task(rule)
    task.start()
    for step in range(5):
        task.save(step)
    after = Task(rule)
    after.start(task.steering.kept(), step=4, level=0)
    sent = [after.save(step)["pfs"] for step in range(5, 12)]
    assert sent == [False, False, False, True, False, False, False]  # Eight after the first.


def test_what_other_tasks_have_met_counts_half() -> None:
    other = {"failures": [0, 0, 8, 0, 0], "failures_observed_s": HOUR, "nodes": 1}
    larger = {**other, "failures": [0, 0, 99, 0, 0], "nodes": 64}
    plans = []
    for others in ([], [other, larger, {"failures": "nonsense", "nodes": 1}]):
        task = Task()
        task.start()
        task.steering.hear(others)
        task.save(1)
        plans.append(task.told[-1].plan)
    assert plans[0].rates.per_s[2] == pytest.approx(2 / (2 * HOUR), rel=1e-2)
    assert plans[1].rates.per_s[2] == pytest.approx((2 + 4) / (2 * HOUR + HOUR / 2), rel=1e-2)
    assert plans[1].interval_s < plans[0].interval_s


@pytest.mark.parametrize(
    "kept",
    [
        {"failures": "many"},
        {"failures": [1, 2]},
        {"failures": [1, 2, 3, 4, float("nan")], "failures_observed_s": 1},
        {"failures": [1, 2, 3, 4, -5], "failures_observed_s": 1},
        {"failures": [True] * 5, "failures_observed_s": 1},
        {"copies_s": [1], "saves_since": {"pfs": "x"}, "counts": {"pfs": 1}, "interval_s": 5},
        {"interval_s": -1, "counts": {"shm": 1, "disk": 1, "pfs": 1}},
        {"interval_s": 1, "counts": {"shm": 2, "disk": 3, "pfs": 5}},
        {"state_bytes": -5, "stored_bytes": "x", "measured_on": "here"},
        {"rates_per_s": ["a"], "interval_s": 5, "counts": {"shm": 1, "disk": 1, "pfs": 1}},
    ],
)
def test_nonsense_in_a_checkpoint_is_left_where_it_is(kept: dict[str, Any]) -> None:
    task = Task()
    task.start(kept, step=1, level=0)
    assert task.steering.kept()["failures"] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert all(task.save(2).values())


def test_a_pattern_with_an_unknown_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match="names tier 'nvme'; the tiers are shm, disk, pfs"):
        Task(replace(RULE, interval_s=1.0, counts=(("nvme", 1),)))


# --- a whole checkpointer ---


def state(step: int) -> dict[str, Any]:
    return {"step": step, "w": np.full(1000, step, dtype=np.float64)}


def run(tiers: list[Tier], rule: MultiLevel, steps: int, *, first: int = 1) -> list[Any]:
    tickets = []
    with ckptflow.Checkpointer(tiers, every=rule) as ckpt:
        ckpt.restore(state(0))
        for step in range(first, first + steps):
            ticket = ckpt.save(step, state(step))
            ticket.wait()
            tickets.append(ticket)
    return tickets


def steps_on(tier: Tier) -> list[int]:
    keys = [
        key.rpartition("/")[2] for key in tier.iter_keys("lineages") if key.endswith(".ckpt")
    ]
    return sorted(int(key.partition(".")[0]) for key in keys)


def fixed(**counts: int) -> MultiLevel:
    return MultiLevel(interval_s=1.0, counts=tuple(counts.items()), replan=False)


def test_checkpoints_lie_where_the_verdicts_say() -> None:
    tiers: list[Tier] = [
        MemoryTier(name, level=level) for name, level in (("a", 1), ("b", 3), ("c", 4))
    ]
    with ckptflow.Checkpointer(tiers, every=fixed(a=1, b=2, c=4), keep="all") as ckpt:
        ckpt.restore(state(0))
        tickets = [ckpt.save(step, state(step)) for step in range(1, 8)]
        for ticket in tickets:
            ticket.wait()
    for tier in tiers:
        said = [
            ticket.step
            for ticket in tickets
            for one in ticket.placements
            if one.tier == tier.name and one.goes
        ]
        assert steps_on(tier) == said
    assert steps_on(tiers[2]) == [1, 5]
    assert tickets[0].why == "the task asked for it"


def test_a_tier_that_the_plan_leaves_out_is_not_written_to() -> None:
    tiers: list[Tier] = [
        MemoryTier(name, level=level) for name, level in (("a", 1), ("b", 3), ("c", 4))
    ]
    run(tiers, fixed(a=0, b=1, c=2), 4)
    assert steps_on(tiers[0]) == []
    assert steps_on(tiers[1])[-2:] == [3, 4]
    with ckptflow.Checkpointer(tiers) as ckpt:
        assert ckpt.restore(state(0))["step"] == 4


def test_a_tier_that_the_plan_leaves_out_takes_what_another_cannot() -> None:
    def refuse(operation: str, key: str) -> None:
        if operation == "put" and "/packs/" in key:
            raise TierUnavailable("It does not answer.")

    inner, broken = MemoryTier("a", level=1), FaultyTier(MemoryTier("b", level=3), refuse)
    ckpt = ckptflow.Checkpointer([inner, broken], every=fixed(a=0, b=1))
    ckpt.restore(state(0))
    ckpt.save(1, state(1)).wait()
    with pytest.warns(ckptflow.CheckpointWarning, match="does not answer"):
        ckpt.shut()
    assert steps_on(inner) == [1]


def test_where_is_said_once() -> None:
    with pytest.raises(ConfigError, match="says itself which checkpoints go to which tier"):
        ckptflow.Checkpointer(
            [MemoryTier("a"), MemoryTier("b", level=3)],
            every="multilevel",
            flush_every={"b": 2},
        )


def test_a_new_task_hears_of_what_others_of_its_run_have_met() -> None:
    tiers: list[Tier] = [MemoryTier("a", level=1), MemoryTier("b", level=3)]
    rule = replace(RULE, rates=Rates((0.0, 1 / HOUR, 0.0, 0.0, 0.0)))
    for life in range(4):  # Each is taken for interrupted: nobody has said that it was done.
        with ckptflow.Checkpointer(tiers, task="one", every=rule) as ckpt:
            ckpt.restore(state(0))
            ckpt.save(10 * life + 1, state(1)).wait(3)
    two = Lineage(tiers, LineageId("default", "two"))
    (heard,) = pace_of_others(two)
    assert heard["failures"] == [0.0, 3.0, 0.0, 0.0, 0.0]
    with ckptflow.Checkpointer(tiers, task="two", every=rule) as ckpt:
        ckpt.restore(state(0))
        while (plan := ckpt.plan) is None or plan.rates.per_s[1] < 1.2 / HOUR:
            ckpt.save((ckpt.last_step or 0) + 1, state(1)).wait(3)
            time.sleep(0.1)  # It hears of them in a thread of its own, and plans in another.


def test_where_the_run_is_new_the_store_remembers_others() -> None:
    tier = MemoryTier("a", level=3)
    for run, task in (("old", "one"), ("old", "two"), ("older", "one"), ("now", "beside")):
        with ckptflow.Checkpointer(tier, run=run, task=task, every=RULE) as ckpt:
            ckpt.restore(state(0))
            ckpt.save(1, state(1))
    heard = pace_of_others(Lineage([tier], LineageId("now", "here")))
    assert len(heard) == 4
    assert all(one["nodes"] == 1 and one["failures"] == [0] * 5 for one in heard)


def test_a_tier_that_does_not_answer_tells_of_no_others() -> None:
    def refuse(operation: str, key: str) -> None:
        raise TierUnavailable(f"{operation} {key}: it does not answer.")

    silent = FaultyTier(MemoryTier("a", level=3), refuse)
    assert pace_of_others(Lineage([silent], LineageId("default", "two"))) == []
