"""Rates by class: from mean times of processes, nodes and what they share."""

from __future__ import annotations

import math
import random

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.rates import MeanTimes, Rates, rates_of
from ckptflow.policy.failures.survival import Redundancy

HOUR = 3600.0
ALL = MeanTimes(
    process_mtbf_s=1000 * HOUR,
    reboot_mtbf_s=2000 * HOUR,
    node_mtbf_s=4000 * HOUR,
    system_mtbf_s=500 * HOUR,
    filesystem_mtbf_s=900 * HOUR,
)


def test_counts_over_mean_times() -> None:
    rates = rates_of(ALL, nodes=10, processes=80)
    assert [rates.mtbf_s(one) for one in range(5)] == [
        pytest.approx(hours * HOUR) for hours in (1000 / 80, 2000 / 10, 4000 / 10, 500, 900)
    ]
    assert rates.total_per_s == pytest.approx(sum(rates.per_s))
    assert rates.mtbf_s() == pytest.approx(1 / rates.total_per_s)


def test_a_simulation_of_every_process_and_node_meets_as_many() -> None:
    """Each has a clock of its own; what fails is replaced at once."""
    r, span_s, nodes, processes = random.Random(2), 4000 * HOUR, 3, 6
    times = MeanTimes(process_mtbf_s=20 * HOUR, node_mtbf_s=30 * HOUR, system_mtbf_s=9 * HOUR)
    met = [0] * 5
    for failure_class, count, mtbf_s in (
        (0, processes, times.process_mtbf_s), (2, nodes, times.node_mtbf_s),
        (3, 1, times.system_mtbf_s),
    ):  # fmt: skip
        for _ in range(count):
            now_s = r.expovariate(1 / mtbf_s)
            while now_s < span_s:
                met[failure_class] += 1
                now_s += r.expovariate(1 / mtbf_s)
    for expected_per_s, found in zip(
        rates_of(times, nodes=nodes, processes=processes).per_s, met, strict=True
    ):
        expected = expected_per_s * span_s
        assert abs(found - expected) <= 4 * math.sqrt(expected)


def test_what_nobody_knows_never_happens() -> None:
    rates = rates_of(MeanTimes(node_mtbf_s=HOUR), nodes=2)
    assert rates.per_s == (0.0, 0.0, 2 / HOUR, 0.0, 0.0)
    assert (rates.mtbf_s(4), rates_of(MeanTimes(), nodes=1).mtbf_s()) == (None, None)


def test_one_process_on_each_node_unless_told() -> None:
    assert rates_of(ALL, nodes=10) == rates_of(ALL, nodes=10, processes=10)


def test_redundancy_moves_what_it_does_not_survive() -> None:
    plain = rates_of(ALL, nodes=64)
    safe = rates_of(ALL, nodes=64, redundancy=Redundancy(set_size=8, window_s=0.0))
    assert safe == plain
    rack = Redundancy(set_size=8, window_s=60.0, taking_others=0.1, group_nodes=16)
    split = rates_of(ALL, nodes=64, redundancy=rack)
    assert split.total_per_s == pytest.approx(plain.total_per_s)
    assert split.of_class(2) == pytest.approx(0.9 * plain.of_class(2), rel=1e-2)
    assert split.of_class(3) > plain.of_class(3)


def test_rates_add_up_and_scale() -> None:
    one = Rates((1.0, 2.0, 3.0, 4.0, 5.0))
    assert one + one == one.scaled(2.0) == Rates((2.0, 4.0, 6.0, 8.0, 10.0))
    assert one.of_class(3) == 4.0


def test_what_is_known_here_comes_before_what_is_known_elsewhere() -> None:
    here = MeanTimes(node_mtbf_s=1.0)
    assert here.or_else(ALL).node_mtbf_s == 1.0
    assert here.or_else(ALL).system_mtbf_s == ALL.system_mtbf_s
    assert ALL.or_else(here) == ALL


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_rates_that_make_no_sense(wrong: float) -> None:
    with pytest.raises(
        ConfigError, match=f"a node is lost is 0 per s or more, got {wrong} per"
    ):
        Rates((0.0, 0.0, wrong, 0.0, 0.0))
    with pytest.raises(ConfigError, match="one for each of 5 classes, got 2"):
        Rates((0.0, 0.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("failure_class", [-1, 5])
def test_there_are_five_classes(failure_class: int) -> None:
    with pytest.raises(ConfigError, match=f"class of failures is 0 to 4, got {failure_class}"):
        rates_of(ALL, nodes=1).of_class(failure_class)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_mean_times_that_make_no_sense(wrong: float) -> None:
    with pytest.raises(ConfigError, match=f"node_mtbf_s must be above 0 s .* got {wrong} s"):
        MeanTimes(node_mtbf_s=wrong)


@pytest.mark.parametrize(("nodes", "processes"), [(0, None), (4, 3)])
def test_a_run_has_nodes_and_processes(nodes: int, processes: int | None) -> None:
    with pytest.raises(ConfigError, match=f"1 process each, got {nodes} nodes"):
        rates_of(ALL, nodes=nodes, processes=processes)
