"""What lies on a tier of one lineage: packs, notices, and which manifest needs what.

The order of the looks makes the result safe to delete by. Packs are listed first, so that all
of them were there before the manifests were read; notices second, so that whoever put a pack
and has taken his hold away since has put his manifest before. What a look cannot explain,
as a manifest without its packs, is looked at again before it is believed.
``tests/unit/test_prune.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ckptflow.errors import CorruptionError, FormatError, NotFoundError
from ckptflow.model import CheckpointId, Manifest, PackRef
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.guards import Notices, read_notices
from ckptflow.store.quarantine import known_bad
from ckptflow.store.sharding.sets import ShardSets
from ckptflow.tiers.tier import Tier

REMEMBERED_MAX = 1 << 17  # Manifests whose packs a prune remembers; about 100 bytes a pack.


@dataclass(frozen=True, slots=True)
class Needs:
    """What retention has to know of a manifest."""

    packs: tuple[PackRef, ...]
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Here:
    """A checkpoint on the tier.

    Attributes:
        found: which.
        needs: what it needs; ``None`` if its manifest is damaged or foreign.
        whole: whether all of that is there.
        foreign: it is sound, but of a format that this version cannot read.
    """

    found: Found
    needs: Needs | None
    whole: bool = False
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that was seen on a tier.

    Attributes:
        here: every checkpoint, the newest first.
        packs: keys of all packs, relative to the lineage.
        notices: see `ckptflow.store.guards`.
        quarantined: checkpoints that attempts failed to restore, wherever they are.
        complete: of a shard, those of which all shards are there; ``None`` if it is none.
        elsewhere: of a shard, complete sets here by other numbers of ranks.
    """

    here: list[Here]
    packs: frozenset[str]
    notices: Notices
    quarantined: frozenset[CheckpointId] = frozenset()
    complete: frozenset[CheckpointId] | None = None
    elsewhere: frozenset[CheckpointId] = frozenset()


class Known:
    """The needs of manifests that were read before; belongs to one lineage on one tier.

    Manifests do not change, except that a consolidation replaces one, and then packs of the
    same checkpoint are there that were not before. So what is remembered holds as long as the
    packs that a checkpoint wrote are the same, and nothing holds it.
    """

    def __init__(self) -> None:
        self._needs: dict[CheckpointId, tuple[frozenset[str], Needs]] = {}

    def get(self, checkpoint: CheckpointId, own: frozenset[str]) -> Needs | None:
        """Return what is known, if the packs that the checkpoint wrote are ``own``."""
        known = self._needs.get(checkpoint)
        return known[1] if known and known[0] == own else None

    def put(self, checkpoint: CheckpointId, own: frozenset[str], needs: Needs) -> None:
        """Remember."""
        if len(self._needs) < REMEMBERED_MAX:
            self._needs[checkpoint] = own, needs

    def keep_only(self, checkpoints: set[CheckpointId]) -> None:
        """Forget what is not there any more."""
        for gone in self._needs.keys() - checkpoints:
            del self._needs[gone]


def look(
    lineage: Lineage,
    tier: Tier,
    known: Known,
    *,
    now: Callable[[], datetime],
    but: str | None = None,
) -> Inventory:
    """Look at everything of a lineage on a tier.

    Args:
        lineage: whose.
        tier: where.
        known: spares reading manifests again; it learns.
        now: the clock, UTC.
        but: key of a notice that does not count.

    Raises:
        TierError: something could not be read; then nothing can be decided.
    """
    prefix = f"{lineage.id.prefix}/"
    packs = frozenset(key.removeprefix(prefix) for key in tier.iter_keys(f"{prefix}packs"))
    notices = read_notices(tier, lineage.id, now=now, but=but)
    own: defaultdict[CheckpointId | None, list[str]] = defaultdict(list)
    for key in packs:
        own[CheckpointId.of_pack(key)].append(key)
    here = []
    for found in lineage.checkpoints_on(tier):
        theirs = frozenset(own.get(found.id, ()))
        needs = None if found.id in notices.checkpoints else known.get(found.id, theirs)
        if needs and not all(pack.key in packs for pack in needs.packs):
            needs = None  # Some have gone, whoever took them.
        one = Here(found, needs, whole=True) if needs else _read(lineage, tier, found, packs)
        if one is None:
            continue
        if one.whole and one.needs and found.id not in notices.checkpoints:
            known.put(found.id, theirs, one.needs)
        here.append(one)
    ids = {one.found.id for one in here}
    known.keep_only(ids)
    shard = lineage.id.shard
    if shard is None:
        return Inventory(here, packs, notices, frozenset(known_bad(lineage)))
    sets = ShardSets(lineage.tiers, shard.set)
    return Inventory(
        here,
        packs,
        notices,
        frozenset(known_bad(sets.shard(0, shard.world))),
        frozenset(sets.complete_on(tier, ids, shard.world, look=shard.looks)),
        frozenset(sets.complete_elsewhere(tier, shard.world)),
    )


def _read(lineage: Lineage, tier: Tier, found: Found, packs: frozenset[str]) -> Here | None:
    """Read a manifest, and again if it misses packs: a consolidation may have replaced it."""
    before: Manifest | None = None
    while True:
        try:
            manifest = lineage.manifest_on(tier, found.id)
        except CorruptionError:
            return Here(found, None)
        except FormatError:
            return Here(found, None, foreign=True)
        except NotFoundError:  # Another prune was faster.
            return None
        needs = Needs(manifest.packs, manifest.metrics)
        if all(_is_there(lineage, tier, pack, packs) for pack in manifest.packs):
            return Here(found, needs, whole=True)
        if before is not None and before.packs == manifest.packs:
            return Here(found, needs, whole=False)
        before = manifest


def _is_there(lineage: Lineage, tier: Tier, pack: PackRef, packs: frozenset[str]) -> bool:
    if pack.key in packs:
        return True
    try:  # It may have come since they were listed.
        return tier.size(f"{lineage.id.prefix}/{pack.key}") >= 0
    except NotFoundError:
        return False
