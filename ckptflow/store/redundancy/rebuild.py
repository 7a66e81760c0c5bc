"""Rebuild the checkpoints of lost members from what the others hold.

Members are known by the ids of their stores, so it does not matter on which host names, in
which order, or on how few nodes they are reached. Checkpoints are rebuilt one by one, the
newest first: its packs, then its manifest, so that on the target too it is whole or absent.
What cannot be rebuilt is reported with the reason; older checkpoints are tried all the same.
Nothing is deleted. ``tests/unit/test_redundancy_rebuild.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ckptflow import manifest as manifest_file
from ckptflow.data.buffers import Bytes
from ckptflow.errors import CorruptionError, FormatError, NotFoundError
from ckptflow.model import CheckpointId, LineageId, Manifest, PackRef, parse_attempt_key
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.guards import hold
from ckptflow.store.redundancy.coding import problem_of, read_object
from ckptflow.store.redundancy.stripes import DataPiece, parse_object_key
from ckptflow.store.redundancy.survey import Survey
from ckptflow.tiers.tier import Tier


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild did.

    Attributes:
        lost: ids of the members that it was about.
        checkpoints: those that are whole on the target now, the newest of each lineage first.
        failed: those that are not, and why.
        written_bytes: what was written.
    """

    lost: tuple[str, ...]
    checkpoints: list[tuple[LineageId, CheckpointId]] = field(default_factory=list)
    failed: list[tuple[LineageId, CheckpointId, str]] = field(default_factory=list)
    written_bytes: int = 0


def rebuild(survey: Survey, target: Tier, *, lost: Collection[str] | None = None) -> Rebuilt:
    """Rebuild what lost members had, as far as stripes know it, on ``target``.

    Repeating it after a crash goes on where it stopped.

    Args:
        survey: a look at the members that are left.
        target: a new node's own tier, or an outer one.
        lost: ids of the members; all that stripes name and that did not answer, if ``None``.
            A member that answers may be among them, if it lost objects.

    Raises:
        TierError: the target failed.
    """
    named = {piece.member for seen in survey.stripes.values() for piece in seen.stripe.data}
    which = sorted(named - set(survey.members) if lost is None else named & set(lost))
    done = Rebuilt(tuple(which))
    ensure_store(target)
    for member in which:
        _Rebuild(survey, target, member, done).run()
    return done


def read_protected(survey: Survey, member: str, key: str) -> bytes:
    """Return an object of a member as the others give it, whatever the member itself has.

    For a repair: what comes back has the seal that was taken when it was coded.

    Raises:
        NotFoundError: it is in no stripe.
        CorruptionError: too much of its stripes is lost; the notes say what.
    """
    for _, blocks in _candidates(survey, member, key):
        return b"".join(block.tobytes() for block in blocks)
    raise NotFoundError(f"{key!r} of member {member[:8]} is in no stripe.")


def _candidates(
    survey: Survey, member: str, key: str
) -> Iterator[tuple[DataPiece, list[Bytes]]]:
    """Yield an object as each of its stripes gives it, the youngest first.

    Raises:
        CorruptionError: no stripe gave it, or no further one; the notes say why.
    """
    tiers = {one: found.tier for one, found in survey.members.items()}
    failures: list[CorruptionError] = []
    for seen, number in survey.of_key(member, key):
        try:
            blocks = read_object(seen.stripe, number, sorted(seen.present), tiers)
        except CorruptionError as error:
            failures.append(error)
            continue
        yield seen.stripe.data[number], blocks
    if failures:
        raise failures[0]


class _Rebuild:
    """The rebuild of one member."""

    def __init__(self, survey: Survey, target: Tier, member: str, done: Rebuilt) -> None:
        self._survey, self._target, self._member, self._done = survey, target, member, done
        self._unknown: dict[LineageId, int] = {}  # The newest attempt whose start is lost.

    def run(self) -> None:
        """Rebuild where attempts went on from, then checkpoints, the newest first."""
        manifests: list[tuple[LineageId, CheckpointId, str]] = []
        keys = {
            piece.key
            for seen in self._survey.stripes.values()
            for piece in seen.stripe.data
            if piece.member == self._member
        }
        for key in sorted(keys):
            parsed = parse_object_key(key)
            assert parsed is not None, "a stripe was checked when it was read"
            checkpoint = CheckpointId.of_manifest(parsed[1])
            if checkpoint is not None:
                manifests.append((parsed[0], checkpoint, key))
            elif attempt := parse_attempt_key(parsed[1]):
                self._bring_record(parsed[0], attempt[0], key)
        for lineage, checkpoint, key in sorted(manifests, key=lambda m: m[1], reverse=True):
            self._bring_checkpoint(lineage, checkpoint, key)

    def _bring_record(self, lineage: LineageId, attempt: int, key: str) -> None:
        """Without it checkpoints that are void would count again: it comes first."""
        try:
            for _, blocks in _candidates(self._survey, self._member, key):
                self._put(key, blocks)
                return
        except CorruptionError:
            self._unknown[lineage] = max(attempt, self._unknown.get(lineage, 0))

    def _bring_checkpoint(self, lineage: LineageId, checkpoint: CheckpointId, key: str) -> None:
        try:
            if checkpoint.attempt < (newer := self._unknown.get(lineage, 0)):
                raise CorruptionError(
                    f"It may be void: where attempt {newer} went on from cannot be rebuilt."
                )
            blocks, manifest = self._manifest(lineage, checkpoint, key)
            packs = [pack.key for pack in manifest.packs]
            with hold(self._target, lineage, checkpoint, packs) as holding:
                for pack in manifest.packs:
                    self._bring_pack(lineage, pack)
                holding.confirm(found=True)
                self._put(key, blocks)  # The commit there.
        except (CorruptionError, FormatError) as error:
            reason = "; ".join([str(error), *getattr(error, "__notes__", ())])
            self._done.failed.append((lineage, checkpoint, reason))
            return
        self._done.checkpoints.append((lineage, checkpoint))

    def _manifest(
        self, lineage: LineageId, checkpoint: CheckpointId, key: str
    ) -> tuple[list[Bytes], Manifest]:
        for piece, blocks in _candidates(self._survey, self._member, key):
            data = b"".join(block.tobytes() for block in blocks)
            manifest = manifest_file.decode(data, where=f"{key!r} of member {piece.member[:8]}")
            if (manifest.lineage, manifest.id) != (lineage, checkpoint):
                raise CorruptionError(f"{key!r} says that it is {manifest.id}: it was moved.")
            return blocks, manifest
        raise AssertionError("a piece gives blocks or an error")

    def _bring_pack(self, lineage: LineageId, pack: PackRef) -> None:
        key = f"{lineage.prefix}/{pack.key}"
        if self._size_there(key) == pack.size_bytes and self._is_sound_there(key):
            return
        for piece, blocks in _candidates(self._survey, self._member, key):
            if piece.size_bytes == pack.size_bytes:
                self._put(key, blocks)
                return
        raise CorruptionError(f"{key!r} is in no stripe: it was not protected.")

    def _is_sound_there(self, key: str) -> bool:
        """Tell whether what is on the target is what a stripe was made of."""
        tiers = {self._member: self._target}
        known = self._survey.of_key(self._member, key)
        return not known or any(
            problem_of(seen.stripe, number, tiers) is None for seen, number in known
        )

    def _size_there(self, key: str) -> int | None:
        try:
            return self._target.size(key)
        except NotFoundError:
            return None

    def _put(self, key: str, blocks: Sequence[Bytes]) -> None:
        self._target.put(key, [block.data for block in blocks])
        self._done.written_bytes += sum(len(block) for block in blocks)
