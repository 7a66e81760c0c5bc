"""Find the lineage and the checkpoint that a person named.

Unlike a restore, which looks for what can be trusted, this finds what was asked for, damaged
and void ones too; and when there is no such thing it says what there is.
``tests/unit/test_find.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ckptflow.errors import NotFoundError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Found, Lineage, lineages
from ckptflow.tiers.tier import Tier

_SHOWN_MAX = 8


def find_lineage(
    tiers: Sequence[Tier],
    lineage: LineageId,
    *,
    note: Callable[[str], None] = lambda _text: None,
) -> Lineage:
    """Return a lineage that exists on some tier.

    Raises:
        NotFoundError: it does not; the message names those that do.
        FormatError: a tier is a store of a newer version.
    """
    known = lineages(tiers)
    if lineage not in known:
        same_run = [str(one) for one in known if one.run == lineage.run]
        there_are = _listed(same_run or [str(one) for one in known])
        raise NotFoundError(f"There is no {lineage} in {_named(tiers)}; there is {there_are}.")
    return Lineage(tiers, lineage, note=note)


def find_run(tiers: Sequence[Tier], run: str) -> list[LineageId]:
    """Return the lineages of a run, sorted by task.

    Raises:
        NotFoundError: it has none; the message names the runs that do.
        FormatError: a tier is a store of a newer version.
    """
    found = lineages(tiers, run)
    if not found:
        runs = sorted({one.run for one in lineages(tiers)})
        raise NotFoundError(
            f"There is no run {run!r} in {_named(tiers)}; there is {_listed(runs)}."
        )
    return found


def find_checkpoint(
    lineage: Lineage, *, step: int | None = None, attempt: int | None = None
) -> Found:
    """Return one checkpoint, whether its bytes are sound or not.

    Args:
        lineage: whose.
        step: which; the newest that is not void if ``None``.
        attempt: which, where several attempts saved the same step; if ``None``, the newest
            that is not void, or the newest of all where all are.

    Raises:
        NotFoundError: there is no such checkpoint; the message names the steps there are.
    """
    found = lineage.checkpoints()
    if step is None:
        matching = [one for one in found if not one.void]
    else:
        matching = [
            one for one in found if one.id.step == step and attempt in (None, one.id.attempt)
        ]
    if not matching:
        which = "checkpoint" if step is None else f"checkpoint of step {step}"
        which += f" by attempt {attempt}" if attempt is not None else ""
        steps = (f"{one.id.step}{' (void)' if one.void else ''}" for one in found)
        raise NotFoundError(
            f"{lineage.id} has no {which} in {_named(lineage.tiers)}; it has {_listed(steps)}."
        )
    return min(matching, key=lambda one: one.void)  # Stable: they come newest first.


def is_there(tier: Tier, lineage: LineageId, checkpoint: CheckpointId) -> bool:
    """Tell whether a tier holds the manifest of a checkpoint, at this moment.

    Who found something wrong with one asks again: a live run prunes, manifests first, so what
    has lost its manifest since it was listed was deleted, and not damaged.
    """
    try:
        tier.size(f"{lineage.prefix}/{checkpoint.manifest_key}")
    except NotFoundError:
        return False
    return True


def _named(tiers: Sequence[Tier]) -> str:
    return "tier " + ", ".join(repr(tier.name) for tier in tiers)


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return ", ".join(names[:_SHOWN_MAX]) + more if names else "nothing"
