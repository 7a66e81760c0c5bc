"""Form stripes of what the members hold and nothing protects yet, and write them.

Order within a stripe: parity blocks, then the descriptor to those that hold parity, then to
those that gave data. So a member that finds the descriptor beside its object knows that it is
protected, and a crash before that leaves parity without a descriptor: garbage that
`ckptflow.store.redundancy.release` sweeps. Packs come first; a manifest is copied, never
coded with others, and only when all of its packs are protected: its stripe is the commit of
the checkpoint's protection. ``tests/unit/test_redundancy_crashes.py`` crashes before each.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from ckptflow.errors import TierDenied, TierError, TierFull
from ckptflow.model import CheckpointId
from ckptflow.policy.groups import choose_data, place_parity
from ckptflow.store.redundancy.coding import MemberFailed, put_on, write_parity
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.stripes import (
    BLOCK_BYTES,
    PIECE_BYTES_MAX,
    Stripe,
    encode,
    new_stripe_id,
    parse_object_key,
)
from ckptflow.store.redundancy.survey import Held, Seen, Survey

WORN_PCT = 50  # A stripe with less of its data in use is written anew.


@dataclass(slots=True)
class Protected:
    """What a round of protection did.

    Attributes:
        stripes: those that were written.
        data_bytes: of the objects in them.
        parity_bytes: what was written for that.
        reasons: what could not be done as wanted, and why.
    """

    stripes: list[Stripe] = field(default_factory=list)
    data_bytes: int = 0
    parity_bytes: int = 0
    reasons: list[str] = field(default_factory=list)


def new_id() -> str:
    """Return the id of a stripe that is made now."""
    return new_stripe_id(time.time_ns() // 1_000_000, secrets.token_bytes(10))


def protect(
    survey: Survey,
    scheme: Scheme,
    *,
    first: Collection[tuple[str, str]] = (),
    assumed: Collection[str] = (),
    make_id: Callable[[], str] = new_id,
    block_bytes: int = BLOCK_BYTES,
) -> Protected:
    """Write stripes for every object that is held and not protected as the scheme wants.

    What is in a stripe that lost a member, or of which little is in use any more, gets another
    stripe; the old one is then released. ``survey`` learns of the stripes that were written.

    Args:
        survey: a look at the members.
        scheme: what is wanted. With fewer members than that takes, what can be done is.
        first: (member, key) of objects that are wanted soon; if there are any, only these and
            what is coded together with them are done.
        assumed: members that do not answer now and are taken to hold what they held.
        make_id: draws the ids of stripes.
        block_bytes: parity in one object.
    """
    _describe_again(survey)
    work = _Round(survey, scheme, set(assumed), make_id, block_bytes)
    while work.able():
        packs = [held for held in work.wishes() if held.pack is not None]
        if not packs or (first and not any(held.place in first for held in packs)):
            break
        work.write(work.together(packs, first))
    for held in sorted(work.wishes(), key=lambda held: (_is_manifest(held), held.place)):
        if held.pack is None and (not first or held.place in first):
            while work.able() and work.is_open(held) and work.is_ready(held):
                work.write([held])
    return work.done


def members_with_wishes(
    survey: Survey, scheme: Scheme, assumed: Collection[str] = ()
) -> frozenset[str]:
    """Return the members that hold packs which need a stripe."""
    work = _Round(survey, scheme, set(assumed), new_id, BLOCK_BYTES)
    return frozenset(held.member for held in work.wishes() if held.pack is not None)


def _describe_again(survey: Survey) -> None:
    """Put descriptors that are lost or damaged: what a member holds follows from its own."""
    for name, seen in list(survey.stripes.items()):
        lacking = {*seen.stripe.members} & survey.members.keys() - seen.described
        described = set(seen.described)
        for one in sorted(lacking):
            with contextlib.suppress(MemberFailed):
                put_on(survey.members[one], seen.stripe.descriptor_key, encode(seen.stripe))
                described.add(one)
        if lacking:
            survey.forget(name)
            survey.add(replace(seen, described=frozenset(described)))


def _is_manifest(held: Held) -> bool:
    parsed = parse_object_key(held.key)
    return parsed is not None and CheckpointId.of_manifest(parsed[1]) is not None


class _Round:
    """Who still takes part, and what is done."""

    def __init__(
        self,
        survey: Survey,
        scheme: Scheme,
        assumed: set[str],
        make_id: Callable[[], str],
        block_bytes: int,
    ) -> None:
        self.done = Protected()
        self._survey, self._scheme, self._assumed = survey, scheme, assumed
        self._make_id, self._block_bytes = make_id, block_bytes
        self._alive = set(survey.members)
        self._full: set[str] = set()  # They hold nothing more for others.
        self._settled: set[tuple[str, str]] = set()  # Objects that are done, or cannot be.
        self._load_bytes: dict[str, int] = {}
        for seen in survey.stripes.values():
            self._count_load(seen.stripe)

    def able(self) -> bool:
        """Tell whether two members are left, one of them with room."""
        return len(self._alive) >= 2 and bool(self._alive - self._full)

    def is_open(self, held: Held) -> bool:
        """Tell whether something can still be done for an object."""
        return held.place not in self._settled and held.member in self._alive

    def wishes(self) -> list[Held]:
        """Return the objects that need a stripe."""
        objects = filter(self.is_open, self._survey.objects.values())
        return [held for held in objects if not self._is_well(held)]

    def is_ready(self, held: Held) -> bool:
        """Tell whether a manifest may be protected: all of its packs are."""
        needed = self._survey.packs.get(held.place)
        if needed is None:
            return True
        prefix = f"{held.lineage.prefix}/"
        packs = [self._survey.objects.get((held.member, prefix + pack.key)) for pack in needed]
        if all(pack and self._survey.losses(pack, self._assumed) for pack in packs):
            return True
        self.done.reasons.append(
            f"{held.key!r} of member {held.member[:8]} is not protected: a pack that it names "
            f"is not."
        )
        return False

    def together(self, packs: Sequence[Held], first: Collection[tuple[str, str]]) -> list[Held]:
        """Choose packs of different members for one stripe: the wanted ones, then the largest.

        Parity is as long as the longest, so similar sizes come together.
        """

        def rank(held: Held) -> int:
            return held.size_bytes + (PIECE_BYTES_MAX if held.place in first else 0)

        heads = {held.member: held for held in sorted(packs, key=lambda h: (rank(h), h.key))}
        nodes = [self._survey.members[one].node for one in sorted(self._alive)]
        ranks = {member: rank(held) for member, held in heads.items()}
        chosen = list(choose_data(nodes, ranks, self._scheme.data_count(len(nodes))))
        while len(chosen) > 1 and self._room(chosen) < self._losses():
            chosen.pop()
        return [heads[member] for member in chosen]

    def write(self, objects: Sequence[Held]) -> None:
        """Write one stripe, or learn who cannot take part; then the objects are tried again."""
        members, data = self._survey.members, [held.member for held in objects]
        count = min(self._losses(), self._room(data))
        if count < self._scheme.losses:
            self._explain(objects, count)
        if not count:
            self._settled.update(held.place for held in objects)
            return
        able = self._alive - self._full | set(data)
        nodes = [members[one].node for one in sorted(able)]
        placed = place_parity(nodes, data, count, load_bytes=self._load_bytes)
        try:
            stripe = write_parity(
                self._make_id(), objects, placed.holders, members, block_bytes=self._block_bytes
            )
            for member in (*placed.holders, *data):
                put_on(members[member], stripe.descriptor_key, encode(stripe))
        except MemberFailed as failed:
            self._blame(failed, objects)
            return
        everything = frozenset(range(len(stripe.members)))
        self._survey.add(Seen(stripe, frozenset(stripe.members), everything))
        self._settled.update(held.place for held in objects)
        self._count_load(stripe)
        self.done.stripes.append(stripe)
        self.done.data_bytes += sum(piece.size_bytes for piece in stripe.data)
        self.done.parity_bytes += count * stripe.parity_bytes
        self.done.reasons += [text for text in placed.reasons if text not in self.done.reasons]

    def _is_well(self, held: Held) -> bool:
        """Tell whether an object is as well protected as it can be now: else it never rests."""
        wanted = max(1, min(self._losses(), self._room([held.member])))
        return any(
            seen.losses(self._assumed) >= wanted and not self._is_worn(seen)
            for seen in self._survey.of_object(held)
        )

    def _is_worn(self, seen: Seen) -> bool:
        data = seen.stripe.data
        used = [p for p in data if p.member in self._assumed or self._survey.is_held(p)]
        used_bytes, all_bytes = (sum(p.size_bytes for p in some) for some in (used, data))
        return 100 * used_bytes < WORN_PCT * all_bytes

    def _losses(self) -> int:
        return self._scheme.losses_of(len(self._alive))

    def _room(self, data: Collection[str]) -> int:
        return len(self._alive - self._full - set(data))

    def _count_load(self, stripe: Stripe) -> None:
        for piece in stripe.parity:
            held = self._load_bytes.get(piece.member, 0)
            self._load_bytes[piece.member] = held + stripe.parity_bytes

    def _explain(self, objects: Sequence[Held], count: int) -> None:
        names = ", ".join(f"{held.key!r} of member {held.member[:8]}" for held in objects)
        self.done.reasons.append(
            f"{names}: protected against {count} losses instead of {self._scheme.losses}, "
            f"since {len(self._alive)} members answer, {len(self._full)} of them without room."
        )

    def _blame(self, failed: MemberFailed, objects: Sequence[Held]) -> None:
        """Go on without who failed, or without what is damaged."""
        self.done.reasons.append(f"Member {failed.member[:8]}: {failed.error}")
        if failed.gave and not isinstance(failed.error, TierError):
            self._settled.update(h.place for h in objects if h.member == failed.member)
        elif not failed.gave and isinstance(failed.error, TierFull | TierDenied):
            self._full.add(failed.member)
        else:
            self._alive.discard(failed.member)
