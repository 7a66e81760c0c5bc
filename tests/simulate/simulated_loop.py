"""A loop that saves, in virtual time: what it costs is known, and the rule has to find out.

Steps take a known time; a save holds the loop up, and while it is being written steps are
slower by a known part. All of it may change with time, and everything is noisy. The rule sees
what `Pace` makes of the clock, as in a real task, and nothing of the truth. With failures the
work since the last durable save is lost, and an attempt begins from there.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ckptflow.checkpointer.pace import Pace
from ckptflow.policy.progress import Decision, Interval


@dataclass(frozen=True)
class Conditions:
    """How things go at some moment. Seconds; ``slowdown`` is a part of a step."""

    step_s: float = 0.2
    blocked_s: float = 0.01
    persist_s: float = 1.0
    slowdown: float = 0.0


@dataclass(frozen=True)
class Spent:
    """A step and the save after it, if there was one: when it ended, and what went where."""

    end_s: float
    step_s: float  # Without any save it would have taken so long.
    interference_s: float
    blocked_s: float


@dataclass
class Run:
    """What came of it."""

    spent: list[Spent] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)  # When each was begun.
    decisions: list[Decision] = field(default_factory=list)
    waited: int = 0  # Saves that had to wait for the one before.
    failures: int = 0
    useful_s: float = 0.0  # Steps that need not be done again.
    wall_s: float = 0.0

    def overhead(self, start_s: float = 0.0, end_s: float = float("inf")) -> float:
        """Return what saves cost, over what the steps take without them."""
        those = [one for one in self.spent if start_s < one.end_s <= end_s]
        cost_s = sum(one.blocked_s + one.interference_s for one in those)
        return cost_s / sum(one.step_s for one in those)

    def saves_per_s(self, start_s: float, end_s: float) -> float:
        """Return how often it saved."""
        return sum(start_s < one <= end_s for one in self.saves) / (end_s - start_s)

    def longest_gap_s(self, start_s: float, end_s: float) -> float:
        """Return the longest time without a save."""
        those = [start_s, *(one for one in self.saves if start_s < one <= end_s), end_s]
        return max(after - before for before, after in itertools.pairwise(those))

    @property
    def goodput(self) -> float:
        """Useful work over time."""
        return self.useful_s / self.wall_s


class Loop:
    """One simulated loop. Give it to `run` once.

    Args:
        rule: when to save.
        at: conditions by time.
        seed: of the noise and the failures.
        noise: standard deviation of the logarithm of each duration.
        mtbf_s: mean time between failures; ``None``: there are none.
        restart_s: from a failure until the loop computes again.
        in_flight_limit: how many saves may be in flight; storage writes one after another.
        step_took: told of the time from each step end to the next, saves included.
    """

    def __init__(
        self,
        rule: Interval,
        at: Callable[[float], Conditions],
        *,
        seed: int,
        noise: float = 0.03,
        mtbf_s: float | None = None,
        restart_s: float = 30.0,
        in_flight_limit: int = 1,
        step_took: Callable[[float], None] = lambda _duration_s: None,
    ) -> None:
        self.rule, self.at, self.noise = rule, at, noise
        self.random, self.weather = random.Random(seed), random.Random(seed + 1)
        self.mtbf_s, self.restart_s, self.limit = mtbf_s, restart_s, in_flight_limit
        self.step_took = step_took
        self.now_s, self.step, self.work_s, self.blocked_s = 0.0, 0, 0.0, 0.0
        self.flying: list[tuple[float, float, int, float, dict[str, object]]] = []
        self.durable: tuple[int | None, float, dict[str, object]] = (None, 0.0, {})
        self.pace = self._new_pace()
        self.result = Run()

    def run(self, until_s: float) -> Run:
        """Run until that moment."""
        failure_s = self._next_failure()
        while self.now_s < until_s:
            self._step(failure_s)
            if self.now_s >= failure_s:
                self._fail(failure_s)
                failure_s = self._next_failure()
        self.result.useful_s, self.result.wall_s = self.work_s, self.now_s
        return self.result

    def _step(self, failure_s: float) -> None:
        began_s, now = self.now_s, self.at(self.now_s)
        base_s = now.step_s * self._noise()
        end_s = began_s + base_s
        if self.flying:  # Slower until the last save in flight is written.
            until_s = max(one[1] for one in self.flying)
            done_s = min(base_s, max(0.0, until_s - began_s) / (1 + now.slowdown))
            end_s += done_s * now.slowdown
        self.now_s = end_s
        self._land()
        self.step, self.work_s = self.step + 1, self.work_s + base_s
        self.step_took(end_s - began_s + self.blocked_s)
        self.pace.step_done(self.step, in_flight=len(self.flying))
        decision = self.rule.decide(
            self.pace.progress(
                self.step, in_flight=len(self.flying), in_flight_limit=self.limit
            )
        )
        self.result.decisions.append(decision)
        due = decision.due and self.now_s < failure_s
        self.blocked_s = self._save(now) if due else 0.0
        spent = Spent(self.now_s, base_s, end_s - began_s - base_s, self.blocked_s)
        self.result.spent.append(spent)

    def _save(self, now: Conditions) -> float:
        began_s = self.now_s
        if len(self.flying) >= self.limit:
            self.result.waited += 1
            self.now_s = self.flying[0][1]
            self._land()
        self.now_s += now.blocked_s * self._noise()
        self.result.saves.append(began_s)
        starts_s = max([self.now_s, *(one[1] for one in self.flying)])
        kept = self.pace.kept()
        self.pace.saved(self.step, blocked_s=self.now_s - began_s)
        durable_s = starts_s + now.persist_s * self._noise()
        self.flying.append((self.now_s, durable_s, self.step, self.work_s, kept))
        return self.now_s - began_s

    def _land(self) -> None:
        while self.flying and self.flying[0][1] <= self.now_s:
            captured_s, durable_s, step, work_s, kept = self.flying.pop(0)
            self.pace.durable(durable_s - captured_s)
            self.durable = (step, work_s, kept)

    def _fail(self, failure_s: float) -> None:
        self.result.failures += 1
        self.flying.clear()
        step, self.work_s, kept = self.durable
        self.now_s = failure_s + self.restart_s
        self.step = step or 0
        self.pace = self._new_pace()
        self.pace.start(step, kept)

    def _new_pace(self) -> Pace:
        return Pace(lambda: self.now_s, measured_on="here")

    def _next_failure(self) -> float:
        if self.mtbf_s is None:
            return float("inf")
        return self.now_s + self.weather.expovariate(1 / self.mtbf_s)

    def _noise(self) -> float:
        return self.random.lognormvariate(0.0, self.noise) if self.noise else 1.0
