"""Laws of the failure models: rates add up, evidence adds up, and more of it is never less.

The gamma distribution is compared with SciPy's.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ckptflow.policy.failures import gamma
from ckptflow.policy.failures.estimation import Belief, Beliefs
from ckptflow.policy.failures.laws import Exponential, Trace, Weibull, fit_weibull
from ckptflow.policy.failures.rates import MeanTimes, Rates, rates_of
from ckptflow.policy.failures.survival import Redundancy, beyond_redundancy_per_s

mean_times = st.none() | st.floats(1.0, 1e10)
times = st.builds(
    MeanTimes,
    process_mtbf_s=mean_times,
    reboot_mtbf_s=mean_times,
    node_mtbf_s=mean_times,
    system_mtbf_s=mean_times,
    filesystem_mtbf_s=mean_times,
)
redundancies = st.integers(2, 16).flatmap(
    lambda size: st.builds(
        Redundancy,
        set_size=st.just(size),
        losses=st.integers(1, size - 1),
        window_s=st.floats(0, 1e5),
        taking_others=st.floats(0, 1),
        group_nodes=st.integers(1, 40),
    )
)
per_s = st.just(0.0) | st.floats(1e-9, 1e-2)
rates = st.builds(Rates, st.tuples(per_s, per_s, per_s, per_s, per_s))
counts = st.lists(st.integers(0, 50), min_size=5, max_size=5)
seconds = st.floats(1.0, 1e8)
gaps = st.lists(st.floats(1e-3, 1e7), min_size=10, max_size=30)


# --- rates -----------------------------------------------------------------------------


@given(times=times, nodes=st.integers(1, 10_000), redundancy=redundancies)
def test_redundancy_moves_losses_and_makes_none(
    times: MeanTimes, nodes: int, redundancy: Redundancy
) -> None:
    plain = rates_of(times, nodes=nodes)
    split = rates_of(times, nodes=nodes, redundancy=redundancy)
    assert split.total_per_s == pytest.approx(plain.total_per_s)
    assert 0 <= split.of_class(2) <= plain.of_class(2)
    assert split.of_class(3) >= plain.of_class(3)


@given(times=times, nodes=st.integers(1, 1000), more=st.integers(0, 1000))
def test_more_nodes_fail_more_often(times: MeanTimes, nodes: int, more: int) -> None:
    few, many = rates_of(times, nodes=nodes), rates_of(times, nodes=nodes + more)
    assert all(a <= b for a, b in zip(few.per_s, many.per_s, strict=True))


@given(redundancy=redundancies, nodes=st.integers(2, 500), longer=st.floats(1, 10))
def test_without_groups_a_longer_window_breaks_more(
    redundancy: Redundancy, nodes: int, longer: float
) -> None:
    def beyond_per_s(window_s: float) -> float:
        alone = Redundancy(
            set_size=redundancy.set_size, losses=redundancy.losses, window_s=window_s
        )
        return beyond_redundancy_per_s(alone, nodes, 1e-4)

    window_s = redundancy.window_s
    assert beyond_per_s(window_s) <= beyond_per_s(longer * window_s) * (1 + 1e-9)


@given(st.integers(2, 16), st.integers(1, 20), st.floats(0, 1), st.floats(0, 1e5), st.data())
def test_a_group_that_takes_too_many_of_a_set_always_breaks_it(
    size: int, sets: int, taking_others: float, window_s: float, data: st.DataObject
) -> None:
    losses = data.draw(st.integers(1, size - 1))
    redundancy = Redundancy(
        set_size=size,
        losses=losses,
        window_s=window_s,
        taking_others=taking_others,
        group_nodes=data.draw(st.integers(losses * sets + 1, size * sets)),
    )
    beyond_per_s = beyond_redundancy_per_s(redundancy, size * sets, 1e-4)
    assert beyond_per_s >= 1e-4 * taking_others


@given(one=rates, two=rates, factor=st.floats(0, 1e3))
def test_rates_add_up(one: Rates, two: Rates, factor: float) -> None:
    assert (one + two).total_per_s == pytest.approx(one.total_per_s + two.total_per_s)
    assert one + two == two + one
    assert one.scaled(factor).total_per_s == pytest.approx(factor * one.total_per_s)


# --- laws ------------------------------------------------------------------------------


@given(gaps_s=gaps, open_gap_s=st.floats(0, 1e7), factor=st.floats(1e-3, 1e3))
def test_a_fit_does_not_depend_on_the_unit(
    gaps_s: list[float], open_gap_s: float, factor: float
) -> None:
    one = fit_weibull(gaps_s, open_gap_s=open_gap_s).law
    other = fit_weibull([factor * gap for gap in gaps_s], open_gap_s=factor * open_gap_s).law
    assert isinstance(one, Weibull)
    assert isinstance(other, Weibull)
    assert other.shape == pytest.approx(one.shape, rel=1e-6)
    assert other.mtbf_s == pytest.approx(factor * one.mtbf_s, rel=1e-4)


@given(gaps_s=gaps)
def test_no_law_near_a_fit_is_likelier(gaps_s: list[float]) -> None:
    law = fit_weibull(gaps_s).law
    assert isinstance(law, Weibull)
    assume(0.06 < law.shape < 40)

    def log_likelihood(shape: float, scale_s: float) -> float:
        return math.fsum(
            math.log(shape / scale_s)
            + (shape - 1) * math.log(gap / scale_s)
            - (gap / scale_s) ** shape
            for gap in gaps_s
        )

    best = log_likelihood(law.shape, law.scale_s)
    for shape in (0.98, 1.0, 1.02):
        for scale in (0.98, 1.0, 1.02):
            near = log_likelihood(shape * law.shape, scale * law.scale_s)
            assert near <= best + 1e-6 * abs(best) + 1e-9


@given(gaps_s=st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=9), rest_s=st.floats(0, 1e7))
def test_the_rate_of_a_trace_is_that_of_its_few_gaps(
    gaps_s: list[float], rest_s: float
) -> None:
    times_s = tuple(math.fsum(gaps_s[: n + 1]) for n in range(len(gaps_s)))
    trace = Trace(times_s, times_s[-1] + rest_s)
    law = fit_weibull(trace.gaps_s, open_gap_s=trace.open_gap_s).law
    assert isinstance(law, Exponential)
    assert law.rate_per_s == pytest.approx(trace.rate_per_s)


# --- estimation ------------------------------------------------------------------------


@given(believed=rates, strength=st.floats(0, 20), first=counts, second=counts,
       first_s=seconds, second_s=seconds)  # fmt: skip
def test_two_updates_are_one(
    believed: Rates, strength: float, first: list[int], second: list[int],
    first_s: float, second_s: float,
) -> None:  # fmt: skip
    prior = Beliefs.of(believed, strength=strength)
    one_by_one = prior.updated(first, first_s).updated(second, second_s)
    both = [a + b for a, b in zip(first, second, strict=True)]
    assert one_by_one.rates.per_s == pytest.approx(
        prior.updated(both, first_s + second_s).rates.per_s
    )


@given(believed=rates, met=counts, time_s=seconds, more=st.integers(0, 9), longer=seconds)
def test_more_failures_raise_a_rate_and_quiet_lowers_it(
    believed: Rates, met: list[int], time_s: float, more: int, longer: float
) -> None:
    prior = Beliefs.of(believed)
    rate = prior.updated(met, time_s).rates.per_s
    oftener = prior.updated([count + more for count in met], time_s).rates.per_s
    quieter = prior.updated(met, time_s + longer).rates.per_s
    assert all(a <= b for a, b in zip(rate, oftener, strict=True))
    assert all(a >= b for a, b in zip(rate, quieter, strict=True))


@given(believed=rates, met=counts, time_s=seconds)
def test_without_belief_it_is_the_likeliest_rate(
    believed: Rates, met: list[int], time_s: float
) -> None:
    found = Beliefs.of(believed, strength=0).updated(met, time_s).rates.per_s
    assert found == pytest.approx([count / time_s for count in met])


@given(failures=st.floats(0.1, 1e4), time_s=seconds, level=st.floats(0.01, 0.999))
def test_the_mean_lies_between_the_ends_of_wide_intervals(
    failures: float, time_s: float, level: float
) -> None:
    belief = Belief(failures, time_s)
    low, high = belief.interval_per_s(level)
    assert 0 <= low < high
    wide_low, wide_high = belief.interval_per_s((1 + level) / 2)
    assert wide_low <= low
    assert high <= wide_high
    certain_low, certain_high = belief.interval_per_s(1 - 1e-9)
    assert certain_low < belief.mean_per_s < certain_high


# --- the gamma distribution ------------------------------------------------------------


@given(shape=st.floats(0.01, 1e5), chance=st.floats(1e-9, 1 - 1e-9))
def test_quantiles_are_those_of_scipy(shape: float, chance: float) -> None:
    special = pytest.importorskip("scipy.special")
    truth = float(special.gammaincinv(shape, chance))
    assume(truth > 1e-290)
    assert gamma.quantile(shape, chance) == pytest.approx(truth, rel=1e-10)


@given(shape=st.floats(0.01, 1e5), factor=st.floats(0.01, 10))
def test_tails_are_those_of_scipy(shape: float, factor: float) -> None:
    special = pytest.importorskip("scipy.special")
    below, above = gamma.tails(shape, factor * shape)
    assert below == pytest.approx(float(special.gammainc(shape, factor * shape)), rel=1e-8)
    assert above == pytest.approx(float(special.gammaincc(shape, factor * shape)), rel=1e-8)


@given(failures=st.floats(0.1, 200), time_s=st.floats(1, 1e4), window_s=st.floats(0.1, 1e4),
       count=st.integers(0, 60))  # fmt: skip
def test_predicted_counts_are_those_of_scipy(
    failures: float, time_s: float, window_s: float, count: int
) -> None:
    stats = pytest.importorskip("scipy.stats")
    belief, law = Belief(failures, time_s), stats.nbinom(failures, time_s / (time_s + window_s))
    at_least = belief.chance_of_at_least(count, window_s)
    assert at_least == pytest.approx(float(law.sf(count - 1)), abs=1e-9)
    at_most = belief.chance_of_at_most(count, window_s)
    assert at_most == pytest.approx(float(law.cdf(count)), abs=1e-9)
