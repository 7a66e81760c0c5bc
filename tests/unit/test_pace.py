"""What is measured of a loop, by a clock of our own; what the next attempt begins with."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow import manifest as manifest_file
from ckptflow.checkpointer import Checkpointer
from ckptflow.checkpointer.pace import Pace
from ckptflow.checkpointer.surroundings import surroundings
from ckptflow.model import CheckpointId
from ckptflow.policy.capture import IN_FLIGHT_FIRST
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, duration_s: float) -> None:
        self.now_s += duration_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Pace:
    return Pace(clock, measured_on="here")


def idle_steps(pace: Pace, clock: Clock, first: int, count: int, step_s: float = 1.0) -> None:
    for step in range(first, first + count):
        clock.passes(step_s)
        pace.step_done(step, in_flight=0)


def a_save(pace: Pace, clock: Clock, step: int, *, blocked_s: float, busy_s: float) -> None:
    """Save after ``step``; the next step is in flight, and two idle ones follow."""
    clock.passes(blocked_s)
    pace.saved(step, blocked_s=blocked_s)
    clock.passes(busy_s)
    pace.durable(busy_s)
    pace.step_done(step + 1, in_flight=0)
    idle_steps(pace, clock, step + 2, 3)


def test_a_save_is_no_part_of_a_step(pace: Pace, clock: Clock) -> None:
    idle_steps(pace, clock, 1, 3)
    clock.passes(5.0)
    pace.saved(3, blocked_s=5.0)
    progress = pace.progress(3, in_flight=1)
    assert (progress.elapsed_s, progress.blocked_s, progress.save_time_s) == (8.0, 5.0, None)
    clock.passes(1.0)
    pace.step_done(4, in_flight=0)
    progress = pace.progress(4, in_flight=0)
    assert (progress.step_time_s, progress.seconds_since_save) == (1.0, 1.0)
    assert (progress.save_time_s, progress.last_saved_step) == (5.0, 3)


def test_the_first_step_compiles_and_is_no_step_like_others(pace: Pace, clock: Clock) -> None:
    clock.passes(60.0)
    pace.step_done(1, in_flight=0)
    idle_steps(pace, clock, 2, 1)
    assert pace.progress(2, in_flight=0).step_time_s == 1.0


def test_a_step_that_is_told_twice_counts_once(pace: Pace, clock: Clock) -> None:
    """`due` and then `step`, or `due` asked again."""
    idle_steps(pace, clock, 1, 3)
    clock.passes(0.5)
    pace.step_done(3, in_flight=0)
    clock.passes(0.5)
    pace.step_done(4, in_flight=0)
    assert pace.progress(4, in_flight=0).step_time_s == 1.0


def test_costs_belong_to_the_save_that_caused_them(pace: Pace, clock: Clock) -> None:
    idle_steps(pace, clock, 1, 5)
    a_save(pace, clock, 5, blocked_s=0.5, busy_s=1.25)
    profile = pace.profile()
    assert (profile.blocked_s, profile.busy_s, profile.busy_now_s) == (0.5, 1.25, 1.25)
    assert profile.slowdown == pytest.approx(0.25)
    assert profile.durable_s == 1.25


def test_a_wait_of_a_lazy_capture_is_blocked_time(pace: Pace, clock: Clock) -> None:
    """It happens in the next step, before the optimizer's update, and makes it no slower."""
    idle_steps(pace, clock, 1, 5)
    clock.passes(0.1)
    pace.saved(5, blocked_s=0.1)
    clock.passes(0.4)
    pace.blocked(0.4)
    clock.passes(1.0)
    pace.step_done(6, in_flight=0)
    idle_steps(pace, clock, 7, 3)
    profile = pace.profile()
    assert profile.blocked_s == pytest.approx(0.5)
    assert profile.slowdown == pytest.approx(0.0)
    assert pace.progress(9, in_flight=0).blocked_s == pytest.approx(0.5)


def test_a_step_that_begins_or_ends_in_flight_is_no_idle_one(pace: Pace, clock: Clock) -> None:
    idle_steps(pace, clock, 1, 5)
    pace.saved(5, blocked_s=0.0)
    for step, in_flight in ((6, 2), (7, 1), (8, 0)):
        clock.passes(2.0)
        pace.step_done(step, in_flight=in_flight)
    idle_steps(pace, clock, 9, 3)
    assert pace.profile().busy_s == 6.0
    assert pace.profile().slowdown == pytest.approx(1.0)


def test_as_many_snapshots_as_saves_begin_while_one_is_written(
    pace: Pace, clock: Clock
) -> None:
    assert pace.in_flight == IN_FLIGHT_FIRST
    for number in range(3):
        a_save(pace, clock, 10 * number, blocked_s=0.5, busy_s=1.0)  # Every 4 s, each for 1 s.
    assert pace.in_flight == 2
    pace.durable(11.0)
    pace.durable(11.0)
    assert pace.in_flight == 1 + 3


# --- from attempt to attempt -----------------------------------------------------------


@pytest.fixture
def kept(pace: Pace, clock: Clock) -> dict[str, Any]:
    idle_steps(pace, clock, 1, 5)
    for number in range(4):
        a_save(pace, clock, 5 + 10 * number, blocked_s=0.5, busy_s=1.25)
    return pace.kept()


def test_what_is_kept_is_plain_and_short(kept: dict[str, Any]) -> None:
    assert json.loads(json.dumps(kept)) == kept
    assert len(json.dumps(kept)) < 200


def test_the_next_attempt_need_not_measure_first(kept: dict[str, Any], clock: Clock) -> None:
    fresh = Pace(clock, measured_on="here")
    fresh.start(35, kept)
    profile = fresh.profile()
    assert (profile.blocked_s, profile.busy_s, profile.durable_s) == (0.5, 1.25, 1.25)
    assert profile.slowdown == pytest.approx(0.25)
    assert profile.busy_now_s == 0.0


def test_its_own_measurements_soon_count_for_more(kept: dict[str, Any], clock: Clock) -> None:
    fresh = Pace(clock, measured_on="here")
    fresh.start(35, kept)
    idle_steps(fresh, clock, 36, 5)
    for number in range(6):
        a_save(fresh, clock, 40 + 10 * number, blocked_s=0.01, busy_s=1.0)
    assert fresh.profile().blocked_s < 0.05


@pytest.mark.parametrize("other", ["elsewhere", ""])
def test_estimates_from_elsewhere_are_left_there(
    kept: dict[str, Any], clock: Clock, other: str
) -> None:
    fresh = Pace(clock, measured_on=other)
    fresh.start(35, {**kept, "measured_on": kept["measured_on"] if other else ""})
    assert fresh.profile().blocked_s is None
    assert fresh.profile().slowdown == 0.0


def test_interruptions_are_counted_wherever_they_happen(clock: Clock) -> None:
    kept: dict[str, Any] = {}
    for attempt in range(5):
        pace = Pace(clock, measured_on=f"node {attempt}")
        pace.start(attempt, kept)
        clock.passes(1000.0)
        pace.saved(attempt, blocked_s=1.0)
        kept = pace.kept()
    assert (kept["interruptions"], kept["observed_s"]) == (4, 5000.0)
    assert pace.profile().mtbf_s == 1250.0


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"measured_on": "here"},
        {"measured_on": "here", "blocked_s": "fast", "busy_s": None, "durable_s": [1]},
        {"measured_on": "here", "blocked_s": -1.0, "slowdown": math.nan, "durable_s": True},
        {
            "measured_on": "here",
            "blocked_s": math.inf,
            "observed_s": 1e300,
            "interruptions": {},
        },
        {"measured_on": ["here"], "blocked_s": 1.0},
    ],
)
def test_nonsense_is_left_where_it_is(clock: Clock, kept: dict[str, Any]) -> None:
    pace = Pace(clock, measured_on="here")
    pace.start(3, kept)
    profile = pace.profile()
    assert (profile.blocked_s, profile.durable_s, profile.slowdown) == (None, None, 0.0)
    assert profile.mtbf_s is None


# --- in a checkpoint -------------------------------------------------------------------


def saved(disk: MemoryTier, **options: Any) -> dict[str, Any]:
    """Go on from what is there for three steps; return what the last checkpoint says."""
    with Checkpointer(disk, every=1, **options) as ckpt:
        state = ckpt.restore({"x": np.zeros(10), "i": 0})
        for _ in range(3):
            state["i"] += 1
            ckpt.step(state["i"], state)
        ckpt.wait()
        return dict(ckpt.lineage.manifest(ckpt.lineage.newest()).pace)


def test_a_checkpoint_says_how_fast_saves_go() -> None:
    disk = MemoryTier("disk")
    first, second = saved(disk), saved(disk)
    assert first["blocked_s"] > 0
    assert first["durable_s"] > 0
    assert first["measured_on"] == second["measured_on"] == surroundings([disk])
    assert (first["interruptions"], second["interruptions"]) == (0, 1)


def test_a_restart_does_not_measure_first() -> None:
    disk = MemoryTier("disk")
    saved(disk)
    with Checkpointer(disk) as ckpt:
        state = ckpt.restore({"x": np.zeros(10), "i": 0})
        decision = ckpt.decide(state["i"] + 1)
    assert "measures" not in decision.reason
    with Checkpointer(MemoryTier("other")) as ckpt:
        ckpt.restore({"x": np.zeros(10), "i": 0})
        assert "measures" in ckpt.decide(1).reason


def test_damage_of_it_is_harmless() -> None:
    disk = MemoryTier("disk")
    saved(disk)
    key = f"lineages/default/main/{CheckpointId(3, 1).manifest_key}"
    manifest = manifest_file.decode(disk.get(key), where="here")
    nonsense = {
        "measured_on": surroundings([disk]),
        "blocked_s": "no",
        "durable_s": [],
        "x": {},
    }
    disk.delete(key)
    disk.put(key, [manifest_file.encode(replace(manifest, pace=nonsense))])
    with Checkpointer(disk) as ckpt:
        assert ckpt.restore({"x": np.zeros(10), "i": 0})["i"] == 3
        assert "measures" in ckpt.decide(4).reason


def test_surroundings_are_machine_and_tiers(tmp_path: Path) -> None:
    disk, folder = MemoryTier("disk"), PosixTier(tmp_path, name="disk", level=1)
    same = surroundings([MemoryTier("disk")])
    assert surroundings([disk]) == same
    others = [
        surroundings([folder]),
        surroundings([disk, folder]),
        surroundings([MemoryTier("ssd")]),
    ]
    assert len({same, *others}) == 4
