"""Rates of failures from what is believed and what is observed.

Failures without memory are counted by a Poisson law, and a gamma distribution of its rate
stays one when something has been observed (Gelman et al., "Bayesian Data Analysis", 3rd
edition, section 2.6): what is believed counts as failures that were met in so many seconds,
and what is observed is added to both.

A believed rate is worth two failures unless told otherwise. Then the true one is, with 95 %,
between an eighth of it and 2.8 times it: published rates of machines of one owner differ by a
factor of 3. After two failures of one's own the believed rate counts for half.

``tests/unit/test_failure_estimation.py``, ``tests/property/test_failure_laws.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ckptflow.errors import ConfigError
from ckptflow.policy.failures import gamma
from ckptflow.policy.failures.rates import CLASS_NAMES, CLASSES, Rates
from ckptflow.units import format_seconds

STRENGTH = 2.0
SURPRISE_MAX = 0.01
# A class that nobody gave a rate is taken for rarer than once in this time until it happens:
# one failure in the first minute of a task is no failure a minute.
UNKNOWN_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Belief:
    """What is known of one rate: as if ``failures`` had been met in ``observed_s``.

    Attributes:
        failures: shape of the gamma distribution; need not be whole.
        observed_s: its inverse scale, in seconds.

    Raises:
        ConfigError: a number is negative or not finite, or there are failures in no time.
    """

    failures: float
    observed_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.failures < math.inf and 0 <= self.observed_s < math.inf):
            raise ConfigError(
                f"Observed are 0 failures or more in 0 s or more, got {self.failures} "
                f"in {self.observed_s} s."
            )
        if self.failures > 0 and self.observed_s == 0:
            raise ConfigError(
                f"{self.failures:g} failures in 0 s tell no rate: say how long was observed."
            )

    @property
    def mean_per_s(self) -> float:
        """Expected rate; 0 if nothing is known."""
        return self.failures / self.observed_s if self.failures else 0.0

    def interval_per_s(self, level: float = 0.9) -> tuple[float, float]:
        """Return between which rates the true one is with a probability of ``level``.

        With no failures, believed or observed, the lower end is 0 and the upper one that of a
        count of 0 (F. Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28,
        1936); infinity if nothing was observed either.

        Raises:
            ConfigError: the level is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ConfigError(f"A level is between 0 and 1, both excluded, got {level}.")
        if self.observed_s == 0:
            return 0.0, math.inf
        outside = (1 - level) / 2
        # With a million failures the rate is known to a thousandth, which is enough.
        shape = min(self.failures or 1.0, gamma.SHAPE_MAX)
        scale = (self.failures or 1.0) / shape / self.observed_s
        low = gamma.quantile(shape, outside) * scale if self.failures else 0.0
        return low, gamma.quantile(shape, 1 - outside) * scale

    def updated(self, failures: float, observed_s: float, *, weight: float = 1.0) -> Belief:
        """Return the belief after so many more failures in so many more seconds.

        Args:
            failures: met.
            observed_s: in how many seconds.
            weight: 0 to 1; below 1 for what was observed elsewhere or long ago.

        Raises:
            ConfigError: a number makes no sense.
        """
        if not 0 <= weight <= 1:
            raise ConfigError(f"What was observed has a weight of 0 to 1, not {weight}.")
        if weight == 0:
            return self
        more = Belief(failures, observed_s)
        return Belief(
            self.failures + weight * more.failures, self.observed_s + weight * more.observed_s
        )

    def chance_of_at_least(self, count: int, window_s: float) -> float:
        """Return the probability of ``count`` failures or more in the next ``window_s``.

        The predictive law is the negative binomial one (Gelman et al., section 2.6). Where no
        failure is believed or observed, one is taken for due. 1 if nothing is known.

        Args:
            count: 0 or more.
            window_s: 0 or more.

        Raises:
            ConfigError: the window is negative or not finite.
        """
        if count <= 0 or self.observed_s == 0:
            return 1.0
        return max(0.0, 1 - math.fsum(self._chances(count - 1, window_s)))

    def chance_of_at_most(self, count: int, window_s: float) -> float:
        """Return the probability of ``count`` failures or fewer in the next ``window_s``.

        See `chance_of_at_least`.
        """
        if self.observed_s == 0:
            return 1.0
        return min(1.0, math.fsum(self._chances(count, window_s)))

    def _chances(self, last: int, window_s: float) -> list[float]:
        """Return the probabilities of 0 to ``last`` failures in a window."""
        if not 0 <= window_s < math.inf:
            raise ConfigError(f"A window is 0 s or longer and finite, got {window_s} s.")
        shape, part = self.failures or 1.0, window_s / (self.observed_s + window_s)
        # By logarithms: that of no failure may be too small for a float.
        log = shape * math.log1p(-part)
        chances = [math.exp(log)]
        for count in range(1, last + 1 if part > 0 else 1):
            log += math.log(part * (shape + count - 1) / count)
            chances.append(math.exp(log))
        return chances


@dataclass(frozen=True, slots=True)
class Surprise:
    """A class that fails much oftener, or more seldom, than was believed.

    Attributes:
        failure_class: 0 to 4.
        count: failures in the window.
        expected: how many were, before it.
        chance: probability of a count as far out as this one, on its side, if the rate has
            not changed. It is not the probability that the rate has changed.
        reason: the same in words.
    """

    failure_class: int
    count: int
    expected: float
    chance: float
    reason: str


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What is known of the rates of all classes; one `Belief` for each."""

    classes: tuple[Belief, Belief, Belief, Belief, Belief]

    @classmethod
    def of(cls, rates: Rates, *, strength: float = STRENGTH) -> Beliefs:
        """Return what is believed before anything was observed.

        Args:
            rates: believed; 0 where nobody knows.
            strength: how many failures they are worth. 0: nothing is believed, and what is
                observed decides alone.

        Raises:
            ConfigError: the strength is negative or not finite.
        """
        if not 0 <= strength < math.inf:
            raise ConfigError(
                f"Believed rates are worth 0 failures or more, a finite number, not {strength}."
            )
        a, b, c, d, e = (
            Belief(strength, strength / rate) if rate else Belief(0.0, strength * UNKNOWN_S)
            for rate in rates.per_s
        )
        return cls((a, b, c, d, e))

    @property
    def rates(self) -> Rates:
        """Expected rates."""
        a, b, c, d, e = (one.mean_per_s for one in self.classes)
        return Rates((a, b, c, d, e))

    def updated(
        self,
        counts: Sequence[float],
        observed_s: float | Sequence[float],
        *,
        weight: float = 1.0,
    ) -> Beliefs:
        """Return what is believed after failures were met.

        Args:
            counts: failures of each class.
            observed_s: in how many seconds, of all classes or of each; `exposures_s` for what
                ran with other numbers of nodes.
            weight: see `Belief.updated`.

        Raises:
            ConfigError: there is not one count for each class, or a number makes no sense.
        """
        _one_for_each("counts", counts)
        times_s = _for_each(observed_s)
        a, b, c, d, e = (
            belief.updated(count, time_s, weight=weight)
            for belief, count, time_s in zip(self.classes, counts, times_s, strict=True)
        )
        return Beliefs((a, b, c, d, e))

    def surprises(
        self, counts: Sequence[int], window_s: float, *, chance_max: float = SURPRISE_MAX
    ) -> tuple[Surprise, ...]:
        """Return the classes whose newest counts do not go with what was believed before.

        Args:
            counts: failures of each class in the newest window, which these beliefs do not
                include yet.
            window_s: how long that was.
            chance_max: how improbable a count has to be, on its side.

        Raises:
            ConfigError: there is not one count for each class.
        """
        _one_for_each("counts", counts)
        judged = (
            _judged(number, belief, count, window_s)
            for number, (belief, count) in enumerate(zip(self.classes, counts, strict=True))
        )
        return tuple(one for one in judged if one.chance <= chance_max)


def exposures_s(observed_s: float, *, there: Rates, here: Rates) -> tuple[float, ...]:
    """Return how long would have to be watched here to meet as much as there, by class.

    A run on 8 nodes meets in eight hours what one on 64 meets in one.

    Args:
        observed_s: how long was watched there.
        there: rates that are believed of what ran there.
        here: likewise of what runs here, from the same mean times.
    """
    return tuple(
        observed_s * (of_there / of_here if of_here else 1.0)
        for of_there, of_here in zip(there.per_s, here.per_s, strict=True)
    )


def _judged(failure_class: int, belief: Belief, count: int, window_s: float) -> Surprise:
    expected = belief.mean_per_s * window_s
    more = belief.chance_of_at_least(count, window_s)
    fewer = belief.chance_of_at_most(count, window_s)
    chance, side = (more, "more") if more <= fewer else (fewer, "fewer")
    reason = (
        f"class {failure_class} ({CLASS_NAMES[failure_class]}): {count} failures in "
        f"{format_seconds(window_s)}, where {expected:.2g} were expected; so many or {side} "
        f"have a chance of {100 * chance:.2g} %"
    )
    return Surprise(failure_class, count, expected, chance, reason)


def _for_each(observed_s: float | Sequence[float]) -> Sequence[float]:
    if isinstance(observed_s, Sequence):
        _one_for_each("observed_s", observed_s)
        return observed_s
    return [observed_s] * len(CLASSES)


def _one_for_each(what: str, values: Sequence[float]) -> None:
    if len(values) != len(CLASSES):
        raise ConfigError(
            f"{what} has one value for each of {len(CLASSES)} classes, got {len(values)}."
        )
