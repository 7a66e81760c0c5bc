"""Carry a run from one store to another, or to another name in the same one.

``tests/unit/test_moving.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ckptflow.store.catalog import Lineage
from ckptflow.store.find import find_run
from ckptflow.store.moving.incoming import Incoming
from ckptflow.store.moving.items import MoveReport
from ckptflow.store.moving.outgoing import outgoing
from ckptflow.tiers.tier import Tier


def copy_run(
    tiers: Sequence[Tier],
    run: str,
    target: Tier,
    *,
    name: str | None = None,
    on_object: Callable[[str], None] = lambda _key: None,
    note: Callable[[str], None] = lambda _text: None,
) -> MoveReport:
    """Copy all that makes a run to another store. What was interrupted is simply repeated.

    Args:
        tiers: where it is, inner ones first.
        run: its name.
        target: where it goes; becomes a store if it is none.
        name: what it is called there.
        on_object: told the key, relative to its lineage, of each object that was dealt with.
        note: told, in a sentence, of every copy that was skipped and why.

    Raises:
        NotFoundError: there is no such run.
        ConfigError: ``name`` cannot be the name of a run.
        TierError: a tier failed.
    """
    lineages = find_run(tiers, run)
    incoming = Incoming(target, name=name)
    for lineage_id in lineages:
        lineage = Lineage(tiers, lineage_id, note=note)
        for item in outgoing(
            lineage, has=partial(incoming.has, lineage_id), leave=incoming.report.left.append
        ):
            incoming.take(item)
            on_object(item.key)
    return incoming.report
