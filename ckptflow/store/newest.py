"""The newest checkpoint of every task of a run, from one listing of each tier.

`Lineage.newest` asks for one task what three listings know; for ten thousand tasks that takes
minutes on an object store. Here each tier is listed once, and objects are read only where an
attempt went on from an older checkpoint than the newest. What ranks saved together counts as
the task that it belongs to. ``tests/unit/test_newest.py`` compares both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ckptflow.errors import ConfigError, TierError
from ckptflow.model import LINEAGES, CheckpointId, LineageId, parse_attempt_key
from ckptflow.store.catalog import Lineage, fence_tier
from ckptflow.store.descriptor import check_store
from ckptflow.tiers.tier import Tier


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest checkpoint of a task that counts.

    Attributes:
        step: its step.
        tiers: names of those that hold it, inner ones first.
    """

    step: int
    tiers: tuple[str, ...]


@dataclass(slots=True)
class _Task:
    """What was listed of one task: per checkpoint and world, which ranks are on which tier.

    A checkpoint of one process has the world 0, and the rank 0.
    """

    found: dict[tuple[CheckpointId, int], dict[int, list[str]]] = field(default_factory=dict)
    resumes: list[int] = field(default_factory=list)

    def add(self, checkpoint: CheckpointId, world: int, rank: int, tier: str) -> None:
        ranks = self.found.setdefault((checkpoint, world), {})
        ranks.setdefault(rank, []).append(tier)


def newest_of_run(
    tiers: Sequence[Tier],
    run: str,
    *,
    note: Callable[[str], None] = lambda _text: None,
) -> dict[str, Newest | None]:
    """Return the newest checkpoint of each task of a run; ``None`` if a task has none.

    Args:
        tiers: inner ones first.
        run: its name.
        note: told of every tier or object that was skipped and why.

    Raises:
        TierError: no tier could be listed, or not the one with the claims.
        FormatError: a tier is a store of a newer version.
    """
    tasks: dict[str, _Task] = {}
    fence, failures = fence_tier(tiers), list[TierError]()
    for tier in tiers:
        try:
            _list(tier, run, tasks, with_attempts=tier is fence)
        except TierError as error:
            if tier is fence:
                raise
            failures.append(error)
            note(f"Tier {tier.name!r} was skipped: {error}")
    if len(failures) == len(tiers):
        raise failures[0]
    return {
        name: _newest(task, Lineage(tiers, LineageId(run, name), note=note))
        for name, task in sorted(tasks.items())
    }


def _list(tier: Tier, run: str, tasks: dict[str, _Task], *, with_attempts: bool) -> None:
    if not check_store(tier):
        return
    folder = f"{LINEAGES}/{run}"
    places: dict[str, tuple[str, int, int] | None] = {}
    for key in tier.iter_keys(folder):
        name, _, rest = key[len(folder) + 1 :].partition("/")
        if name not in places:
            places[name] = _place(run, name)
        place = places[name]
        if place is None:
            continue  # Somebody else's folder.
        task, world, rank = place
        known = tasks.setdefault(task, _Task())
        if rest.startswith("manifests/") and (found := CheckpointId.of_manifest(rest)):
            known.add(found, world, rank, tier.name)
        elif with_attempts and rest.startswith("attempts/"):
            match parse_attempt_key(rest):
                case (attempt, "resume"):
                    known.resumes.append(attempt)


def _place(run: str, name: str) -> tuple[str, int, int] | None:
    """Return the task of a folder, and of how many ranks it holds which."""
    try:
        shard = LineageId(run, name).shard
    except ConfigError:
        return None
    return (name, 0, 0) if shard is None else (shard.set.task, shard.world, shard.rank)


def _newest(task: _Task, lineage: Lineage) -> Newest | None:
    limits: dict[int, int | None] = {}
    for (checkpoint, world), ranks in sorted(task.found.items(), reverse=True):
        if len(ranks) < max(1, world):
            continue  # A set of which some shards lack.
        for attempt in task.resumes:
            if attempt > checkpoint.attempt and attempt not in limits:
                limits[attempt] = lineage.resume_limit(attempt)
        is_void = any(
            attempt > checkpoint.attempt and step is not None and step < checkpoint.step
            for attempt, step in limits.items()
        )
        if not is_void:
            order = {tier.name: number for number, tier in enumerate(lineage.tiers)}
            names = {name for holders in ranks.values() for name in holders}
            return Newest(checkpoint.step, tuple(sorted(names, key=order.__getitem__)))
    return None
