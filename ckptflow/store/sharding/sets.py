"""The sets of one task: which there are, and which ranks of each have committed.

A set is a step of one launch. It is *complete* when the manifest of every rank is there; until
then it does not exist for a restore. Who looks sees what its tiers show: on a tier of one node,
no rank sees the shards of others.

A rank that commits where others cannot look leaves a *mark* on the fence tier, so that nobody
deletes what may be the last complete set. ``tests/unit/test_sharded.py``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ckptflow.errors import CheckpointError, ConfigError, NotFoundError, TierError
from ckptflow.manifest import seal
from ckptflow.model import LINEAGES, SHARED_LEVEL, CheckpointId, LineageId, Shard
from ckptflow.store.catalog import Found, Lineage, lineages
from ckptflow.store.descriptor import check_store
from ckptflow.store.find import is_there
from ckptflow.tiers.tier import Tier

_SHOWN_MAX = 8
_MARKS_KEPT = 8  # Of one rank: others look at each commit.
_MARK = re.compile(r"committed/(\d{12})\.(\d{8})\.(\d{5}|all)of(\d{5})\.([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class FoundSet:
    """A set, complete or not.

    Attributes:
        id: step and launch.
        world: how many ranks the launch had.
        shards: by rank: where its manifest is; ``None`` if it lacks.
        void: a later launch went on without it.
    """

    id: CheckpointId
    world: int
    shards: tuple[Found | None, ...]
    void: bool

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks whose shards lack."""
        return tuple(rank for rank, found in enumerate(self.shards) if found is None)

    @property
    def complete(self) -> bool:
        """Whether all shards are there."""
        return None not in self.shards

    def __str__(self) -> str:
        return f"{self.id} of {self.world} ranks"


class ShardSets:
    """The sets of one task.

    Args:
        tiers: where its shards may lie, inner ones first.
        set_: run and task.
        note: told, in a sentence, of every tier or object that was skipped and why.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        set_: LineageId,
        *,
        note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.tiers, self.id, self._note = tuple(tiers), set_, note
        self.lineage = Lineage(tiers, set_, note=note)

    def shard(self, rank: int, world: int) -> Lineage:
        """Return the lineage of a rank."""
        return Lineage(self.tiers, Shard(self.id, rank, world).lineage, note=self._note)

    def worlds(self) -> list[int]:
        """Return the numbers of ranks that there were, rising.

        Raises:
            TierError: no tier could be listed.
        """
        found: set[int] = set()
        failures: list[TierError] = []
        for tier in self.tiers:
            try:
                check_store(tier)
                for name in tier.iter_folders(f"{LINEAGES}/{self.id.run}"):
                    with contextlib.suppress(ConfigError):
                        shard = LineageId(self.id.run, name).shard
                        if shard is not None and shard.set == self.id:
                            found.add(shard.world)
            except TierError as error:
                failures.append(error)
                self._note(f"Tier {tier.name!r} was skipped: {error}")
        if len(failures) == len(self.tiers):
            raise failures[0]
        return sorted(found)

    def newest_first(self, *, on: Sequence[Tier] | None = None) -> Iterator[FoundSet]:
        """Yield the complete sets that are not void, the newest first.

        Costs a listing for each number of ranks, and then a look for each rank.

        Args:
            on: tiers that count; all of them if ``None``.

        Raises:
            TierError: no tier could be listed.
        """
        candidates = []
        for world in self.worlds():
            first = Lineage(on or self.tiers, Shard(self.id, 0, world).lineage, note=self._note)
            candidates += [(found.id, world, found) for found in first.valid()]
        for checkpoint, world, found in sorted(
            candidates, key=lambda one: one[:2], reverse=True
        ):
            shards = [found, *self._others(checkpoint, world, on or self.tiers)]
            whole = FoundSet(checkpoint, world, tuple(shards), void=False)
            if whole.complete:
                yield whole
            else:
                self._note(f"{self.id} {whole} is incomplete: {lacking(whole)}.")

    def find(self, checkpoint: CheckpointId, world: int) -> FoundSet:
        """Return a set by its id, whether or not it is complete."""
        first = self._others(checkpoint, world, self.tiers, start=0)
        return FoundSet(checkpoint, world, tuple(first), void=False)

    def every(self) -> list[FoundSet]:
        """Return all sets, complete or not, the newest first. Lists every shard.

        Raises:
            TierError: no tier could be listed.
        """
        found: dict[tuple[CheckpointId, int], list[Found | None]] = {}
        for world in self.worlds():
            for rank in range(world):
                for one in self.shard(rank, world).checkpoints():
                    found.setdefault((one.id, world), [None] * world)[rank] = one
        return [
            FoundSet(checkpoint, world, tuple(shards), any(one and one.void for one in shards))
            for (checkpoint, world), shards in sorted(found.items(), reverse=True)
        ]

    def _others(
        self, checkpoint: CheckpointId, world: int, tiers: Sequence[Tier], *, start: int = 1
    ) -> list[Found | None]:
        """Return where the shards of ranks from ``start`` on are."""
        found: list[Found | None] = []
        for rank in range(start, world):
            lineage = Shard(self.id, rank, world).lineage
            holders = [tier for tier in tiers if _holds(tier, lineage, checkpoint)]
            found.append(Found(checkpoint, tuple(holders), void=False) if holders else None)
        return found

    # --- marks of commits that others cannot see ---

    def mark(self, checkpoint: CheckpointId, shard: Shard, tier: Tier) -> None:
        """Say that a rank has committed on a tier that others may not see."""
        mark = _Mark(checkpoint, shard.world, shard.rank, _sealed_name(tier.name))
        self._fence.put(mark.key(self), [b"{}"])

    def tidy(self, shard: Shard) -> None:
        """Delete marks of a rank that are not needed any more; rank 0 those of whole sets, too.

        A mark of a rank counts until somebody has seen all, so the last few stay. That a set
        is complete is known as long as its first shard is there.
        """
        marks = self._marks()
        mine = [one for one in marks if (one.rank, one.world) == (shard.rank, shard.world)]
        last = sorted({one.checkpoint for one in mine})[-_MARKS_KEPT:]
        old = [one for one in mine if one.checkpoint not in last]
        if shard.rank == 0:
            there = {one.id for one in self.shard(0, shard.world).checkpoints()}
            whole = (one for one in marks if one.rank is None and one.world == shard.world)
            old += [one for one in whole if one.checkpoint not in there]
        for one in old:
            self._fence.delete(one.key(self))

    def complete_on(
        self, tier: Tier, checkpoints: Collection[CheckpointId], world: int, *, look: bool
    ) -> set[CheckpointId]:
        """Return those of which a tier is known to have all shards, as far as anybody knows.

        Who finds that out says so, for all others: a look costs a call for each rank.

        Args:
            tier: where. If it is one of each node's own, the marks tell.
            checkpoints: of launches of so many ranks.
            world: how many.
            look: find out what nobody has said yet.

        Raises:
            TierError: the fence tier could not be listed.
        """
        marks = {one for one in self._marks() if one.world == world and one.is_on(tier)}
        known = {one.checkpoint for one in marks if one.rank is None} & set(checkpoints)
        if not look:
            return known
        marked = {(one.checkpoint, one.rank) for one in marks}
        for one in sorted(set(checkpoints) - known):
            if all(
                (one, rank) in marked or _holds(tier, Shard(self.id, rank, world).lineage, one)
                for rank in range(world)
            ):
                self._fence.put(
                    _Mark(one, world, None, _sealed_name(tier.name)).key(self), [b"{}"]
                )
                known.add(one)
        return known

    def complete_elsewhere(self, tier: Tier, world: int) -> set[CheckpointId]:
        """Return sets known to be complete on a tier, by other numbers of ranks, not void."""
        whole = (one for one in self._marks() if one.rank is None and one.is_on(tier))
        found: set[CheckpointId] = set()
        for ranks in {one.world for one in whole} - {world}:
            there = {one.id for one in self.shard(0, ranks).valid()}
            found |= self.complete_on(tier, there, ranks, look=False)
        return found

    @property
    def _fence(self) -> Tier:
        return self.lineage.fence_tier

    def _marks(self) -> list[_Mark]:
        prefix = f"{self.id.prefix}/"
        keys = self._fence.iter_keys(f"{prefix}committed")
        return [one for key in keys if (one := _Mark.of(key.removeprefix(prefix))) is not None]


@dataclass(frozen=True, slots=True)
class _Mark:
    """That a rank, or if it is ``None`` every rank, has committed on a tier."""

    checkpoint: CheckpointId
    world: int
    rank: int | None
    tier: str  # See `_sealed_name`.

    def is_on(self, tier: Tier) -> bool:
        return self.tier == _sealed_name(tier.name)

    def key(self, sets: ShardSets) -> str:
        step, attempt = self.checkpoint.step, self.checkpoint.attempt
        who = "all" if self.rank is None else f"{self.rank:05d}"
        name = f"{step:012d}.{attempt:08d}.{who}of{self.world:05d}.{self.tier}"
        return f"{sets.id.prefix}/committed/{name}"

    @staticmethod
    def of(key: str) -> _Mark | None:
        match = _MARK.fullmatch(key)
        if match is None:
            return None
        rank = None if match[3] == "all" else int(match[3])
        return _Mark(CheckpointId(int(match[1]), int(match[2])), int(match[4]), rank, match[5])


def _sealed_name(name: str) -> str:
    """Return a part of a key that stands for the name of a tier, whatever is in that."""
    return seal(name.encode()).hex()


def lacking(found: FoundSet) -> str:
    """Say which ranks lack; nothing if none does."""
    if not (missing := found.missing):
        return ""
    shown = ", ".join(map(str, missing[:_SHOWN_MAX]))
    more = f" and {len(missing) - _SHOWN_MAX} more" if len(missing) > _SHOWN_MAX else ""
    noun = "rank" if len(missing) == 1 else "ranks"
    return f"the shards of {noun} {shown}{more} of {found.world} are not there"


def tiers_for_all(tiers: Sequence[Tier], *, one_node: bool) -> list[Tier]:
    """Return the tiers on which every rank of a program sees the same."""
    shared = [tier for tier in tiers if tier.level >= SHARED_LEVEL]
    return list(tiers) if one_node or not shared else shared


def sets_in(tiers: Sequence[Tier], run: str | None = None) -> list[LineageId]:
    """Return the tasks that have shards, sorted; of one run, or of all."""
    shards = (lineage.shard for lineage in lineages(tiers, run))
    return sorted({shard.set for shard in shards if shard is not None})


def _holds(tier: Tier, lineage: LineageId, checkpoint: CheckpointId) -> bool:
    try:
        return is_there(tier, lineage, checkpoint)
    except (NotFoundError, CheckpointError):
        return False
