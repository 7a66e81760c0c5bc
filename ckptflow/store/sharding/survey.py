"""Sets at a glance: one line for each, whatever the number of its shards.

Reads the manifests of all shards that are there, never a pack. ``tests/unit/test_cli_sets.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckptflow.errors import CorruptionError, FormatError, NotFoundError
from ckptflow.model import Manifest
from ckptflow.store.quarantine import quarantined
from ckptflow.store.sharding.sets import FoundSet, ShardSets
from ckptflow.store.survey import LineageSummary, survey_lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSummary:
    """A set at a glance.

    Attributes:
        found: which, and where its shards are.
        complete_on: names of the tiers that have all shards, inner ones first.
        manifests: of the shards that can be read, by rank.
        unreadable: ranks whose manifest has no sound copy.
        quarantined: a restore passes it over, since several launches could not restore it.
    """

    found: FoundSet
    complete_on: tuple[str, ...]
    manifests: dict[int, Manifest]
    unreadable: tuple[int, ...]
    quarantined: bool

    @property
    def status(self) -> str:
        """``complete``, ``incomplete``, ``void``, ``quarantined`` or ``unreadable``."""
        if self.found.void:
            return "void"
        if not self.found.complete:
            return "incomplete"
        if self.unreadable:
            return "unreadable"
        return "quarantined" if self.quarantined else "complete"

    @property
    def state_bytes(self) -> int:
        """Bytes that the shards hold, of the whole state together."""
        return sum(one.state_bytes for one in self.manifests.values())

    @property
    def written_bytes(self) -> int:
        """Bytes of the packs written for it."""
        return sum(one.written_bytes for one in self.manifests.values())

    @property
    def created(self) -> str | None:
        """When the last shard was committed, UTC."""
        return max((one.created for one in self.manifests.values()), default=None)


def survey_sets(sets: ShardSets) -> list[SetSummary]:
    """Return every set of a task, the newest first.

    Raises:
        TierError: no tier could be listed.
    """
    bad = {
        world: quarantined(sets.shard(0, world), note=lambda _text: None)
        for world in sets.worlds()
    }
    return [_summary(sets, found, found.id in bad[found.world]) for found in sets.every()]


def survey_set_lineage(sets: ShardSets) -> LineageSummary:
    """Return a task whose ranks save together at a glance, like any other lineage."""
    all_ = survey_sets(sets)
    counting = [one for one in all_ if one.status == "complete"]
    stored = dict.fromkeys((tier.name for tier in sets.tiers), 0)
    for world in sets.worlds():
        for rank in range(world):
            for name, size in survey_lineage(sets.shard(rank, world)).stored_bytes.items():
                stored[name] += size
    return LineageSummary(
        lineage=sets.id,
        checkpoints=len(counting),
        void=len(all_) - len(counting),
        newest=counting[0].found.id if counting else None,
        saved=counting[0].created if counting else None,
        attempts=len(sets.lineage.attempts()),
        state_bytes=sum(one.state_bytes for one in counting),
        stored_bytes=stored,
    )


def _summary(sets: ShardSets, found: FoundSet, is_bad: bool) -> SetSummary:  # noqa: FBT001
    manifests, unreadable = {}, []
    for rank, shard in enumerate(found.shards):
        if shard is None:
            continue
        try:
            manifests[rank] = sets.shard(rank, found.world).manifest(shard)
        except (CorruptionError, FormatError, NotFoundError):
            unreadable.append(rank)
    return SetSummary(
        found=found,
        complete_on=tuple(
            tier.name
            for tier in sets.tiers
            if all(shard is not None and tier in shard.tiers for shard in found.shards)
        ),
        manifests=manifests,
        unreadable=tuple(unreadable),
        quarantined=is_bad,
    )
