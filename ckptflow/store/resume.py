"""Restore the newest checkpoint that is sound: next copy, then next older checkpoint.

What was skipped, and why, is part of the result; only the last failure reaches the caller.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckptflow.data.regions import plan_restore
from ckptflow.errors import CorruptionError, NotFoundError, RestoreError
from ckptflow.model import CheckpointId, Manifest
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.memory import Base, remember
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
    """

    id: CheckpointId
    state: Any
    base: Base
    skipped: tuple[tuple[CheckpointId, str], ...]


def restore_newest(
    lineage: Lineage,
    target: object | None,
    *,
    step: int | None = None,
    note: Callable[[str], None] = lambda _text: None,
) -> Restored | None:
    """Restore the newest sound checkpoint into ``target``, or ``None`` if there is none at all.

    Args:
        lineage: where to look.
        target: state to fill in place, or ``None`` to build a new one.
        step: restore exactly this step instead of the newest.
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
    skipped: list[tuple[CheckpointId, str]] = []
    failures: list[Exception] = []
    for found in candidates:
        try:
            # Where the manifest is the packs should be, too; elsewhere they may be.
            others = [tier for tier in lineage.tiers if tier not in found.tiers]
            read = partial(read_state, [*found.tiers, *others], target=target, note=note)
            state, base = with_manifest(lineage, found, read)
        except _NOT_THIS_ONE as error:
            failures.append(error)
            reason = _reason(error)
            skipped.append((found.id, reason))
            note(f"{lineage.id} {found.id} was skipped: {reason}")
            continue
        return Restored(found.id, state, base, tuple(skipped))
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


def read_state(
    tiers: Sequence[Tier],
    manifest: Manifest,
    target: object | None,
    *,
    note: Callable[[str], None] = lambda _text: None,
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
    chunks = read_checkpoint(tiers, manifest, plan.buffers, note=note)
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
