"""Write damaged and missing objects of checkpoints again, from copies that are sound.

For each copy of a checkpoint: the packs that are missing or damaged, and only when all of them
are sound the manifest, if that is damaged. An object is read from another tier, or from a
*spare* (a redundancy set that can rebuild it), compared with all its digests, and then put
under its key in one step; the damaged one is never deleted first. So a crash at any moment
leaves each object as it was or mended, and whoever repeats the repair goes on from there.
``tests/unit/test_repair.py``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from ckptflow import manifest as manifest_file
from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError, TierError
from ckptflow.model import CheckpointId, Manifest, PackRef
from ckptflow.store.catalog import Found, Lineage, decode_manifest
from ckptflow.store.checking.packs import PackCheck, PackChecker, check_pack
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.find import is_there
from ckptflow.store.guards import hold
from ckptflow.store.quarantine import failures, lift_all
from ckptflow.store.verify import verify_copy
from ckptflow.tiers.tier import Dependent, Tier
from ckptflow.units import MIB

_PIECE_BYTES = 8 * MIB
_READINGS_MAX = 4  # Of a manifest that is replaced again and again.
_FAILED = (CorruptionError, NotFoundError, TierError)


class Spare(Protocol):
    """Something that may be able to make an object again. What it gives is not trusted."""

    @property
    def name(self) -> str:
        """What it is called in reports."""
        ...

    def object(self, key: str) -> bytes | None:
        """Return the object under a key of the store, or ``None`` if it cannot.

        Raises:
            TierError: it may be able to, but not now.
        """
        ...


@dataclass(frozen=True, slots=True)
class Mended:
    """An object that was put again, or with a dry run would be."""

    tier: str
    key: str
    size_bytes: int
    source: str  # Name of the tier or spare that it was read from.
    why: str  # What was wrong with it.


@dataclass(frozen=True, slots=True)
class Lost:
    """An object that is missing or damaged, and why it was not put again."""

    tier: str
    key: str
    reasons: tuple[str, ...]


@dataclass(slots=True)
class RepairReport:
    """What a repair of one lineage did.

    Attributes:
        mended: objects, in the order in which they were put.
        lost: objects that no source could give, or no tier take.
        sound: copies of checkpoints whose objects are all sound now, by id and tier.
    """

    mended: list[Mended] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    sound: list[tuple[CheckpointId, str]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to mend."""
        return not self.lost


def repair(
    lineage: Lineage,
    checkpoints: Sequence[Found],
    *,
    spares: Sequence[Spare] = (),
    everywhere: bool = False,
    dry_run: bool = False,
    on_checkpoint: Callable[[CheckpointId], None] = lambda _id: None,
    note: Callable[[str], None] = lambda _text: None,
) -> RepairReport:
    """Mend the copies of some checkpoints, from each other and from spares.

    Args:
        lineage: whose.
        checkpoints: which.
        spares: asked when no tier has a sound copy of an object.
        everywhere: put copies on tiers, too, that have no manifest of a checkpoint.
        dry_run: find out what would be done, and change nothing.
        on_checkpoint: told of each when all its copies were looked at.
        note: told what else went wrong, in a sentence.

    What is sound then is not quarantined any more. Nothing is raised for what cannot be mended:
    that is in the report. A tier that does not answer is not mended, and its bytes are not
    taken for damaged.
    """
    threads = min(4, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads, "ckptflow-repair") as pool:
        work = _Repair(lineage, spares, pool, dry_run=dry_run)
        for found in sorted(checkpoints, key=lambda one: one.id):
            tiers = lineage.tiers if everywhere and not found.void else found.tiers
            work.mend_checkpoint(found, tiers)
            on_checkpoint(found.id)
    if not dry_run:
        _lift(lineage, work.report, note)
    return work.report


def _lift(lineage: Lineage, report: RepairReport, note: Callable[[str], None]) -> None:
    """Lift the quarantine of what is sound up to its roots, which a repair does not look at."""
    try:
        failed = failures(lineage)
    except CheckpointError as error:
        note(f"{lineage.id}: what is quarantined could not be found out: {error}")
        return
    tiers = {tier.name: tier for tier in lineage.tiers}
    sound = {
        checkpoint
        for checkpoint, tier in report.sound
        if checkpoint in failed and verify_copy(tiers[tier], lineage, checkpoint).sound
    }
    lift_all(lineage, sound, note=note)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A sound manifest, and where it came from."""

    source: str
    data: bytes
    manifest: Manifest


class _Repair:
    """A repair of one lineage: what was found out about packs is used for all checkpoints."""

    def __init__(
        self,
        lineage: Lineage,
        spares: Sequence[Spare],
        pool: ThreadPoolExecutor,
        *,
        dry_run: bool,
    ) -> None:
        self._lineage, self._spares, self._dry_run = lineage, spares, dry_run
        self._prefix = f"{lineage.id.prefix}/"
        self._checkers = {
            tier.name: PackChecker(tier, lineage.id, pool, piece_bytes=_PIECE_BYTES)
            for tier in lineage.tiers
        }
        self._outcomes: dict[tuple[str, PackRef], bool] = {}  # Of packs that were not sound.
        self.report = RepairReport()

    def mend_checkpoint(self, found: Found, tiers: Sequence[Tier]) -> None:
        """Mend the copies of one checkpoint on some tiers.

        Redundancy is not mended here: its scrubbing does that.
        """
        copies: dict[str, _Copy] = {}
        problems: dict[str, CheckpointError] = {}
        for tier in tiers:
            try:
                copies[tier.name] = self._copy_on(tier, found.id)
            except CheckpointError as error:
                problems[tier.name] = error
        for tier in tiers:
            if isinstance(tier, Dependent):
                continue  # What it gives depends on other tiers: it is a source.
            problem, listed = problems.get(tier.name), tier in found.tiers
            if problem is None:
                whole = self._mend_own(tier, copies[tier.name])
            elif isinstance(problem, NotFoundError) and listed:
                continue  # A live run has pruned it meanwhile; it is not to come back.
            elif isinstance(problem, CorruptionError | NotFoundError):
                whole = self._mend_manifest(tier, found, copies, problem, listed=listed)
            else:
                whole = self._lose(tier, found.id.manifest_key, [str(problem)])
            if whole:
                self.report.sound.append((found.id, tier.name))

    # --- manifests ---

    def _copy_on(self, tier: Tier, checkpoint: CheckpointId) -> _Copy:
        key = self._prefix + checkpoint.manifest_key
        data = tier.get(key, size_bytes=manifest_file.OBJECT_BYTES_MAX + 1)
        return self._copy(tier.name, data, checkpoint)

    def _copy(self, source: str, data: bytes, checkpoint: CheckpointId) -> _Copy:
        where = f"{self._prefix + checkpoint.manifest_key!r} from {source!r}"
        manifest = decode_manifest(data, self._lineage.id, checkpoint, where=where)
        return _Copy(source, data, manifest)

    def _mend_manifest(
        self,
        tier: Tier,
        found: Found,
        copies: dict[str, _Copy],
        problem: CheckpointError,
        *,
        listed: bool,
    ) -> bool:
        reasons, key = [str(problem)], found.id.manifest_key

        def stands() -> bool:
            return not listed or self._is_there(tier, found.id)  # Else it was pruned meanwhile.

        for copy in [*copies.values(), *self._spare_copies(found.id, reasons)]:
            try:
                with self._hold(tier, copy.manifest) as confirm:
                    if self._mend_packs(tier, copy.manifest, stands=stands):
                        if not stands():
                            return False
                        confirm()
                        return self._put(
                            tier, self._prefix + key, copy.data, copy.source, str(problem)
                        )
            except TierError as error:
                return self._lose(tier, key, [*reasons, str(error)])
            reasons.append(f"Packs that the one of {copy.source!r} names are lost.")
        return self._lose(tier, key, reasons)

    @contextlib.contextmanager
    def _hold(self, tier: Tier, manifest: Manifest) -> Iterator[Callable[[], None]]:
        """Until the manifest is there nothing else keeps its packs from a prune elsewhere."""
        if self._dry_run:
            yield lambda: None
            return
        ensure_store(tier)
        packs = [pack.key for pack in manifest.packs]
        with hold(tier, self._lineage.id, manifest.id, packs) as holding:
            yield lambda: holding.confirm(found=True)

    def _spare_copies(self, checkpoint: CheckpointId, reasons: list[str]) -> Iterator[_Copy]:
        """Yield the manifests that spares can make, if they are those of the checkpoint."""
        for spare in self._spares:
            try:
                data = spare.object(self._prefix + checkpoint.manifest_key)
                if data is not None:
                    yield self._copy(spare.name, data, checkpoint)
            except CheckpointError as error:
                reasons.append(str(error))

    def _is_there(self, tier: Tier, checkpoint: CheckpointId) -> bool:
        try:
            return is_there(tier, self._lineage.id, checkpoint)
        except TierError:  # Then the put will fail, and say so.
            return True

    # --- packs ---

    def _mend_own(self, tier: Tier, copy: _Copy) -> bool:
        """Mend the packs that a sound manifest names, or that which has replaced it."""
        for _ in range(_READINGS_MAX):
            last = copy.data

            def stands(copy: _Copy = copy) -> bool:
                return self._now(tier, copy) == copy

            if self._mend_packs(tier, copy.manifest, stands=stands):
                return True
            copy = self._now(tier, copy) or copy
            if copy.data == last:
                break
        return False

    def _now(self, tier: Tier, copy: _Copy) -> _Copy | None:
        """Return the manifest that is there now; none if it is gone, or damaged by now."""
        try:
            return self._copy_on(tier, copy.manifest.id)
        except TierError:  # Then a put will fail, and say so.
            return copy
        except CheckpointError:
            return None

    def _mend_packs(
        self, tier: Tier, manifest: Manifest, *, stands: Callable[[], bool]
    ) -> bool:
        """Mend what is wrong with the packs of a checkpoint; return whether all are sound.

        ``stands`` is asked before one is put: a live run may have pruned the checkpoint, or
        packed it again, so that what is missing is not missed.
        """
        checker, whole = self._checkers[tier.name], True
        for ref in manifest.packs:
            found, place = checker.check(ref), (tier.name, ref)
            if found.sound:
                continue
            if place not in self._outcomes:
                if found.failed and not stands():
                    return False
                self._outcomes[place] = self._mend_pack(tier, ref, found)
            whole = whole and self._outcomes[place]
        return whole

    def _mend_pack(self, tier: Tier, ref: PackRef, found: PackCheck) -> bool:
        if not found.failed:  # It did not answer, and may be sound.
            return self._lose(tier, ref.key, found.problems)
        return self._replace(tier, ref, found)

    def _replace(self, tier: Tier, ref: PackRef, found: PackCheck) -> bool:
        reasons = list(found.problems)
        for source, read in self._sources(tier, ref):
            try:
                data = read()
                if data is None:
                    continue
                check_pack(data, ref, where=f"{self._prefix + ref.key!r} from {source!r}")
            except _FAILED as error:
                reasons.append(str(error))
                continue
            return self._put(tier, self._prefix + ref.key, data, source, found.problems[0])
        return self._lose(tier, ref.key, reasons)

    def _sources(
        self, tier: Tier, ref: PackRef
    ) -> Iterator[tuple[str, Callable[[], bytes | None]]]:
        key = self._prefix + ref.key
        for other in self._lineage.tiers:
            if other is not tier:
                yield other.name, lambda other=other: _read(other, key, ref)  # type: ignore[misc]
        for spare in self._spares:
            yield spare.name, lambda spare=spare: spare.object(key)  # type: ignore[misc]

    # --- writing ---

    def _put(self, tier: Tier, key: str, data: bytes, source: str, why: str) -> bool:
        """Put checked bytes: at once, over what is there. That is the commit of this object."""
        if not self._dry_run:
            try:
                ensure_store(tier)
                tier.put(key, [data])
            except CheckpointError as error:
                return self._lose(tier, key.removeprefix(self._prefix), [why, str(error)])
        self.report.mended.append(Mended(tier.name, key, len(data), source, why))
        return True

    def _lose(self, tier: Tier, key: str, reasons: Sequence[str]) -> bool:
        self.report.lost.append(Lost(tier.name, self._prefix + key, tuple(reasons)))
        return False


def _read(tier: Tier, key: str, ref: PackRef) -> bytes:
    """Return a pack that has the right size; a wrong one is not read."""
    if (size_bytes := tier.size(key)) != ref.size_bytes:
        raise CorruptionError(
            f"{key!r} on tier {tier.name!r} has {size_bytes} bytes instead of {ref.size_bytes}."
        )
    return tier.get(key)
