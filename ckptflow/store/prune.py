"""Delete what the retention policy does not keep, and nothing that anything else needs.

Order within a tier: manifests first, then packs that no remaining manifest names; so a crash
in between leaves garbage, never a checkpoint without its bytes. A pack that no manifest
names may belong to a checkpoint being written, so it is deleted only when its attempt has
been overtaken, or when the same attempt has committed a later step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ckptflow.errors import CorruptionError, FormatError, NotFoundError
from ckptflow.model import CheckpointId, Manifest
from ckptflow.policy.retention import Candidate, Retention, Verdict, retain
from ckptflow.store.catalog import Found, Lineage
from ckptflow.tiers.tier import Settling, Sweeping, Tier


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
        in_flight: checkpoints that are being copied, from this tier or to it; they stay.

    Raises:
        TierError: something could not be read; then nothing can be decided.
    """
    prefix = f"{lineage.id.prefix}/"
    here = _read_all(lineage, tier)  # Manifests before packs: what is named later is newer.
    present = {key.removeprefix(prefix) for key in tier.iter_keys(f"{prefix}packs")}
    verdicts = _judge(here, present, retention, in_flight)
    keep = {verdict.id for verdict in verdicts if verdict.keep}
    kept = [one.manifest for one in here if one.found.id in keep]
    needed = {pack.key for manifest in kept if manifest for pack in manifest.packs}
    newest = max((one.found.id for one in here if not one.found.void), default=None)
    # A writer that was overtaken after its packs but before its commit leaves a void manifest
    # only if the resume record is there; before that its packs stay.
    newest_attempt = lineage.newest_resumed()
    doomed = [
        key
        for key in sorted(present - needed)
        if None not in kept  # A kept manifest that cannot be read may need any pack.
        and _is_finished(CheckpointId.of_pack(key), newest, newest_attempt, in_flight)
    ]
    return PrunePlan(
        tier=tier.name,
        verdicts=tuple(verdicts),
        manifests=tuple(
            prefix + verdict.id.manifest_key for verdict in verdicts if not verdict.keep
        ),
        packs=tuple(prefix + key for key in doomed),
        freed_bytes=sum(_size(tier, prefix + key) for key in doomed),
    )


def prune(
    lineage: Lineage,
    tier: Tier,
    retention: Retention,
    *,
    in_flight: Collection[CheckpointId] = (),
    on_deleted: Callable[[str], None] = lambda _key: None,
) -> PrunePlan:
    """Carry out `plan_prune` and return the plan; sweep up after killed writers."""
    plan = plan_prune(lineage, tier, retention, in_flight=in_flight)
    _delete(tier, plan.manifests, on_deleted)
    if plan.packs and isinstance(tier, Settling):
        # Else a power cut could bring a manifest back, whoever deleted it, and not its packs.
        tier.settle(f"{lineage.id.prefix}/manifests")
    _delete(tier, plan.packs, on_deleted)
    if isinstance(tier, Sweeping):
        tier.sweep(lineage.id.prefix)
    return plan


def _delete(tier: Tier, keys: Sequence[str], on_deleted: Callable[[str], None]) -> None:
    for key in keys:
        tier.delete(key)
        on_deleted(key)


@dataclass(frozen=True, slots=True)
class _Here:
    """A checkpoint on the tier; without a manifest if that is damaged or foreign."""

    found: Found
    manifest: Manifest | None
    foreign: bool = False  # Sound, but of a format that this version cannot read.


def _read_all(lineage: Lineage, tier: Tier) -> list[_Here]:
    """Read every manifest on the tier, the newest first.

    A manifest that does not answer now is not damaged: its `TierError` ends the prune.
    """
    here = []
    for found in lineage.checkpoints_on(tier):
        try:
            here.append(_Here(found, lineage.manifest_on(tier, found.id)))
        except CorruptionError:
            here.append(_Here(found, None))
        except FormatError:
            here.append(_Here(found, None, foreign=True))
        except NotFoundError:  # Another prune was faster.
            continue
    return here


def _judge(
    here: Sequence[_Here],
    present: Collection[str],
    retention: Retention,
    in_flight: Collection[CheckpointId],
) -> list[Verdict]:
    judged = retain([_candidate(one, present) for one in here if not one.foreign], retention)
    verdicts = {verdict.id: verdict for verdict in judged}
    result = []
    for one in here:
        verdict = verdicts.get(one.found.id)
        if verdict is None:
            reason = "is of a format that this version cannot read"
            verdict = Verdict(one.found.id, keep=True, reasons=(reason,))
        elif one.found.id in in_flight and not verdict.keep:
            verdict = replace(verdict, keep=True, reasons=("is being copied outward",))
        result.append(verdict)
    return result


def _candidate(one: _Here, present: Collection[str]) -> Candidate:
    manifest, found = one.manifest, one.found
    whole = manifest is not None and all(pack.key in present for pack in manifest.packs)
    metrics = manifest.metrics if manifest else {}
    return Candidate(id=found.id, metrics=metrics, good=whole, void=found.void)


def _size(tier: Tier, key: str) -> int:
    try:
        return tier.size(key)
    except NotFoundError:  # Another prune was faster.
        return 0


def _is_finished(
    owner: CheckpointId | None,
    newest: CheckpointId | None,
    newest_attempt: int,
    in_flight: Collection[CheckpointId],
) -> bool:
    """Tell whether no writer can still be about to name this pack in a manifest."""
    if owner is None or owner in in_flight:
        return False
    if owner.attempt < newest_attempt:
        return True
    return newest is not None and owner.attempt == newest.attempt and owner.step <= newest.step
