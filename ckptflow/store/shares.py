"""Divide the room on a tier among its lineages: each keeps what fits in its share.

A lineage that wants little gets that; the others get the same each, and none less than its
newest good checkpoint takes (`ckptflow.policy.quota.fair_shares`).
``tests/unit/test_quota.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ckptflow.model import LineageId
from ckptflow.policy.quota import fair_shares
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.inventory import Known
from ckptflow.store.prune import plan_prune
from ckptflow.tiers.tier import Tier

_LEAST = 1  # Byte: what fits into it is the newest good one, which always stays.


def retention_by_lineage(
    lineages: Sequence[Lineage], tier: Tier, retention: Retention, size_bytes: int
) -> dict[LineageId, Retention]:
    """Return what each lineage keeps on a tier, so that all together take so many bytes.

    Args:
        lineages: all that share the room.
        tier: where.
        retention: what they keep as far as there is room.
        size_bytes: for the packs of all of them. More is used only if their newest good
            checkpoints alone take more.

    Raises:
        TierError: something could not be read.
    """
    wanted, floors = {}, {}
    for lineage in lineages:
        known = Known()
        least = replace(retention, size_bytes=_LEAST)
        wanted[lineage.id] = plan_prune(lineage, tier, retention, known=known).kept_bytes
        floors[lineage.id] = plan_prune(lineage, tier, least, known=known).kept_bytes
    shares = fair_shares(wanted, floors, size_bytes)
    return {
        name: replace(retention, size_bytes=max(share, _LEAST))
        for name, share in shares.items()
    }
