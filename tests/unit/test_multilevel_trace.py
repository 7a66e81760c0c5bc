"""A trace is played once, from its beginning to its end, the same for every pattern."""

from __future__ import annotations

import numpy as np
import pytest

from ckptflow.policy.failures.laws import Trace
from ckptflow.policy.multilevel.exact import efficiency
from ckptflow.policy.multilevel.simulation import simulate
from ckptflow.policy.multilevel.system import Level, Pattern, System

pytest.importorskip("ckptflow.native._core")

END_S = 1e6
ONE = System((Level(name="pfs", number=3, rate_per_s=2e-4, recovery_s=100.0),), blocked_s=10.0)


def trace(count, seed=0, end_s=END_S):
    times_s = np.sort(np.random.default_rng(seed).uniform(0, end_s, count))
    return Trace(tuple(times_s.tolist()), end_s)


def test_all_failures_of_a_trace_happen_and_nothing_after_its_end():
    found = simulate(ONE, Pattern(300.0, (1,)), laws=[trace(200)])
    assert found.failures_per_h[0] * found.elapsed_s / 3600 == pytest.approx(200)
    assert END_S <= found.elapsed_s < END_S + 2 * 310
    assert found.error == 0
    assert sum(found.parts.values()) == pytest.approx(1)
    assert found.efficiency == pytest.approx(efficiency(ONE, Pattern(300.0, (1,))), abs=0.01)


def test_a_trace_of_many_saves_ends_nearly_there():
    found = simulate(ONE, Pattern(2.0, (1,)), laws=[trace(200)])
    assert END_S <= found.elapsed_s < 1.01 * END_S


def test_traces_of_levels_that_are_not_used_are_joined_and_end_with_the_longest():
    inner = Level(name="nvme", number=1, rate_per_s=1e-4, recovery_s=10.0)
    both = System((inner, *ONE.levels), blocked_s=10.0)
    laws = [trace(50, seed=1, end_s=END_S / 2), trace(50, seed=2)]
    found = simulate(both, Pattern(300.0, (0, 1)), laws=laws)
    assert sum(found.failures_per_h) * found.elapsed_s / 3600 == pytest.approx(100)
    assert END_S <= found.elapsed_s < END_S + 2 * 310


def test_a_trace_in_which_nothing_gets_anywhere_is_told_as_far_as_it_got():
    hopeless = System((Level(name="pfs", number=3, rate_per_s=1.0, recovery_s=1e5),))
    found = simulate(hopeless, Pattern(1e5, (1,)), laws=[trace(5000)])
    assert found.efficiency < 0.5


def test_intervals_may_be_whole_numbers():
    assert efficiency(ONE, Pattern(300, (1,))) == efficiency(ONE, Pattern(300.0, (1,))) > 0.8
