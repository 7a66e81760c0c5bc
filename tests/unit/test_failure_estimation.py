"""What is believed of rates and what is observed: weights, intervals and surprises."""

from __future__ import annotations

import math
import random

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.estimation import Belief, Beliefs, exposures_s
from ckptflow.policy.failures.rates import MeanTimes, Rates, rates_of

DAY = 86_400.0
BELIEVED = Rates((1 / DAY, 0.0, 0.5 / DAY, 0.1 / DAY, 0.01 / DAY))


def test_after_two_failures_of_ones_own_the_belief_counts_for_half() -> None:
    """Believed: one a day. Met: two in two days, then two in an hour."""
    before = Beliefs.of(BELIEVED)
    assert before.rates.of_class(0) == pytest.approx(1 / DAY)
    same = before.updated((2, 0, 1, 0, 0), 2 * DAY)
    assert same.rates.of_class(0) == pytest.approx(1 / DAY)
    more = before.updated((2, 0, 0, 0, 0), DAY / 24)
    assert more.rates.of_class(0) == pytest.approx(4 / (2 * DAY + DAY / 24))


def test_a_belief_of_no_strength_leaves_what_was_observed() -> None:
    found = Beliefs.of(BELIEVED, strength=0).updated((3, 0, 1, 0, 0), 6 * DAY).rates
    assert found.per_s == pytest.approx((0.5 / DAY, 0, 1 / 6 / DAY, 0, 0))
    assert Beliefs.of(BELIEVED, strength=0).rates == Rates((0.0,) * 5)


def test_a_class_that_nobody_gave_a_rate_is_rare_until_it_happens() -> None:
    before = Beliefs.of(BELIEVED)
    assert before.rates.of_class(1) == 0.0
    soon = before.updated((0, 1, 0, 0, 0), 60.0)
    assert soon.rates.of_class(1) == pytest.approx(1 / (2 * DAY + 60))


def test_the_prior_interval_is_that_of_the_docstring() -> None:
    low, high = Belief(2.0, 2.0).interval_per_s(0.95)
    assert (low, high) == (pytest.approx(1 / 8, rel=0.05), pytest.approx(2.8, rel=0.01))


def test_no_failure_has_an_upper_end() -> None:
    """The rule of three: 3 over the time, with 95 %."""
    assert Belief(0.0, 10.0).interval_per_s(0.9) == (0.0, pytest.approx(-math.log(0.05) / 10))
    assert Belief(0.0, 0.0).interval_per_s() == (0.0, math.inf)


def test_very_many_failures_have_an_interval() -> None:
    low, high = Belief(1e8, 1e9).interval_per_s()
    assert 0.0998 < low < 0.1 < high < 0.1002


def test_intervals_hold_the_true_rate_as_often_as_they_say() -> None:
    """Rates drawn from the prior, counts from the rates."""
    r, held = random.Random(6), 0
    prior = Belief(2.0, 20.0)
    for _ in range(400):
        rate_per_s = r.gammavariate(2.0, 1 / 20.0)
        count, now_s = 0, r.expovariate(rate_per_s)
        while now_s < 50.0:
            count, now_s = count + 1, now_s + r.expovariate(rate_per_s)
        low, high = prior.updated(count, 50.0).interval_per_s(0.8)
        held += low <= rate_per_s <= high
    assert held / 400 == pytest.approx(0.8, abs=4 * math.sqrt(0.8 * 0.2 / 400))


def test_what_was_seen_elsewhere_may_count_for_less() -> None:
    belief = Belief(2.0, 20.0)
    assert belief.updated(4, 10.0, weight=0.5) == Belief(4.0, 25.0)
    assert belief.updated(4, 10.0, weight=0.0) == belief


def test_hours_of_few_nodes_are_minutes_of_many() -> None:
    times = MeanTimes(node_mtbf_s=100 * DAY, system_mtbf_s=10 * DAY)
    there, here = rates_of(times, nodes=8), rates_of(times, nodes=64)
    exposed_s = exposures_s(80.0, there=there, here=here)
    assert exposed_s == pytest.approx((80.0, 80.0, 10.0, 80.0, 80.0))
    seen = Beliefs.of(here, strength=0).updated((0, 0, 1, 1, 0), exposed_s).rates
    assert seen.per_s == pytest.approx((0, 0, 0.1, 1 / 80, 0))


def test_a_rate_that_has_changed_is_a_surprise() -> None:
    known = Beliefs.of(BELIEVED).updated((20, 0, 10, 0, 0), 20 * DAY)
    assert known.surprises((1, 0, 0, 0, 0), DAY) == ()
    (found,) = known.surprises((9, 0, 0, 0, 0), DAY)
    assert found.failure_class == 0
    assert found.chance < 1e-3
    assert found.reason.startswith(
        "class 0 (a process dies): 9 failures in 24h00min, where 1 were expected; so many or "
        "more have a chance of 0.00"
    )
    (quiet,) = known.surprises((0, 0, 2, 0, 0), 8 * DAY)
    assert (quiet.failure_class, quiet.count) == (0, 0)
    assert "so many or fewer have a chance of" in quiet.reason


def test_nothing_known_is_never_surprised() -> None:
    nothing = Beliefs.of(BELIEVED, strength=0)
    assert nothing.surprises((50, 0, 0, 0, 0), DAY) == ()


def test_a_first_failure_of_its_class_is_judged_as_if_it_were_due() -> None:
    quiet = Belief(0.0, 99.0)
    assert quiet.chance_of_at_least(1, 1.0) == pytest.approx(0.01)
    assert quiet.chance_of_at_least(2, 1.0) == pytest.approx(0.0001)


@pytest.mark.parametrize(
    ("failures", "observed_s", "said"),
    [
        (-1.0, 1.0, "0 failures or more in 0 s or more, got -1.0 in 1.0 s"),
        (1.0, -1.0, "got 1.0 in -1.0 s"),
        (math.nan, 1.0, "got nan in 1.0 s"),
        (1.0, math.inf, "got 1.0 in inf s"),
        (2.0, 0.0, "2 failures in 0 s tell no rate"),
    ],
)
def test_observations_that_make_no_sense(failures: float, observed_s: float, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Belief(1.0, 1.0).updated(failures, observed_s)


def test_arguments_that_make_no_sense() -> None:
    beliefs = Beliefs.of(BELIEVED)
    with pytest.raises(ConfigError, match="weight of 0 to 1, not 2"):
        beliefs.updated((0,) * 5, 1.0, weight=2)
    with pytest.raises(ConfigError, match="counts has one value for each of 5 classes, got 2"):
        beliefs.updated((0, 0), 1.0)
    with pytest.raises(ConfigError, match="observed_s has one value for each of 5 classes"):
        beliefs.updated((0,) * 5, (1.0, 2.0))
    with pytest.raises(ConfigError, match="worth 0 failures or more, a finite number, not -1"):
        Beliefs.of(BELIEVED, strength=-1)
    with pytest.raises(ConfigError, match="A level is between 0 and 1, both excluded, got 1"):
        Belief(1.0, 1.0).interval_per_s(1)
    with pytest.raises(ConfigError, match="A window is 0 s or longer and finite, got nan s"):
        Belief(1.0, 1.0).chance_of_at_most(1, math.nan)
