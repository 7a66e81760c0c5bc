"""The lineage as one attempt sees it: its claim, and where it went on from.

Lazy: a task that never uses its checkpointer claims nothing, and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ckptflow.checkpointer.steering import Steering
from ckptflow.data.buffers import U64s
from ckptflow.errors import ConfigError, NotFoundError, TierError
from ckptflow.model import CheckpointId
from ckptflow.store.catalog import Lineage
from ckptflow.store.memory import Base
from ckptflow.store.resume import Restored, restore_newest
from ckptflow.store.sharding.launch import saved_together
from ckptflow.tiers.tier import Tier


class History:
    """One attempt of one lineage.

    Args:
        lineage: the checkpoints of the task.
        attempt: its number, if it was claimed already, by this process or another one.
        note: told, in a sentence, of everything that was skipped.
    """

    def __init__(
        self, lineage: Lineage, attempt: int | None, *, note: Callable[[str], None]
    ) -> None:
        self.lineage, self._note = lineage, note
        self.attempt = attempt  # None until it is claimed.
        self.restored: Restored | None = None
        self._attached = attempt is not None
        self._looked = False  # Whether `restore` has said where to go on.

    def claim(self) -> int:
        """Return the number of this attempt; claims it on first use."""
        if self.attempt is None:
            self.attempt = self.lineage.claim()
        return self.attempt

    def claim_again(self) -> None:
        """Go on as a new attempt: only so are the later checkpoints of this one void."""
        self.attempt, self._attached = None, False
        self.claim()

    def find(self, target: Any, *, step: int | None) -> Restored | None:
        """Restore a checkpoint into ``target``; see `store.resume.restore_newest`."""
        found = restore_newest(
            self.lineage, target, step=step, attempt=self.attempt, note=self._note
        )
        if found is None:
            self._refuse_shards()
        return found

    def go_on_from(self, restored: Restored | None) -> None:
        """Settle where this attempt begins: at a restored checkpoint, or at nothing."""
        self.restored, self._looked = restored, True

    def refuse_to_ignore(self) -> None:
        """Raise if there are checkpoints that nobody looked at: saving would make them void.

        Raises:
            ConfigError: there are.
        """
        if self._looked or self._is_on_record():
            return
        if newest := self.lineage.newest():
            raise ConfigError(
                f"{self.lineage.id} has checkpoints up to {newest.id}, which this "
                f"attempt did not restore. Call restore() before the first save, or use "
                f"another run or task name to begin anew."
            )
        self._refuse_shards()

    def _refuse_shards(self) -> None:
        """Raise if the task was saved by ranks together: one alone would begin anew."""
        if (world := saved_together(self.lineage)) is not None:
            raise ConfigError(
                f"{self.lineage.id} was saved by {world} ranks together, which this "
                f"checkpointer cannot go on from. Use a ShardedCheckpointer, on any number of "
                f"ranks, or another run or task name to begin anew."
            )

    def recorder(self) -> Callable[[], None] | None:
        """Return what records where this attempt began, or ``None`` if that is done."""
        if self._is_on_record():
            return None
        start = self.restored.id if self.restored else None
        return partial(self.lineage.record_resume, self.claim(), start)

    def _is_on_record(self) -> bool:
        """Tell whether another process of this attempt has recorded already where it began."""
        return self._attached and any(
            one.attempt == self.attempt and one.resume for one in self.lineage.attempts()
        )

    def proven(self) -> list[CheckpointId]:
        """Return the checkpoint that was restored, and so read as a whole and found sound."""
        return [self.restored.id] if self.restored else []

    def bases(self) -> dict[str, Base]:
        """Return what was restored, by the name of each tier that holds all of it.

        Not of one whose copy could not be used: what is diffed against damage is lost with it.
        """
        if self.restored is None or self.restored.base is None:
            return {}
        base = self.restored.base
        sizes = {
            f"{self.lineage.id.prefix}/{pack.key}": pack.size_bytes
            for pack in base.manifest.packs
        }
        usable = [
            tier
            for tier in self.lineage.tiers
            if tier.name not in self.restored.failed_tiers and _holds(tier, sizes)
        ]
        return {tier.name: base for tier in usable}

    def pace(self) -> Mapping[str, Any]:
        """Return what the checkpoint that was restored says of the pace of its task."""
        is_own = self.restored is not None and self.restored.base is not None
        return self.restored.base.manifest.pace if is_own else {}  # type: ignore[union-attr]

    def tell(self, steering: Steering, *, restore_s: float) -> None:
        """Tell what makes plans where this attempt went on from, and what had happened.

        The level from which the newest checkpoint could be had is the class of the failure. An
        attempt that was stopped in time met none.
        """
        holds: tuple[Tier, ...] = ()
        if self.restored is not None:
            found = self.lineage.valid_of_step(self.restored.id.step)
            holds = found[0].tiers if found else ()
        lost = self._interrupted()
        steering.start(
            self.pace(),
            restored_step=self.restored.id.step if self.restored else None,
            restored_from=holds[0] if holds else None,
            restore_s=restore_s,
            was_failure=bool(lost) and lost[-1],
            silent=sum(lost[:-1]),
            holds={one.name for one in holds},
        )

    def _interrupted(self) -> list[bool]:
        """Return of each attempt since the restored checkpoint whether it just broke off.

        The checkpoint tells what its own attempt knew; of what became of that one, and of those
        after it that saved nothing, nobody else tells.
        """
        first = self.restored.id.attempt if self.restored is not None else 0
        ends = [
            one.end
            for one in self.lineage.attempts()
            if self.attempt is None or first <= one.attempt < self.attempt
        ]
        return [
            end is None or end.get("outcome") not in {"preempted", "finished"} for end in ends
        ]

    def digests(self) -> Mapping[str, U64s]:
        """Return the digests of the chunks of what was restored, by the names of regions."""
        if self.restored is None or self.restored.base is None:
            return {}
        return self.restored.base.digests


def _holds(tier: Tier, sizes: Mapping[str, int]) -> bool:
    """Tell whether a tier has objects of these sizes: one that was cut is not built upon."""
    try:
        return all(tier.size(key) == size_bytes for key, size_bytes in sizes.items())
    except (NotFoundError, TierError):
        return False
