"""What other tasks of the run have met, as their newest checkpoints say.

A task that has just begun has met nothing; beside it run others of its kind, on such nodes. It
is advice: what cannot be read is left out. ``tests/unit/test_steering.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from ckptflow.errors import CheckpointError
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage, lineages

ASKED_MAX = 8
"""So many other tasks are asked: it is a manifest each, and they say much the same."""


def pace_of_others(lineage: Lineage) -> list[Mapping[str, Any]]:
    """Return what the newest checkpoints of some other tasks of the run say of their pace."""
    return list(_paces(lineage))


def _paces(lineage: Lineage) -> Iterator[Mapping[str, Any]]:
    outermost = lineage.tiers[-1:]
    try:
        known = [one for one in lineages(outermost, lineage.id.run) if one != lineage.id]
    except (CheckpointError, OSError):
        return
    # Not always the same ones, and for one task the same.
    for one in random.Random(str(lineage.id)).sample(known, min(ASKED_MAX, len(known))):  # noqa: S311
        pace = _newest(Lineage(outermost, LineageId(one.run, one.task)))
        if pace:
            yield pace


def _newest(lineage: Lineage) -> Mapping[str, Any]:
    try:
        found = lineage.newest()
        return lineage.manifest(found).pace if found else {}
    except (CheckpointError, OSError):
        return {}
