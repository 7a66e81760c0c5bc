"""Exact evaluation against a Markov chain that is written from the model, and solved densely.

The chain here knows nothing of how the package evaluates a pattern: its states are the position,
the newest complete copy on each level, the copies on their way, and what is being recovered; its
stationary distribution gives progress over time.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.single_level import daly_wall_s
from ckptflow.policy.multilevel import renewal
from ckptflow.policy.multilevel.exact import HAS_CORE, efficiencies, efficiency, level_rows
from ckptflow.policy.multilevel.search import best_pattern
from ckptflow.policy.multilevel.simulation import simulate
from ckptflow.policy.multilevel.system import Level, Pattern, System

needs_core = pytest.mark.skipif(not HAS_CORE, reason="the compiled core is not here")


# --- the truth ---------------------------------------------------------------------------


class Chain:
    """The model of the design page as a Markov chain of its states, each a tuple.

    Positions are counted modulo the pattern, copies by how far they are behind the position:
    ``("compute", place, behind, flying)`` and ``("recover", class, place, behind, flying)``, with
    the newest copy of each level, and the copies on their way as pairs of how far behind and level.
    """

    def __init__(self, system: System, pattern: Pattern) -> None:
        self.levels = system.using(pattern.used).levels
        self.count = len(self.levels)
        self.every = [count for count in pattern.every if count]
        self.interval = pattern.interval_s
        self.first_blocked = system.blocked_s
        nominal = self.interval + system.blocked_s + self.levels[0].blocked_s
        self.nominal = nominal
        self.lag = [math.ceil(level.latency_s / nominal) for level in self.levels]
        self.rates = [level.rate_per_s for level in self.levels]
        self.total = sum(self.rates)

    def segment_s(self, place: int) -> float:
        seconds = self.interval + self.first_blocked
        seconds += sum(
            level.blocked_s
            for level, every in zip(self.levels, self.every, strict=True)
            if (place + 1) % every == 0
        )
        before_s = 0.0
        for level, every in zip(self.levels, self.every, strict=True):
            slower = level.interference * (level.latency_s - before_s) / (level.latency_s or 1)
            before_s = level.latency_s
            for age in range(1000):
                begin = age * self.nominal
                if begin >= level.latency_s:
                    break
                if (place - age) % every == 0:
                    seconds += slower * (min(level.latency_s, begin + self.nominal) - begin)
        return seconds

    def next(self, state):
        """Yield (probability, state, positions gained), and the time that it takes, on average."""
        kind, *rest = state
        ways = []
        if kind == "compute":
            place, behind, flying = rest
            length = self.segment_s(place)
            ways += [(math.exp(-self.total * length), self.saved(place, behind, flying), 1)]
            failed = [(("recover", c, place, behind, flying), 0) for c in range(self.count)]
        else:
            klass, place, behind, flying = rest
            level, outermost = self.levels[klass], klass == self.count - 1
            length = level.recovery_s
            success = math.exp(-self.total * length)
            escalation = 0 if outermost else level.escalation
            ways.append((success * (1 - escalation), *self.restored(*rest)))
            if escalation:
                ways.append((success * escalation, ("recover", klass + 1, *rest[1:]), 0))
            failed = [(("recover", max(c, klass), *rest[1:]), 0) for c in range(self.count)]
            if not outermost and level.second_loss:
                lost = (1 - success) * self.rates[klass] / self.total * level.second_loss
                ways.append((lost, ("recover", klass + 1, *rest[1:]), 0))
                ways.append((-lost, ("recover", klass, *rest[1:]), 0))
        stays = -math.expm1(-self.total * length)
        for rate, (there, gain) in zip(self.rates, failed, strict=True):
            ways.append((stays * rate / self.total, there, gain))
        return ways, stays / self.total

    def saved(self, place, behind, flying):
        place = (place + 1) % self.every[-1]
        behind = [distance + 1 for distance in behind]
        flying = {(distance + 1, level) for distance, level in flying}
        flying |= {(0, level) for level, every in enumerate(self.every) if place % every == 0}
        for distance, level in sorted(flying, reverse=True):
            if distance >= self.lag[level]:
                behind[level] = min(behind[level], distance)
                flying.discard((distance, level))
        return ("compute", place, tuple(behind), frozenset(flying))

    def restored(self, klass, place, behind, flying):
        back = behind[klass]
        kept = frozenset((d - back, level) for d, level in flying if level > klass and d >= back)
        behind = tuple(0 if level <= klass else d - back for level, d in enumerate(behind))
        return ("compute", (place - back) % self.every[-1], behind, kept), -back

    def efficiency(self) -> float:
        begin = ("compute", 0, (0,) * self.count, frozenset())
        number, todo, ways, seconds = {begin: 0}, [begin], [], []
        while todo:
            state = todo.pop(0)
            found, time_s = self.next(state)
            for probability, there, gain in found:
                if there not in number:
                    number[there] = len(number)
                    todo.append(there)
                ways.append((number[state], number[there], probability, gain))
            seconds.append(time_s)
        size = len(number)
        assert size < 2500, "choose a smaller pattern"
        moves, gained = np.zeros((size, size)), np.zeros(size)
        for here, there, probability, gain in ways:
            moves[here, there] += probability
            gained[here] += probability * gain
        balance = np.vstack([moves.T - np.eye(size), np.ones(size)])
        share = np.linalg.lstsq(balance, np.eye(size + 1)[-1], rcond=None)[0]
        return float(self.interval * share @ gained / (share @ np.array(seconds)))


def small_case(seed: int) -> tuple[System, Pattern]:
    """A system of 1 to 4 levels and a pattern with few positions, that may be."""
    rng = np.random.default_rng(seed)
    count = seed % 4 + 1
    interval_s, blocked_s = 10 * rng.random() + 1, rng.random()
    ratios = rng.integers(1, 4, count - 1) if count < 4 else rng.integers(1, 3, count - 1)
    every = np.cumprod([1, *ratios])
    synchronous = seed % 3 == 0
    latency = np.zeros(count) if synchronous else np.sort(rng.random(count) * 25)
    nominal = interval_s + blocked_s
    levels = [
        Level(
            name=f"l{at}",
            number=at,
            rate_per_s=float(rng.choice([0.002, 0.01, 0.03]) * rng.random()),
            blocked_s=float(rng.random()) if at else 0.0,
            latency_s=float(latency[at]),
            interference=float(rng.random() * 0.3),
            recovery_s=float(rng.random() * 20),
            escalation=float(rng.choice([0, rng.random() / 2])),
            second_loss=float(rng.choice([0, rng.random()])),
            in_flight=max(1, math.ceil(math.ceil(latency[at] / nominal) / int(every[at]))),
        )
        for at in range(count)
    ]
    return System(tuple(levels), blocked_s=blocked_s), Pattern(interval_s, tuple(every.tolist()))


@pytest.mark.parametrize("seed", range(28))
def test_both_evaluations_agree_with_the_markov_chain(seed: int) -> None:
    system, pattern = small_case(seed)
    truth = Chain(system, pattern).efficiency()
    assert 0.01 < truth < 1
    by_numpy = renewal.efficiency(level_rows(system), pattern.interval_s, np.array(pattern.every))
    assert by_numpy == pytest.approx(truth, rel=1e-9)
    assert efficiency(system, pattern) == pytest.approx(truth, rel=1e-9)


def test_the_small_cases_have_all_that_the_model_has() -> None:
    cases = [small_case(seed) for seed in range(28)]
    levels = [level for system, _ in cases for level in system.levels]
    assert {len(system.levels) for system, _ in cases} == {1, 2, 3, 4}
    assert sum(level.in_flight > 1 for level in levels) > 5
    assert sum(level.latency_s == 0 for level in levels) > 10
    assert sum(level.escalation > 0 for level in levels) > 10
    assert sum(level.second_loss > 0 for level in levels) > 10
