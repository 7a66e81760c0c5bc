"""Restore the newest checkpoint that is sound: next copy, then next older checkpoint.

What was skipped, and why, is part of the result; only the last failure reaches the caller.
Quarantined checkpoints come after all others. ``tests/unit/test_restore.py``,
``tests/unit/test_quarantine.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckptflow.data.regions import plan_restore
from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError, RestoreError
from ckptflow.model import CheckpointId, Manifest
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.memory import Base, remember
from ckptflow.store.quarantine import how_to_lift, is_damage, quarantined, record_failure
from ckptflow.store.rereading import with_manifest
from ckptflow.store.restore import read_checkpoint
from ckptflow.tiers.tier import Tier

_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored checkpoint.

    Attributes:
        id: which one.
        state: the state; the target itself where one was given.
        base: what the next checkpoint can be diffed against; ``None`` if that is nothing.
        skipped: newer checkpoints that were passed over, with the reason, newest first.
        failed_tiers: names of those whose copy could not be used, wholly or in part.
    """

    id: CheckpointId
    state: Any
    base: Base | None
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
    search = _Search(lineage, target, attempt, note)
    for found in search.in_order(candidates):
        if (restored := search.tried(found)) is not None:
            return restored
    if not search.failures:
        return None
    raise search.error()


class _Search:
    """One restore: what was passed over and what failed on the way to the one that does not."""

    def __init__(
        self,
        lineage: Lineage,
        target: object | None,
        attempt: int | None,
        note: Callable[[str], None],
    ) -> None:
        self._lineage, self._target, self._attempt = lineage, target, attempt
        self._note = note
        self._passed_over: dict[CheckpointId, str] = {}  # Quarantined, so not tried yet.
        self.failures: dict[CheckpointId, CheckpointError] = {}

    def in_order(self, candidates: Iterable[Found]) -> Iterator[Found]:
        """Yield candidates as they come, the quarantined ones when all others were tried."""
        bad, left = quarantined(self._lineage, note=self._note), list[Found]()
        for found in candidates:
            if found.id not in bad:
                yield found
                continue
            self._passed_over[found.id] = why = how_to_lift(self._lineage, found.id)
            self._note(f"{self._lineage.id} {found.id} {why}")
            left.append(found)
        yield from left

    def tried(self, found: Found) -> Restored | None:
        """Restore a checkpoint; ``None`` if that failed, which is noted and recorded."""
        failed_tiers: set[str] = set()
        # Where the manifest is the packs should be, too; elsewhere they may be.
        others = [tier for tier in self._lineage.tiers if tier not in found.tiers]
        read = partial(
            read_state,
            [*found.tiers, *others],
            target=self._target,
            note=self._note,
            on_failed=lambda tier: failed_tiers.add(tier.name),
        )
        try:
            state, base = with_manifest(self._lineage, found, read)
        except (CorruptionError, NotFoundError) as error:
            self._failed(found.id, error)
            return None
        skipped = self._skipped(found.id)
        return Restored(found.id, state, base, skipped, frozenset(failed_tiers))

    def _failed(self, checkpoint: CheckpointId, error: CheckpointError) -> None:
        self.failures[checkpoint] = error
        self._note(f"{self._lineage.id} {checkpoint} was skipped: {_reason(error)}")
        if self._attempt is not None and is_damage(error):
            record_failure(
                self._lineage, checkpoint, by=self._attempt, error=error, note=self._note
            )

    def _skipped(self, restored: CheckpointId) -> tuple[tuple[CheckpointId, str], ...]:
        """Return what was skipped, tried or not, with the reason, the newest first."""
        newer = {one: why for one, why in self._passed_over.items() if one > restored}
        reasons = newer | {one: _reason(error) for one, error in self.failures.items()}
        return tuple(sorted(reasons.items(), reverse=True))

    def error(self) -> RestoreError:
        """Return what is raised when all have failed."""
        return none_restored(
            f"None of the {len(self.failures)} checkpoints of {self._lineage.id} could be "
            f"restored.",
            self.failures,
        )


def none_restored(what: str, failures: Mapping[CheckpointId, CheckpointError]) -> RestoreError:
    """Return what is raised when all checkpoints have failed, with the reason of each."""
    raised = RestoreError(
        f"{what} The target may be partly overwritten: build it anew before starting from "
        f"step 0."
    )
    for checkpoint, failure in failures.items():
        raised.add_note(f"{checkpoint}: {failure}")
        for text in getattr(failure, "__notes__", ()):
            raised.add_note(f"    {text}")
    return raised


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
