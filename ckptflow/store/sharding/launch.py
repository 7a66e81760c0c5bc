"""Which launch of a program this process belongs to, agreed upon through the store alone.

A *launch* is one start of all ranks together. Its number is the attempt of every checkpoint
that its ranks save, so that shards of two lives never make one set, and a newer launch fences
an older one. All ranks of a launch show the same *token*, a text from their launcher; the first
of them claims a number for it, and the others find the claim. A rank can be in a launch once:
who finds its own place taken is another life under the same token, and goes on to the next
number.

Which checkpoint a launch goes on from is decided once, too: the first rank that has restored
one says so, and the others follow. Nothing here waits. "Shards" in
``docs/reference/format-v1.md``; ``tests/unit/test_sharded.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ckptflow.errors import AlreadyExists, CorruptionError, FencedError, NotFoundError
from ckptflow.model import CheckpointId, Shard, attempt_key
from ckptflow.store.catalog import AttemptRecord, Lineage
from ckptflow.store.descriptor import RECORD_BYTES_MAX, ensure_store
from ckptflow.store.origin import origin

_JOIN_TRIES = 1000
_PLACES_KEPT = 8  # Launches of which it stays on record which ranks have come.


@dataclass(frozen=True, slots=True)
class Chosen:
    """The checkpoint that a launch goes on from: which, and how many ranks had saved it."""

    id: CheckpointId
    world: int


def claim(lineage: Lineage, world: int, token: str) -> int:
    """Claim the next launch on behalf of ranks that do not run yet, and return its number.

    They `join` it with the same token, ``claimed``. Nobody else has this token.

    Raises:
        FencedError: others claim all the time.
        TierError: the fence tier failed.
        FormatError: it is a store of a newer version.
    """
    ensure_store(lineage.fence_tier)
    shard = Shard(lineage.id, 0, world)
    for _ in range(_JOIN_TRIES):
        known = lineage.attempts()
        number = (known[-1].attempt if known else _committed(lineage, shard)) + 1
        try:
            _claim(lineage, number, world, token)
        except AlreadyExists:
            continue
        return number
    raise FencedError(
        f"{lineage.id}: {_JOIN_TRIES} attempts were claimed while this one tried."
    )


def join(lineage: Lineage, shard: Shard, token: str, *, claimed: bool = False) -> int:
    """Return the number of the launch that this process is a rank of.

    Args:
        lineage: that of the set, which has the attempts.
        shard: the place of this process.
        token: the same text for all ranks of a launch, and another one for each launch.
        claimed: `claim` was called with this token; there is nothing newer to begin.

    Raises:
        FencedError: this launch was overtaken before this rank came.
        TierError: the fence tier failed.
        FormatError: it is a store of a newer version.
    """
    ensure_store(lineage.fence_tier)
    for _ in range(_JOIN_TRIES):
        known = lineage.attempts()
        newest = known[-1] if known else None
        if newest is not None and _is_ours(newest, shard, token):
            if _take_place(lineage, newest.attempt, shard.rank):
                for old in known[:-_PLACES_KEPT][-1:]:  # Of each start this deletes one more.
                    key = f"{lineage.id.prefix}/{_place_key(old.attempt, shard.rank)}"
                    lineage.fence_tier.delete(key)
                return newest.attempt
        elif claimed:
            raise FencedError(
                f"{shard.set}: attempt {newest.attempt if newest else None} has taken over "
                f"from the one that rank {shard.rank} belongs to."
            )
        else:
            _refuse_if_late(lineage, shard, token, known)
        number = (newest.attempt if newest else _committed(lineage, shard)) + 1
        try:
            _claim(lineage, number, shard.world, token)
        except AlreadyExists:
            continue  # Maybe by a rank of this launch: look again.
    raise FencedError(
        f"{shard.set}: {_JOIN_TRIES} launches were claimed while rank {shard.rank} tried."
    )


def _claim(lineage: Lineage, number: int, world: int, token: str) -> None:
    record = {
        "attempt": number,
        "started": _now(),
        **origin(),
        "launch": token,
        "world": world,
    }
    _create(lineage, attempt_key(number, "claim"), record)


def _is_ours(one: AttemptRecord, shard: Shard, token: str) -> bool:
    claim = one.claim or {}
    return (claim.get("launch"), claim.get("world")) == (token, shard.world)


def _refuse_if_late(
    lineage: Lineage, shard: Shard, token: str, known: list[AttemptRecord]
) -> None:
    """Raise if the launch of this rank has begun, and a newer one has taken over."""
    for one in reversed(known[-_PLACES_KEPT:]):
        if _is_ours(one, shard, token):
            if not _has_place(lineage, one.attempt, shard.rank):
                raise FencedError(
                    f"{shard.set}: launch {known[-1].attempt} has taken over from launch "
                    f"{one.attempt} (token {token!r}), which rank {shard.rank} comes to now. "
                    f"If both are one, its ranks have different tokens: give launch=."
                )
            return


def _committed(lineage: Lineage, shard: Shard) -> int:
    """Return the greatest attempt of this rank's checkpoints, for where claims were lost."""
    own = Lineage(lineage.tiers, shard.lineage)
    return max((found.id.attempt for found in own.checkpoints()), default=0)


def _place_key(number: int, rank: int) -> str:
    return f"launches/{number:08d}.{rank:05d}"


def _take_place(lineage: Lineage, number: int, rank: int) -> bool:
    """Return whether this process now is that rank of a launch; else another one is."""
    place = {"started": _now(), **origin()}
    try:
        _create(lineage, _place_key(number, rank), place)
    except AlreadyExists:
        return False
    return True


def _has_place(lineage: Lineage, number: int, rank: int) -> bool:
    try:
        lineage.fence_tier.size(f"{lineage.id.prefix}/{_place_key(number, rank)}")
    except NotFoundError:
        return False
    return True


def choose(lineage: Lineage, number: int, start: Chosen | None) -> Chosen | None:
    """Say what a launch goes on from, unless that was said; return what counts.

    Raises:
        TierError: the fence tier failed.
        CorruptionError: what was said cannot be understood.
    """
    record = {
        "attempt": number,
        "step": start.id.step if start else None,
        "of": start.id.attempt if start else None,
        "world": start.world if start else None,
    }
    try:
        _create(lineage, _chosen_key(number), record)
    except AlreadyExists:
        found = chosen(lineage, number)
        assert found is not None, "it was there, and is never deleted"
        return found[0]
    return start


def chosen(lineage: Lineage, number: int) -> tuple[Chosen | None] | None:
    """Return what a launch goes on from, in a tuple; ``None`` if nobody has said it.

    Raises:
        TierError: the fence tier failed.
        CorruptionError: what was said cannot be understood.
    """
    key = f"{lineage.id.prefix}/{_chosen_key(number)}"
    try:
        text = lineage.fence_tier.get(key, size_bytes=RECORD_BYTES_MAX)
    except NotFoundError:
        return None
    try:
        match json.loads(text):
            case {"attempt": one, "step": None, "of": None, "world": None} if one == number:
                return (None,)
            case {"attempt": one, "step": int(step), "of": int(of), "world": int(world)} if (
                one == number and 0 <= of < number and world > 0
            ):
                return (Chosen(CheckpointId(step, of), world),)
    except (ValueError, RecursionError):
        pass
    raise CorruptionError(
        f"{key!r} on tier {lineage.fence_tier.name!r} does not say what launch {number} goes "
        f"on from. Start all ranks again: a new launch decides anew."
    )


def _chosen_key(number: int) -> str:
    return f"launches/{number:08d}.chosen"


def _create(lineage: Lineage, key: str, record: Mapping[str, Any]) -> None:
    text = json.dumps(record, sort_keys=True).encode()
    lineage.fence_tier.create(f"{lineage.id.prefix}/{key}", text)


def saved_together(lineage: Lineage) -> int | None:
    """Return how many ranks a task was saved by; ``None`` if by one process alone.

    A launch that has saved nothing does not count.
    """
    saved = {one.attempt for one in lineage.attempts() if one.resume}
    for one in reversed(lineage.attempts()):
        world = (one.claim or {}).get("world")
        if isinstance(world, int) and one.attempt in saved:
            return world
    return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
