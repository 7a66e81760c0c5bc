"""Delete what the retention policy does not keep, and nothing that anything else needs.

Order within a tier: manifests first, then packs that no remaining manifest names; so a crash
in between leaves garbage, never a checkpoint without its bytes. A pack that no manifest
names may belong to a checkpoint being written, so it is deleted only when its attempt has
been overtaken, or when the same attempt has committed a later step, and nothing holds it.

Writers, copies, consolidations and other prunes may be at work on the same tier, in other
processes. A prune first announces which packs it is about to delete, then looks again at
holds and manifests, and spares what has come to be needed; who needs something looks at
announcements after he has said so. See `ckptflow.store.guards`, and "Guards" in
``docs/reference/format-v1.md``; ``tests/unit/test_prune.py`` and
``tests/stateful/test_upkeep.py``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from ckptflow.errors import NotFoundError, TierFull
from ckptflow.model import CheckpointId
from ckptflow.policy.retention import Candidate, Retention, Verdict, retain
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import store_id
from ckptflow.store.guards import DELETE_WITHIN, announced
from ckptflow.store.inventory import Here, Inventory, Known, look
from ckptflow.store.quarantine import lift_deleted
from ckptflow.store.redundancy.release import held_keys
from ckptflow.tiers.tier import Dependent, Settling, Sweeping, Tier


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a prune of one tier deletes.

    Attributes:
        tier: name of the tier.
        verdicts: one per checkpoint on the tier, with reasons, the newest first.
        manifests: absolute keys to delete first.
        packs: absolute keys to delete then.
        freed_bytes: size of those packs.
        kept_bytes: size of the packs that the checkpoints which stay need.
        notices: absolute keys of notices whose writers are gone.
    """

    tier: str
    verdicts: tuple[Verdict, ...]
    manifests: tuple[str, ...]
    packs: tuple[str, ...]
    freed_bytes: int
    kept_bytes: int = 0
    notices: tuple[str, ...] = ()


def plan_prune(
    lineage: Lineage,
    tier: Tier,
    retention: Retention,
    *,
    in_flight: Collection[CheckpointId] = (),
    proven: Collection[CheckpointId] = (),
    known: Known | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> PrunePlan:
    """Decide what to delete from ``tier``. Nothing is touched.

    Args:
        lineage: whose checkpoints.
        tier: where.
        retention: what the policy keeps.
        in_flight: checkpoints that are being copied, from this tier or to it; they stay.
        proven: checkpoints that were read as a whole and found sound, by a restore or a
            verification; the newest of them stays until a newer one is proven.
        known: of the same lineage and tier; spares reading manifests that were read before.
        now: the clock, UTC.

    Raises:
        TierError: something could not be read; then nothing can be decided.
    """
    if isinstance(tier, Dependent):
        return PrunePlan(tier.name, (), (), (), 0)
    prefix = f"{lineage.id.prefix}/"
    seen = look(lineage, tier, known or Known(), now=now)
    verdicts = _judge(seen, retention, in_flight, proven)
    dropped = {verdict.id for verdict in verdicts if not verdict.keep}
    kept = [one for one in seen.here if one.found.id not in dropped]
    needed = _needed(kept)
    newest = max((one.found.id for one in seen.here if not one.found.void), default=None)
    # A writer that was overtaken after its packs but before its commit leaves a void manifest
    # only if the resume record is there; before that its packs stay.
    newest_attempt = lineage.newest_resumed()
    held = _held(tier)
    doomed = [
        key
        for key in sorted(seen.packs.difference(seen.packs if needed is None else needed))
        if prefix + key not in held
        if not seen.notices.protects(key)
        and _is_finished(CheckpointId.of_pack(key), newest, newest_attempt, in_flight)
    ]
    sizes = _sizes(seen)
    return PrunePlan(
        tier=tier.name,
        verdicts=tuple(verdicts),
        manifests=tuple(
            prefix + verdict.id.manifest_key for verdict in verdicts if not verdict.keep
        ),
        packs=tuple(prefix + key for key in doomed),
        freed_bytes=sum(sizes.get(key) or _size(tier, prefix + key) for key in doomed),
        kept_bytes=sum(sizes[key] for key in needed or () if key in sizes),
        notices=tuple(seen.notices.outdated),
    )


def prune(
    lineage: Lineage,
    tier: Tier,
    retention: Retention,
    *,
    in_flight: Collection[CheckpointId] = (),
    proven: Collection[CheckpointId] = (),
    known: Known | None = None,
    on_deleted: Callable[[str], None] = lambda _key: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> PrunePlan:
    """Carry out `plan_prune`, which has the other arguments; sweep up after killed writers.

    Args:
        lineage: whose checkpoints.
        tier: where.
        retention: what the policy keeps.
        in_flight: checkpoints that are being copied.
        proven: checkpoints that were found sound.
        known: of the same lineage and tier.
        on_deleted: told the key of each object that was deleted.
        now: the clock, UTC; what is not deleted soon after the announcement stays.

    Returns:
        The plan, without what had come to be needed since it was made.

    Raises:
        TierError: the tier failed. What was deleted was needless; the rest is still there.
    """
    if isinstance(tier, Dependent):
        tier.tidy()
        return PrunePlan(tier.name, (), (), (), 0)
    known, prefix = known or Known(), f"{lineage.id.prefix}/"
    deadline = now()  # Counted from each announcement.

    def in_time(keys: Sequence[str]) -> Iterable[str]:
        # Later others may take the announcement for that of a dead process.
        return itertools.takewhile(lambda _: now() <= deadline, keys)

    judge = partial(_judge, retention=retention, in_flight=in_flight, proven=proven)
    plan = plan_prune(
        lineage,
        tier,
        retention,
        in_flight=in_flight,
        proven=proven,
        known=known,
        now=now,
    )
    if plan.manifests or plan.packs:
        packs = [key.removeprefix(prefix) for key in plan.packs]
        gone: tuple[str, ...] = ()
        with contextlib.ExitStack() as stack:
            deadline = now() + DELETE_WITHIN
            try:
                own = stack.enter_context(announced(tier, lineage.id, packs))
            except TierFull:  # Not even that fits: what nobody needs at all makes room.
                _delete(tier, plan.notices, on_deleted)
                if isinstance(tier, Sweeping):
                    tier.sweep(lineage.id.prefix)
                seen = look(lineage, tier, known, now=now)
                gone = _confirmed(plan, seen, judge(seen), prefix).manifests
                gone = _delete(tier, in_time(gone), on_deleted)
                deadline = now() + DELETE_WITHIN
                own = stack.enter_context(announced(tier, lineage.id, packs))
            seen = look(lineage, tier, known, now=now, but=own)
            plan = _confirmed(plan, seen, judge(seen), prefix)
            held = _held(tier)  # Anew: a stripe may have been made since.
            plan = _with_packs(
                plan, seen, prefix, [key for key in plan.packs if key not in held]
            )
            went = _delete(tier, in_time(plan.manifests), on_deleted)
            if went != plan.manifests:  # Out of time: what the others need was not looked at.
                plan = _with_packs(replace(plan, manifests=went), seen, prefix, ())
            if plan.packs and isinstance(tier, Settling):
                # Else a power cut could bring a manifest back, whoever deleted it, and not its
                # packs.
                tier.settle(f"{lineage.id.prefix}/manifests")
            plan = _with_packs(
                plan, seen, prefix, _delete(tier, in_time(plan.packs), on_deleted)
            )
        plan = replace(plan, manifests=(*gone, *plan.manifests))
    if plan.manifests:
        lift_deleted(lineage)
    _delete(tier, plan.notices, on_deleted)
    if isinstance(tier, Sweeping):
        tier.sweep(lineage.id.prefix)
    return plan


def _confirmed(
    plan: PrunePlan, seen: Inventory, verdicts: Sequence[Verdict], prefix: str
) -> PrunePlan:
    """Return what of a plan still holds after a second look."""
    still = {prefix + verdict.id.manifest_key for verdict in verdicts if not verdict.keep}
    going = tuple(key for key in plan.manifests if key in still)
    kept = [one for one in seen.here if prefix + one.found.id.manifest_key not in going]
    needed = _needed(kept)
    packs = [
        key
        for key in plan.packs
        if needed is not None
        and key.removeprefix(prefix) not in needed
        and not seen.notices.protects(key.removeprefix(prefix))
    ]
    return _with_packs(replace(plan, manifests=going), seen, prefix, packs)


def _with_packs(
    plan: PrunePlan, seen: Inventory, prefix: str, packs: Collection[str]
) -> PrunePlan:
    """Return a plan that deletes no more than some of its packs."""
    sizes, stay = _sizes(seen), {*plan.packs}.difference(packs)
    spared = sum(sizes.get(key.removeprefix(prefix), 0) for key in stay)
    freed_bytes = plan.freed_bytes - spared if packs else 0
    return replace(plan, packs=tuple(packs), freed_bytes=freed_bytes)


def _sizes(seen: Inventory) -> dict[str, int]:
    """Return the sizes of the packs that any manifest names."""
    needs = (one.needs.packs for one in seen.here if one.needs)
    return {pack.key: pack.size_bytes for packs in needs for pack in packs}


def _delete(
    tier: Tier, keys: Iterable[str], on_deleted: Callable[[str], None]
) -> tuple[str, ...]:
    """Delete some keys; return those that were."""
    done = []
    for key in keys:
        tier.delete(key)
        on_deleted(key)
        done.append(key)
    return tuple(done)


def _needed(kept: Sequence[Here]) -> set[str] | None:
    """Return the packs that some checkpoints need; ``None`` if one of them may need any."""
    if any(one.needs is None for one in kept):
        return None
    return {pack.key for one in kept if one.needs for pack in one.needs.packs}


def _judge(
    seen: Inventory,
    retention: Retention,
    in_flight: Collection[CheckpointId],
    proven: Collection[CheckpointId],
) -> list[Verdict]:
    stays = dict.fromkeys(in_flight, "is being copied outward")
    stays |= dict.fromkeys(seen.notices.checkpoints, "is in use elsewhere")
    candidates = [_candidate(one) for one in seen.here if not one.foreign]
    good = [one.id for one in candidates if one.good and not one.void]
    if sound := [one for one in good if one in proven]:
        stays.setdefault(max(sound), "the newest that was read as a whole and found sound")
    if usable := [one for one in good if one not in seen.quarantined]:
        stays.setdefault(max(usable), "the newest that is not quarantined")
    judged = retain(candidates, retention, stays=stays)
    verdicts = {verdict.id: verdict for verdict in judged}
    foreign = ("is of a format that this version cannot read",)
    return [
        verdicts.get(one.found.id) or Verdict(one.found.id, keep=True, reasons=foreign)
        for one in seen.here
    ]


def _candidate(one: Here) -> Candidate:
    needs = one.needs
    return Candidate(
        id=one.found.id,
        metrics=needs.metrics if needs else {},
        good=one.whole,
        void=one.found.void,
        packs={pack.key: pack.size_bytes for pack in needs.packs} if needs else {},
    )


def _held(tier: Tier) -> Collection[str]:
    """Return keys of packs that stay, since other nodes' checkpoints are rebuilt with them."""
    try:
        return held_keys(tier, store_id(tier))
    except NotFoundError:  # No store, no member.
        return ()


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
