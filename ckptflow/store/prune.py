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
    known = known or Known()
    plan = plan_prune(
        lineage,
        tier,
        retention,
        in_flight=in_flight,
        proven=proven,
        known=known,
        now=now,
    )
    judge = partial(_judge, retention=retention, in_flight=in_flight, proven=proven)
    deletion = _Deletion(lineage, tier, known, judge, on_deleted, now)
    if plan.manifests or plan.packs:
        plan = deletion.carry_out(plan)
    if plan.manifests:
        lift_deleted(lineage)
    deletion.sweep(plan)
    return plan


@dataclass(frozen=True, slots=True)
class _Deletion:
    """What a prune deletes, after a second look that others know of."""

    lineage: Lineage
    tier: Tier
    known: Known
    judge: Callable[[Inventory], list[Verdict]]
    on_deleted: Callable[[str], None]
    now: Callable[[], datetime]

    @property
    def prefix(self) -> str:
        return f"{self.lineage.id.prefix}/"

    def carry_out(self, plan: PrunePlan) -> PrunePlan:
        """Delete what of a plan still holds; return that, as far as there was time."""
        packs = [key.removeprefix(self.prefix) for key in plan.packs]
        gone: tuple[str, ...] = ()
        with contextlib.ExitStack() as stack:
            deadline = self.now() + DELETE_WITHIN
            try:
                own = stack.enter_context(announced(self.tier, self.lineage.id, packs))
            except TierFull:  # Not even that fits.
                gone, plan = self._make_room(plan), replace(plan, notices=())
                deadline = self.now() + DELETE_WITHIN
                own = stack.enter_context(announced(self.tier, self.lineage.id, packs))
            seen = look(self.lineage, self.tier, self.known, now=self.now, but=own)
            plan = self._confirmed(plan, seen)
            held = _held(self.tier)  # Anew: a stripe may have been made since.
            loose = [key for key in plan.packs if key not in held]
            plan = self._with_packs(plan, seen, loose)
            went = self._delete(plan.manifests, until=deadline)
            if went != plan.manifests:  # Too late. Those that stay may need any of the packs.
                plan = self._with_packs(replace(plan, manifests=went), seen, ())
            if plan.packs and isinstance(self.tier, Settling):
                # Else a power cut could bring a manifest back, whoever deleted it, and not its
                # packs.
                self.tier.settle(f"{self.prefix}manifests")
            packs_gone = self._delete(plan.packs, until=deadline)
            plan = self._with_packs(plan, seen, packs_gone)
        return replace(plan, manifests=(*gone, *plan.manifests))

    def sweep(self, plan: PrunePlan) -> None:
        """Delete what writers that were killed have left."""
        self._delete(plan.notices)
        if isinstance(self.tier, Sweeping):
            self.tier.sweep(self.lineage.id.prefix)

    def _make_room(self, plan: PrunePlan) -> tuple[str, ...]:
        """Delete remains, and manifests, which no other checkpoint needs; return these."""
        deadline = self.now() + DELETE_WITHIN
        self.sweep(plan)
        seen = look(self.lineage, self.tier, self.known, now=self.now)
        return self._delete(self._confirmed(plan, seen).manifests, until=deadline)

    def _confirmed(self, plan: PrunePlan, seen: Inventory) -> PrunePlan:
        """Return what of a plan still holds after a second look."""
        cut = len(self.prefix)
        verdicts = self.judge(seen)
        still = {self.prefix + one.id.manifest_key for one in verdicts if not one.keep}
        going = tuple(key for key in plan.manifests if key in still)
        kept = [
            one for one in seen.here if self.prefix + one.found.id.manifest_key not in going
        ]
        needed = _needed(kept)
        packs = [
            key
            for key in plan.packs
            if needed is not None
            and key[cut:] not in needed
            and not seen.notices.protects(key[cut:])
        ]
        return self._with_packs(replace(plan, manifests=going), seen, packs)

    def _with_packs(
        self, plan: PrunePlan, seen: Inventory, packs: Collection[str]
    ) -> PrunePlan:
        """Return a plan that deletes no more than some of its packs; the others are there."""
        if not packs:
            return replace(plan, packs=(), freed_bytes=0)
        sizes, stay = _sizes(seen), {*plan.packs}.difference(packs)
        spared = sum(
            sizes.get(key.removeprefix(self.prefix)) or _size(self.tier, key) for key in stay
        )
        return replace(plan, packs=tuple(packs), freed_bytes=plan.freed_bytes - spared)

    def _delete(self, keys: Iterable[str], *, until: datetime | None = None) -> tuple[str, ...]:
        """Delete some keys while there is time; return those that were.

        After that others may take the announcement for that of a dead process.
        """
        done = []
        for key in keys:
            if until is not None and self.now() > until:
                break
            self.tier.delete(key)
            self.on_deleted(key)
            done.append(key)
        return tuple(done)


def _sizes(seen: Inventory) -> dict[str, int]:
    """Return the sizes of the packs that any manifest names."""
    needs = (one.needs.packs for one in seen.here if one.needs)
    return {pack.key: pack.size_bytes for packs in needs for pack in packs}


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
    candidates = [_candidate(one, seen) for one in seen.here if not one.foreign]
    candidates += [Candidate(id=one) for one in seen.elsewhere]
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


def _candidate(one: Here, seen: Inventory) -> Candidate:
    needs = one.needs
    lacks = seen.complete is not None and one.found.id not in seen.complete
    return Candidate(
        id=one.found.id,
        metrics=needs.metrics if needs else {},
        good=one.whole and not lacks,
        flaw="not known to be complete" if one.whole else "damaged",
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
