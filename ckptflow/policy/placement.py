"""Where a checkpoint goes: the innermost tier always, the outer ones every n-th time.

``tests/unit/test_placement.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TierRule:
    """How often checkpoints go to a tier.

    ``every`` counts the checkpoints of one attempt: 1 means each, 10 the first, the
    eleventh and so on. The first is among them, so that an outer copy exists early.
    """

    name: str
    level: int
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"Tier {self.name!r}: every must be 1 or more, got {self.every}.")


@dataclass(frozen=True, slots=True)
class Placement:
    """A tier that a checkpoint goes to, and why."""

    tier: str
    reason: str


def plan(ordinal: int, rules: Sequence[TierRule], *, last: bool = False) -> list[Placement]:
    """Return the tiers a checkpoint goes to, from the innermost outwards.

    Args:
        ordinal: which checkpoint of this attempt it is, counted from 0.
        rules: one for each tier, in any order. The innermost (lowest level, then the first
            named) gets every checkpoint, whatever its rule says.
        last: no other will follow it (the task ends or is being preempted), so it goes to
            every tier: the inner ones may not be there for the next attempt.

    Raises:
        ConfigError: there is no rule, or two for one tier.
    """
    names = [rule.name for rule in rules]
    if len(names) != len(set(names)) or not names:
        raise ConfigError(f"Placement needs one rule for each tier, got {names}.")
    innermost, *outer = sorted(rules, key=lambda rule: rule.level)
    return [Placement(innermost.name, "innermost tier")] + [
        Placement(rule.name, reason)
        for rule in outer
        if (reason := _reason(rule, ordinal, last=last))
    ]


def _reason(rule: TierRule, ordinal: int, *, last: bool) -> str:
    if rule.every == 1:
        return "gets every checkpoint"
    if ordinal % rule.every == 0:
        return f"number {ordinal}, and it gets every {rule.every} from 0 on"
    return "the last checkpoint of the attempt goes everywhere" if last else ""
