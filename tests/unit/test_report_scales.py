"""Scales of the report: round ticks, and time without the nights."""

from __future__ import annotations

import itertools

import pytest

from ckptflow.units import MIB
from ckptflow.workflow.seeing.report.scales import (
    GAP_PX,
    Scale,
    TimeScale,
    byte_ticks,
    round_ticks,
)

T0 = 1_796_000_000.0


@pytest.mark.parametrize("high", [1, 7, 60, 999, 123_456, 0.003])
def test_ticks_are_round_few_and_within(high: float) -> None:
    ticks = round_ticks(0, high)
    assert 2 <= len(ticks) <= 7
    assert all(0 <= tick <= high * 1.0001 for tick in ticks)
    step = ticks[1] - ticks[0]
    mantissa = float(f"{step:e}".split("e")[0])
    assert mantissa == pytest.approx(round(mantissa)) or mantissa == pytest.approx(2.5)


def test_a_scale_without_a_range_does_not_divide_by_it() -> None:
    assert Scale(3, 3, 0, 100)(3) == 0
    assert round_ticks(3, 3) == [3]


def test_sizes_are_round_in_their_unit() -> None:
    assert byte_ticks(40 * MIB) == [0, 10 * MIB, 20 * MIB, 30 * MIB, 40 * MIB]


def test_time_grows_from_left_to_right() -> None:
    scale = TimeScale([(T0, T0 + 10), (T0 + 5, T0 + 20)], 100, 500)
    assert scale(T0) == 100
    assert scale(T0 + 20) == pytest.approx(500)
    assert scale(T0 + 10) == pytest.approx(300)
    assert scale.gaps() == []


def test_a_night_in_which_nothing_ran_is_cut_out() -> None:
    night_s = 12 * 3600
    scale = TimeScale([(T0, T0 + 600), (T0 + night_s, T0 + night_s + 600)], 0, 1000)
    ((where, pause_s),) = scale.gaps()
    assert pause_s == night_s - 600
    assert scale(T0 + 600) < where < scale(T0 + night_s)
    assert scale(T0 + night_s) - scale(T0 + 600) == pytest.approx(GAP_PX)
    assert scale(T0 + night_s + 600) == pytest.approx(1000)
    assert scale(T0 + 600) < scale(T0 + 5000) < scale(T0 + night_s)


def test_a_short_pause_stays() -> None:
    scale = TimeScale([(T0, T0 + 600), (T0 + 630, T0 + 1200)], 0, 1000)
    assert scale.gaps() == []


@pytest.mark.parametrize("span_s", [0.0, 0.5, 8, 95, 4000, 90_000, 3e6])
def test_ticks_of_time_are_apart_in_order_and_within(span_s: float) -> None:
    scale = TimeScale([(T0, T0 + span_s)], 100, 900)
    ticks = scale.ticks()
    places = [x for x, _ in ticks]
    assert all(b - a > 50 for a, b in itertools.pairwise(places))
    assert all(99 <= x <= 901 for x in places)
    assert len({text for _, text in ticks}) == len(ticks) or span_s > 86_400


def test_of_nothing_there_is_a_scale_all_the_same() -> None:
    assert TimeScale([], 0, 10)(5.0) >= 0
