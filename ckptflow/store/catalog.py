"""Which checkpoints a lineage has, which attempt may add to them, and which is the newest.

The tiers are the only truth: the catalog lists keys and reads small objects, and remembers
nothing between calls. Rules: "Attempts and fencing" in ``docs/reference/format-v1.md``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ckptflow import manifest as manifest_file
from ckptflow.errors import (
    AlreadyExists,
    CheckpointError,
    ConfigError,
    CorruptionError,
    FencedError,
    NotFoundError,
    StoreDamaged,
    TierError,
)
from ckptflow.model import (
    LINEAGES,
    SHARED_LEVEL,
    STEP_MAX,
    CheckpointId,
    LineageId,
    Manifest,
    attempt_key,
    parse_attempt_key,
)
from ckptflow.store.descriptor import RECORD_BYTES_MAX, check_store, ensure_store
from ckptflow.store.origin import origin
from ckptflow.tiers.tier import Tier, last_keys

_CLAIM_TRIES = 1000
_LOOK_AT, _LOOK_FACTOR = 16, 8  # Keys looked at for the newest checkpoint: first, then.


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that exists: where, and whether its attempt was overtaken."""

    id: CheckpointId
    tiers: tuple[Tier, ...]  # That hold its manifest, inner ones first.
    void: bool


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """What the attempts folder says about one attempt.

    ``claim``, ``resume`` and ``end`` are the JSON objects, or ``None`` where there is none.
    """

    attempt: int
    claim: Mapping[str, Any] | None
    resume: Mapping[str, Any] | None
    end: Mapping[str, Any] | None


class Lineage:
    """The checkpoints of one task, over all its tiers.

    Args:
        tiers: inner ones (fast, short-lived) first.
        lineage: run and task.
        note: told, in a sentence, of every tier or object that was skipped and why.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        lineage: LineageId,
        *,
        note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.tiers, self.id, self._note = tuple(tiers), lineage, note
        self.fence_tier = fence_tier(self.tiers)

    def around(self, wrap: Callable[[Tier], Tier]) -> Lineage:
        """Return the same lineage, with something around each of its tiers."""
        return Lineage([wrap(tier) for tier in self.tiers], self.id, note=self._note)

    # --- checkpoints ---

    def checkpoints(self) -> list[Found]:
        """Return every checkpoint, the newest first.

        Raises:
            TierError: no tier could be listed.
            FormatError: a tier is a store of a newer version.
        """
        copies = self._copies(self._listed)
        limits = self._resume_limits()
        return [
            Found(found, tuple(copies[found]), _is_void(found, limits))
            for found in sorted(copies, reverse=True)
        ]

    def valid(self) -> list[Found]:
        """Return the checkpoints that are not void, the newest first."""
        return [found for found in self.checkpoints() if not found.void]

    def newest(self) -> Found | None:
        """Return the newest checkpoint that is not void; its cost does not grow with theirs.

        Raises:
            TierError: no tier could be listed.
            FormatError: a tier is a store of a newer version.
        """
        return next(self.valid_newest_first(), None)

    def valid_newest_first(self) -> Iterator[Found]:
        """Yield what `valid` returns, looking at more and more keys as far as somebody asks.

        Raises:
            TierError: no tier could be listed.
            FormatError: a tier is a store of a newer version.
        """
        count, reached = _LOOK_AT, None
        while True:
            copies, complete_from = self._last(count)
            limits = self._resume_limits()  # Read last: who went on has said so before.
            for found in sorted(copies, reverse=True):
                if complete_from is not None and found < complete_from:
                    break  # Some tier may have others in between.
                if reached is not None and found >= reached:
                    continue
                reached = found
                if not _is_void(found, limits):
                    yield Found(found, tuple(copies[found]), void=False)
            if complete_from is None:
                return
            count *= _LOOK_FACTOR

    def valid_of_step(self, step: int) -> list[Found]:
        """Return the checkpoints of one step that are not void, the newest first.

        Raises:
            TierError: no tier could be listed.
            FormatError: a tier is a store of a newer version.
        """
        later = itertools.takewhile(lambda one: one.id.step >= step, self.valid_newest_first())
        return [found for found in later if found.id.step == step]

    def _last(self, count: int) -> tuple[dict[CheckpointId, list[Tier]], CheckpointId | None]:
        """Return the last checkpoints of every tier, and from which one on that is all.

        Args:
            count: how many keys of each tier are looked at. If no tier has more, it is all:
                ``None``.
        """
        bounds: list[CheckpointId] = []

        def of(tier: Tier) -> list[CheckpointId]:
            check_store(tier)
            keys = last_keys(tier, f"{self.id.prefix}/manifests", count)
            found = self._parsed(keys)
            if len(keys) == count:  # Other people's keys may be greater than all of ours.
                bounds.append(min(found, default=CheckpointId(STEP_MAX + 1, 0)))
            return found

        copies = self._copies(of)
        return copies, max(bounds, default=None)

    def checkpoints_on(self, tier: Tier) -> list[Found]:
        """Return every checkpoint that has a copy on ``tier``, the newest first.

        Raises:
            TierError: it could not be listed. Nothing may be concluded then.
            FormatError: it is a store of a newer version.
        """
        listed = self._listed(tier)
        limits = self._resume_limits()  # Read last: who went on has said so before.
        return [Found(one, (tier,), _is_void(one, limits)) for one in listed]

    def _copies(
        self, listed: Callable[[Tier], list[CheckpointId]]
    ) -> dict[CheckpointId, list[Tier]]:
        """Return who holds which checkpoint, inner tiers first; one tier may fail, not all."""
        copies: dict[CheckpointId, list[Tier]] = {}
        failures: list[TierError] = []
        for tier in self.tiers:
            try:
                ids = listed(tier)
            except TierError as error:
                failures.append(error)
                self._note(f"Tier {tier.name!r} was skipped: {error}")
                continue
            for found in ids:
                copies.setdefault(found, []).append(tier)
        if len(failures) == len(self.tiers):
            raise failures[0]
        return copies

    def _listed(self, tier: Tier) -> list[CheckpointId]:
        check_store(tier)
        keys = tier.iter_keys(f"{self.id.prefix}/manifests")
        return sorted(self._parsed(keys), reverse=True)

    def _parsed(self, keys: Iterable[str]) -> list[CheckpointId]:
        prefix = f"{self.id.prefix}/"
        found = (CheckpointId.of_manifest(key.removeprefix(prefix)) for key in keys)
        return [one for one in found if one]

    def manifest(self, found: Found) -> Manifest:
        """Read a manifest from the first tier whose copy is sound.

        Raises:
            CorruptionError: no copy is sound; the notes tell how each failed.
            FormatError: it was written by a newer version.
        """
        failures: list[CheckpointError] = []
        for tier in found.tiers:
            try:
                return self.manifest_on(tier, found.id)
            except (CorruptionError, NotFoundError, TierError) as error:
                failures.append(error)
                self._note(str(error))
        raised = CorruptionError(f"The manifest of {self.id} {found.id} has no sound copy.")
        raised.may_pass = any(isinstance(failure, TierError) for failure in failures)
        for failure in failures:
            raised.add_note(str(failure))
        raise raised

    def manifest_on(self, tier: Tier, checkpoint: CheckpointId) -> Manifest:
        """Read the manifest that ``tier`` has of a checkpoint.

        Raises:
            NotFoundError: it has none.
            CorruptionError: it is damaged, or that of another checkpoint.
            FormatError: it was written by a newer version.
            TierError: it could not be read.
        """
        key = f"{self.id.prefix}/{checkpoint.manifest_key}"
        where = f"{key!r} on tier {tier.name!r}"
        data = tier.get(key, size_bytes=manifest_file.OBJECT_BYTES_MAX + 1)
        return decode_manifest(data, self.id, checkpoint, where=where)

    # --- attempts ---

    def claim(self) -> int:
        """Claim the next attempt and return its number.

        Another tier than the fence tier may fail; that is noted.

        Raises:
            TierError: the fence tier failed.
            FormatError: some tier is a store of a newer version; none was touched.
        """
        for tier in self._usable(check_store, self.tiers):
            self._usable(ensure_store, [tier])
        taken = [number for number, _ in self._attempt_keys()]
        attempt = max([0, *taken, *self._committed_attempts(max(taken, default=0))]) + 1
        for _ in range(_CLAIM_TRIES):
            claim = {"attempt": attempt, "started": _now(), **origin()}
            try:
                self.fence_tier.create(self._attempt_key(attempt, "claim"), _json(claim))
            except AlreadyExists:
                attempt += 1
            else:
                return attempt
        raise FencedError(
            f"{self.id}: {_CLAIM_TRIES} attempts were claimed while this one tried."
        )

    def _committed_attempts(self, claimed: int) -> set[int]:
        """Return attempts that committed something; all of them only if claims were lost.

        Who commits has a claim. So the last checkpoints tell whether some claims are gone, and
        then all are looked at.
        """
        attempts = {found.attempt for found in self._last(_LOOK_AT)[0]}
        if not claimed or max(attempts, default=0) > claimed:
            return {found.id.attempt for found in self.checkpoints()}
        return attempts

    def _usable(self, use: Callable[[Tier], object], tiers: Sequence[Tier]) -> list[Tier]:
        """Call ``use`` with each tier and return those that it worked with.

        Where the descriptor of the fence tier is damaged, its claims are still what they are.
        """
        usable = []
        for tier in tiers:
            try:
                use(tier)
            except TierError as error:
                if tier is self.fence_tier and not isinstance(error, StoreDamaged):
                    raise
                self._note(f"Tier {tier.name!r} was skipped: {error}")
            else:
                usable.append(tier)
        return usable

    def check_fence(self, attempt: int) -> None:
        """Raise if a newer attempt than ``attempt`` has been claimed.

        Raises:
            FencedError: this attempt was overtaken.
            TierError: the fence tier could not be asked, so nothing may be committed.
        """
        if (newest := self.newest_claimed()) > attempt:
            raise FencedError(
                f"{self.id}: attempt {newest} has taken over from attempt {attempt}, which may "
                f"not commit any more. This process was taken for dead; stop it."
            )

    def newest_claimed(self) -> int:
        """Return the newest attempt that has been claimed, 0 if none has."""
        return max((number for number, _ in self._attempt_keys()), default=0)

    def record_resume(self, attempt: int, start: CheckpointId | None) -> None:
        """Say where an attempt goes on from; later checkpoints of older attempts are void."""
        record = {
            "attempt": attempt,
            "step": start.step if start else None,
            "manifest": start.manifest_key if start else None,
        }
        self.fence_tier.put(self._attempt_key(attempt, "resume"), [_json(record)])

    def record_end(self, attempt: int, outcome: Mapping[str, Any]) -> None:
        """Say how an attempt ended. Advisory: nothing is decided by it."""
        record = {"attempt": attempt, "ended": _now(), **outcome}
        self.fence_tier.put(self._attempt_key(attempt, "end"), [_json(record)])

    def newest_resumed(self) -> int:
        """Return the newest attempt that has said where it goes on from, 0 if none has."""
        numbers = (number for number, what in self._attempt_keys() if what == "resume")
        return max(numbers, default=0)

    def attempts(self) -> list[AttemptRecord]:
        """Return what is recorded of each attempt, the oldest first."""
        kinds: dict[int, set[str]] = {}
        for number, what in self._attempt_keys():
            kinds.setdefault(number, set()).add(what)
        return [
            AttemptRecord(
                number,
                **{
                    what: self._read_record(number, what) if what in kinds[number] else None
                    for what in ("claim", "resume", "end")
                },
            )
            for number in sorted(kinds)
        ]

    def _attempt_key(self, attempt: int, what: str) -> str:
        return f"{self.id.attempts_prefix}/{attempt_key(attempt, what)}"

    def _attempt_keys(self) -> list[tuple[int, str]]:
        prefix = f"{self.id.attempts_prefix}/"
        keys = self.fence_tier.iter_keys(f"{prefix}attempts")
        parsed = (parse_attempt_key(key.removeprefix(prefix)) for key in keys)
        return [found for found in parsed if found]

    def _read_record(self, attempt: int, what: str) -> Mapping[str, Any] | None:
        try:
            record = json.loads(
                self.fence_tier.get(
                    self._attempt_key(attempt, what), size_bytes=RECORD_BYTES_MAX
                )
            )
        except (NotFoundError, CorruptionError, ValueError, RecursionError) as error:
            self._note_record(attempt, what, f"is unreadable: {error}")
            return None
        if not isinstance(record, dict):
            self._note_record(attempt, what, "is no JSON object")
            return None
        return record

    def _note_record(self, attempt: int, what: str, complaint: str) -> None:
        key = self._attempt_key(attempt, what)
        self._note(f"{key!r} on tier {self.fence_tier.name!r} {complaint}; it was ignored.")

    def _resume_limits(self) -> list[tuple[int, int]]:
        """Return (attempt, step): older attempts count up to that step only."""
        limits = []
        for attempt, what in self._attempt_keys():
            if what == "resume" and (step := self.resume_limit(attempt)) is not None:
                limits.append((attempt, step))
        return limits

    def resume_limit(self, attempt: int) -> int | None:
        """Return up to which step older attempts count, says the resume object of ``attempt``.

        -1 is the beginning, ``None`` that there is no such object, or that it makes no sense.
        """
        if (record := self._read_record(attempt, "resume")) is None:
            return None
        step = _resumed_step(attempt, record)
        if step is None:  # To obey damage could void the whole history.
            self._note_record(attempt, "resume", f"contradicts itself: {dict(record)}")
        return step


def decode_manifest(
    data: bytes, lineage: LineageId, checkpoint: CheckpointId, *, where: str
) -> Manifest:
    """Read the manifest of a certain checkpoint.

    Raises:
        CorruptionError: it is damaged, or that of another checkpoint.
        FormatError: it was written by a newer version.
    """
    manifest = manifest_file.decode(data, where=where)
    if (manifest.lineage, manifest.id) != (lineage, checkpoint):
        raise CorruptionError(
            f"{where} says that it is {manifest.id} of {manifest.lineage}: it was moved there."
        )
    return manifest


def fence_tier(tiers: Sequence[Tier]) -> Tier:
    """Return the tier for claims: the innermost that all nodes see, or else the outermost.

    Raises:
        ConfigError: no tier can decide between two claims.
    """
    able = [tier for tier in tiers if tier.can_create]
    if not able:
        names = ", ".join(repr(tier.name) for tier in tiers)
        raise ConfigError(
            f"Tier {names} cannot hold the claims of attempts: add a folder or an object store."
        )
    shared = [tier for tier in able if tier.level >= SHARED_LEVEL]
    return shared[0] if shared else able[-1]


def lineages(tiers: Sequence[Tier], run: str | None = None) -> list[LineageId]:
    """Return the lineages on any of ``tiers``, sorted; of one run, or of all."""
    found = set()
    for tier in tiers:
        check_store(tier)
        runs = tier.iter_folders(LINEAGES) if run is None else [run]
        for name in runs:
            for task in tier.iter_folders(f"{LINEAGES}/{name}"):
                with contextlib.suppress(ConfigError):  # Somebody else's folder.
                    found.add(LineageId(name, task))
    return sorted(found)


def _resumed_step(attempt: int, record: Mapping[str, Any]) -> int | None:
    """Return the step that an attempt went on from, -1 for the start; ``None`` for nonsense.

    The record has no seal, but it says everything twice.
    """
    match record:
        case {"attempt": number, "step": None, "manifest": None} if number == attempt:
            return -1
        case {"attempt": number, "step": int(step), "manifest": str(key)} if number == attempt:
            start = CheckpointId.of_manifest(key)
            return step if start is not None and start.step == step else None
    return None


def _is_void(found: CheckpointId, limits: Sequence[tuple[int, int]]) -> bool:
    return any(found.attempt < attempt and found.step > step for attempt, step in limits)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True).encode()
