"""What saves cost: estimates that rise at once and fall late, and what is no cost of a save."""

from __future__ import annotations

import random

import pytest

from ckptflow.policy.profile import Comparison, Measured, Profile, StepTimes, expected

# --- what to expect of measurements ----------------------------------------------------


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ([3.0], 3.0),
        ([1.0, 1.0, 1.0, 1.0], 1.0),
        ([2.0, 0.1], 0.25),  # The first save makes everything: it is an accident.
        ([2.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], 0.1 * 10 / 7),
        ([1.0] * 9 + [10.0], 2.0),  # A single dear one doubles it,
        ([1.0] * 9 + [10.0, 10.0], 10.0),  # the second raises it to what it costs.
        ([10.0] * 9 + [1.0] * 3, 10.0),  # But it falls late.
        ([0.0] * 5 + [7.0], 0.0),
    ],
)
def test_what_to_expect(values: list[float], value: float) -> None:
    assert expected(values) == pytest.approx(value)


def test_what_comes_rarely_but_again_counts_in_full() -> None:
    """Each tenth save takes 100 times as long: that is ten times the usual cost on average."""
    values = [10.0 if number % 10 == 9 else 0.1 for number in range(31)]
    assert expected(values) == pytest.approx(sum(values) / len(values))


def test_an_accident_costs_little() -> None:
    """A minute's stall in the midst of saves of 0.1 s does not stop them for half an hour."""
    values = [0.1] * 20 + [60.0] + [0.1] * 5
    assert expected(values) < 0.2


def test_what_is_over_is_forgotten_after_five_in_a_row() -> None:
    costs = Measured()
    for _ in range(20):
        costs.add(5.0)
    for number in range(5):
        assert costs.expected() == pytest.approx(5.0, rel=0.2), number
        costs.add(0.5)
    assert costs.expected() == 0.5


def test_a_little_less_is_no_change() -> None:
    costs = Measured()
    for value in [1.0] * 20 + [0.9] * 5:
        costs.add(value)
    assert costs.expected() > 0.95


def test_nothing_measured_nothing_expected() -> None:
    assert Measured().expected() is None
    assert Measured().expected(2.0) == 2.0


# --- steps with and without a save in flight -------------------------------------------


def fed(times: StepTimes, *, idle: float, busy: float, cycles: int, noise: float = 0.0) -> None:
    """Five steps in flight, then five idle ones, by turns."""
    draw = random.Random(1)
    for _ in range(cycles):
        for duration_s, flag in [(busy, True)] * 5 + [(idle, False)] * 5:
            times.add(duration_s * draw.lognormvariate(0, noise), busy=flag)


@pytest.fixture
def times() -> StepTimes:
    return StepTimes()


def test_slower_steps_in_flight_are_found(times: StepTimes) -> None:
    fed(times, idle=1.0, busy=1.3, cycles=3)
    assert times.slowdown == pytest.approx(0.3)
    assert times.idle_s == 1.0


@pytest.mark.parametrize("slowdown", [0.0, 0.02, 0.1, 1.0])
def test_noise_makes_it_cautious_and_no_more(times: StepTimes, slowdown: float) -> None:
    fed(times, idle=1.0, busy=1.0 + slowdown, cycles=40, noise=0.1)
    assert slowdown - 0.01 <= times.slowdown <= slowdown + 0.04


def test_a_slower_loop_is_no_interference(times: StepTimes) -> None:
    """A longer pass over the data, whenever it begins: CheckFreq takes it for overhead."""
    fed(times, idle=1.0, busy=1.0, cycles=3)
    for begins in range(10):
        for number in range(10):
            long = number >= begins
            times.add(3.0 if long else 1.0, busy=number < 5)
        assert times.slowdown < 0.03, begins
        fed(times, idle=3.0, busy=3.0, cycles=2)
        fed(times, idle=1.0, busy=1.0, cycles=2)
    assert times.slowdown < 0.02


def test_after_a_change_of_speed_the_new_one_is_compared_with(times: StepTimes) -> None:
    fed(times, idle=1.0, busy=1.1, cycles=3)
    fed(times, idle=4.0, busy=4.4, cycles=3)
    assert times.idle_s == 4.0
    assert times.slowdown == pytest.approx(0.1)


def test_a_pause_of_the_loop_is_no_interference(times: StepTimes) -> None:
    """A validation that takes a hundred steps falls among those in flight, once."""
    fed(times, idle=1.0, busy=1.05, cycles=5)
    for duration_s in (1.05, 100.0, 1.05, 1.05):
        times.add(duration_s, busy=True)
    fed(times, idle=1.0, busy=1.05, cycles=1)
    assert times.slowdown < 0.15


def test_two_comparisons_that_are_sure_are_enough(times: StepTimes) -> None:
    fed(times, idle=1.0, busy=1.05, cycles=30, noise=0.01)
    fed(times, idle=1.0, busy=1.5, cycles=2, noise=0.01)
    assert times.slowdown > 0.4


def test_the_first_that_is_sure_doubles_it(times: StepTimes) -> None:
    fed(times, idle=1.0, busy=1.05, cycles=30, noise=0.01)
    before = times.slowdown
    fed(times, idle=1.0, busy=1.5, cycles=1, noise=0.01)
    assert 1.8 * before < times.slowdown <= 2.2 * before


def test_a_slowdown_that_is_over_is_forgotten(times: StepTimes) -> None:
    fed(times, idle=1.0, busy=1.5, cycles=30, noise=0.01)
    fed(times, idle=1.0, busy=1.0, cycles=2, noise=0.01)
    assert times.slowdown > 0.3
    fed(times, idle=1.0, busy=1.0, cycles=3, noise=0.01)
    assert times.slowdown < 0.02


def test_idle_steps_are_wanted_when_there_are_none(times: StepTimes) -> None:
    """Soon in the beginning, later one stretch of three in about fifty."""
    wanted = []
    for _ in range(200):
        wanted.append(times.idle_wanted)
        times.add(1.0, busy=not times.idle_wanted)
    assert wanted[:11] == [0] * 8 + [3, 2, 1]
    assert sum(one > 0 for one in wanted) <= 3 * 5
    assert times.idle_wanted == 0 or wanted[-1] > 0


def test_without_any_idle_step_nothing_is_known(times: StepTimes) -> None:
    times.add(2.0, busy=True)
    assert (times.slowdown, times.idle_s) == (0.0, 2.0)
    assert StepTimes().idle_s is None


def test_steps_that_take_no_time_are_not_compared(times: StepTimes) -> None:
    fed(times, idle=0.0, busy=0.0, cycles=3)
    assert times.slowdown == 0.0


def test_what_is_not_known_well_is_taken_for_dear(times: StepTimes) -> None:
    times.learn(Comparison(0.1, error=0.05, count=5))
    assert times.slowdown == pytest.approx(0.15)
    for _ in range(24):
        times.learn(Comparison(0.1, error=0.05, count=5))
    assert times.slowdown == pytest.approx(0.11)


# --- what a save costs in all ----------------------------------------------------------


def test_a_save_costs_what_it_blocks_and_what_the_steps_lose() -> None:
    profile = Profile(blocked_s=0.5, busy_s=12.0, slowdown=0.2, durable_s=10.0)
    assert profile.interference_s(12.0) == pytest.approx(2.0)
    assert profile.save_s == pytest.approx(2.5)
    assert Profile().save_s == 0.0


def test_it_cannot_slow_a_long_step_for_longer_than_it_is_written() -> None:
    """Steps of an hour, a save of ten seconds: 3 % of noise are no cost of 108 s."""
    profile = Profile(blocked_s=1.0, busy_s=3600.0, slowdown=0.03, durable_s=10.0)
    assert profile.save_s == 21.0
