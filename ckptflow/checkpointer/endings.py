"""What a task hands on when it has made a state, or has to stop."""

from __future__ import annotations

from collections.abc import Sequence

from ckptflow.errors import CheckpointError, NotFoundError, Preempted
from ckptflow.flush import copy_checkpoint
from ckptflow.model import SHARED_LEVEL, Export, LineageId, Manifest
from ckptflow.store.catalog import Found, Lineage


def export_of(lineage: Lineage, step: int) -> Export:
    """Return a reference to the checkpoint of a step, on a tier that all nodes see.

    Raises:
        NotFoundError: there is none.
        TierError: it could not be brought there.
    """
    found = lineage.valid_of_step(step)
    if not found:
        raise NotFoundError(f"{lineage.id} has no checkpoint of step {step}.")
    manifest = lineage.manifest(found[0])
    _share(lineage, found[0], manifest)
    return Export(
        run=lineage.id.run,
        task=lineage.id.task,
        step=step,
        root=manifest.root.hex(),
        state_bytes=manifest.state_bytes,
        tiers=tuple(tier.spec for tier in lineage.tiers),
    )


def _share(lineage: Lineage, found: Found, manifest: Manifest) -> None:
    """Bring what is exported to a tier that all nodes see, if there is one."""
    shared = [tier for tier in lineage.tiers if tier.level >= SHARED_LEVEL]
    if shared and not any(tier in found.tiers for tier in shared):
        copy_checkpoint(found.tiers, shared[0], lineage.id, manifest)


def preempted(
    task: LineageId,
    step: int,
    reason: str,
    *,
    saved: Sequence[int],
    resumed_step: int | None,
    failure: CheckpointError | None,
) -> Preempted:
    """Return what a task raises that was asked to stop.

    Args:
        task: which.
        step: where it was.
        reason: why.
        saved: steps that are durable.
        resumed_step: where it had begun; ``None``: at nothing.
        failure: of the last save.
    """
    last = max(saved, default=-1)
    what = f"step {last} is saved" if last >= 0 else "nothing is saved"
    error = Preempted(
        f"{task} stopped at step {step} ({reason}); {what}.",
        task=str(task),
        step=last,
        resumed_step=resumed_step,
    )
    if failure is not None:
        error.add_note(f"A save failed: {failure}")
    return error
