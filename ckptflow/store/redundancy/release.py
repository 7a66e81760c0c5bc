"""Keep what a stripe needs while anything in it is needed; delete stripes that nothing needs.

A member prunes its checkpoints when it likes. A pack that no manifest names any more is *given
up*; but while other objects of its stripe are needed it is held, since they are decoded with
it: prune leaves out `held_keys`. A stripe goes when each of its objects was given up, or is
in a younger stripe that is as good. Parity goes before the descriptors, so that a
crash in between is found and finished. ``tests/unit/test_redundancy_release.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ckptflow.errors import CorruptionError, NotFoundError
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.stripes import (
    REDUNDANCY,
    DataPiece,
    Stripe,
    is_stripe_id,
    read_stripe,
    time_of,
)
from ckptflow.store.redundancy.survey import Seen, Survey
from ckptflow.tiers.tier import Tier

UNFINISHED_AGE_S = 86_400.0  # Parity that is a day old and has no descriptor has no writer.


@dataclass(frozen=True, slots=True)
class Released:
    """What a release deleted: ids of stripes, and blocks of parity that belonged to none."""

    stripes: tuple[str, ...]
    loose_blocks: int


def held_keys(tier: Tier, member: str) -> frozenset[str]:
    """Return the keys of packs that may not be deleted from a member's tier, needed or not.

    It takes a look at this tier only: all stripes that a member belongs to lie on it.

    Raises:
        TierError: it could not be read; then nothing may be deleted.
        FormatError: a stripe is of a newer version; then nothing may be deleted either.
    """
    held: set[str] = set()
    for name in tier.iter_folders(REDUNDANCY):
        if not is_stripe_id(name):
            continue
        try:
            stripe = read_stripe(tier, name)
        except (NotFoundError, CorruptionError):  # Unfinished; or not to be had any more.
            continue
        if len(stripe.data) > 1:  # The only object of a stripe is needed by no other.
            held.update(piece.key for piece in stripe.data if piece.member == member)
    return frozenset(held)


def release(
    survey: Survey,
    scheme: Scheme,
    *,
    assumed: Collection[str] = (),
    gone: Collection[str] = (),
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Released:
    """Delete the stripes that nothing needs, on every member that answers.

    Args:
        survey: a look at the members.
        scheme: what a younger stripe has to provide for.
        assumed: members that do not answer now and are taken to hold what they held.
        gone: members that will not come back and whose objects were rebuilt, or given up.
            Those of other silent members are needed until they say otherwise.
        now_ms: the clock, ms since 1970.

    Raises:
        TierError: something could not be deleted; calling again finishes it.
    """
    wanted = scheme.losses_of(len(set(survey.members) | set(assumed)))

    def is_needed(seen: Seen, piece: DataPiece) -> bool:
        if piece.member not in survey.members:
            return True  # It cannot be asked.
        held = survey.objects.get((piece.member, piece.key))
        if held is None or not held.is_piece(piece):
            return False
        as_good = max(1, min(wanted, seen.losses(assumed)))
        return not any(
            other.stripe.id > seen.stripe.id and other.losses(assumed) >= as_good
            for other in survey.of_object(held)
        )

    released = []
    for seen in list(survey.stripes.values()):
        if not any(
            piece.member not in gone and is_needed(seen, piece) for piece in seen.stripe.data
        ):
            _delete(survey, seen.stripe)
            released.append(seen.stripe.id)
    oldest_ms = now_ms() - int(UNFINISHED_AGE_S * 1000)
    loose = [(m, key) for m, key in survey.loose if time_of(key.split("/")[1]) < oldest_ms]
    for member, key in loose:
        survey.members[member].tier.delete(key)
    return Released(tuple(released), len(loose))


def _delete(survey: Survey, stripe: Stripe) -> None:
    """Delete parity first, descriptors last, then forget it."""
    for number in range(len(stripe.data), len(stripe.members)):
        if (member := survey.members.get(stripe.members[number])) is not None:
            for key in stripe.keys_of(number):
                member.tier.delete(key)
    for one in stripe.members:
        if (member := survey.members.get(one)) is not None:
            member.tier.delete(stripe.descriptor_key)
    survey.forget(stripe.id)
