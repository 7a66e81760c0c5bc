"""What decides how often to save and to which level, and the answer: a system and a pattern.

All bytes have become times here, and all failures rates.
``tests/unit/test_multilevel_system.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError

F64s = NDArray[np.float64]

LEVELS_MAX = 5
POSITIONS_MAX = 1 << 17  # Saves in one pattern.
ROUNDING = 1e-12  # A copy that arrives with the last bit of a segment is there with it.


def lags(latency_s: F64s, nominal_s: F64s | float) -> F64s:
    """Return in how many segments of a length copies are there, none before one further in.

    Args:
        latency_s: from a save until its copy is there, shape (..., levels).
        nominal_s: lengths of segments, which broadcast with that.
    """
    found: F64s = np.ceil(latency_s / nominal_s * (1 - ROUNDING))
    return np.maximum.accumulate(found, axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level, with the class of failures that needs it: survived here, and not further in.

    Attributes:
        name: of its tier.
        number: of the level, 0 to 4.
        rate_per_s: of those failures.
        blocked_s: for how long a checkpoint that goes here holds the application up, besides
            what every save does (`System.blocked_s`) and the levels further in.
        latency_s: time from the end of a save until its copy is here; 0: at once.
        interference: part by which computing takes longer meanwhile, besides what copies to
            levels further in make it.
        recovery_s: from such a failure until computing goes on: detection, reallocation,
            queue, restoring from here.
        escalation: probability that a restore from here fails at its end, and the next level
            is asked.
        second_loss: probability that another failure of the same class, during the recovery
            from one, takes what was left here (a redundancy set can lose only so many), so
            that the next level is needed.
        in_flight: how many copies may be on their way here at once.
        capacity: how many checkpoints fit; ``None``: enough.
        size_bytes: what a checkpoint moves to here; only for accounts.
        price: of bringing a checkpoint here, in any currency; only for accounts.
        restore_price: likewise of restoring one from here.
        keep_price_per_s: likewise of what is kept here, for each second.
    """

    name: str
    number: int
    rate_per_s: float
    blocked_s: float = 0.0
    latency_s: float = 0.0
    interference: float = 0.0
    recovery_s: float = 0.0
    escalation: float = 0.0
    second_loss: float = 0.0
    in_flight: int = 1
    capacity: int | None = None
    size_bytes: float = 0.0
    price: float = 0.0
    restore_price: float = 0.0
    keep_price_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name in (
            "rate_per_s", "blocked_s", "latency_s", "interference", "recovery_s",
            "size_bytes", "price", "restore_price", "keep_price_per_s",
        ):  # fmt: skip
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(
                    f"Level {self.name!r}: {name} must be a number from 0 on, got {value}."
                )
        for name in ("escalation", "second_loss"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(
                    f"Level {self.name!r}: {name} is a probability, 0 to 1, got {value}."
                )
        if self.in_flight < 1:
            raise ConfigError(
                f"Level {self.name!r}: in_flight must be 1 or more, got {self.in_flight}."
            )
        if self.capacity is not None and self.capacity < 1:
            raise ConfigError(
                f"Level {self.name!r} has room for {self.capacity} checkpoints: "
                f"the state is larger than the tier. Leave the level out, or give it room."
            )


@dataclass(frozen=True, slots=True)
class System:
    """The levels, from the innermost outwards, and how much there is to do.

    Attributes:
        levels: numbers grow and latencies do not fall outwards: what is there first is inner.
        blocked_s: for how long every save holds the application up, wherever it goes.
        work_s: computing time of the whole task, if it is known. It matters for failures that
            no used level survives: they begin the task again.
        lost_rate_per_s: of failures that no level at all survives.
    """

    levels: tuple[Level, ...]
    blocked_s: float = 0.0
    work_s: float | None = None
    lost_rate_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.levels) <= LEVELS_MAX:
            raise ConfigError(
                f"A system has 1 to {LEVELS_MAX} levels, this one has {len(self.levels)}."
            )
        for inner, outer in itertools.pairwise(self.levels):
            if outer.number <= inner.number:
                raise ConfigError(
                    f"Level {outer.number} ({outer.name!r}) comes after level {inner.number} "
                    f"({inner.name!r}): give levels from the innermost outwards, each once."
                )
            if outer.latency_s < inner.latency_s:
                raise ConfigError(
                    f"A copy is on {outer.name!r} after {outer.latency_s} s, and on "
                    f"{inner.name!r} only after {inner.latency_s} s; latencies count from the "
                    f"save and do not fall outwards."
                )
        if self.work_s is not None and not 0 < self.work_s < math.inf:
            raise ConfigError(f"work_s must be above 0 s, got {self.work_s}.")
        for name in ("blocked_s", "lost_rate_per_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{name} must be a number from 0 on, got {getattr(self, name)}."
                )
        if self.rate_per_s == math.inf:
            raise ConfigError("The failure rates of the levels add up to infinity.")

    @property
    def rate_per_s(self) -> float:
        """Of all failures together, but for those that nothing survives."""
        return sum(level.rate_per_s for level in self.levels)

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures; infinite if there are none."""
        return 1 / self.rate_per_s if self.rate_per_s else math.inf

    def using(self, used: Sequence[bool]) -> System:
        """Return the system of some of the levels, with the failures of the others.

        A failure whose level is left out needs the next level that is used, and recovers as
        others do from there. What no used level survives loses everything.

        Raises:
            ConfigError: no level is used.
        """
        if len(used) != len(self.levels) or not any(used):
            raise ConfigError(f"{list(used)} does not say which of the levels are used.")
        kept: list[Level] = []
        pending = 0.0
        for level, is_used in zip(self.levels, used, strict=True):
            if not is_used:
                pending += level.rate_per_s
                continue
            kept.append(replace(level, rate_per_s=level.rate_per_s + pending))
            pending = 0.0
        return replace(self, levels=tuple(kept), lost_rate_per_s=self.lost_rate_per_s + pending)


@dataclass(frozen=True, slots=True)
class Pattern:
    """How often to save, and how often to which level.

    Attributes:
        interval_s: computing time between two saves.
        every: for each level of the system, every how many saves one goes there; 0: the level
            is not used. The first that is not 0 is 1, and each divides the next.

    Raises:
        ConfigError: it is no such pattern.
    """

    interval_s: float
    every: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 < self.interval_s < math.inf:
            raise ConfigError(f"An interval must be above 0 s, got {self.interval_s} s.")
        used = [count for count in self.every if count]
        if not used or used[0] != 1 or min(self.every) < 0:
            raise ConfigError(
                f"{self.every} is no pattern: the innermost level that is used gets every "
                f"save (1), the others every so many (0: not used)."
            )
        for inner, outer in itertools.pairwise(used):
            if outer % inner:
                raise ConfigError(
                    f"{self.every} is no pattern: {outer} is no multiple of {inner}, so some "
                    f"checkpoints would reach an outer level and not the ones before it."
                )
        if used[-1] > POSITIONS_MAX:
            raise ConfigError(f"A pattern has at most {POSITIONS_MAX} saves, not {used[-1]}.")

    @property
    def used(self) -> tuple[bool, ...]:
        """Which levels are used."""
        return tuple(count > 0 for count in self.every)

    def period_s(self, level: int) -> float:
        """Return the computing time between checkpoints that go to a level, by its place."""
        return self.interval_s * self.every[level] if self.every[level] else math.inf
