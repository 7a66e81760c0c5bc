"""Write one checkpoint: digest, diff, encode, put the packs, put the manifest.

The put of the manifest is the commit, and it comes last; a crash before it leaves garbage
that nobody reads, and every earlier checkpoint as it was. ``tests/unit/test_save.py``
crashes a save before each of its writes.
"""

from __future__ import annotations

import importlib.metadata
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ckptflow import manifest as manifest_file
from ckptflow.data import digest, merkle
from ckptflow.data.encoding import Goal
from ckptflow.model import CheckpointId, LineageId, Manifest, RegionEntry
from ckptflow.store.completion import NO_SOURCES, Sources
from ckptflow.store.memory import Base, Memory, NamedRegion
from ckptflow.store.packer import Packer
from ckptflow.store.packing import check_sizes
from ckptflow.store.planning.changes import remember_changes
from ckptflow.store.planning.choice import note_ratios, writings_of
from ckptflow.store.planning.duplicates import Verify
from ckptflow.store.planning.plan import Plan, Planner
from ckptflow.tiers.tier import Tier

WRITER = f"ckptflow {importlib.metadata.version('ckptflow')}"


def write_checkpoint(
    tier: Tier,
    lineage: LineageId,
    checkpoint: CheckpointId,
    *,
    structure: Any,
    regions: Sequence[NamedRegion],
    base: Base | None,
    chunk_bytes: int,
    cell_bytes: int | None = None,
    goal: Goal = "auto",
    verify: Verify = "off",
    sources: Sources = NO_SOURCES,
    metrics: Mapping[str, float] | None = None,
    pace: Mapping[str, Any] | None = None,
    before_commit: Callable[[], None] = lambda: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    nonce: Callable[[], str] = lambda: secrets.token_hex(4),
) -> Base:
    """Write a checkpoint to ``tier`` and return the base for the next one.

    Args:
        tier: where it goes.
        lineage: whose checkpoint it is.
        checkpoint: its step and attempt.
        structure: how the regions make the state (see `ckptflow.data.tree`).
        regions: the bytes, which must not change until this function returns.
        base: the checkpoint before, on the same tier; ``None`` writes a full one, and so does
            a base of which a pack that is needed has gone, or the memory has moved on.
        chunk_bytes: unit of digest; a multiple of 8, at least 16.
        cell_bytes: unit of reuse, which divides ``chunk_bytes``; ``None``: as it suits the
            changes of each region.
        goal: ``"auto"`` weighs the time that encoding takes against that of writing and of
            reading back; ``"small"`` stores as few bytes as it can.
        verify: which bytes that were met before are compared with what is stored of them.
        sources: where bytes of regions may be had that are not there.
        metrics: numbers from the application, kept in the manifest.
        pace: how fast steps and saves go, for the next attempt; likewise.
        before_commit: called when all packs are durable; an exception stops the commit.
        now: the clock, UTC.
        nonce: draws 8 hex digits for the key of each pack.

    Raises:
        ConfigError: there are no such chunks or cells; nothing was touched.
        TornCapture: a region is not what was captured; earlier checkpoints are untouched.
        IncompleteSnapshot: bytes that it left to an earlier one are not to be had; likewise.
        TierError: the tier failed; likewise.
    """
    check_sizes(chunk_bytes, cell_bytes)
    if base and (base.manifest.chunk_bytes != chunk_bytes or base.manifest.lineage != lineage):
        base = None
    memory = base.memory if base and base.memory.of is base.manifest else Memory()
    planner = Planner(tier, lineage, regions, chunk_bytes, cell_bytes, goal, verify, sources)
    while True:
        plan = planner.plan(memory)
        memory, packer = plan.memory, Packer(tier, plan, lineage)
        entries = plan.entries
        try:
            count = plan.layout.plan.pack_count
            packer.put_all([checkpoint.pack_key(number, nonce()) for number in range(count)])
            manifest = Manifest(
                lineage=lineage,
                id=checkpoint,
                parent=plan.parent,
                kind="delta" if plan.shared else "full",
                created=now().isoformat(timespec="milliseconds"),
                writer=WRITER,
                metrics=dict(metrics or {}),
                root=checkpoint_root(entries),
                chunk_bytes=chunk_bytes,
                packs=(*plan.shared, *packer.packs),
                regions=entries,
                extents=plan.extents,
                structure=structure,
                pace=dict(pace or {}),
            )
            before_commit()
        except BaseException:
            memory.rollback()
            packer.forget()
            raise
        if _commit(tier, manifest, planner, plan):
            break
    remember_written(plan, packer, manifest, goal=goal, adapt=cell_bytes is None)
    return Base(manifest, memory)


def _commit(tier: Tier, manifest: Manifest, planner: Planner, plan: Plan) -> bool:
    """Put the manifest; return whether it stays.

    It is taken back if a prune elsewhere deleted older packs that it names, or is about to.
    """
    key = f"{manifest.lineage.prefix}/{manifest.id.manifest_key}"
    try:
        manifest_file.check_extents(manifest)  # Better none than one that cannot be read.
        tier.put(key, [manifest_file.encode(manifest)])
        if not (lost := planner.lost(plan)):
            return True
        tier.delete(key)
    except BaseException:
        plan.memory.rollback()
        raise
    # The packs stay for a prune: who read the manifest, to consolidate it, may hold them.
    plan.memory.rollback()
    plan.memory.forget(lost)
    return False


def remember_written(
    plan: Plan, packer: Packer, manifest: Manifest, *, goal: Goal, adapt: bool
) -> None:
    """Take over, into the memory that the plan went by, what the next one is diffed against.

    Args:
        plan: of what was written; its regions still hold still.
        packer: has put its packs.
        manifest: of it.
        goal: of encodings.
        adapt: whether the size of cells follows the changes.
    """
    memory = plan.memory
    note_ratios(plan.diffs, memory, packer.achieved)
    memory.commit(manifest, plan.layout.cells)
    if packer.put_bytes_per_s is not None:
        memory.put_bytes_per_s = packer.put_bytes_per_s
    writings = None
    if adapt:
        count, with_deltas = len(plan.diffs), plan.layout.with_deltas
        writings = writings_of(count, with_deltas, memory, packer.achieved, goal=goal)
    remember_changes(plan.diffs, memory, writings, chunk_bytes=manifest.chunk_bytes)


def checkpoint_root(entries: Sequence[RegionEntry]) -> bytes:
    """Return the root of a checkpoint from the names and roots of its regions."""
    names = [entry.name.encode() for entry in entries]
    size = max(map(len, names), default=0)
    named, edges = digest.many_chunk_digests(names, max(16, -(-size // 8) * 8))
    of_names = np.empty((len(entries), 2), np.uint64)
    of_names[:] = np.frombuffer(digest.digest(b""), "<u8")  # No bytes have no chunk.
    of_names[np.diff(edges) > 0] = named
    of_bytes = np.frombuffer(b"".join(entry.root for entry in entries), "<u8").reshape(-1, 2)
    return merkle.root(merkle.pair_roots(of_names, of_bytes.astype(np.uint64)))
