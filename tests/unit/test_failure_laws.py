"""Laws of failures: their means, what they refuse, and fits to gaps."""

from __future__ import annotations

import math
import random

import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.laws import Exponential, Trace, Weibull, fit_weibull


def test_a_weibull_law_of_shape_one_has_no_memory() -> None:
    assert Weibull(3600.0, 1.0).scale_s == pytest.approx(3600.0)
    assert Weibull(3600.0, 1.0).rate_per_s == Exponential(1 / 3600).rate_per_s
    assert Exponential(1 / 3600).mtbf_s == pytest.approx(3600.0)


def test_the_scale_gives_the_mean() -> None:
    assert Weibull(1.0, 0.5).scale_s == pytest.approx(0.5)  # Γ(3) = 2.
    assert Weibull(1.0, 2.0).scale_s == pytest.approx(2 / math.sqrt(math.pi))


def test_a_trace_counts_its_failures() -> None:
    trace = Trace((10.0, 10.0, 40.0), observed_s=60.0)
    assert (trace.mtbf_s, trace.rate_per_s) == (20.0, 0.05)
    assert (trace.gaps_s, trace.open_gap_s) == ((10.0, 0.0, 30.0), 20.0)
    until_the_last = Trace((10.0, 40.0))
    assert (until_the_last.mtbf_s, until_the_last.open_gap_s) == (20.0, 0.0)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_laws_need_sensible_numbers(wrong: float) -> None:
    with pytest.raises(ConfigError, match=f"needs a rate_per_s above 0, got {wrong}"):
        Exponential(wrong)
    with pytest.raises(ConfigError, match=f"needs a mtbf_s above 0, got {wrong}"):
        Weibull(wrong, 0.7)
    with pytest.raises(ConfigError, match=f"has a shape of 0.05 to 50, not {wrong}"):
        Weibull(1.0, wrong)


@pytest.mark.parametrize(
    ("times_s", "observed_s", "said"),
    [
        ((), None, "at least one failure"),
        ((2.0, 1.0), None, "in order, got 1.0 s after 2.0 s"),
        ((-1.0,), None, "in order, got -1.0 s after 0.0 s"),
        ((math.nan,), None, "in order, got nan s"),
        ((1.0, math.inf), None, "in order, got inf s"),
        ((0.0,), None, "time of the last failure above 0"),
        ((0.0,), 0.0, "observed longer than that, not for 0.0 s"),
        ((5.0,), 4.0, "failure at 5.0 s was observed longer than that, not for 4.0 s"),
        ((5.0,), math.inf, "not for inf s"),
    ],
)
def test_a_trace_is_in_order(
    times_s: tuple[float, ...], observed_s: float | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Trace(times_s, observed_s)


@pytest.mark.parametrize("shape", [0.5, 0.8, 1.0, 2.5])
def test_a_fit_finds_the_law_that_made_the_gaps(shape: float) -> None:
    r = random.Random(3)
    law = Weibull(1000.0, shape)
    fit = fit_weibull([r.weibullvariate(law.scale_s, shape) for _ in range(2000)])
    assert isinstance(fit.law, Weibull)
    assert fit.shape_error == pytest.approx(0.78 * shape / math.sqrt(2000), rel=0.1)
    assert fit.law.shape == pytest.approx(shape, abs=4 * 0.78 * shape / math.sqrt(2000))
    assert fit.law.mtbf_s == pytest.approx(1000.0, rel=0.15)


def test_gaps_that_have_not_ended_count() -> None:
    """Failures of 500 nodes that are watched for less than their mean time: most see none."""
    r = random.Random(4)
    law, watched_s = Weibull(1000.0, 0.7), 300.0
    gaps = [r.weibullvariate(law.scale_s, law.shape) for _ in range(60)]
    fit = fit_weibull([gap for gap in gaps[:59] if gap < watched_s], open_gap_s=2e4)
    without = fit_weibull([gap for gap in gaps[:59] if gap < watched_s])
    assert isinstance(fit.law, Weibull)
    assert isinstance(without.law, Weibull)
    assert fit.law.mtbf_s > without.law.mtbf_s
    assert fit.law.shape < without.law.shape


def test_a_fit_agrees_with_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    r = random.Random(5)
    gaps_s = [r.weibullvariate(900.0, 0.75) for _ in range(40)]
    data = stats.CensoredData(uncensored=gaps_s, right=[2500.0])
    shape, _, scale_s = stats.weibull_min.fit(data, floc=0)
    law = fit_weibull(gaps_s, open_gap_s=2500.0).law
    assert isinstance(law, Weibull)
    assert law.shape == pytest.approx(shape, rel=1e-3)
    assert law.scale_s == pytest.approx(scale_s, rel=1e-3)


def test_few_failures_tell_a_rate_and_no_shape() -> None:
    fit = fit_weibull([100.0, 200.0, 300.0], open_gap_s=300.0)
    assert (fit.law, fit.shape_error) == (Exponential(3 / 900), None)
    assert fit.reason == (
        "3 failures are too few to tell a shape, which takes 10: taken for failures without "
        "memory"
    )
    none = fit_weibull([], open_gap_s=300.0)
    assert (none.law, none.reason) == (None, "no failure in 300 s: there is no law to fit")


def test_gaps_that_are_all_alike_meet_the_limit_of_the_shape() -> None:
    fit = fit_weibull([60.0] * 12)
    assert isinstance(fit.law, Weibull)
    assert fit.law.shape == pytest.approx(50.0)
    assert fit.reason.endswith(", the limit")


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_gaps_have_a_length(wrong: float) -> None:
    with pytest.raises(ConfigError, match=f"A gap between failures is above 0 s, got {wrong}"):
        fit_weibull([1.0, wrong])


def test_the_open_gap_has_a_length() -> None:
    with pytest.raises(ConfigError, match=r"since the last failure is 0 s or more, got -1.0 s"):
        fit_weibull([1.0], open_gap_s=-1.0)
