"""What other tasks have met, as their newest checkpoints say: of the run, then of other runs.

A task that has just begun has met nothing; beside it run others of its kind, and the store
remembers runs before it, on such nodes. It is advice: what cannot be read is left out.
``tests/unit/test_steering.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from ckptflow.errors import CheckpointError
from ckptflow.model import LINEAGES, LineageId
from ckptflow.store.catalog import Lineage, lineages

ASKED_MAX = 8
"""So many other tasks are asked: it is a manifest each, and they say much the same."""


def pace_of_others(lineage: Lineage) -> list[Mapping[str, Any]]:
    """Return what the newest checkpoints of some other tasks say of their pace.

    Those of the same run come first, and where they are few, tasks of other runs in the store.
    """
    paces = (_newest(Lineage(lineage.tiers[-1:], one)) for one in _others(lineage))
    return [pace for pace in islice(paces, ASKED_MAX) if pace]


def _others(lineage: Lineage) -> Iterator[LineageId]:
    """Yield other tasks, not always the same ones, but for one task the same."""
    chance = random.Random(str(lineage.id))  # noqa: S311
    outermost = lineage.tiers[-1:]
    try:
        own = [one for one in lineages(outermost, lineage.id.run) if one != lineage.id]
        yield from chance.sample(own, len(own))
        runs = sorted(set(outermost[0].iter_folders(LINEAGES)) - {lineage.id.run})
        for run in chance.sample(runs, len(runs)):
            tasks = lineages(outermost, run)
            yield from chance.sample(tasks, min(2, len(tasks)))
    except (CheckpointError, OSError):
        return


def _newest(lineage: Lineage) -> Mapping[str, Any]:
    try:
        found = lineage.newest()
        return lineage.manifest(found).pace if found else {}
    except (CheckpointError, OSError):
        return {}
