"""Set a lineage back to an earlier checkpoint, or to the beginning, without deleting anything.

An attempt is claimed, and says at once where it went on from: so the rules of "Attempts and
fencing" in ``docs/reference/format-v1.md`` make everything later void, and whoever still runs
the task may not commit any more. The resume object is the commit point; before it nothing has
changed but a number. Void checkpoints stay until they are pruned.

``tests/unit/test_newest.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckptflow.errors import NotFoundError
from ckptflow.model import CheckpointId
from ckptflow.store.catalog import Lineage
from ckptflow.store.sharding.launch import saved_together
from ckptflow.store.sharding.sets import ShardSets

SET_BACK = "set-back"
"""The outcome on record of an attempt that only set its lineage back."""

_SHOWN_MAX = 8


def set_back(lineage: Lineage, start: CheckpointId | None, *, reason: str) -> int:
    """Make all checkpoints later than ``start`` void; return the attempt that did it.

    Args:
        lineage: of the whole task, also where ranks have saved it together.
        start: what the task goes on from next; ``None`` is the beginning.
        reason: kept with the attempt, for people.

    Raises:
        TierError: the fence tier failed.
    """
    attempt = lineage.claim()
    lineage.record_resume(attempt, start)
    step = start.step if start else None
    outcome = {"outcome": SET_BACK, "step": step, "resumed_step": step, "reason": reason}
    lineage.record_end(attempt, outcome)
    return attempt


def checkpoint_of_step(lineage: Lineage, step: int) -> CheckpointId:
    """Return the newest checkpoint or set of a step that is not void.

    Raises:
        NotFoundError: there is none; the message names the steps there are.
        TierError: no tier could be listed.
    """
    known = list(_newest_first(lineage))
    for one in known:
        if one.step == step:
            return one
    steps = ", ".join(str(one.step) for one in known[:_SHOWN_MAX]) or "none"
    raise NotFoundError(
        f"{lineage.id} has no checkpoint of step {step} that counts; it has {steps}."
    )


def newest_checkpoint(lineage: Lineage) -> CheckpointId | None:
    """Return the newest checkpoint or complete set that counts, if there is one.

    Raises:
        TierError: no tier could be listed.
    """
    return next(_newest_first(lineage), None)


def _newest_first(lineage: Lineage) -> Iterator[CheckpointId]:
    if saved_together(lineage) is None:
        return (one.id for one in lineage.valid_newest_first())
    return (one.id for one in ShardSets(lineage.tiers, lineage.id).newest_first())
