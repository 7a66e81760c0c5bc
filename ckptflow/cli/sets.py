"""Sets of shards on the command line: one line for what many ranks saved together.

``tests/unit/test_cli_sets.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from ckptflow.cli import output
from ckptflow.data.leaves import shown
from ckptflow.errors import NotFoundError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.sharding.partial import SetArrays, complete_set
from ckptflow.store.sharding.sets import FoundSet, ShardSets, lacking
from ckptflow.store.sharding.survey import SetSummary
from ckptflow.tiers.tier import Tier
from ckptflow.units import format_bytes

T = TypeVar("T")
VALUES_MAX = 20


def sets_of(tiers: Sequence[Tier], lineage: LineageId) -> ShardSets | None:
    """Return the sets of a task, if its ranks have saved together."""
    sets = ShardSets(tiers, lineage, note=output.note)
    return sets if sets.worlds() else None


def shards_of(sets: ShardSets) -> list[Lineage]:
    """Return the lineages of all ranks, and of all numbers of ranks."""
    return [sets.shard(rank, world) for world in sets.worlds() for rank in range(world)]


def find_set(sets: ShardSets, step: int | None, attempt: int | None) -> FoundSet:
    """Return the set that was named, complete or not; the newest complete one by default.

    Raises:
        NotFoundError: there is none.
    """
    if step is None:
        return complete_set(sets)
    for found in sets.every():
        if found.id.step == step and attempt in (None, found.id.attempt):
            return found
    raise NotFoundError(f"{sets.id} has no checkpoint of step {step} by ranks together.")


def shards_in(sets: ShardSets, found: FoundSet) -> list[tuple[Lineage, list[Found]]]:
    """Return the shards of a set that are there, each with its lineage."""
    return [
        (sets.shard(rank, found.world), [shard])
        for rank, shard in enumerate(found.shards)
        if shard is not None
    ]


def document(one: SetSummary) -> dict[str, Any]:
    """Return what ``--json`` says of a set."""
    return {
        "step": one.found.id.step,
        "attempt": one.found.id.attempt,
        "ranks": one.found.world,
        "status": one.status,
        "missing": one.found.missing,
        "unreadable": one.unreadable,
        "complete_on": one.complete_on,
        "created": one.created,
        "state_bytes": one.state_bytes,
        "written_bytes": one.written_bytes,
    }


def print_sets(console: Console, sets: ShardSets, found: Sequence[SetSummary]) -> None:
    """Print one line for each set."""
    console.print(Text(str(sets.id), style="bold"))
    numbers = ("STEP", "ATTEMPT", "RANKS", "STATE", "WRITTEN")
    table = output.table(
        "STEP", "ATTEMPT", "RANKS", "STATUS", "CREATED", "STATE", "WRITTEN", "COMPLETE ON", "",
        numbers=numbers,
    )  # fmt: skip
    for one in found:
        why = lacking(one.found) if one.found.missing else ""
        if one.unreadable:
            why = f"unreadable: ranks {', '.join(map(str, one.unreadable))}"
        output.add_row(
            table,
            [
                one.found.id.step, one.found.id.attempt, one.found.world, one.status,
                one.created, format_bytes(one.state_bytes), format_bytes(one.written_bytes),
                ",".join(one.complete_on), why,
            ],
            style=None if one.status == "complete" else "dim" if one.found.void else "red",
        )  # fmt: skip
    console.print(table if found else "no checkpoints")


# --- show ------------------------------------------------------------------------------------


def facts(arrays: SetArrays, one: SetSummary) -> dict[str, Any]:
    """Return what is said of a set before its arrays."""
    found = one.found
    return {
        "run": arrays.reader.sets.id.run,
        "task": arrays.reader.sets.id.task,
        "step": found.id.step,
        "attempt": found.id.attempt,
        "ranks": found.world,
        "status": one.status,
        "complete_on": list(one.complete_on),
        "created": one.created,
        "state_bytes": one.state_bytes,
        "written_bytes": one.written_bytes,
        "bytes_by_rank": [one.manifests[rank].state_bytes for rank in sorted(one.manifests)],
    }


def array_rows(arrays: SetArrays) -> list[dict[str, Any]]:
    """Return name, type, size, and who holds it, of each array."""
    return [
        {
            "name": name,
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "bytes": spec.size_bytes,
            "held": arrays.kind(name),
        }
        for name, spec in arrays.specs.items()
    ]


def print_set(console: Console, arrays: SetArrays, said: dict[str, Any]) -> None:
    """Print a set: what it is, its arrays, its plain values as rank 0 has them."""
    head = output.table("", "")
    head.show_header = False
    for name, value in said.items():
        if isinstance(value, list):
            text = ", ".join(map(str, value))
        else:
            text = format_bytes(value) if name.endswith("_bytes") else str(value)
        output.add_row(head, [name.removesuffix("_bytes").replace("_", " "), text])
    console.print(head)
    table = output.table("ARRAY", "TYPE", "BYTES", "HELD", numbers=("BYTES",))
    for row in array_rows(arrays):
        kind = f"{row['dtype']} {row['shape']}"
        output.add_row(table, [shown(row["name"] or None), kind, row["bytes"], row["held"]])
    console.print()
    console.print(table)
    values = arrays.plain
    table = output.table("VALUE OF RANK 0", "")
    for name, value in list(values.items())[:VALUES_MAX]:
        output.add_row(table, [shown(name or None), f"{value!r:.200}"])
    if values:
        console.print()
        console.print(table)
    if len(values) > VALUES_MAX:
        console.print(f"and {len(values) - VALUES_MAX} more; --json has all")


# --- one line for all ranks ------------------------------------------------------------------


def together(
    rows: Iterable[tuple[LineageId, CheckpointId, str, T]],
) -> list[tuple[str, str, dict[int, T]]]:
    """Group what was found out about copies: all shards of a set on a tier are one.

    Args:
        rows: lineage, checkpoint, name of the tier, and what was found out.

    Returns:
        A name, the tier, and what was found out, by rank; 0 for a task of one process.
    """
    groups: dict[tuple[str, str], dict[int, T]] = defaultdict(dict)
    for lineage, checkpoint, tier, what in rows:
        shard = lineage.shard
        name = (
            f"{lineage if shard is None else shard.set}@{checkpoint.step}.{checkpoint.attempt}"
        )
        if shard is not None:
            name += f" ({shard.world} ranks)"
        groups[name, tier][0 if shard is None else shard.rank] = what
    return [(name, tier, ranks) for (name, tier), ranks in groups.items()]


def ranks_text(ranks: Sequence[int]) -> str:
    """Return some ranks, in few words."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {', '.join(map(str, ranks[:8]))}{' …' if len(ranks) > 8 else ''}"
