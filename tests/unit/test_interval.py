"""When to save: each rule's decision with its reason, the short forms, published numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.single_level import (
    daly_interval_s,
    daly_wall_s,
    estimated_mtbf_s,
    young_interval_s,
)
from ckptflow.policy.interval import (
    DEFAULT_INTERVAL,
    EverySeconds,
    EverySteps,
    Never,
    OverheadAtMost,
    YoungDaly,
    parse_interval,
)
from ckptflow.policy.progress import Decision, Interval, Progress
from ckptflow.policy.tuned import Tuned

MINUTE, HOUR = 60.0, 3600.0


# --- steps -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "last", "due"),
    [
        (0, None, False),
        (9, None, False),
        (10, None, True),
        (5_000, None, True),
        (19, 10, False),
        (20, 10, True),
        (26, 17, False),
        (27, 17, True),  # Counted from the restored step: a restart moves the raster.
        (17, 17, False),
        (3, 17, False),
    ],
)
def test_steps_count_from_the_last_save(step: int, last: int | None, *, due: bool) -> None:
    assert EverySteps(10).decide(Progress(step=step, last_saved_step=last)).due is due


def test_every_step_includes_step_0() -> None:
    assert EverySteps(1).decide(Progress(step=0)).due
    assert not EverySteps(1).decide(Progress(step=0, last_saved_step=0)).due
    assert EverySteps(1).decide(Progress(step=1, last_saved_step=0)).due


def test_a_decision_on_steps_says_why() -> None:
    early = Progress(step=15, last_saved_step=10)
    assert EverySteps(10).decide(early) == Decision(
        due=False, reason="5 steps since the last save, less than 10"
    )
    late = Progress(step=31)
    assert EverySteps(10).decide(late) == Decision(
        due=True, reason="31 steps since the start, at least 10"
    )


# --- seconds ---------------------------------------------------------------------------


def test_seconds_count_from_the_last_save() -> None:
    rule = EverySeconds(60)
    assert not rule.decide(Progress(step=1, seconds_since_save=59.9)).due
    assert rule.decide(Progress(step=1, seconds_since_save=60)).due


@pytest.mark.parametrize(
    ("step_time_s", "steps"),
    [(0.5, 120), (20, 3), (26, 2), (50, 1), (100, 1), (45, 1), (31, 2)],
)
def test_seconds_take_the_nearest_step_end(step_time_s: float, steps: int) -> None:
    """45 s comes nearer to a minute than 90 s; 62 s nearer than 31 s."""
    rule = EverySeconds(60)
    at = next(
        n
        for n in range(1, 1000)
        if rule.decide(
            Progress(step=n, seconds_since_save=n * step_time_s, step_time_s=step_time_s)
        ).due
    )
    assert at == steps


def test_a_decision_on_seconds_says_why() -> None:
    rule = EverySeconds(300)
    assert rule.decide(Progress(step=1, seconds_since_save=20)).reason == (
        "20.0 s since the last save, less than 5min00s"
    )
    nearest = Progress(step=1, seconds_since_save=290, step_time_s=30)
    assert rule.decide(nearest).reason == (
        "4min50s since the last save, the step end nearest to 5min00s"
    )


# --- overhead --------------------------------------------------------------------------


def test_the_first_save_measures() -> None:
    for rule in (OverheadAtMost(0.035), YoungDaly(HOUR)):
        decision = rule.decide(Progress(step=1))
        assert decision.due
        assert "measures what a save takes" in decision.reason


def test_no_save_while_the_one_before_is_being_written() -> None:
    progress = Progress(step=9, seconds_since_save=HOUR, elapsed_s=HOUR, in_flight=1)
    for rule in (OverheadAtMost(0.5), YoungDaly(HOUR)):
        assert rule.decide(progress) == Decision(
            due=False, reason="the save before is still being written"
        )


def simulate_share(rule: Interval, cost_s: list[float], step_s: float = 1.0) -> list[float]:
    """Run a task whose saves cost ``cost_s`` by turns; return blocked / computed after each.

    The estimate of the next save is the cost of the one before.
    """
    progress = Progress(step=0)
    shares = []
    for step in range(1, 4_000):
        progress = replace(
            progress,
            step=step,
            elapsed_s=progress.elapsed_s + step_s,
            seconds_since_save=progress.seconds_since_save + step_s,
        )
        if not rule.decide(progress).due:
            continue
        cost = cost_s[len(shares) % len(cost_s)]
        progress = replace(
            progress,
            last_saved_step=step,
            seconds_since_save=0.0,
            elapsed_s=progress.elapsed_s + cost,
            blocked_s=progress.blocked_s + cost,
            save_time_s=cost,
        )
        shares.append(progress.blocked_s / (progress.elapsed_s - progress.blocked_s))
    return shares


@pytest.mark.parametrize("cost_s", [0.001, 0.5, 2.0])
def test_the_overhead_stays_below_the_bound_and_near_it(cost_s: float) -> None:
    shares = simulate_share(OverheadAtMost(0.05), [cost_s])
    assert max(shares[1:]) <= 0.05  # The first save measures, before there is time to pay.
    if cost_s > 0.05:  # Else a save at each step costs less than the bound allows.
        assert shares[-1] > 0.045


def test_a_wrong_estimate_is_paid_back() -> None:
    """Every second save costs ten times what the one before let expect."""
    shares = simulate_share(OverheadAtMost(0.05), [0.1, 1.0])
    assert shares[-1] <= 0.05 * 1.05


def test_time_saved_long_ago_does_not_buy_a_burst() -> None:
    """A day of free saves, then dear ones: one in 20 minutes, not many at once."""
    progress = Progress(
        step=10,
        seconds_since_save=19 * MINUTE,
        elapsed_s=24 * HOUR,
        blocked_s=0.0,
        save_time_s=MINUTE,
    )
    decision = OverheadAtMost(0.05).decide(progress)
    assert not decision.due
    assert decision.reason == "a save takes 1min00s, more than 5 % of 19min00s since the last"
    assert OverheadAtMost(0.05).decide(replace(progress, seconds_since_save=20 * MINUTE)).due


def test_an_overhead_spent_already_says_so() -> None:
    progress = Progress(
        step=10, seconds_since_save=100.0, elapsed_s=220.0, blocked_s=20.0, save_time_s=1.0
    )
    assert OverheadAtMost(0.05).decide(progress).reason == (
        "a save takes 1.0 s and 20.0 s went into saves before: above 5 % of 3min20s computed"
    )


# --- failures --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mtbf_s", "daly_min", "digits", "young_min"),
    [(24 * HOUR, 117, 0, 120), (6 * HOUR, 57, 0, 60), (15 * MINUTE, 9.1, 1, 12.25)],
)
def test_intervals_agree_with_published_examples(
    mtbf_s: float, daly_min: float, digits: int, young_min: float
) -> None:
    """Daly 2006, captions of the figures: a dump takes 5 minutes."""
    assert round(daly_interval_s(300, mtbf_s) / 60, digits) == daly_min
    assert young_interval_s(300, mtbf_s) / 60 == pytest.approx(young_min, rel=0.001)


@pytest.mark.parametrize(
    ("mtbf_s", "efficiency"),
    [(24 * HOUR, 0.9126), (6 * HOUR, 0.8194), (15 * MINUTE, 0.1997)],
)
def test_the_wall_time_of_the_published_examples(mtbf_s: float, efficiency: float) -> None:
    """500 hours of work, dumps of 5 minutes, restarts of 10, at the best interval."""
    work_s, times = 500 * HOUR, {"cost_s": 300, "restart_s": 600, "mtbf_s": mtbf_s}
    best_s = daly_interval_s(300, mtbf_s)
    wall_s = daly_wall_s(work_s, best_s, **times)
    assert work_s / wall_s == pytest.approx(efficiency, abs=5e-5)
    assert wall_s < 1.001 * min(
        daly_wall_s(work_s, factor * best_s, **times) for factor in (0.5, 0.9, 1.1, 2.0)
    )


def test_work_that_never_ends_takes_forever() -> None:
    assert daly_wall_s(HOUR, HOUR, 1.0, 1.0, 1e-3) == math.inf
    assert daly_wall_s(0.0, HOUR, 1.0, 1.0, 1e9) == 0.0
    for work_s, interval_s, restart_s in ((-1, 1, 1), (1, 0, 1), (1, 1, math.nan)):
        with pytest.raises(ConfigError, match="wall time needs work and a restart of 0 s"):
            daly_wall_s(work_s, interval_s, 1.0, restart_s, HOUR)


def test_a_save_as_long_as_the_time_between_failures_is_taken_once_in_that_time() -> None:
    assert daly_interval_s(2 * HOUR, HOUR) == HOUR
    assert daly_interval_s(100 * HOUR, HOUR) == HOUR


@pytest.mark.parametrize(
    ("cost_s", "mtbf_s"), [(-1, 1), (1, 0), (1, -1), (math.nan, 1), (1, math.inf)]
)
def test_intervals_need_sensible_numbers(cost_s: float, mtbf_s: float) -> None:
    for interval in (young_interval_s, daly_interval_s):
        with pytest.raises(ConfigError, match="needs a cost of 0 s or more and an MTBF above"):
            interval(cost_s, mtbf_s)


def test_a_time_between_failures_is_estimated_from_three_of_them() -> None:
    assert estimated_mtbf_s(10 * HOUR, 2) is None
    assert estimated_mtbf_s(10 * HOUR, 4) == 2.5 * HOUR
    assert estimated_mtbf_s(0.0, 4) is None


def test_young_daly_waits_for_its_interval() -> None:
    progress = Progress(step=7, seconds_since_save=56 * MINUTE, save_time_s=300.0)
    rule = YoungDaly(6 * HOUR)
    assert not rule.decide(progress).due
    decision = rule.decide(replace(progress, seconds_since_save=57 * MINUTE))
    assert decision.due
    assert decision.reason == (
        "57min00s since the last save, at least 56min43s "
        "(best for saves of 5min00s and an MTBF of 6h00min)"
    )


def test_free_saves_are_due_at_each_step() -> None:
    assert YoungDaly(HOUR).decide(Progress(step=1, save_time_s=0.0)).due


# --- all of them -----------------------------------------------------------------------

RULES: list[Interval] = [
    EverySteps(1),
    EverySeconds(1),
    OverheadAtMost(0.5),
    YoungDaly(1),
    Tuned(),
    Never(),
]


@pytest.mark.parametrize("rule", RULES)
def test_a_step_that_is_saved_is_not_saved_again(rule: Interval) -> None:
    progress = Progress(
        step=5, last_saved_step=5, seconds_since_save=1e6, elapsed_s=2e6, save_time_s=0.1
    )
    decision = rule.decide(progress)
    assert not decision.due
    assert decision.reason


# --- short forms -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (100, EverySteps(100)),
        ("100", EverySteps(100)),
        ("100 steps", EverySteps(100)),
        ("every=1 step", EverySteps(1)),
        (" every = 100 ", EverySteps(100)),
        ("every=5min", EverySeconds(300)),
        ("120s", EverySeconds(120)),
        ("1h30min", EverySeconds(5400)),
        ("every=00:10:00", EverySeconds(600)),
        ("overhead<=3.5%", OverheadAtMost(0.035)),
        ("overhead <= 10 %", OverheadAtMost(0.1)),
        ("mtbf=6h", YoungDaly(21_600)),
        ("auto", Tuned()),
        (" auto , overhead <= 2 % ", Tuned(fraction=0.02)),
        ("auto,mtbf=6h", Tuned(mtbf_s=21_600)),
        ("auto,overhead<=2%,mtbf=6h", Tuned(fraction=0.02, mtbf_s=21_600)),
        ("auto,mtbf=1h30min,overhead<=10%", Tuned(fraction=0.1, mtbf_s=5_400)),
        ("never", Never()),
        (None, Tuned()),
        (None, DEFAULT_INTERVAL),
        (EverySteps(3), EverySteps(3)),
    ],
)
def test_short_forms(text: str | int | Interval | None, rule: Interval) -> None:
    assert parse_interval(text) == rule


def test_a_rule_of_one_s_own_is_taken_as_it_is() -> None:
    class AtTheFull:
        def decide(self, progress: Progress) -> Decision:
            return Decision(due=progress.step % 60 == 0, reason="on the hour")

    rule = AtTheFull()
    assert parse_interval(rule) is rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (0, "every 0 steps: it must be 1 or more"),
        (-3, "every -3 steps: it must be 1 or more"),
        ("every=-3", "every -3 steps: it must be 1 or more"),
        ("0s", "every 0.0 s: it must be more than 0 s"),
        ("sometimes", "'sometimes' does not say when to save"),
        ("", "'' does not say when to save"),
        ("every=", "'every=' does not say when to save"),
        ("=5", "'=5' does not say when to save"),
        ("each=5", "'each=5' does not say when to save"),
        ("every=5 parsecs", "has the unit 'parsecs'"),
        ("every=1.5", "'every=1.5' lacks a unit of time; write for example '1.5min'"),
        ("mtbf=6", "'mtbf=6' lacks a unit of time"),
        ("mtbf=0h", "An MTBF of 0.0 s: it must be more than 0 s"),
        ("auto,", "'auto,' does not say how to tune; behind 'auto' stand"),
        ("auto,every=5", "does not say how to tune"),
        ("auto=3", "'auto=3' does not say when to save"),
        ("automatic", "'automatic' does not say when to save"),
        ("auto,overhead<=3", "needs a percentage"),
        ("auto,overhead<=0%", "An overhead of 0: it must lie between 0 and 1"),
        ("auto,mtbf=6", "'auto,mtbf=6' lacks a unit of time"),
        ("auto,mtbf=0h", "An MTBF of 0.0 s: it must be more than 0 s"),
        ("auto,mtbf=1h,mtbf=2h", "'auto,mtbf=1h,mtbf=2h' says the same thing twice"),
        ("overhead<=3.5%,mtbf=6h", "needs a percentage"),
        ("overhead<=3.5", "needs a percentage; write for example 'overhead<=3.5%'"),
        ("overhead=5%", "needs a percentage"),
        ("overhead<=0%", "An overhead of 0: it must lie between 0 and 1"),
        ("overhead<=100%", "An overhead of 1: it must lie between 0 and 1"),
        (2.5, "2.5 does not say when to save"),
        (True, "True does not say when to save"),
    ],
)
def test_bad_short_forms(text: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_interval(text)  # type: ignore[arg-type]
