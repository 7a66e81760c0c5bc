"""Read every piece of every stripe again, and take away the parity that is damaged.

A survey looks at names; this looks at bytes. Damaged parity is worth nothing, so it is deleted,
and the next protection makes other parity. Damaged objects are left to whoever repairs
checkpoints; here they are named. ``tests/unit/test_redundancy_survey.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ckptflow.errors import TierError
from ckptflow.store.redundancy.coding import problem_of
from ckptflow.store.redundancy.survey import Survey


@dataclass(frozen=True, slots=True)
class Damaged:
    """A piece that is not what was coded.

    Attributes:
        stripe: its id.
        number: of the piece; those of objects come first.
        member: where it lies.
        keys: that hold it.
        reason: what is wrong with it.
    """

    stripe: str
    number: int
    member: str
    keys: tuple[str, ...]
    reason: str


def scrub(survey: Survey) -> list[Damaged]:
    """Read all pieces on the members that answer; return those that are damaged.

    ``survey`` learns that they are not there.

    Raises:
        TierError: damaged parity could not be deleted.
    """
    tiers = {one: found.tier for one, found in survey.members.items()}
    found: list[Damaged] = []
    for name, seen in list(survey.stripes.items()):
        stripe, bad = seen.stripe, set[int]()
        for number in sorted(seen.present):
            try:
                reason = problem_of(stripe, number, tiers, silent_is_bad=False)
            except TierError:  # It was not read: nobody knows that it is damaged.
                continue
            if reason is None:
                continue
            member, keys = stripe.members[number], stripe.keys_of(number)
            found.append(Damaged(name, number, member, keys, reason))
            bad.add(number)
            if number >= len(stripe.data):
                for key in keys:
                    tiers[member].delete(key)
        if bad:
            survey.forget(name)
            survey.add(replace(seen, present=seen.present - bad))
    return found
