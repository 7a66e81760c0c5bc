"""A redundancy set as one of its members uses it: protect, rebuild, release, ask.

Tasks do not save at one instant. Whoever has the lowest id of those that answer *leads*: it
waits a short time until enough members have something to be coded together, and codes it. The
others wait for it twice as long, then each protects its own checkpoint itself, together with
whatever the others have by then, or as a copy if they have nothing. So nobody depends on the
pace of another, and the worst that two who act at once can do is to protect an object twice.
Partner copies wait for nobody. All state is in the stores.
``tests/unit/test_redundancy_set.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ckptflow.errors import ConfigError, FlushError
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.store.redundancy.protect import Protected, members_with_wishes, protect
from ckptflow.store.redundancy.rebuild import Rebuilt, rebuild
from ckptflow.store.redundancy.release import Released, held_keys, release
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.stripes import BLOCK_BYTES
from ckptflow.store.redundancy.survey import Member, Survey, look
from ckptflow.tiers.tier import Tier

WAIT_S = 30.0
POLL_S = 0.5  # Of the own tier.
GATHER_POLL_S = 2.0  # Of all members.


@dataclass(frozen=True, kw_only=True)
class RedundancySet:
    """The members of a set, from the point of view of one of them.

    Attributes:
        own: the member on this node.
        others: the rest, in any order; whether they answer is seen at each use.
        scheme: what is wanted.
        gone: ids of members that will not come back. Silent members that are not named here are
            taken to hold what they held, so that a pause of the network moves no bytes.
        wait_s: how long a checkpoint waits for others, at the most.
        block_bytes: parity in one object, and in memory for each loss.
        note: told, in a sentence, of what was left out or could not be done as wanted.
        clock: seconds, monotonic.
        sleep: waits so many seconds.

    Raises:
        ConfigError: two members have one id.
    """

    own: Member
    others: Sequence[Member]
    scheme: Scheme
    gone: frozenset[str] = frozenset()
    wait_s: float = WAIT_S
    block_bytes: int = BLOCK_BYTES
    note: Callable[[str], None] = field(default=lambda _text: None)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep

    def __post_init__(self) -> None:
        ids = [member.id for member in self.members]
        if doubled := sorted({one for one in ids if ids.count(one) > 1}):
            raise ConfigError(
                f"Two members of a redundancy set are store {doubled[0]}: a store that was "
                f"copied to another node needs an id of its own."
            )

    @property
    def members(self) -> tuple[Member, ...]:
        """All members that are not gone, this one first."""
        return (self.own, *(one for one in self.others if one.id not in self.gone))

    def look(self) -> Survey:
        """Look at all members that answer."""
        return look(self.members, note=self.note)

    def protect_now(self) -> Protected:
        """Protect all that the members hold and that is not protected as wanted.

        For the background: also what lost a member, or shares its stripe with what is not used
        any more, gets a new stripe.
        """
        return self._protect(self.look())

    def protect_checkpoint(self, lineage: LineageId, manifest: Manifest) -> int:
        """Return when a checkpoint of this member is protected: how many losses it survives.

        Raises:
            FlushError: it is not; the notes say why. It is as safe as it was.
            TierError: this member's own tier failed.
        """
        survey = self.look()
        if self.scheme.name != "partner":
            if self._leads(survey):
                survey = self._gather(survey)
            else:
                self._wait_for_leader(lineage, manifest.id, survey)
                survey = self.look()
        keys = [manifest.id.manifest_key, *(pack.key for pack in manifest.packs)]
        first = {(self.own.id, f"{lineage.prefix}/{key}") for key in keys}
        first |= {held.place for held in survey.records(self.own.id, lineage)}
        done = self._protect(survey, first)
        losses = survey.checkpoint_losses(self.own.id, lineage, manifest.id)
        if not losses:
            raised = FlushError(
                f"{lineage} {manifest.id} is not protected by its redundancy set: "
                f"{len(survey.members)} of {len(self.members)} members answer."
            )
            for reason in (*survey.silent.values(), *done.reasons):
                raised.add_note(reason)
            raise raised
        if self._leads(survey):
            self._protect(survey)
        return losses

    def rebuild(self, target: Tier, *, lost: Collection[str] | None = None) -> Rebuilt:
        """Rebuild on ``target`` what members had that are lost: see `rebuild`."""
        return rebuild(self.look(), target, lost=lost)

    def release_now(self) -> Released:
        """Delete the stripes that nothing needs: see `release`."""
        survey = self.look()
        return release(survey, self.scheme, assumed=survey.silent, gone=self.gone)

    def held_keys(self) -> frozenset[str]:
        """Return the keys that a prune of this member's tier leaves out: see `held_keys`."""
        return held_keys(self.own.tier, self.own.id)

    def _protect(self, survey: Survey, first: Collection[tuple[str, str]] = ()) -> Protected:
        done = protect(
            survey,
            self.scheme,
            first=first,
            assumed=survey.silent,
            block_bytes=self.block_bytes,
        )
        for reason in done.reasons:
            self.note(reason)
        return done

    def _leads(self, survey: Survey) -> bool:
        return self.own.id == min(survey.members, default=self.own.id)

    def _gather(self, survey: Survey) -> Survey:
        """Look until as many members have something as one stripe takes, for half the time."""
        end = self.clock() + self.wait_s / 2
        while self.clock() < end:
            count = self.scheme.data_count(len(survey.members))
            if len(members_with_wishes(survey, self.scheme, survey.silent)) >= count:
                break
            self.sleep(min(GATHER_POLL_S, max(0.0, end - self.clock())))
            survey = self.look()
        return survey

    def _wait_for_leader(
        self, lineage: LineageId, checkpoint: CheckpointId, survey: Survey
    ) -> None:
        """Wait until a checkpoint seems to be protected as wanted, or time is over.

        The descriptors on this member tell: they are the last that is written. Whether the
        others still have what they had is for the next look to see.
        """
        others = [one.id for one in self.members if one is not self.own]
        wanted = max(1, self.scheme.losses_of(len(survey.members)))
        end = self.clock() + self.wait_s
        while (left_s := end - self.clock()) > 0:
            here = look([self.own])
            if here.checkpoint_losses(self.own.id, lineage, checkpoint, others) >= wanted:
                return
            self.sleep(min(POLL_S, left_s))
