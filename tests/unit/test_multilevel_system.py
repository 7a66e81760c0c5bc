"""Levels, systems and patterns: what is refused and why, and systems of some of the levels."""

from __future__ import annotations

import math

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.system import LEVELS_MAX, Level, Pattern, System


def level(number: int, **given: object) -> Level:
    return Level(**{"name": f"l{number}", "number": number, "rate_per_s": 1e-4, **given})


@pytest.mark.parametrize(
    "name",
    [
        "rate_per_s",
        "blocked_s",
        "latency_s",
        "interference",
        "recovery_s",
        "size_bytes",
        "price",
    ],
)
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_amounts_of_a_level_are_numbers_from_zero_on(name: str, value: float) -> None:
    with pytest.raises(
        ConfigError, match=f"'l1': {name} must be a number from 0 on, got {value}"
    ):
        level(1, **{name: value})


@pytest.mark.parametrize("name", ["escalation", "second_loss"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_probabilities_are_between_zero_and_one(name: str, value: float) -> None:
    with pytest.raises(
        ConfigError, match=f"'l1': {name} is a probability, 0 to 1, got {value}"
    ):
        level(1, **{name: value})


def test_a_level_takes_at_least_one_copy_and_has_room_for_one() -> None:
    with pytest.raises(ConfigError, match="in_flight must be 1 or more, got 0"):
        level(1, in_flight=0)
    with pytest.raises(ConfigError, match="room for 0 checkpoints: the state is larger than"):
        level(1, capacity=0)


def test_a_system_has_some_levels_from_the_innermost_outwards() -> None:
    with pytest.raises(ConfigError, match=f"1 to {LEVELS_MAX} levels, this one has 0"):
        System(())
    with pytest.raises(ConfigError, match=f"1 to {LEVELS_MAX} levels, this one has 6"):
        System(tuple(level(number) for number in range(6)))
    with pytest.raises(ConfigError, match=r"Level 1 \('l1'\) comes after level 3 \('l3'\)"):
        System((level(3), level(1)))
    with pytest.raises(ConfigError, match="each once"):
        System((level(3), level(3)))


def test_what_is_there_first_is_further_in() -> None:
    with pytest.raises(
        ConfigError, match=r"on 'l3' after 5\.0 s, and on 'l1' only after 9\.0 s"
    ):
        System((level(1, latency_s=9.0), level(3, latency_s=5.0)))


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_work_is_some_time(value: float) -> None:
    with pytest.raises(ConfigError, match="work_s must be above 0 s"):
        System((level(1),), work_s=value)


@pytest.mark.parametrize("name", ["blocked_s", "lost_rate_per_s"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_amounts_of_a_system_are_numbers_from_zero_on(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a number from 0 on, got {value}"):
        System((level(1),), **{name: value})


def test_rates_that_add_up_to_infinity_are_refused() -> None:
    with pytest.raises(ConfigError, match="add up to infinity"):
        System((level(1, rate_per_s=1.7e308), level(2, rate_per_s=1.7e308)))


def test_rates_add_up() -> None:
    system = System((level(1, rate_per_s=1e-4), level(2, rate_per_s=3e-4)), lost_rate_per_s=1.0)
    assert system.rate_per_s == pytest.approx(4e-4)
    assert system.mtbf_s == pytest.approx(2500)
    assert System((level(1, rate_per_s=0.0),)).mtbf_s == math.inf


# --- some of the levels ------------------------------------------------------------------

FOUR = System(
    tuple(level(number, rate_per_s=10.0 ** -(3 + number)) for number in range(4)),
    blocked_s=2.0,
    lost_rate_per_s=1e-9,
)


def test_a_failure_whose_level_is_left_out_needs_the_next_that_is_used() -> None:
    part = FOUR.using([False, True, False, True])
    assert [one.name for one in part.levels] == ["l1", "l3"]
    assert [one.rate_per_s for one in part.levels] == pytest.approx([1.1e-3, 1.1e-5])
    assert (part.lost_rate_per_s, part.blocked_s) == (1e-9, 2.0)


def test_what_no_used_level_survives_loses_everything() -> None:
    part = FOUR.using([True, False, False, False])
    assert part.levels == FOUR.levels[:1]
    assert part.lost_rate_per_s == pytest.approx(1e-4 + 1e-5 + 1e-6 + 1e-9)


def test_no_failure_is_forgotten() -> None:
    total = FOUR.rate_per_s + FOUR.lost_rate_per_s
    for number in range(1, 16):
        part = FOUR.using([bool(number >> at & 1) for at in range(4)])
        assert part.rate_per_s + part.lost_rate_per_s == pytest.approx(total)


@pytest.mark.parametrize("used", [[], [True], [False] * 4, [True] * 5])
def test_some_level_is_used_and_each_is_spoken_of(used: list[bool]) -> None:
    with pytest.raises(ConfigError, match="does not say which of the levels are used"):
        FOUR.using(used)


# --- patterns ----------------------------------------------------------------------------


@pytest.mark.parametrize("interval_s", [0.0, -1.0, math.inf, math.nan])
def test_an_interval_is_some_time(interval_s: float) -> None:
    with pytest.raises(ConfigError, match="An interval must be above 0 s"):
        Pattern(interval_s, (1,))


@pytest.mark.parametrize("every", [(), (0, 0), (2,), (0, 2, 4), (1, -1), (1, -2, 4)])
def test_the_innermost_level_that_is_used_gets_every_save(every: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="is no pattern: the innermost level that is used"):
        Pattern(60.0, every)


@pytest.mark.parametrize("every", [(1, 2, 3), (1, 4, 2), (1, 3, 0, 4)])
def test_patterns_are_nested(every: tuple[int, ...]) -> None:
    with pytest.raises(
        ConfigError, match="some checkpoints would reach an outer level and not"
    ):
        Pattern(60.0, every)


def test_a_pattern_has_an_end() -> None:
    with pytest.raises(ConfigError, match="at most 131072 saves, not 262144"):
        Pattern(60.0, (1, 2**18))


def test_periods_of_levels() -> None:
    pattern = Pattern(60.0, (0, 1, 4, 0, 12))
    assert pattern.used == (False, True, True, False, True)
    assert [pattern.period_s(at) for at in range(5)] == [math.inf, 60, 240, math.inf, 720]
