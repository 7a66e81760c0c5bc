"""Checkpoints that failed to restore again and again are not tried first any more.

An attempt that meets a damaged checkpoint says so in a small record on the fence tier. After
`FAILURES` attempts have said it of one checkpoint, that is *quarantined*: a restore passes it
over, so that a task which dies of what it meets there does not do so for ever. It is never lost
that way: when nothing else restores it is tried all the same, and to verify or to repair it
with success lifts the quarantine. When a checkpoint is pruned its records go, too. They are
advisory, and whatever goes wrong with them hinders no restore.
``tests/unit/test_quarantine.py``.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError
from ckptflow.model import CheckpointId
from ckptflow.store.catalog import Lineage
from ckptflow.store.find import is_there

FAILURES = 3  # By so many attempts: then it is quarantined.
RECORDS_MAX = 16  # For one checkpoint; more say nothing new.
_REASON_MAX = 500  # Characters.

_FOLDER = "quarantine"
_KEY = re.compile(rf"{_FOLDER}/(\d{{12}})\.(\d{{8}})\.(\d{{8}})")

Note = Callable[[str], None]


def quarantine_key(checkpoint: CheckpointId, by: int) -> str:
    """Return the key, relative to the lineage, of what attempt ``by`` says of a checkpoint."""
    return f"{_FOLDER}/{checkpoint.step:012d}.{checkpoint.attempt:08d}.{by:08d}"


def failures(lineage: Lineage) -> dict[CheckpointId, list[int]]:
    """Return, for each checkpoint that failed to restore, the attempts that met it, rising.

    Raises:
        TierError: the fence tier could not be listed.
    """
    prefix = f"{lineage.id.prefix}/"
    found: dict[CheckpointId, list[int]] = {}
    for key in lineage.fence_tier.iter_keys(prefix + _FOLDER):
        if match := _KEY.fullmatch(key.removeprefix(prefix)):
            step, attempt, by = map(int, match.groups())
            found.setdefault(CheckpointId(step, attempt), []).append(by)
    return found


def known_bad(lineage: Lineage) -> set[CheckpointId]:
    """Return the checkpoints that are quarantined, whether or not they still exist.

    Raises:
        TierError: the fence tier could not be listed.
    """
    return {one for one, by in failures(lineage).items() if len(by) >= FAILURES}


def quarantined(lineage: Lineage, *, note: Note) -> set[CheckpointId]:
    """Like `known_bad`, but where that cannot be found out nothing is quarantined."""
    try:
        return known_bad(lineage)
    except CheckpointError as error:
        note(f"{lineage.id}: what is quarantined could not be found out: {error}")
        return set()


def is_damage(error: CheckpointError) -> bool:
    """Tell whether a failed restore says something about the checkpoint.

    A tier that did not answer says nothing: what lies there may be sound.
    """
    is_certain = not (isinstance(error, CorruptionError) and error.may_pass)
    return is_certain and isinstance(error, CorruptionError | NotFoundError)


def record_failure(
    lineage: Lineage, checkpoint: CheckpointId, *, by: int, error: CheckpointError, note: Note
) -> None:
    """Say that attempt ``by`` could not restore a checkpoint, if that can be written down.

    The same attempt says it once, however often it tries. What was pruned meanwhile was not
    damaged, and nothing is said of it.
    """
    record = {
        "step": checkpoint.step,
        "attempt": checkpoint.attempt,
        "by": by,
        "when": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "reason": str(error)[:_REASON_MAX],
    }
    key = f"{lineage.id.prefix}/{quarantine_key(checkpoint, by)}"
    try:
        known = failures(lineage).get(checkpoint, [])
        is_news = by not in known and len(known) < RECORDS_MAX
        if is_news and any(is_there(tier, lineage.id, checkpoint) for tier in lineage.tiers):
            lineage.fence_tier.put(key, [json.dumps(record, sort_keys=True).encode()])
    except CheckpointError as failure:
        note(f"{lineage.id} {checkpoint}: its failure could not be recorded: {failure}")


def reasons(lineage: Lineage, checkpoint: CheckpointId) -> list[Mapping[str, object]]:
    """Return the records about a checkpoint; one that cannot be read counts, but says nothing.

    Raises:
        TierError: the fence tier failed.
    """
    found: list[Mapping[str, object]] = []
    for by in failures(lineage).get(checkpoint, []):
        try:
            key = f"{lineage.id.prefix}/{quarantine_key(checkpoint, by)}"
            record = json.loads(lineage.fence_tier.get(key, size_bytes=1 << 16))
        except (NotFoundError, CorruptionError, ValueError, RecursionError):
            record = None
        found.append(record if isinstance(record, dict) else {"by": by})
    return found


def lift(lineage: Lineage, checkpoint: CheckpointId) -> int:
    """Forget that a checkpoint failed; return how many records that were.

    Raises:
        TierError: the fence tier failed.
    """
    known = failures(lineage).get(checkpoint, [])
    for by in known:
        lineage.fence_tier.delete(f"{lineage.id.prefix}/{quarantine_key(checkpoint, by)}")
    return len(known)


def lift_all(lineage: Lineage, sound: Collection[CheckpointId], *, note: Note) -> None:
    """Forget the failures of checkpoints that were found sound, where that is possible."""
    try:
        for checkpoint in failures(lineage).keys() & sound:
            lift(lineage, checkpoint)
    except CheckpointError as error:
        note(f"{lineage.id}: a quarantine could not be lifted: {error}")


def lift_deleted(lineage: Lineage) -> None:
    """Forget the failures of checkpoints that are on no tier any more.

    A record that could not be deleted, or whose checkpoint may be on a tier that does not
    answer, stays until the next time: it does no harm.
    """
    with contextlib.suppress(CheckpointError):
        for checkpoint in failures(lineage):
            if not any(is_there(tier, lineage.id, checkpoint) for tier in lineage.tiers):
                lift(lineage, checkpoint)


def how_to_lift(lineage: Lineage, checkpoint: CheckpointId) -> str:
    """Say why a checkpoint is passed over, and what to do about it."""
    name = f"{lineage.id}@{checkpoint.step}.{checkpoint.attempt}"
    return (
        f"is quarantined: at least {FAILURES} attempts could not restore it. To use it again, "
        f"mend it with `ckptflow repair {name}`, or say `ckptflow quarantine {name} --lift`."
    )
