"""How long checkpoints stay: a verdict for each, with the reasons.

Two things hold whatever is asked for: the newest good checkpoint stays, and a damaged one
stays as long as nothing good is newer, since somebody may want to save what can be saved
from it. ``tests/unit/test_retention.py``, ``tests/property/test_policy_laws.py``.

This is about checkpoints, not about objects: deleting one never deletes a pack that a kept
checkpoint names (`ckptflow.store.prune` sees to that).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from ckptflow.errors import ConfigError
from ckptflow.model import CheckpointId
from ckptflow.policy.quota import dropped_for_room
from ckptflow.units import parse_bytes

Mode = Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class BestOf:
    """Keep the ``count`` checkpoints whose ``metric`` is smallest or greatest.

    Only finite values take part; of two equal ones the newer is better.
    """

    metric: str
    mode: Mode
    count: int = 1

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ConfigError(f"The best {self.metric!r} is 'min' or 'max', not {self.mode!r}.")
        if self.count < 1 or not self.metric:
            raise ConfigError(
                f"best= needs a metric and a count of 1 or more, got {self.metric!r} "
                f"and {self.count}."
            )

    def __str__(self) -> str:
        return f"{self.metric}:{self.mode}:{self.count}"


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints of a lineage to keep: those that any of the rules keeps.

    Of these, two limits drop the least valuable: those that only `every_steps` keeps, then the
    best, then the newest; among equals the older ones first. The newest good one always stays.

    Attributes:
        newest: how many of the newest; ``None`` keeps all.
        every_steps: the first one at or after each multiple of so many steps. Not only the
            exact multiples: saves at times rather than steps hardly ever fall on them.
        best: the best by a metric given to ``save``.
        count: at most so many.
        size_bytes: at most so many bytes of packs, each counted once; of one lineage on one
            tier. What only damaged checkpoints need is not counted.
    """

    newest: int | None = 2
    every_steps: int | None = None
    best: BestOf | None = None
    count: int | None = None
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("newest", self.newest),
            ("every", self.every_steps),
            ("count", self.count),
            ("bytes", self.size_bytes),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"Retention needs {name} of 1 or more, got {value}.")

    def __str__(self) -> str:
        parts = [f"newest={'all' if self.newest is None else self.newest}"]
        if self.every_steps is not None:
            parts.append(f"every={self.every_steps}")
        if self.best is not None:
            parts.append(f"best={self.best}")
        if self.count is not None:
            parts.append(f"count={self.count}")
        if self.size_bytes is not None:
            parts.append(f"bytes={self.size_bytes}")
        return ",".join(parts)

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever dropped but what is void or damaged."""
        return self.newest is None and self.count is None and self.size_bytes is None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint as retention sees it."""

    id: CheckpointId
    metrics: Mapping[str, float] = field(default_factory=dict)
    good: bool = True  # Nothing is known against it.
    flaw: str = "damaged"  # Else, what is.
    void: bool = False  # The history went on without it; it must never be restored.
    packs: Mapping[str, int] = field(default_factory=dict)  # What it needs, and their bytes.


@dataclass(frozen=True, slots=True)
class Verdict:
    """Keep a checkpoint or drop it, and why."""

    id: CheckpointId
    keep: bool
    reasons: tuple[str, ...]


def retain(
    checkpoints: Sequence[Candidate],
    retention: Retention,
    *,
    stays: Mapping[CheckpointId, str] | None = None,
) -> list[Verdict]:
    """Judge every checkpoint of one lineage; verdicts come in the order given.

    Void and damaged ones never take the place of a good one: each rule chooses among the
    good ones only.

    Args:
        checkpoints: all that there are.
        retention: the rules.
        stays: checkpoints that are kept whatever the rules say, and why.
    """
    good = sorted(
        (one for one in checkpoints if one.good and not one.void),
        key=lambda one: one.id,
        reverse=True,
    )
    reasons: _Reasons = defaultdict(list)
    _keep_newest(good, retention.newest, reasons)
    if retention.every_steps is not None:
        _keep_every(good, retention.every_steps, reasons)
    if retention.best is not None:
        _keep_best(good, retention.best, reasons)
    newest_good = good[0].id if good else None
    verdicts = [_verdict(one, reasons[one.id], newest_good, retention) for one in checkpoints]
    stays = stays or {}
    verdicts = [
        replace(verdict, keep=True, reasons=(stays[verdict.id],))
        if verdict.id in stays and not verdict.keep
        else verdict
        for verdict in verdicts
    ]
    firm = {newest_good, *stays}
    may_go = [one for one in reversed(good) if one.id not in firm and reasons[one.id]]
    may_go.sort(key=lambda one: max(value for value, _ in reasons[one.id]))
    return _limited(checkpoints, verdicts, [one.id for one in may_go], retention)


def _limited(
    checkpoints: Sequence[Candidate],
    verdicts: Sequence[Verdict],
    order: Sequence[CheckpointId],
    retention: Retention,
) -> list[Verdict]:
    """Drop what the limits leave no room for, in some order."""
    packs = {one.id: one.packs for one in checkpoints if one.good and not one.void}
    kept = {one.id: packs[one.id] for one in verdicts if one.keep and one.id in packs}
    dropped = dropped_for_room(
        kept, order, count=retention.count, size_bytes=retention.size_bytes
    )
    return [
        Verdict(verdict.id, keep=False, reasons=(dropped[verdict.id],))
        if verdict.id in dropped
        else verdict
        for verdict in verdicts
    ]


def parse_retention(retention: int | str | Retention | None) -> Retention:
    """Return the rules that a short form means.

    ``3`` and ``"3"`` keep the newest three, ``"all"`` everything; rules are joined by commas:
    ``"newest=3,every=1000,best=loss:min:2"``. ``"count=9"`` and ``"bytes=200GB"`` limit what
    the others keep, or else everything. ``None``, nothing said, keeps the newest two.

    Raises:
        ConfigError: it is none of the known forms, or a number is below 1.
    """
    if retention is None:
        return Retention()
    if isinstance(retention, Retention):
        return retention
    if isinstance(retention, int) and not isinstance(retention, bool):
        return Retention(newest=retention)
    if not isinstance(retention, str):
        raise ConfigError(f"{retention!r} does not say what to keep; {_FORMS}.")
    rules: dict[str, str] = {}
    for part in retention.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        name, value = (name, value) if sign else ("newest", name)
        if name in rules or name not in _RULES:
            problem = "comes twice" if name in rules else "is not a rule"
            raise ConfigError(
                f"{retention!r} does not say what to keep: {name!r} {problem}; {_FORMS}."
            )
        rules[name] = value
    # A limit alone means: as much as there is room for.
    newest = rules.get("newest", "all" if rules.keys() <= {"count", "bytes"} else "2")
    return Retention(
        newest=None if newest == "all" else _count(newest, retention),
        every_steps=_count(rules["every"], retention) if "every" in rules else None,
        best=_best(rules["best"], retention) if "best" in rules else None,
        count=_count(rules["count"], retention) if "count" in rules else None,
        size_bytes=parse_bytes(rules["bytes"]) if "bytes" in rules else None,
    )


Rules: TypeAlias = int | str | Retention
Keep: TypeAlias = Rules | Mapping[str, Rules] | None


def retention_by_tier(keep: Keep, tiers: Sequence[str] | None) -> dict[str, Retention]:
    """Return what each tier keeps: the same, or by name where ``keep`` is a table.

    A tier that the table does not name keeps the newest two.

    Args:
        keep: a short form, as `parse_retention` takes it; or one for each of some tiers.
        tiers: names of the tiers; ``None`` if they are not known yet, then only the forms are
            checked.

    Raises:
        ConfigError: something is no short form, or a tier of the table is not there.
    """
    if not isinstance(keep, Mapping):
        return dict.fromkeys(tiers or (), parse_retention(keep))
    named = {name: parse_retention(rules) for name, rules in keep.items()}
    if tiers is None:
        return named
    if unknown := sorted(named.keys() - set(tiers)):
        raise ConfigError(f"keep names {unknown[0]!r}; the tiers are {list(tiers)}.")
    return {name: named.get(name, Retention()) for name in tiers}


_EVERY, _BEST, _NEWEST = range(3)  # What a checkpoint is worth, by the rule that keeps it.
_Reasons: TypeAlias = "defaultdict[CheckpointId, list[tuple[int, str]]]"

_RULES = ("newest", "every", "best", "count", "bytes")
_FORMS = "write for example 3, 'all' or 'newest=3,every=1000,best=loss:min:2,bytes=200GB'"


def _keep_newest(good: Sequence[Candidate], newest: int | None, reasons: _Reasons) -> None:
    for one in good[:newest]:
        why = "all are kept" if newest is None else f"among the newest {newest}"
        reasons[one.id].append((_NEWEST, why))


def _keep_every(good: Sequence[Candidate], steps: int, reasons: _Reasons) -> None:
    first = {one.id.step // steps: one.id for one in good}  # The oldest comes last, and stays.
    for multiple, checkpoint in first.items():
        if multiple > 0:
            why = f"first at or after step {multiple * steps} (every {steps} steps)"
            reasons[checkpoint].append((_EVERY, why))


def _keep_best(good: Sequence[Candidate], best: BestOf, reasons: _Reasons) -> None:
    sign = 1 if best.mode == "min" else -1
    measured = [one for one in good if math.isfinite(one.metrics.get(best.metric, math.nan))]
    measured.sort(key=lambda one: sign * one.metrics[best.metric])  # Stable: newer ones first.
    for one in measured[: best.count]:
        value = one.metrics[best.metric]
        among = "the best" if best.count == 1 else f"among the best {best.count}"
        why = f"{among} by {best.metric} ({best.mode}): {value:.6g}"
        reasons[one.id].append((_BEST, why))


def _verdict(
    one: Candidate,
    reasons: Sequence[tuple[int, str]],
    newest_good: CheckpointId | None,
    retention: Retention,
) -> Verdict:
    if one.void:
        return Verdict(one.id, keep=False, reasons=("void: the task went on without it",))
    if one.good:
        why = tuple(text for _, text in reasons)
        return Verdict(one.id, bool(why), why or (f"no rule keeps it ({retention})",))
    if newest_good is not None and newest_good > one.id:
        return Verdict(one.id, keep=False, reasons=(f"{one.flaw}, and {newest_good} is good",))
    return Verdict(one.id, keep=True, reasons=(f"{one.flaw}, but nothing newer is good",))


def _count(text: str, whole: str) -> int:
    if not re.fullmatch(r"-?\d+", text):
        raise ConfigError(
            f"{whole!r} does not say what to keep: {text!r} is no number; {_FORMS}."
        )
    return int(text)


def _best(text: str, whole: str) -> BestOf:
    match = re.fullmatch(r"(.+):(min|max)(?::(\d+))?", text)
    if not match:
        raise ConfigError(
            f"{whole!r} does not say what to keep: {text!r} names no metric with min or max; "
            f"{_FORMS}."
        )
    mode: Mode = "min" if match[2] == "min" else "max"
    return BestOf(match[1], mode, int(match[3] or 1))
