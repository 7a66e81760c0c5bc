"""Delete what the retention policy does not keep, and nothing that anything else needs.

Order within a tier: manifests first, then packs that no remaining manifest names; so a crash
in between leaves garbage, never a checkpoint without its bytes. A pack that no manifest
names may belong to a checkpoint being written, so it is deleted only when its attempt has
been overtaken, or when the same attempt has committed a later step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from ckptflow.errors import CorruptionError, FormatError, NotFoundError
from ckptflow.model import CheckpointId, Manifest
from ckptflow.policy.retention import Candidate, Retention, Verdict, retain
from ckptflow.store.catalog import Found, Lineage
from ckptflow.tiers.tier import Tier


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a prune of one tier deletes.

    Attributes:
        tier: name of the tier.
        verdicts: one per checkpoint on the tier, with reasons, the newest first.
        manifests: absolute keys to delete first.
        packs: absolute keys to delete then.
        freed_bytes: size of those packs.
    """

    tier: str
    verdicts: tuple[Verdict, ...]
    manifests: tuple[str, ...]
    packs: tuple[str, ...]
    freed_bytes: int


def plan_prune(
    lineage: Lineage,
    tier: Tier,
    retention: Retention,
    *,
    in_flight: Collection[CheckpointId] = (),
) -> PrunePlan:
    """Decide what to delete from ``tier``. Nothing is touched.

    Args:
        lineage: whose checkpoints.
        tier: where.
        retention: what the policy keeps.
        in_flight: checkpoints that are being copied outward from this tier, and stay.
    """
    here = [found for found in lineage.checkpoints() if tier in found.tiers]
    manifests = {found.id: _manifest_here(lineage, tier, found) for found in here}
    prefix = f"{lineage.id.prefix}/"
    present = {key.removeprefix(prefix) for key in tier.iter_keys(f"{prefix}packs")}
    verdicts = retain(
        [_candidate(found, manifests[found.id], present) for found in here], retention
    )
    verdicts = [
        replace(verdict, keep=True, reasons=("is being copied outward",))
        if verdict.id in in_flight and not verdict.keep
        else verdict
        for verdict in verdicts
    ]
    keep = {verdict.id for verdict in verdicts if verdict.keep}
    needed: set[str] = set()
    unknown = False
    for checkpoint in keep:
        manifest = manifests[checkpoint]
        if manifest is None:
            unknown = True  # A kept manifest that cannot be read may need any pack.
        else:
            needed |= {pack.key for pack in manifest.packs}
    newest = max((found.id for found in here if not found.void), default=None)
    # A writer that was overtaken after its packs but before its commit leaves a void manifest
    # only if the resume record is there; before that its packs stay.
    resumed = [record.attempt for record in lineage.attempts() if record.resume is not None]
    newest_attempt = max(resumed, default=0)
    doomed = [
        key
        for key in sorted(present - needed)
        if not unknown and _is_finished(CheckpointId.of_pack(key), newest, newest_attempt)
    ]
    return PrunePlan(
        tier=tier.name,
        verdicts=tuple(verdicts),
        manifests=tuple(
            f"{lineage.id.prefix}/{found.id.manifest_key}"
            for found in here
            if found.id not in keep
        ),
        packs=tuple(f"{lineage.id.prefix}/{key}" for key in doomed),
        freed_bytes=sum(tier.size(f"{lineage.id.prefix}/{key}") for key in doomed),
    )


def prune(
    lineage: Lineage,
    tier: Tier,
    retention: Retention,
    *,
    in_flight: Collection[CheckpointId] = (),
    on_deleted: Callable[[str], None] = lambda _key: None,
) -> PrunePlan:
    """Carry out `plan_prune` and return the plan."""
    plan = plan_prune(lineage, tier, retention, in_flight=in_flight)
    for key in (*plan.manifests, *plan.packs):
        tier.delete(key)
        on_deleted(key)
    return plan


def _manifest_here(lineage: Lineage, tier: Tier, found: Found) -> Manifest | None:
    try:
        return lineage.manifest(Found(found.id, (tier,), found.void))
    except (CorruptionError, FormatError, NotFoundError):
        return None


def _candidate(found: Found, manifest: Manifest | None, present: set[str]) -> Candidate:
    whole = manifest is not None and all(pack.key in present for pack in manifest.packs)
    metrics = manifest.metrics if manifest else {}
    return Candidate(id=found.id, metrics=metrics, good=whole, void=found.void)


def _is_finished(
    owner: CheckpointId | None, newest: CheckpointId | None, newest_attempt: int
) -> bool:
    """Tell whether no writer can still be about to name this pack in a manifest."""
    if owner is None:
        return False
    if owner.attempt < newest_attempt:
        return True
    return newest is not None and owner.attempt == newest.attempt and owner.step <= newest.step
