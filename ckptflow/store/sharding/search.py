"""Which complete set a launch goes on from, and one rank's state of it.

No rank waits for another one to decide. Who finds nothing decided restores the newest complete
set that is sound, and then says so; if somebody has said something else meanwhile, that counts.
``tests/unit/test_sharded.py``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from ckptflow.errors import (
    CheckpointError,
    CorruptionError,
    NotFoundError,
    RestoreError,
    StateError,
)
from ckptflow.model import CheckpointId, Shard
from ckptflow.store.arrays import parts_of
from ckptflow.store.quarantine import how_to_lift, is_damage, quarantined, record_failure
from ckptflow.store.resume import Restored, none_restored
from ckptflow.store.sharding.launch import Chosen, choose, chosen
from ckptflow.store.sharding.reading import SetReader
from ckptflow.store.sharding.restoring import restore_rank
from ckptflow.store.sharding.sets import FoundSet, ShardSets, lacking
from ckptflow.tiers.tier import Tier

PerRank: TypeAlias = "Literal['same'] | Callable[[int, int, int], int]"

FOLLOW_S = 60.0  # How long a rank looks for what its launch goes on from: file systems cache.
_LOOK_EVERY_S = 0.5
_SHOWN_MAX = 4


class SetSearch:
    """One restore by one rank.

    Args:
        sets: where to look.
        shard: the place of this rank.
        number: of its launch.
        seen_by_all: tiers on which a set counts as complete: there every rank sees it.
        per_rank: see `ShardedCheckpointer`.
        note: told, in a sentence, of what was skipped and why.
        follow_s: how long to look for what was chosen, in seconds.
    """

    def __init__(
        self,
        sets: ShardSets,
        shard: Shard,
        number: int,
        *,
        seen_by_all: Sequence[Tier],
        per_rank: PerRank,
        note: Callable[[str], None],
        follow_s: float | None = None,
    ) -> None:
        self._sets, self._shard, self._number = sets, shard, number
        self._seen_by_all, self._per_rank, self._note = seen_by_all, per_rank, note
        self._follow_s = FOLLOW_S if follow_s is None else follow_s
        self._failures: dict[CheckpointId, CheckpointError] = {}
        self.rng: Any = None  # The random states that came with the state.
        self.left_rng = False  # Whether there were some that are not this rank's.

    def restore(self, target: object | None, *, step: int | None) -> Restored | None:
        """Restore this rank's state; ``None`` if the launch begins anew.

        Raises:
            NotFoundError: ``step`` was asked for, and no set of it is complete.
            StateError: ``target`` does not fit; nothing was written to it.
            RestoreError: no set could be restored, or not the one that was chosen.
        """
        said = chosen(self._sets.lineage, self._number)
        if said is not None:
            return self._follow(said[0], target, step)
        for found in self._candidates(step):
            try:
                restored = self._restored(found, target)
            except (CorruptionError, NotFoundError) as error:
                self._failed(found, error)
                continue
            own = Chosen(found.id, found.world)
            final = choose(self._sets.lineage, self._number, own)
            return restored if final == own else self._follow(final, target, step)
        if self._failures:
            raise self._error()
        final = choose(self._sets.lineage, self._number, None)
        return None if final is None else self._follow(final, target, step)

    def _candidates(self, step: int | None) -> Iterator[FoundSet]:
        """Yield complete sets, the newest first; the quarantined when all others failed."""
        left, any_ = [], False
        bad: dict[int, set[CheckpointId]] = {}
        for found in self._sets.newest_first(on=self._seen_by_all):
            if step is not None and found.id.step != step:
                continue
            any_ = True
            first = self._sets.shard(0, found.world)
            if found.world not in bad:
                bad[found.world] = quarantined(first, note=self._note)
            if found.id in bad[found.world]:
                self._note(f"{self._sets.id} {found} {how_to_lift(first, found.id)}")
                left.append(found)
            else:
                yield found
        yield from left
        if step is not None and not any_:
            newest = itertools.islice(self._sets.newest_first(on=self._seen_by_all), 8)
            have = ", ".join(str(one.id.step) for one in newest) or "none"
            raise NotFoundError(
                f"{self._sets.id} has no complete checkpoint of step {step}; it has {have}."
            )

    def _follow(
        self, start: Chosen | None, target: object | None, step: int | None
    ) -> Restored | None:
        """Restore what another rank of this launch has chosen.

        Raises:
            RestoreError: this rank cannot.
        """
        who = f"{self._sets.id}: launch {self._number}"
        if start is None:
            if step is not None or self._failures:
                raise RestoreError(
                    f"{who} begins anew, as another rank has said; rank {self._shard.rank} "
                    f"cannot go on from a checkpoint alone. Start all ranks again."
                )
            return None
        if step is not None and start.id.step != step:
            raise RestoreError(
                f"{who} goes on from step {start.id.step}, as another rank has said; rank "
                f"{self._shard.rank} asks for step {step}. All ranks have to ask for the same."
            )
        until = time.monotonic() + self._follow_s
        while not (found := self._sets.find(start.id, start.world)).complete:
            if time.monotonic() >= until:
                raise RestoreError(
                    f"{who} goes on from {start.id}, but rank {self._shard.rank} did not see "
                    f"all of it within {self._follow_s:.0f} s: {lacking(found)}, on tiers "
                    f"{[tier.name for tier in self._sets.tiers]}."
                )
            time.sleep(min(_LOOK_EVERY_S, self._follow_s))
        try:
            return self._restored(found, target)
        except (CorruptionError, NotFoundError) as error:
            self._failed(found, error)
            raise self._error() from error

    def _restored(self, found: FoundSet, target: object | None) -> Restored:
        reader = SetReader(self._sets, found, note=self._note)
        source, is_same = self._source(reader)
        has_rng = parts_of(reader.shards[source].manifest.structure)["rng"] is not None
        one = restore_rank(reader, target, self._shard, source=source, same_rng=is_same)
        self.rng, self.left_rng = one.rng, has_rng and not is_same
        skipped = tuple(
            (checkpoint, str(error)) for checkpoint, error in self._failures.items()
        )
        return Restored(found.id, one.state, one.base, skipped, one.failed_tiers)

    def _source(self, reader: SetReader) -> tuple[int, bool]:
        """Return whose own leaves this rank gets, and whether with the random states.

        Raises:
            StateError: nobody's.
        """
        shard, saved_world = self._shard, reader.found.world
        if saved_world == shard.world:
            return shard.rank, True
        if self._per_rank != "same":
            source = self._per_rank(shard.rank, shard.world, saved_world)
            if not isinstance(source, int) or not 0 <= source < saved_world:
                raise StateError(
                    f"per_rank({shard.rank}, {shard.world}, {saved_world}) returned "
                    f"{source!r}; {reader.found} has ranks 0 to {saved_world - 1}."
                )
            return source, True
        source = shard.rank % saved_world
        if own := reader.shards[source].map.own:
            listed = ", ".join(own[:_SHOWN_MAX])
            more = f" and {len(own) - _SHOWN_MAX} more" if len(own) > _SHOWN_MAX else ""
            raise StateError(
                f"{self._sets.id} {reader.found} holds leaves that belong to ranks ({listed}"
                f"{more}), and this launch has {shard.world} ranks. If they are alike on all "
                f"ranks, save them as replicated=; else say with per_rank= whose a rank gets. "
                f"Nothing was changed.",
                tuple(own),
            )
        return source, False

    def _failed(self, found: FoundSet, error: CheckpointError) -> None:
        self._failures[found.id] = error
        self._note(f"{self._sets.id} {found} was skipped: {error}")
        if is_damage(error):
            first = self._sets.shard(0, found.world)
            record_failure(first, found.id, by=self._number, error=error, note=self._note)

    def _error(self) -> RestoreError:
        return none_restored(
            f"Rank {self._shard.rank} could restore none of {len(self._failures)} complete "
            f"checkpoints of {self._sets.id}.",
            self._failures,
        )
