"""How failures are spread over time: without memory, by a Weibull law, or as recorded.

Gaps between failures of large machines are not without memory: after one the next is likelier
to be near. Weibull laws with shapes of 0.7 to 0.8 fit them (Schroeder and Gibson, "A
large-scale study of failures in high-performance computing systems", DSN 2006). Shape 1 is the
exponential law. ``tests/unit/test_failure_laws.py``, ``tests/property/test_failure_laws.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ckptflow.errors import ConfigError

# Beyond these a fit has met gaps that are no sample, and the scale is no float any more.
SHAPE_MIN, SHAPE_MAX = 0.05, 50.0
# The estimate of a shape is 16 % too high on average with 10 gaps, and 49 % too high
# with 5 (Thoman, Bain, Antle, "Inferences on the parameters of the Weibull distribution",
# Technometrics 11, 1969).
FAILURES_MIN = 10


@dataclass(frozen=True, slots=True)
class Exponential:
    """Failures without memory: that there was none for long says nothing of the next.

    Attributes:
        rate_per_s: failures per second, above 0.

    Raises:
        ConfigError: the rate is not positive and finite.
    """

    rate_per_s: float

    def __post_init__(self) -> None:
        _above_zero("An exponential law", "rate_per_s", self.rate_per_s)

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures, in seconds."""
        return 1 / self.rate_per_s


@dataclass(frozen=True, slots=True)
class Weibull:
    """Gaps with P(longer than t) = exp(−(t/scale)^shape), given by their mean.

    Attributes:
        mtbf_s: mean time between failures, in seconds, above 0.
        shape: below 1 failures come in clusters, at 1 they have no memory, above 1 they wear.

    Raises:
        ConfigError: the mean is not positive and finite, or the shape not between 0.05 and 50.
    """

    mtbf_s: float
    shape: float

    def __post_init__(self) -> None:
        _above_zero("A Weibull law", "mtbf_s", self.mtbf_s)
        if not SHAPE_MIN <= self.shape <= SHAPE_MAX:
            raise ConfigError(
                f"A Weibull law has a shape of {SHAPE_MIN} to {SHAPE_MAX:g}, not {self.shape}: "
                f"gaps between failures of large machines have 0.7 to 0.8."
            )

    @property
    def rate_per_s(self) -> float:
        """Failures per second in the long run."""
        return 1 / self.mtbf_s

    @property
    def scale_s(self) -> float:
        """Time after which 63 % of the gaps have ended: the mean over Γ(1 + 1/shape)."""
        return self.mtbf_s * math.exp(-math.lgamma(1 + 1 / self.shape))


@dataclass(frozen=True, slots=True)
class Trace:
    """Failures as they were recorded.

    Attributes:
        times_s: when they happened, in seconds from the beginning of the record, in order.
        observed_s: how long was recorded; until the last failure if ``None``, which makes the
            mean a little too short.

    Raises:
        ConfigError: there are none, they are not in order, or one is negative or not finite.
    """

    times_s: tuple[float, ...]
    observed_s: float | None = None

    def __post_init__(self) -> None:
        if not self.times_s:
            raise ConfigError("A trace needs at least one failure; this one has none.")
        for before_s, after_s in zip((0.0, *self.times_s), self.times_s, strict=False):
            if not before_s <= after_s < math.inf:
                raise ConfigError(
                    f"A trace needs times of 0 s or more in order, got {after_s} s "
                    f"after {before_s} s."
                )
        end_s = self.times_s[-1]
        if self.observed_s is None:
            _above_zero("A trace", "time of the last failure", end_s)
        elif not (end_s <= self.observed_s < math.inf and self.observed_s > 0):
            raise ConfigError(
                f"A trace with a failure at {end_s} s was observed longer than that, "
                f"not for {self.observed_s} s."
            )

    @property
    def mtbf_s(self) -> float:
        """Time observed over failures, in seconds."""
        return self._until_s / len(self.times_s)

    @property
    def rate_per_s(self) -> float:
        """Failures over time observed."""
        return len(self.times_s) / self._until_s

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Times from failure to failure, the first from the beginning of the record."""
        starts_s = (0.0, *self.times_s[:-1])
        return tuple(
            end_s - start_s for start_s, end_s in zip(starts_s, self.times_s, strict=True)
        )

    @property
    def open_gap_s(self) -> float:
        """Time from the last failure to the end of the record."""
        return self._until_s - self.times_s[-1]

    @property
    def _until_s(self) -> float:
        return self.times_s[-1] if self.observed_s is None else self.observed_s


Law = Exponential | Weibull | Trace


@dataclass(frozen=True, slots=True)
class Fit:
    """A law that observed gaps were fitted with.

    Attributes:
        law: ``None`` if there was no failure.
        failures: how many gaps ended with one.
        shape_error: standard error of the shape, 0.78 · shape / √failures (Cohen, below, for
            complete gaps); ``None`` if none was fitted.
        reason: what was done, and why not more.
    """

    law: Exponential | Weibull | None
    failures: int
    shape_error: float | None
    reason: str


def fit_weibull(gaps_s: Sequence[float], *, open_gap_s: float = 0.0) -> Fit:
    """Return the Weibull law under which the observed gaps are likeliest.

    A. C. Cohen, "Maximum likelihood estimation in the Weibull distribution based on complete
    and on censored samples", Technometrics 7 (1965). With fewer than ten gaps the shape is not
    to be told, and the law is the exponential one of the same rate.

    Args:
        gaps_s: times from failure to failure, in seconds, each above 0.
        open_gap_s: time without failure since the last one: a gap that has not ended.

    Raises:
        ConfigError: a gap is not positive, or one is not finite.
    """
    for gap_s in gaps_s:
        if not 0 < gap_s < math.inf:
            raise ConfigError(
                f"A gap between failures is above 0 s, got {gap_s} s; failures at one instant "
                f"are one failure."
            )
    if not 0 <= open_gap_s < math.inf:
        raise ConfigError(f"The gap since the last failure is 0 s or more, got {open_gap_s} s.")
    failures, observed_s = len(gaps_s), math.fsum(gaps_s) + open_gap_s
    if failures == 0:
        return Fit(None, 0, None, f"no failure in {observed_s:.0f} s: there is no law to fit")
    if failures < FAILURES_MIN:
        few = f"{failures} failures are too few to tell a shape, which takes {FAILURES_MIN}"
        law = Exponential(failures / observed_s)
        return Fit(law, failures, None, f"{few}: taken for failures without memory")
    return _likeliest(gaps_s, open_gap_s)


def _likeliest(gaps_s: Sequence[float], open_gap_s: float) -> Fit:
    """Solve Cohen's equation for the shape by bisection: it grows with the shape."""
    longest_s = max(*gaps_s, open_gap_s)
    ended = [math.log(gap_s) - math.log(longest_s) for gap_s in gaps_s]
    # A gap of 0 s that has not ended has no weight.
    still = [math.log(open_gap_s) - math.log(longest_s)] if open_gap_s > 0 else []
    every = [*ended, *still]
    mean_log = math.fsum(ended) / len(ended)

    def excess(shape: float) -> float:
        weights = [math.exp(shape * one) for one in every]
        weighted = math.fsum(one * weight for one, weight in zip(every, weights, strict=True))
        return weighted / math.fsum(weights) - 1 / shape - mean_log

    low, high = math.log(SHAPE_MIN), math.log(SHAPE_MAX)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(math.exp(middle)) > 0 else (middle, high)
    shape = min(SHAPE_MAX, max(SHAPE_MIN, math.exp((low + high) / 2)))
    power = math.fsum(math.exp(shape * one) for one in every) / len(ended)
    scale_s = longest_s * power ** (1 / shape)
    law = Weibull(scale_s * math.exp(math.lgamma(1 + 1 / shape)), shape)
    error = 0.78 * shape / math.sqrt(len(ended))
    edge = ", the limit" if excess(SHAPE_MIN) > 0 or excess(SHAPE_MAX) < 0 else ""
    reason = f"{len(ended)} failures: shape {shape:.2f} ± {error:.2f}{edge}"
    return Fit(law, len(ended), error, reason)


def _above_zero(what: str, name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{what} needs a {name} above 0, got {value}.")
