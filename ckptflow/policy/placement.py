"""Where a checkpoint goes, tier by tier, and why it does or does not.

The innermost tier that is used gets every checkpoint, the others every so many. Beyond counts,
what does not fit or would not arrive in time is not sent, and a tier that still waits for the
one before gets the next. ``tests/unit/test_placement.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ckptflow.errors import ConfigError
from ckptflow.model import SHARED_LEVEL
from ckptflow.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class TierRule:
    """How often checkpoints go to a tier, and what is known of it.

    Attributes:
        name: of the tier.
        level: lowest class of failures that its copies survive.
        every: every how many checkpoints one goes there; 0: the tier is not used.
        copy_s: how long a copy takes to be there, if that is known.
        free_bytes: room that is left there, if that is known.
        limit_bytes: how much of the task may lie there at most (``bytes=`` of what is kept).
    """

    name: str
    level: int
    every: int = 1
    copy_s: float | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ConfigError(
                f"Tier {self.name!r}: every must be 1 or more, or 0 for a tier that is not "
                f"used, got {self.every}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """The checkpoint that is to be placed.

    Attributes:
        ordinal: which checkpoint of this attempt it is, counted from 0.
        last: no other will follow it (the task ends or is being preempted), so it goes to
            every tier that is used: the inner ones may not be there for the next attempt.
        sent: per tier, the ordinal of the newest that went there. Without it, ``None``, every
            n-th means ordinals 0, n, 2n, ...; with it, n after the newest, whatever the
            numbers were before. The first goes everywhere, so that an outer copy exists early.
        on_way: tiers that the one before has not reached yet.
        size_bytes: what will be stored, if that is known.
        left_s: time until everything has to be safe, if there is an end.
        outward: what goes to a tier goes to all that are used before it, too.
    """

    ordinal: int
    last: bool = False
    sent: Mapping[str, int] | None = None
    on_way: Collection[str] = ()
    size_bytes: int | None = None
    left_s: float | None = None
    outward: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Whether a checkpoint goes to a tier, and why."""

    tier: str
    goes: bool
    reason: str
    level: int = field(default=0, compare=False)


def plan(occasion: Occasion, rules: Sequence[TierRule]) -> list[Placement]:
    """Return the verdict for every tier, from the innermost outwards.

    At least one tier is always among those that get it: if room is short everywhere, the
    innermost that is used, which may make room, or fail loudly.

    Args:
        occasion: the checkpoint.
        rules: one for each tier, in any order; of two of one level the first is further in.

    Raises:
        ConfigError: there is no rule, two for one tier, or none that is used.
    """
    names = [rule.name for rule in rules]
    if len(names) != len(set(names)) or not names:
        raise ConfigError(f"Placement needs one rule for each tier, got {names}.")
    ordered = sorted(rules, key=lambda rule: rule.level)
    used = [rule for rule in ordered if rule.every]
    if not used:
        raise ConfigError(f"None of the tiers {names} is used: a checkpoint needs one.")
    innermost = next((rule for rule in used if not _obstacle(rule, occasion)), used[0])
    verdicts = [_verdict(rule, occasion, innermost, ordered) for rule in ordered]
    if occasion.outward:
        early = [_is_early(rule, occasion) for rule in ordered]
        verdicts = _joined(verdicts, early)
    return verdicts


def _verdict(
    rule: TierRule, occasion: Occasion, innermost: TierRule, ordered: Sequence[TierRule]
) -> Placement:
    if rule is innermost:
        before = [one.name for one in ordered if one.every and one.level < rule.level]
        reason = f"no room on {', '.join(before)}" if before else "innermost tier"
        return Placement(rule.name, goes=True, reason=reason, level=rule.level)
    goes, reason = _asked_for(rule, occasion, ordered)
    if goes:
        obstacle = (
            _obstacle(rule, occasion)
            or _too_late(rule, occasion, ordered)
            or _still_waits(rule, occasion)
        )
        if obstacle:
            goes, reason = False, obstacle
    return Placement(rule.name, goes, reason, level=rule.level)


def _is_early(rule: TierRule, occasion: Occasion) -> bool:
    """Tell whether nothing but its count keeps a checkpoint from a tier."""
    sent = (occasion.sent or {}).get(rule.name)
    waits = sent is not None and occasion.ordinal - sent < rule.every
    return waits and not _obstacle(rule, occasion) and not _still_waits(rule, occasion)


def _asked_for(
    rule: TierRule, occasion: Occasion, ordered: Sequence[TierRule]
) -> tuple[bool, str]:
    """Return whether the counts ask for it, and why."""
    if not rule.every:
        far = [one for one in ordered if one.level >= SHARED_LEVEL]
        if occasion.last and far and far[0] is rule and not any(one.every for one in far):
            return True, "the last checkpoint needs a tier that outlives the allocation"
        return False, "the plan does not use this tier"
    if rule.every == 1:
        return True, "gets every checkpoint"
    due, reason = _is_due(rule, occasion)
    if not due and occasion.last:
        return True, "the last checkpoint of the attempt goes everywhere"
    return due, reason


def _is_due(rule: TierRule, occasion: Occasion) -> tuple[bool, str]:
    """Return whether enough checkpoints have passed, and how many have."""
    sent, number = occasion.sent, occasion.ordinal
    if sent is None:
        reason = f"number {number}, and it gets every {rule.every} from 0 on"
        return number % rule.every == 0, reason
    if rule.name not in sent:
        return True, "the first one, so that a copy exists early"
    since = number - sent[rule.name]
    return since >= rule.every, f"{since} since the last there, and it gets every {rule.every}"


def _still_waits(rule: TierRule, occasion: Occasion) -> str:
    if rule.name not in occasion.on_way or occasion.last:
        return ""
    return "the copy before is still on its way; the next one goes"


def _obstacle(rule: TierRule, occasion: Occasion) -> str:
    """Return why a checkpoint cannot go to a tier: no room, or more than is allowed."""
    size = occasion.size_bytes
    if size is None:
        return ""
    if rule.free_bytes is not None and size > rule.free_bytes:
        return f"has room for {format_bytes(rule.free_bytes)}, it takes {format_bytes(size)}"
    if rule.limit_bytes is not None and size > rule.limit_bytes:
        return f"may hold {format_bytes(rule.limit_bytes)}, it takes {format_bytes(size)}"
    return ""


def _too_late(rule: TierRule, occasion: Occasion, ordered: Sequence[TierRule]) -> str:
    """Return why a copy would not arrive in time, if another that lasts does.

    The quickest of those that outlive the allocation is tried however short the time is.
    """
    left_s = occasion.left_s
    if left_s is None or rule.copy_s is None or rule.copy_s <= left_s:
        return ""
    lasting = [one for one in ordered if one.level >= SHARED_LEVEL and one.every]
    quickest = min(lasting, key=lambda one: one.copy_s or 0.0, default=None)
    if quickest is rule:
        return ""
    left = format_seconds(max(0.0, left_s))
    return f"a copy takes {format_seconds(rule.copy_s)}, and {left} are left"


def _joined(verdicts: Sequence[Placement], early: Sequence[bool]) -> list[Placement]:
    """Have what goes to a tier go to all before it that only wait for their turn."""
    outermost = max((at for at, one in enumerate(verdicts) if one.goes), default=0)
    reason = f"goes to {verdicts[outermost].tier}, and through here"
    return [
        replace(one, goes=True, reason=reason)
        if is_early and not one.goes and at < outermost
        else one
        for at, (one, is_early) in enumerate(zip(verdicts, early, strict=True))
    ]
