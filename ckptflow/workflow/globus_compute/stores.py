"""Whether an endpoint sees the stores that the submitting side means.

A folder of the same name may be another one over there: the task would save, resume and end
well, and nobody on this side would ever find its checkpoints. A store has an id, so both sides
say which one they see. Tiers below the level of a parallel file system belong to a node, and
differ by nature.

``tests/unit/test_globus_compute.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckptflow.errors import NotFoundError, TierError
from ckptflow.model import SHARED_LEVEL
from ckptflow.store.descriptor import ensure_store, store_id
from ckptflow.workflow.attempt import opened_tiers

# What was compared with success stays so while the process lives; each task asks.
_the_same: set[tuple[str, tuple[tuple[str, str], ...]]] = set()


def store_ids(tiers: str, *, make: bool = False) -> dict[str, str]:
    """Return the ids of the shared stores among ``tiers``, by name of the tier.

    A tier that does not answer is left out: tasks go on without it, and so does this.

    Args:
        tiers: as `tiers_as_text` writes them.
        make: whether to make a tier a store that is none yet.
    """
    found: dict[str, str] = {}
    for tier in opened_tiers(tiers):
        if tier.level < SHARED_LEVEL:
            continue
        try:
            if make:
                ensure_store(tier)
            found[tier.name] = store_id(tier)
        except NotFoundError:
            found[tier.name] = ""
        except TierError:
            continue
    return found


def other_stores(meant: Mapping[str, str], tiers: str) -> list[str]:
    """Return the tiers that are another store here than the one that is meant."""
    if not meant or (tiers, tuple(meant.items())) in _the_same:
        return []
    here = store_ids(tiers)
    wrong = [name for name, identity in meant.items() if here.get(name, identity) != identity]
    if not wrong:
        _the_same.add((tiers, tuple(meant.items())))
    return wrong
