"""Where the checkpoints of a task go: by fixed counts, or by a plan that it makes and remakes.

``tests/unit/test_steering.py``, ``tests/unit/test_checkpointer.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from ckptflow.checkpointer.arguments import rules_of
from ckptflow.checkpointer.history import History
from ckptflow.checkpointer.hooks import Hooks
from ckptflow.checkpointer.neighbours import pace_of_others
from ckptflow.checkpointer.pace import Pace
from ckptflow.checkpointer.requests import Written
from ckptflow.checkpointer.room import in_a_thread
from ckptflow.checkpointer.steering import PlanChange, Steering
from ckptflow.checkpointer.surroundings import boot_id
from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.replanning import Plan
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.placement import Occasion, Placement, plan
from ckptflow.policy.progress import Interval, Progress
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.tier import Tier


def _hear(steering: Steering, lineage: Lineage) -> None:
    steering.hear(pace_of_others(lineage))


@runtime_checkable
class Ending(Protocol):
    """What knows of an end of the task."""

    def left_s(self) -> float:
        """Return the seconds until everything has to be safe; infinity without an end."""
        ...


def chosen(verdicts: Sequence[Placement], tiers: Sequence[Tier]) -> list[Tier]:
    """Return the tiers that a checkpoint goes to, inner ones first."""
    names = {one.tier for one in verdicts if one.goes}
    return [tier for tier in tiers if tier.name in names]


class Placing:
    """Says of each checkpoint of an attempt where it goes.

    Args:
        interval: when the task saves; a multi-level one says where as well.
        tiers: of the store, inner ones first.
        flush_every: per tier, every how many checkpoints one goes there.
        retention: what stays, by the name of the tier.
        pace: measures steps and saves.
        told: called with every new plan, in the thread that made it.

    Raises:
        ConfigError: it names a tier that is not there, or it is said twice where they go.
    """

    def __init__(
        self,
        interval: Interval,
        tiers: Sequence[Tier],
        flush_every: Mapping[str, int],
        retention: Mapping[str, Retention],
        *,
        pace: Pace,
        told: Callable[[PlanChange], None],
    ) -> None:
        self._tiers, self._retention, self._pace, self._told = tiers, retention, pace, told
        self._flush_every, self._rules = dict(flush_every), rules_of(tiers, flush_every)
        self._steering: Steering | None = None
        if isinstance(interval, MultiLevel):
            self.steer(interval)

    def steer(self, rule: MultiLevel) -> None:
        """From now on have a plan say where they go.

        Raises:
            ConfigError: it was said besides where checkpoints go, or the rule does not fit.
        """
        if self._flush_every:
            raise ConfigError(
                f"every='multilevel' says itself which checkpoints go to which tier: leave "
                f"flush_every={self._flush_every} out, or give it a pattern to begin with."
            )
        self._steering = Steering(
            rule,
            self._tiers,
            self._retention,
            pace=self._pace,
            told=self._told,
            boot=boot_id(),
        )

    @property
    def plan(self) -> Plan | None:
        """The plan that holds now; ``None`` while there is none."""
        return self._steering.plan if self._steering is not None else None

    def start(self, history: History, *, restore_s: float) -> None:
        """The attempt begins to compute, from what was restored in so many seconds."""
        steering = self._steering
        if steering is None:
            return
        history.tell(steering, restore_s=restore_s)
        if steering.learns:  # A tier that does not answer must not hold the task up.
            in_a_thread(partial(_hear, steering, history.lineage))

    def with_plan(self, progress: Progress) -> Progress:
        """Return what an interval is told, and when the plan wants the next save."""
        if self._steering is None:
            return progress
        return replace(progress, planned_s=self._steering.planned_s)

    def place(self, ordinal: int, step: int, *, last: bool, stop: object) -> list[Placement]:
        """Return the verdict for each tier on one checkpoint.

        Args:
            ordinal: which save of this attempt it is, counted from 0.
            step: of the checkpoint.
            last: no other follows.
            stop: what tells the task to stop; it may know how much time is left.
        """
        if self._steering is None:
            return plan(Occasion(ordinal=ordinal, last=last), self._rules)
        left_s = stop.left_s() if last and isinstance(stop, Ending) else None
        return self._steering.place(ordinal, step, last=last, left_s=left_s)

    def hooks(self, step: int, written: Callable[[int], Written | None]) -> Hooks:
        """Return what a plan has to be told of around the commit of a save.

        Args:
            step: of the checkpoint.
            written: returns what the save of a step came to, when it is written.
        """
        steering = self._steering
        if steering is None:
            return Hooks()

        def committed(tier: Tier) -> None:
            steering.copied(step, tier)
            if (one := written(step)) is not None:
                steering.stored(
                    step, state_bytes=one.state_bytes, stored_bytes=one.stored_bytes
                )

        return Hooks(committed=committed, missed=lambda tier: steering.missed(step, tier))

    def kept(self) -> dict[str, Any]:
        """Return what the next attempt may begin with, as plain values."""
        return self._steering.kept() if self._steering is not None else {}
