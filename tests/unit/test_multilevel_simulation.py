"""Simulation against exact evaluation, and against stories short enough to tell by hand.

Stories are traces: failures at given times, played once until the record ends.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.plan.train import random_system
from ckptflow.policy.failures.laws import Exponential, Trace, Weibull
from ckptflow.policy.multilevel.closed_form import first_order_pattern
from ckptflow.policy.multilevel.exact import efficiency
from ckptflow.policy.multilevel.simulation import Simulated, Surroundings, simulate
from ckptflow.policy.multilevel.system import Level, Pattern, System

pytest.importorskip("ckptflow.native._core", reason="the compiled core is not here")

SURE = 2.02  # An interval of 95 % is so many standard errors to each side.


def seconds(found: Simulated) -> dict[str, float]:
    """How long each part of a story took."""
    assert sum(found.parts.values()) == pytest.approx(1)
    return {name: part * found.elapsed_s for name, part in found.parts.items()}


def count(per_h: float, found: Simulated) -> float:
    return per_h * found.elapsed_s / 3600


# --- against exact evaluation ------------------------------------------------------------


def test_simulation_agrees_with_exact_evaluation_within_its_own_interval() -> None:
    """Of a hundred intervals of 95 % five miss; thirteen would once in 2,000 such tests."""
    rng, sigmas = np.random.default_rng(1), list[float]()
    while len(sigmas) < 100:
        system = random_system(rng)
        pattern = first_order_pattern(system, [True] * len(system.levels))
        truth = efficiency(system, pattern)
        if pattern.every[-1] > 256 or truth < 0.05:
            continue
        found = simulate(system, pattern, seed=len(sigmas), error_max=5e-3)
        assert found.error <= 5e-3
        assert sum(found.parts.values()) == pytest.approx(1)
        sigmas.append((found.efficiency - truth) / (found.error / SURE))
    missed = [abs(sigma) > SURE for sigma in sigmas]
    assert sum(missed) <= 12
    assert max(map(abs, sigmas)) < 4.5
    assert abs(np.mean(sigmas)) < 0.45  # Neither side is preferred.


INNER = Level(name="nvme", number=1, rate_per_s=1e-3, recovery_s=15.0)
OUTER = Level(name="pfs", number=3, rate_per_s=2e-4, latency_s=90.0, recovery_s=60.0)
TWO = System((INNER, OUTER), blocked_s=5.0)


def test_it_stops_when_it_knows_enough() -> None:
    coarse, fine = (simulate(TWO, Pattern(100.0, (1, 4)), error_max=e) for e in (2e-2, 2e-3))
    assert coarse.error <= 2e-2
    assert fine.error <= 2e-3
    assert fine.events > 5 * coarse.events


def test_a_limit_of_events_holds_and_leaves_what_was_known() -> None:
    found = simulate(TWO, Pattern(100.0, (1, 4)), error_max=1e-9, events_max=200_000)
    assert found.events <= 200_000
    assert 0 < found.error < 0.05
    truth = efficiency(TWO, Pattern(100.0, (1, 4)))
    assert found.efficiency == pytest.approx(truth, abs=3 * found.error)


def test_what_gets_nowhere_says_that_it_knows_nothing() -> None:
    hopeless = System((Level(name="pfs", number=3, rate_per_s=1.0, recovery_s=1e4),))
    found = simulate(hopeless, Pattern(100.0, (1,)), events_max=10_000)
    assert (found.efficiency, found.error) == (pytest.approx(0, abs=1e-3), 1.0)


def test_without_failures_every_part_is_exact() -> None:
    slow = replace(OUTER, rate_per_s=0.0, blocked_s=10.0, latency_s=120.0, interference=0.25)
    system = System((replace(INNER, rate_per_s=0.0), slow), blocked_s=5.0)
    found = simulate(system, Pattern(100.0, (1, 2)))
    assert found.efficiency == pytest.approx(200 / (2 * 105 + 10 + 30))
    assert found.parts["interference"] == pytest.approx(30 / 250)
    assert found.parts["blocked"] == pytest.approx(20 / 250)
    assert found.copies_per_h == pytest.approx((2 * 3600 / 250, 3600 / 250))
    assert found.error == pytest.approx(0, abs=1e-12)


# --- random numbers ----------------------------------------------------------------------


def test_all_patterns_meet_the_same_failures_under_one_seed() -> None:
    """In the same time, that of a record of the outer level; also if a level is not used."""
    laws = [Exponential(1e-3), Trace((1e6,), 1e6)]
    free = System((replace(INNER, recovery_s=0.0), replace(OUTER, latency_s=0.0)))
    failures = [
        count(simulate(free, Pattern(*given), laws=laws, seed=7).failures_per_h[0], found)
        for given in ((50.0, (1, 2)), (20.0, (1, 1)), (35.0, (0, 1)))
        for found in [simulate(free, Pattern(*given), laws=laws, seed=7)]
    ]
    assert failures[0] == pytest.approx(1000, rel=0.15)
    assert failures == pytest.approx([failures[0]] * 3, abs=1)  # One may be in the last save.
    other = simulate(free, Pattern(50.0, (1, 2)), laws=laws, seed=8)
    assert count(other.failures_per_h[0], other) != pytest.approx(failures[0], abs=1)


def test_differences_of_patterns_are_surer_under_one_seed() -> None:
    one, two = Pattern(100.0, (1, 4)), Pattern(120.0, (1, 4))

    def found(pattern: Pattern, seed: int) -> float:
        return simulate(TWO, pattern, seed=seed, error_max=0.5).efficiency

    same = [found(one, seed) - found(two, seed) for seed in range(16)]
    other = [found(one, seed) - found(two, seed + 100) for seed in range(16)]
    assert np.var(same) < np.var(other) / 3


def test_a_weibull_law_of_shape_one_has_no_memory() -> None:
    without = simulate(TWO, Pattern(100.0, (1, 4)))
    weibull = [Weibull(1 / level.rate_per_s, 1.0) for level in TWO.levels]
    found = simulate(TWO, Pattern(100.0, (1, 4)), laws=weibull)
    assert found.efficiency == pytest.approx(without.efficiency, rel=1e-9)


@pytest.mark.parametrize("shape", [0.6, 2.0])
def test_weibull_failures_come_as_often_as_their_mean_says(shape: float) -> None:
    laws = [Weibull(1 / level.rate_per_s, shape) for level in TWO.levels]
    found = simulate(TWO, Pattern(100.0, (1, 4)), laws=laws)
    assert found.failures_per_h[0] == pytest.approx(3.6, rel=0.05)
    assert found.failures_per_h[1] == pytest.approx(0.72, rel=0.1)


# --- stories -----------------------------------------------------------------------------

ONE = System((Level(name="pfs", number=3, rate_per_s=1e-4, recovery_s=20.0),), blocked_s=10.0)


def test_a_failure_costs_what_was_computed_since_the_save_and_a_recovery() -> None:
    """Saves at 110 and 220, failure at 250, back at 270; saves at 380, 490 and 600."""
    found = simulate(ONE, Pattern(100.0, (1,)), laws=[Trace((250.0,), 500.0)])
    assert found.elapsed_s == pytest.approx(600)
    assert seconds(found) == pytest.approx(
        {
            "useful": 500, "blocked": 50, "interference": 0, "again": 30, "recovery": 20,
            "waiting": 0,
        }
    )  # fmt: skip
    assert (count(found.failures_per_h[0], found), found.error) == (pytest.approx(1), 0)


def test_a_copy_on_its_way_from_what_is_lost_is_lost() -> None:
    """Each second save goes outward and is there two saves later.

    The copy of 200 s would be there at 400, but the failure at 330 finds none but the first.
    Back at 380 from position 0; that of position 2, made again at 580, is there at 780, so the
    failure at 810 costs 30 s and the two saves from there on.
    """
    outer = replace(OUTER, latency_s=150.0, recovery_s=50.0)
    system = System((replace(INNER, recovery_s=5.0), outer))
    found = simulate(system, Pattern(100.0, (1, 2)), laws=[None, Trace((330.0, 810.0), 1100.0)])
    assert found.elapsed_s == pytest.approx(1160)
    assert seconds(found) == pytest.approx(
        {
            "useful": 500, "blocked": 0, "interference": 0, "again": 560, "recovery": 100,
            "waiting": 0,
        }
    )  # fmt: skip


def test_a_copy_that_survives_arrives_although_the_task_went_back() -> None:
    """The copy of 200 s is on its way when a process dies at 250; at 450 the node is lost."""
    outer = replace(OUTER, latency_s=150.0, recovery_s=50.0)
    system = System((replace(INNER, recovery_s=0.0), outer))
    laws = [Trace((250.0,), 260.0), Trace((460.0,), 600.0)]
    found = simulate(system, Pattern(100.0, (1, 2)), laws=laws)
    # From 250 back to position 2; 3 at 350, 4 at 450, where the copy of 2 arrives. At 460 back
    # to that; 3 at 610, 4 at 710, and 5 at 810 is new. Without the copy it would be at 1010.
    assert found.elapsed_s == pytest.approx(810)
    assert seconds(found)["useful"] == pytest.approx(500)
    assert seconds(found)["again"] == pytest.approx(50 + 10 + 200)


def test_a_failure_during_a_recovery_begins_it_again_or_makes_it_a_greater_one() -> None:
    """At 110 a process dies, at 120 again; recovery until 135, interrupted at 130 by a node."""
    system = System((INNER, replace(OUTER, latency_s=0.0)))
    laws = [Trace((110.0, 120.0), 130.0), Trace((130.0,), 140.0)]
    found = simulate(system, Pattern(100.0, (1, 1)), laws=laws)
    assert seconds(found)["recovery"] == pytest.approx(10 + 10 + 60)
    assert found.elapsed_s == pytest.approx(190 + 100)


NODE = System((Level(name="xor", number=2, rate_per_s=1e-4, recovery_s=10.0),))


@pytest.mark.parametrize(
    ("around", "waiting_s"),
    [
        (Surroundings(queue_s=1000.0), 0.0),
        (Surroundings(queue_s=1000.0, spares=2), 0.0),
        (Surroundings(queue_s=1000.0, spares=1), 1000.0),
        (Surroundings(queue_s=1000.0, spares=0), 2000.0),
        (Surroundings(queue_s=1000.0, spares=1, repair_s=300.0), 150.0),  # The one lost at 50.
        (Surroundings(queue_s=1000.0, spares=1, repair_s=140.0), 0.0),  # It is back at 190.
        (Surroundings(queue_s=1000.0, spares=1, node_level=3), 0.0),  # Nothing takes a node.
    ],
)
def test_a_lost_node_is_a_spare_a_repaired_one_or_one_that_is_waited_for(
    around: Surroundings, waiting_s: float
) -> None:
    """Nodes are lost 50 s and 200 s after the beginning, or later by what was waited."""
    second_s = 200.0 if around.spares != 0 else 1250.0
    laws = [Trace((50.0, second_s), second_s + 50)]
    found = simulate(NODE, Pattern(100.0, (1,)), laws=laws, around=around)
    assert seconds(found)["waiting"] == pytest.approx(waiting_s)
    assert count(found.failures_per_h[0], found) == pytest.approx(2)


def test_a_failure_that_takes_no_node_takes_no_spare_though_its_level_is_not_used() -> None:
    reboot = Level(name="nvme", number=1, rate_per_s=1e-4)
    system = System((reboot, *NODE.levels))
    laws = [Trace((50.0,), 300.0), None]
    around = Surroundings(queue_s=1000.0, spares=0)
    found = simulate(system, Pattern(100.0, (0, 1)), laws=laws, around=around)
    assert seconds(found)["waiting"] == 0


def test_allocations_end_in_time_and_nothing_is_lost() -> None:
    """Of 1,000 s a restore takes 30 and the last save 50; then there is a queue of 200 s."""
    around = Surroundings(walltime_s=1000.0, stop_s=50.0, queue_s=200.0, resume_s=30.0)
    quiet = System((replace(ONE.levels[0], rate_per_s=0.0),))
    found = simulate(quiet, Pattern(100.0, (1,)), around=around, error_max=1e-3)
    assert found.efficiency == pytest.approx(920 / 1200, abs=2e-3)
    assert found.parts["waiting"] == pytest.approx(200 / 1200, abs=2e-3)
    assert found.parts["again"] == 0
    assert found.planned_stops_per_h == pytest.approx(3, rel=0.01)


def test_with_enough_notice_a_preemption_is_a_stop_like_others() -> None:
    """At 350 it is told, stops until 400, waits until 600, restores until 630, goes on."""
    quiet = System((Level(name="pfs", number=3, rate_per_s=0.0, recovery_s=20.0),))
    around = Surroundings(
        stop_s=50.0, queue_s=200.0, resume_s=30.0, notice_s=60.0,
        preemption=Trace((350.0,), 650.0),
    )  # fmt: skip
    found = simulate(quiet, Pattern(100.0, (1,)), around=around)
    assert found.elapsed_s == pytest.approx(680)
    parts = {"useful": 400.0, "blocked": 50.0, "waiting": 200.0, "recovery": 30.0}
    assert {name: seconds(found)[name] for name in parts} == pytest.approx(parts)
    assert count(found.planned_stops_per_h, found) == pytest.approx(1)
    assert count(found.failures_per_h[-1], found) == pytest.approx(1)


def test_without_enough_notice_a_preemption_costs_what_was_computed() -> None:
    """At 350 all since 300 is lost; it waits until 550, recovers until 570, saves at 670."""
    quiet = System((Level(name="pfs", number=3, rate_per_s=0.0, recovery_s=20.0),))
    around = Surroundings(
        stop_s=50.0, queue_s=200.0, resume_s=30.0, notice_s=10.0,
        preemption=Trace((350.0,), 650.0),
    )  # fmt: skip
    found = simulate(quiet, Pattern(100.0, (1,)), around=around)
    assert found.elapsed_s == pytest.approx(670)
    parts = {"useful": 400.0, "again": 50.0, "waiting": 200.0, "recovery": 20.0}
    assert {name: seconds(found)[name] for name in parts} == pytest.approx(parts)
    assert found.planned_stops_per_h == 0


def test_a_preemption_needs_a_level_that_outlives_the_allocation() -> None:
    around = Surroundings(stop_s=50.0, notice_s=10.0, preemption=Exponential(1e-4))
    with pytest.raises(ConfigError, match="no level 3 or beyond is used to go on from"):
        simulate(NODE, Pattern(100.0, (1,)), around=around)
    in_time = replace(around, notice_s=50.0)
    assert simulate(NODE, Pattern(100.0, (1,)), around=in_time).planned_stops_per_h > 0


def test_with_little_room_copies_are_given_up_before_they_arrive() -> None:
    """A copy takes three saves, one is made after each: three checkpoints at once."""
    outer = replace(OUTER, latency_s=250.0, in_flight=3)
    system = System((INNER, outer), blocked_s=5.0)

    def found(capacity: int | None) -> Simulated:
        around = Surroundings(capacity=capacity)
        return simulate(system, Pattern(100.0, (1, 1)), around=around, events_max=200_000)

    enough, just, short = found(None), found(3), found(2)
    assert (enough.abandoned_per_h, just.abandoned_per_h) == (0, 0)
    assert just.efficiency == enough.efficiency
    # None ever arrives: each greater failure begins everything again.
    assert short.abandoned_per_h > 10
    assert short.efficiency < enough.efficiency / 2


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queue_s": -1.0}, r"queue_s is 0 s or more, got -1\.0"),
        ({"walltime_s": 40.0, "stop_s": 50.0}, "no configuration makes progress"),
        ({"walltime_s": 60.0, "stop_s": 50.0, "resume_s": 20.0}, "makes progress"),
        ({"spares": -1}, "There cannot be -1 spare nodes"),
        ({"capacity": 1}, "room for 1 checkpoints; it takes 2"),
    ],
)
def test_surroundings_make_sense(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Surroundings(**given)


def test_laws_are_one_for_each_level_and_reach_no_further_than_those_used() -> None:
    with pytest.raises(ConfigError, match="2 levels need as many laws, got 1"):
        simulate(TWO, Pattern(100.0, (1, 4)), laws=[None])
    with pytest.raises(ConfigError, match="Levels beyond 'nvme' are not used, but failures"):
        simulate(TWO, Pattern(100.0, (1, 0)))
    quiet = System((INNER, replace(OUTER, rate_per_s=0.0)))
    with pytest.raises(ConfigError, match="Levels beyond 'nvme' are not used, but failures"):
        simulate(quiet, Pattern(100.0, (1, 0)), laws=[None, Exponential(1e-5)])


def test_more_copies_on_their_way_than_may_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="more copies on their way than a level takes"):
        simulate(TWO, Pattern(10.0, (1, 2)))


def test_without_the_compiled_core_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptflow.policy.multilevel.simulation.HAS_CORE", False)
    with pytest.raises(
        ConfigError, match="needs the native core, which this installation lacks"
    ):
        simulate(TWO, Pattern(100.0, (1, 4)))
