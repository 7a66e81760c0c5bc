"""Makes the plan of a task that saves by a multi-level policy, and makes it anew while it runs.

It measures what the plan is made from: how long after a save each tier has its copy, what is
stored, how long a restore took and from which level, and so which class of failure the attempt
before met. What was met goes into each checkpoint (`Steering.kept`), for the attempt that goes
on from it. Plans are made in a thread of their own; the decisions are those of
`ckptflow.policy.multilevel.replanning`. ``tests/unit/test_steering.py``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from ckptflow.checkpointer.pace import Pace
from ckptflow.checkpointer.room import Room, in_a_thread
from ckptflow.errors import ConfigError
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.replanning import (
    Knowledge,
    Plan,
    first_plan,
    is_due,
    make_plan,
    plan_of,
)
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.placement import Occasion, Placement, TierRule, plan
from ckptflow.policy.retention import Retention
from ckptflow.tiers.tier import Tier

_CLASSES = 5
_REMEMBERED = 8  # Newest copies to each tier that count.
_FORGETTING = 16.0  # More failures than these and the oldest count less: rates do change.
_AGAIN_S = 2.0  # Plans are made no more often, and so that they take
_PART = 0.02  # no more than this part of a core.
_MEASURING_S = 120.0  # So long a plan that was given waits for all tiers to be measured.
_log = logging.getLogger("ckptflow")


@dataclass(frozen=True, slots=True)
class PlanChange:
    """A plan that was made, and the one before it."""

    step: int
    plan: Plan
    before: Plan | None

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.plan.counts.items())
        why = "; ".join(self.plan.reasons)
        return (
            f"from step {self.step} on a save every {self.plan.interval_s:.4g} s, of which one "
            f"in so many goes to each tier: {counts} ({why})"
        )


class Steering:
    """The plan of one attempt, and what it is made from.

    Args:
        rule: what the site and the user say.
        tiers: of the store, inner ones first.
        retention: what stays, by the name of the tier.
        pace: measures steps and saves.
        told: called with every new plan, in the thread that made it.
        clock: seconds that only grow.
        apart: has a function called by somebody else; by a new thread, if not given.
        boot: tells this start of this node from all others; empty if nobody knows.
    """

    def __init__(
        self,
        rule: MultiLevel,
        tiers: Sequence[Tier],
        retention: Mapping[str, Retention],
        *,
        pace: Pace,
        told: Callable[[PlanChange], None],
        clock: Callable[[], float] = time.monotonic,
        apart: Callable[[Callable[[], None]], None] = in_a_thread,
        boot: str = "",
    ) -> None:
        self._apart, self._boot = apart, boot
        self._room = Room(tiers, clock=clock, apart=apart)
        self._rule, self._tiers, self._retention = rule, list(tiers), retention
        self._pace, self._told, self._clock = pace, told, clock
        names = [tier.name for tier in tiers]
        if unknown := [name for name, _ in rule.counts if name not in names]:
            raise ConfigError(
                f"The pattern names tier {unknown[0]!r}; the tiers are {', '.join(names)}."
            )
        self._lock = threading.Lock()
        self.plan = first_plan(rule)
        self._made_from: Knowledge | None = None
        self._next_s, self._is_planning = -math.inf, False
        self._saved_s: dict[int, float] = {}
        self._on_way: dict[str, set[int]] = {tier.name: set() for tier in tiers}  # Steps.
        self._sent: dict[str, int] = {}
        self._missed: set[str] = set()  # Tiers to which a copy has failed.
        self._ordinal, self._step = 0, -1  # Of the newest save.
        self._placed = self._planned_at = 0  # Saves so far, and when the plan was made.
        self._copies: dict[str, deque[float]] = {}
        self._began_s = clock()
        self._observed_s = 0.0  # In attempts before this one.
        self._refused = ""
        self._known = Knowledge(tiers=tuple((tier.name, tier.level) for tier in self._tiers))

    # --- what happens ---

    def start(
        self,
        kept: Mapping[str, Any],
        *,
        restored_step: int | None,
        restored_from: Tier | None,
        restore_s: float,
        was_failure: bool,
        silent: int = 0,
        holds: Collection[str] | None = None,
    ) -> None:
        """The attempt begins to compute.

        Args:
            kept: what the restored checkpoint has of `kept`, or nothing.
            restored_step: which one that was, if any.
            restored_from: the innermost tier that had it; ``None``: nothing was restored.
            restore_s: how long the restore took.
            was_failure: whether the attempt before was interrupted, and not stopped in time.
            silent: how many were before it, after that checkpoint, and saved nothing. What
                became of them is not known: they count as processes that died.
            holds: the tiers that have the restored checkpoint, if that is known.
        """
        failures, observed_s = _taken_over(kept)
        names = {tier.name for tier in self._tiers}
        with self._lock:
            self._began_s, self._observed_s = self._clock(), observed_s
            # The next save is number 0, and the restored one was the one before.
            self._sent = {
                name: -1 - round(since)
                for name, since in _by_tier(kept, "saves_since").items()
                if name in names
            }
            self._forget_lost(restored_from, holds)
            if self._pace.is_from_here(kept):
                for name, duration_s in _by_tier(kept, "copies_s").items():
                    if name in names:
                        self._copies[name] = deque([duration_s], maxlen=_REMEMBERED)
                self._take_sizes(kept)
            if self._rule.replan:
                self.plan = self._plan_before(kept) or self.plan
            if restored_from is not None and was_failure:
                failures[self._class_of_failure(kept, restored_from)] += 1.0
            if restored_from is not None:
                failures[0] += silent
            if (total := sum(failures)) > _FORGETTING:
                failures = [one * _FORGETTING / total for one in failures]
                self._observed_s *= _FORGETTING / total
            a, b, c, d, e = failures
            restores = {} if restored_from is None else {restored_from.name: restore_s}
            self._known = replace(
                self._known,
                failures=(a, b, c, d, e),
                restores_s=restores,
            )
            self._step = -1 if restored_step is None else restored_step
        self.consider(self._step)

    def hear(self, others: Iterable[Mapping[str, Any]]) -> None:
        """Take in what checkpoints of other tasks have of `kept`; from any thread.

        Only tasks on as many nodes count: others fail more often, or more seldom.
        """
        alike = [one for one in others if one.get("nodes") == self._rule.nodes]
        elsewhere = [_taken_over(one) for one in alike]
        with self._lock:
            self._known = replace(
                self._known,
                failures_elsewhere=_summed([counts for counts, _ in elsewhere]),
                observed_elsewhere_s=sum(seconds for _, seconds in elsewhere),
            )
            step = self._step
        self.consider(step)

    def _class_of_failure(self, kept: Mapping[str, Any], restored_from: Tier) -> int:
        """Return the class of the failure after which a tier had the newest checkpoint.

        That is its level. But if this is the same node, not started anew since, and that tier
        is the innermost to which the checkpoint was written, nothing but the process was lost.
        """
        if not self._boot or kept.get("boot") != self._boot:
            return restored_from.level
        used = [name for name, count in _by_tier(kept, "counts").items() if count]
        levels = {tier.name: tier.level for tier in self._tiers}
        inner = [name for name in used if levels.get(name, 9) < restored_from.level]
        return restored_from.level if inner or not used else 0

    def _forget_lost(self, restored_from: Tier | None, holds: Collection[str] | None) -> None:
        """Have tiers that lost their copies, or never got the newest, get the next one."""
        for tier in self._tiers:
            had_newest = self._sent.get(tier.name) == -1
            never_came = had_newest and holds is not None and tier.name not in holds
            is_lost = restored_from is not None and tier.level < restored_from.level
            if never_came or is_lost:
                self._sent.pop(tier.name, None)

    def _plan_before(self, kept: Mapping[str, Any]) -> Plan | None:
        """Return the plan of the attempt before; ``None`` if it makes no sense here."""
        found, rates = kept.get("interval_s"), kept.get("rates_per_s")
        counts = {name: round(count) for name, count in _by_tier(kept, "counts").items()}
        if not _is_amount(found) or set(counts) != {tier.name for tier in self._tiers}:
            return None
        ordered = {tier.name: counts[tier.name] for tier in self._tiers}
        try:
            known = Rates(tuple(rates)) if isinstance(rates, list | tuple) else None
            return plan_of(float(found or 0), ordered, "the plan of the attempt before", known)
        except (ConfigError, TypeError):
            return None

    def _take_sizes(self, kept: Mapping[str, Any]) -> None:
        """Begin with a plan, where the attempt before tells what it has to be made from."""
        sizes = kept.get("state_bytes"), kept.get("stored_bytes")
        if all(isinstance(one, int) and 0 < one < 1 << 62 for one in sizes):
            self._known = replace(
                self._known, state_bytes=int(sizes[0] or 0), stored_bytes=int(sizes[1] or 0)
            )

    def place(
        self, ordinal: int, step: int, *, last: bool, left_s: float | None
    ) -> list[Placement]:
        """Return where a checkpoint goes, and note that it goes there.

        Args:
            ordinal: which save of this attempt it is, counted from 0.
            step: of the checkpoint.
            last: no other follows.
            left_s: time until everything has to be safe, if there is an end.
        """
        with self._lock:
            occasion = Occasion(
                ordinal=ordinal,
                last=last,
                sent=self._sent,
                on_way={name for name, steps in self._on_way.items() if steps},
                size_bytes=self._known.stored_bytes or None,
                left_s=left_s,
                outward=True,
            )
            verdicts, self._ordinal = plan(occasion, self._rules()), ordinal
            self._placed += 1
            self._saved_s[step], self._step = self._clock(), step
            for one in verdicts:
                if one.goes:
                    self._sent[one.tier] = ordinal
                    if self._rule.replan:
                        self._on_way[one.tier].add(step)
        return verdicts

    def stored(self, step: int, *, state_bytes: int, stored_bytes: int) -> None:
        """A checkpoint is durable on a first tier."""
        with self._lock:
            self._known = replace(
                self._known, state_bytes=state_bytes, stored_bytes=max(1, stored_bytes)
            )
        self.consider(step)

    def copied(self, step: int, tier: Tier) -> None:
        """A tier has the checkpoint of a step."""
        with self._lock:
            # What is older will be skipped where nobody waits for it.
            self._on_way[tier.name] = {one for one in self._on_way[tier.name] if one > step}
            if step in self._saved_s:
                times = self._copies.setdefault(tier.name, deque(maxlen=_REMEMBERED))
                times.append(self._clock() - self._saved_s[step])
            for old in sorted(self._saved_s)[:-64]:
                del self._saved_s[old]

    def missed(self, step: int, tier: Tier) -> None:
        """The copy of a step to a tier has failed: the next one goes there again."""
        with self._lock:
            self._on_way[tier.name].discard(step)
            self._missed.add(tier.name)
            self._sent.pop(tier.name, None)

    def consider(self, step: int) -> None:
        """Make the plan again, if what it was made from is not so any more."""
        with self._lock:
            known, before = self._knowledge(), self.plan
            can_be = self._rule.replan and known.state_bytes and not self._is_planning
            if not can_be or self._clock() < self._next_s:
                return
            goes_on = before is not None and before.is_step and self._placed > self._planned_at
            if not goes_on and not is_due(before, self._made_from, known):
                return
            if before is not None and self._is_measuring(before):
                return
            self._is_planning, self._planned_at = True, self._placed
        self._apart(partial(self._plan, step, known, before))

    def _plan(self, step: int, known: Knowledge, before: Plan | None) -> None:
        made, began_s = before, time.thread_time()
        try:
            made = make_plan(self._rule, known, before)
        except ConfigError as error:
            self._refuse(str(error))
        finally:
            with self._lock:
                took_s = time.thread_time() - began_s
                self._next_s = self._clock() + max(_AGAIN_S, took_s / _PART)
                self._is_planning = False
                self._made_from = known
                # What is not worth a new plan is not worth going on to, either.
                self.plan = replace(made, is_step=False) if made and made is before else made
        if made is not None and made is not before:
            self._told(PlanChange(step, made, before))

    def _is_measuring(self, plan: Plan) -> bool:
        """Tell whether tiers that a plan uses are being measured: guesses would replace it.

        One whose copy has failed is not; and one that does not answer is waited for in vain.
        """
        known = {*self._copies, *self._missed, *(one.name for one in self._rule.tiers)}
        is_early = self._made_from is None and self._clock() < self._began_s + _MEASURING_S
        return is_early and any(
            count and name not in known and self._on_way.get(name)
            for name, count in plan.counts.items()
        )

    # --- what is known ---

    @property
    def learns(self) -> bool:
        """Whether the plan changes with what is met."""
        return self._rule.replan

    @property
    def planned_s(self) -> float | None:
        """Computing time between two saves; ``None`` while there is no plan."""
        return self.plan.interval_s if self.plan else None

    def kept(self) -> dict[str, Any]:
        """Return what the next attempt may begin with, as plain values; from any thread."""
        with self._lock:
            known = self._knowledge()
            since = {name: self._ordinal - at for name, at in self._sent.items()}
            made = self.plan
        planned: dict[str, Any] = {}
        if made is not None:
            planned = {
                "interval_s": float(f"{made.interval_s:.6g}"),
                "counts": dict(made.counts),
                "rates_per_s": [float(f"{one:.4g}") for one in made.rates.per_s],
            }
        return {
            **planned,
            "saves_since": since,
            "nodes": self._rule.nodes,
            "boot": self._boot,
            "state_bytes": known.state_bytes,
            "stored_bytes": known.stored_bytes,
            "failures": [round(one, 4) for one in known.failures],
            "failures_observed_s": float(f"{known.observed_s:.6g}"),
            "copies_s": {name: float(f"{one:.4g}") for name, one in known.copies_s.items()},
        }

    def _knowledge(self) -> Knowledge:
        profile = self._pace.profile()
        return replace(
            self._known,
            blocked_s=profile.blocked_s,
            slowdown=profile.slowdown,
            copies_s={name: median(times) for name, times in self._copies.items()},
            free_bytes=self._room.free_bytes(),
            observed_s=self._observed_s + self._clock() - self._began_s,
        )

    def _rules(self) -> list[TierRule]:
        """Return what is asked of each tier; without a plan each gets each, to be measured."""
        counts, free = self.plan.counts if self.plan else {}, self._room.free_bytes()
        return [
            TierRule(
                tier.name,
                tier.level,
                every=counts.get(tier.name, 0 if counts else 1),
                copy_s=median(self._copies[tier.name]) if self._copies.get(tier.name) else None,
                free_bytes=free.get(tier.name),
                limit_bytes=self._retention[tier.name].size_bytes,
            )
            for tier in self._tiers
        ]

    def _refuse(self, text: str) -> None:
        """Say once that there is no plan, and why; the one before goes on to hold."""
        if text != self._refused:
            self._refused = text
            _log.warning("The plan stays as it is: %s", text)


def _taken_over(kept: Mapping[str, Any]) -> tuple[list[float], float]:
    """Return failures by class and the time in which they were met; nonsense is none."""
    failures, observed_s = kept.get("failures"), kept.get("failures_observed_s")
    if not (isinstance(failures, list | tuple) and len(failures) == _CLASSES):
        return [0.0] * _CLASSES, 0.0
    if not all(map(_is_amount, failures)) or not _is_amount(observed_s):
        return [0.0] * _CLASSES, 0.0
    return [float(one) for one in failures], float(observed_s or 0.0)


def _summed(counts: Sequence[Sequence[float]]) -> tuple[float, float, float, float, float]:
    a, b, c, d, e = (sum(one[at] for one in counts) for at in range(_CLASSES))
    return a, b, c, d, e


def _by_tier(kept: Mapping[str, Any], what: str) -> dict[str, float]:
    found = kept.get(what)
    if not isinstance(found, Mapping):
        return {}
    return {str(name): float(one) for name, one in found.items() if _is_amount(one)}


def _is_amount(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < 1e12  # type: ignore[operator]
