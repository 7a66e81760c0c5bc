"""Exact evaluation against a Markov chain that is written from the model, and solved densely.

The chain here knows nothing of how the package evaluates a pattern: its states are the
position, the newest complete copy on each level, the copies on their way, and what is being
recovered; its stationary distribution gives progress over time.
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

    They are ``("compute", place, behind, flying)`` and ``("recover", class, place, behind,
    flying)``: the place in the pattern, how far the newest copy of each level is behind it, and
    the copies on their way, as pairs of how far each is behind and its level.
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
        """Return (probability, state, positions gained) of all ways, and the mean time."""
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
        kept = frozenset(
            (d - back, level) for d, level in flying if level > klass and d >= back
        )
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
    return System(tuple(levels), blocked_s=blocked_s), Pattern(
        interval_s, tuple(every.tolist())
    )


@pytest.mark.parametrize("seed", range(28))
def test_both_evaluations_agree_with_the_markov_chain(seed: int) -> None:
    system, pattern = small_case(seed)
    truth = Chain(system, pattern).efficiency()
    assert 0.01 < truth < 1
    by_numpy = renewal.efficiency(
        level_rows(system), pattern.interval_s, np.array(pattern.every)
    )
    assert by_numpy == pytest.approx(truth, rel=1e-9)
    assert efficiency(system, pattern) == pytest.approx(truth, rel=1e-9)


@needs_core
@pytest.mark.parametrize("factor", [1e-6, 1e-3, 1.0, 10.0])
def test_calm_and_frantic_systems_come_out_the_same_by_both(factor: float) -> None:
    """Where a pattern takes a century, or fails a hundred times before it is done."""
    for seed in range(12):
        system, pattern = small_case(seed)
        levels = [replace(one, rate_per_s=one.rate_per_s * factor) for one in system.levels]
        longer = Pattern(pattern.interval_s / factor if factor < 1 else 10.0, pattern.every)
        other = replace(system, levels=tuple(levels))
        found = efficiency(other, longer)
        assert 0 <= found < 1
        rows = level_rows(other)
        by_numpy = renewal.efficiency(rows, longer.interval_s, np.array(pattern.every))
        assert by_numpy == pytest.approx(found, rel=1e-9)
        if factor < 1:
            assert found > 0


def test_the_small_cases_have_all_that_the_model_has() -> None:
    cases = [small_case(seed) for seed in range(28)]
    levels = [level for system, _ in cases for level in system.levels]
    assert {len(system.levels) for system, _ in cases} == {1, 2, 3, 4}
    assert sum(level.in_flight > 1 for level in levels) > 5
    assert sum(level.latency_s == 0 for level in levels) > 10
    assert sum(level.escalation > 0 for level in levels) > 10
    assert sum(level.second_loss > 0 for level in levels) > 10


# --- known cases -------------------------------------------------------------------------


def one_level(rate_per_s: float, *, save_s: float, recovery_s: float) -> System:
    level = Level(name="pfs", number=3, rate_per_s=rate_per_s, recovery_s=recovery_s)
    return System((level,), blocked_s=save_s)


@pytest.mark.parametrize(
    ("mtbf_h", "interval_min", "published"),
    [(24, 116.69, 0.9126), (6, 56.71, 0.8194), (0.25, 9.141, 0.1997)],
)
def test_one_level_is_daly_s_total_wall_time(
    mtbf_h: float, interval_min: float, published: float
) -> None:
    """Equal, since his restarts are met by failures and begun again, as recoveries are here."""
    mtbf_s, interval_s, save_s, restart_s = mtbf_h * 3600, interval_min * 60, 300.0, 600.0
    system = one_level(1 / mtbf_s, save_s=save_s, recovery_s=restart_s)
    found = efficiency(system, Pattern(interval_s, (1,)))
    wall_s = daly_wall_s(1.0, interval_s, save_s, restart_s, mtbf_s)
    assert found == pytest.approx(1 / wall_s, rel=1e-12)
    assert found == pytest.approx(published, abs=2e-4)  # For 500 h of work, in his examples.


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("rates", [(1e-3, 1e-4), (1e-2, 5e-3)])
def test_synchronous_levels_are_scr_s_markov_model(
    every: int, rates: tuple[float, float]
) -> None:
    """Moody et al., SC10: a second failure of the level of a recovery needs the next level."""
    interval_s, costs_s, recoveries_s = 20.0, (1.0, 8.0), (3.0, 30.0)
    total = sum(rates)
    computing, recovering = range(every), every
    outer = every + 1  # Recoveries from level 2 come last, those from each save before it.
    states = every + every + 1
    moves, seconds = np.zeros((states, states)), np.zeros(states)
    outer = states - 1

    def fails(state: int, length_s: float, first: int, second: int) -> float:
        stays = -math.expm1(-total * length_s)
        seconds[state] = stays / total
        moves[state, first] += stays * rates[0] / total
        moves[state, second] += stays * rates[1] / total
        return 1 - stays

    for at in computing:
        length_s = interval_s + costs_s[0] + (costs_s[1] if at == every - 1 else 0)
        arrives = fails(at, length_s, recovering + at, outer)
        if at < every - 1:
            moves[at, at + 1] += arrives
        moves[recovering + at, at] += fails(recovering + at, recoveries_s[0], outer, outer)
    moves[outer, 0] += fails(outer, recoveries_s[1], outer, outer)
    expected_s = np.linalg.solve(np.eye(states) - moves, seconds)[0]

    inner = Level(
        name="cache", number=1, rate_per_s=rates[0], recovery_s=recoveries_s[0], second_loss=1.0
    )
    prefix = Level(
        name="pfs", number=3, rate_per_s=rates[1], blocked_s=costs_s[1],
        recovery_s=recoveries_s[1],
    )  # fmt: skip
    found = efficiency(System((inner, prefix), blocked_s=costs_s[0]), Pattern(20.0, (1, every)))
    assert found == pytest.approx(every * interval_s / expected_s, rel=1e-9)


def test_without_failures_only_saves_cost() -> None:
    """Interference and blocked time of each level once in its period."""
    inner = Level(name="nvme", number=1, rate_per_s=0.0, latency_s=30.0, interference=0.1)
    outer = Level(name="pfs", number=3, rate_per_s=0.0, blocked_s=4.0, latency_s=30.0)
    system = System((inner, outer), blocked_s=2.0)
    found = efficiency(system, Pattern(100.0, (1, 3)))
    assert found == pytest.approx(300 / (3 * (100 + 2 + 3) + 4), rel=1e-14)
    assert efficiency(one_level(0, save_s=7.0, recovery_s=9.0), Pattern(93.0, (1,))) == 0.93


def test_what_cannot_be_has_no_efficiency() -> None:
    inner = Level(name="nvme", number=1, rate_per_s=1e-4)
    outer = Level(name="pfs", number=3, rate_per_s=1e-5, latency_s=350.0, in_flight=1)
    system = System((inner, outer))
    assert efficiency(system, Pattern(100.0, (1, 3))) == 0  # A copy takes four saves.
    assert efficiency(system, Pattern(100.0, (1, 4))) > 0.9
    two = System((inner, replace(outer, in_flight=2)))
    assert efficiency(two, Pattern(100.0, (1, 2))) > 0.9
    # Failures that need level 3, and it is not used.
    assert efficiency(system, Pattern(100.0, (1, 0))) == 0
    # A recovery that no gap between failures has room for.
    hopeless = one_level(1.0, save_s=1.0, recovery_s=5000.0)
    assert efficiency(hopeless, Pattern(10.0, (1,))) == 0


def test_a_pattern_too_large_for_tables_has_no_efficiency_by_either_evaluation() -> None:
    """A copy of 400,000 saves, each of which would have a row of its own for each base."""
    slow = Level(name="s3", number=4, rate_per_s=1e-9, latency_s=4e5, in_flight=10**6)
    system = System((Level(name="nvme", number=1, rate_per_s=0.0, latency_s=4e5,
                           in_flight=10**6), slow))  # fmt: skip
    pattern = Pattern(1.0, (1, 4096))
    assert efficiency(system, pattern) == 0
    assert renewal.efficiency(level_rows(system), 1.0, np.array(pattern.every)) == 0


def test_levels_that_are_not_used_hand_their_failures_on() -> None:
    inner = Level(name="ram", number=0, rate_per_s=2e-4, recovery_s=5.0)
    outer = Level(name="pfs", number=3, rate_per_s=1e-4, recovery_s=50.0)
    both = System((inner, outer), blocked_s=3.0)
    merged = one_level(3e-4, save_s=3.0, recovery_s=50.0)
    found = efficiency(both, Pattern(200.0, (0, 1)))
    assert found == pytest.approx(efficiency(merged, Pattern(200.0, (1,))), rel=1e-14)


def test_many_patterns_at_once_are_each_by_itself() -> None:
    system, _ = small_case(6)
    counts = np.array([[1, 1, 1], [1, 2, 2], [1, 2, 6]])
    intervals = np.array([20.0, 31.0, 45.5])
    together = efficiencies(system, (True,) * 3, intervals, counts)
    alone = [
        efficiency(system, Pattern(float(interval_s), tuple(every.tolist())))
        for interval_s, every in zip(intervals, counts, strict=True)
    ]
    assert together.tolist() == alone
    assert min(alone) > 0


def test_a_pattern_of_other_levels_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\(1, 2\) is not one of 1 levels"):
        efficiency(one_level(1e-4, save_s=1.0, recovery_s=1.0), Pattern(10.0, (1, 2)))


# --- beginning again ---------------------------------------------------------------------


def test_work_that_is_begun_again_takes_as_long_as_the_formula_says() -> None:
    """Only failures that lose everything: (e^(rate * time) - 1) / rate for the whole time."""
    nvme = Level(name="nvme", number=1, rate_per_s=0.0)
    pfs = Level(name="pfs", number=3, rate_per_s=2e-5)
    system = System((nvme, pfs), blocked_s=5.0, work_s=50_000.0)
    pattern = Pattern(500.0, (1, 0))
    takes_s = 100 * 505.0
    expected_s = math.expm1(2e-5 * takes_s) / 2e-5
    assert efficiency(system, pattern) == pytest.approx(50_000.0 / expected_s, rel=1e-12)
    nothing_survives = replace(system, levels=(nvme,), lost_rate_per_s=2e-5)
    assert efficiency(nothing_survives, Pattern(500.0, (1,))) == efficiency(system, pattern)


def test_work_begun_again_among_other_failures_is_as_an_absorbing_chain_has_it() -> None:
    """Both kinds of failures: a chain from save to save with an end, solved densely."""
    rate, lost, interval_s, saves = 1e-4, 3e-6, 400.0, 250
    system = System(
        (Level(name="nvme", number=1, rate_per_s=rate, recovery_s=20.0),),
        blocked_s=4.0, work_s=interval_s * saves, lost_rate_per_s=lost,
    )  # fmt: skip
    total, length_s, recovery_s = rate + lost, interval_s + 4.0, 20.0
    moves, seconds = np.zeros((2 * saves, 2 * saves)), np.zeros(2 * saves)
    for at in range(saves):
        for state, stretch_s in ((at, length_s), (saves + at, recovery_s)):
            stays = -math.expm1(-total * stretch_s)
            seconds[state] = stays / total
            moves[state, saves + at] += stays * rate / total
            moves[state, 0] += stays * lost / total
        if at + 1 < saves:
            moves[at, at + 1] = math.exp(-total * length_s)
        moves[saves + at, at] = math.exp(-total * recovery_s)
    expected_s = np.linalg.solve(np.eye(2 * saves) - moves, seconds)[0]
    found = efficiency(system, Pattern(interval_s, (1,)))
    assert found == pytest.approx(interval_s * saves / expected_s, rel=1e-3)


# --- what others have found --------------------------------------------------------------

# Settings and mean efficiencies, with their standard deviation over seeds, of CRSim
# (https://github.com/kento/CRSim): two levels, the second asynchronous. There a failure of the
# second level does not interrupt a recovery of the first; that is what the 0.003 are for.
SIMULATED_ELSEWHERE = [
    # interval, every, save, copy, rates of both, efficiency, deviation
    (100.0, 1, 10.0, 100.0, 1e-5, 1e-6, 0.90818, 0.00004),
    (100.0, 1, 10.0, 100.0, 1e-4, 1e-5, 0.90000, 0.00037),
    (2000.0, 4, 200.0, 6000.0, 1e-5, 1e-6, 0.88051, 0.00017),
    (2000.0, 4, 200.0, 6000.0, 1e-4, 1e-5, 0.63712, 0.00236),
    (3000.0, 20, 100.0, 2000.0, 1e-5, 1e-6, 0.91532, 0.00037),
    (3000.0, 20, 100.0, 2000.0, 1e-4, 1e-5, 0.50897, 0.00562),
]


def two_levels(save_s: float, copy_s: float, rate: float, second_rate: float) -> System:
    """A blocking level and an asynchronous one; restarts take as long as saves."""
    first = Level(name="l1", number=1, rate_per_s=rate, recovery_s=save_s)
    second = Level(
        name="l2", number=3, rate_per_s=second_rate, latency_s=copy_s, recovery_s=copy_s
    )
    return System((first, second), blocked_s=save_s)


@pytest.mark.parametrize(
    ("interval_s", "every", "save_s", "copy_s", "rate", "second", "theirs", "deviation"),
    SIMULATED_ELSEWHERE,
)
def test_two_levels_are_as_another_simulator_has_them(
    interval_s, every, save_s, copy_s, rate, second, theirs, deviation
) -> None:
    system, pattern = two_levels(save_s, copy_s, rate, second), Pattern(interval_s, (1, every))
    allowed = 0.003 + 4 * deviation
    assert efficiency(system, pattern) == pytest.approx(theirs, abs=allowed)
    if HAS_CORE:
        found = simulate(system, pattern, error_max=2e-3)
        assert found.efficiency == pytest.approx(theirs, abs=allowed + found.error)


@needs_core
@pytest.mark.parametrize(
    ("save_s", "copy_s", "rate", "second", "interval_s", "every", "theirs"),
    [
        (100.0, 2000.0, 1e-5, 1e-6, 3624.0, 1, 0.94346),
        (15.0, 300.0, 2.13e-6, 4.28e-7, 2397.0, 1, 0.98852),
        (10.0, 1000.0, 1e-4, 1e-5, 362.0, 3, 0.92497),
        (2.0, 8.0, 1 / 60, 1 / 720, 12.0, 1, 0.6895),
    ],
)
def test_our_optimum_is_no_worse_than_brute_force_by_another_simulator(
    save_s, copy_s, rate, second, interval_s, every, theirs
) -> None:
    system = two_levels(save_s, copy_s, rate, second)
    found = best_pattern(system)
    assert found.efficiency >= efficiency(system, Pattern(interval_s, (1, every)))
    assert found.efficiency >= theirs - 0.002


def test_without_the_compiled_core_the_same_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    system, pattern = small_case(10)
    expected = efficiency(system, pattern)
    monkeypatch.setattr("ckptflow.policy.multilevel.exact.HAS_CORE", False)
    assert efficiency(system, pattern) == pytest.approx(expected, rel=1e-12)
