"""Restore the newest checkpoint that is sound: next copy, then next older checkpoint.

What was skipped, and why, is part of the result; only the last failure reaches the caller.
Quarantined checkpoints come after all others. ``tests/unit/test_restore.py``,
``tests/unit/test_quarantine.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckptflow.data.regions import plan_restore
from ckptflow.errors import CorruptionError, NotFoundError, RestoreError
from ckptflow.model import CheckpointId, Manifest
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.memory import Base, remember
from ckptflow.store.quarantine import how_to_lift, is_damage, quarantined, record_failure
from ckptflow.store.rereading import with_manifest
from ckptflow.store.restore import read_checkpoint
from ckptflow.tiers.tier import Tier

_SHOWN_MAX = 8
_NOT_THIS_ONE = (CorruptionError, NotFoundError)


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored checkpoint.

    Attributes:
        id: which one.
        state: the state; the target itself where one was given.
        base: what the next checkpoint can be diffed against.
        skipped: newer checkpoints that were passed over, with the reason, newest first.
        failed_tiers: names of those whose copy could not be used, wholly or in part.
    """

    id: CheckpointId
    state: Any
    base: Base
    skipped: tuple[tuple[CheckpointId, str], ...]
    failed_tiers: frozenset[str] = frozenset()


def restore_newest(
    lineage: Lineage,
    target: object | None,
    *,
    step: int | None = None,
    attempt: int | None = None,
    note: Callable[[str], None] = lambda _text: None,
) -> Restored | None:
    """Restore the newest sound checkpoint into ``target``, or ``None`` if there is none at all.

    Args:
        lineage: where to look.
        target: state to fill in place, or ``None`` to build a new one.
        step: restore exactly this step instead of the newest.
        attempt: who restores: it records which checkpoints it could not restore. What several
            attempts could not is quarantined, and tried only when nothing else is left.
        note: told of every copy and checkpoint that was skipped.

    Raises:
        NotFoundError: ``step`` was asked for and does not exist.
        StateError: ``target`` does not fit; nothing was written to it.
        FormatError: the newest one that is not damaged was written by a newer version. It is
            not passed over: whoever went on from an older one would make it void.
        RestoreError: there are checkpoints, but none of them could be restored. ``target``
            may then be partly overwritten: build it anew before starting from step 0.
    """
    candidates = lineage.valid_newest_first() if step is None else _of_step(lineage, step)
    bad = quarantined(lineage, note=note)
    passed_over: list[tuple[CheckpointId, str]] = []

    def on_bad(found: Found) -> None:
        why = how_to_lift(lineage, found.id)
        passed_over.append((found.id, why))
        note(f"{lineage.id} {found.id} {why}")

    skipped: list[tuple[CheckpointId, str]] = []
    failures: list[Exception] = []
    for found in _bad_last(candidates, bad, on_bad):
        failed: set[str] = set()
        try:
            # Where the manifest is the packs should be, too; elsewhere they may be.
            others = [tier for tier in lineage.tiers if tier not in found.tiers]
            read = partial(
                read_state,
                [*found.tiers, *others],
                target=target,
                note=note,
                on_failed=lambda tier, failed=failed: failed.add(tier.name),  # type: ignore[misc]
            )
            state, base = with_manifest(lineage, found, read)
        except _NOT_THIS_ONE as error:
            failures.append(error)
            reason = _reason(error)
            skipped.append((found.id, reason))
            note(f"{lineage.id} {found.id} was skipped: {reason}")
            if attempt is not None and is_damage(error):
                record_failure(lineage, found.id, by=attempt, error=error, note=note)
            continue
        told = _newer_first(found.id, skipped, passed_over)
        return Restored(found.id, state, base, told, frozenset(failed))
    if not skipped:
        return None
    raised = RestoreError(
        f"None of the {len(skipped)} checkpoints of {lineage.id} could be restored. The "
        f"target may be partly overwritten: build it anew before starting from step 0."
    )
    for (checkpoint, _), failure in zip(skipped, failures, strict=True):
        raised.add_note(f"{checkpoint}: {failure}")
        for text in getattr(failure, "__notes__", ()):
            raised.add_note(f"    {text}")
    raise raised


def _bad_last(
    candidates: Iterable[Found], bad: Collection[CheckpointId], on_bad: Callable[[Found], None]
) -> Iterator[Found]:
    """Yield candidates as they come, those that are quarantined when all others were tried."""
    left = []
    for found in candidates:
        if found.id in bad:
            on_bad(found)
            left.append(found)
        else:
            yield found
    yield from left


def _newer_first(
    restored: CheckpointId,
    skipped: Sequence[tuple[CheckpointId, str]],
    passed_over: Sequence[tuple[CheckpointId, str]],
) -> tuple[tuple[CheckpointId, str], ...]:
    """Return what was skipped, tried or not, with the reason, the newest first."""
    reasons = {one: why for one, why in passed_over if one > restored} | dict(skipped)
    return tuple(sorted(reasons.items(), reverse=True))


def read_state(
    tiers: Sequence[Tier],
    manifest: Manifest,
    target: object | None,
    *,
    note: Callable[[str], None] = lambda _text: None,
    on_failed: Callable[[Tier], None] = lambda _tier: None,
) -> tuple[Any, Base]:
    """Read one checkpoint into ``target`` or into a new state.

    Raises:
        StateError: ``target`` does not fit; nothing was written to it.
        CorruptionError: no copy is sound.
    """
    sizes = [entry.size_bytes for entry in manifest.regions]
    try:
        plan = plan_restore(manifest.structure, sizes, target)
    except (MemoryError, OverflowError) as error:
        raise CorruptionError(
            f"The manifest of {manifest.lineage} {manifest.id} claims a state of "
            f"{manifest.state_bytes} bytes, which cannot be had here."
        ) from error
    chunks = read_checkpoint(tiers, manifest, plan.buffers, note=note, on_failed=on_failed)
    base = remember(manifest, plan.buffers, chunks)
    return plan.finish(), base


def _reason(error: Exception) -> str:
    notes = getattr(error, "__notes__", ())
    return f"{error} ({'; '.join(notes)})" if notes else str(error)


def _of_step(lineage: Lineage, step: int) -> list[Found]:
    if chosen := lineage.valid_of_step(step):
        return chosen
    newest = itertools.islice(lineage.valid_newest_first(), _SHOWN_MAX)
    have = ", ".join(str(found.id.step) for found in newest) or "none"
    raise NotFoundError(f"{lineage.id} has no checkpoint of step {step}; it has {have}.")
