"""Write one checkpoint: digest, diff, encode, put the packs, put the manifest.

The put of the manifest is the commit, and it comes last; a crash before it leaves garbage
that nobody reads, and every earlier checkpoint as it was. ``tests/unit/test_save.py``
crashes a save before each of its writes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ckptflow import manifest as manifest_file
from ckptflow.data import digest, merkle
from ckptflow.data.deltas import make_delta
from ckptflow.data.frames import Encoding, Scratch, encode_frame
from ckptflow.data.pack import HEAD, PackPlan, StoredFrame, encode_table
from ckptflow.data.ranges import copy_ranges
from ckptflow.data.encoding import Goal
from ckptflow.errors import NotFoundError, TierError
from ckptflow.model import CheckpointId, ExtentTable, LineageId, Manifest, PackRef, RegionEntry
from ckptflow.store.base import Base, Memory, NamedRegion, RegionDiff
from ckptflow.store.changes import find_changes, remember_changes
from ckptflow.store.choice import choose_encodings, delta_fraction_max
from ckptflow.store.drafting import RegionEncoding
from ckptflow.store.layout import Layout, lay_out
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
    metrics: Mapping[str, float] | None = None,
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
        metrics: numbers from the application, kept in the manifest.
        before_commit: called when all packs are durable; an exception stops the commit.
        now: the clock, UTC.
        nonce: draws 8 hex digits for the key of each pack.

    Raises:
        ConfigError: there are no such chunks or cells; nothing was touched.
        TierError: the tier failed; earlier checkpoints are untouched.
    """
    if base and (base.manifest.chunk_bytes != chunk_bytes or base.manifest.lineage != lineage):
        base = None
    memory = base.memory if base and base.memory.of is base.manifest else Memory()
    own: list[PackRef] = []
    try:
        diffs, encodings, layout, memory = _planned(
            tier,
            lineage,
            regions,
            memory,
            chunk_bytes=chunk_bytes,
            cell_bytes=cell_bytes,
            goal=goal,
        )
        began = time.monotonic()
        for number in range(layout.plan.pack_count):
            key = checkpoint.pack_key(number, nonce())
            own.append(
                _put_pack(tier, f"{lineage.prefix}/{key}", key, layout, number, diffs, memory)
            )
        put_s = time.monotonic() - began
        shared = [memory.packs[number] for number in layout.shared]
        manifest = Manifest(
            lineage=lineage,
            id=checkpoint,
            parent=memory.of.id if memory.of and shared else None,
            kind="delta" if shared else "full",
            created=now().isoformat(timespec="milliseconds"),
            writer=WRITER,
            metrics=dict(metrics or {}),
            root=b"",
            chunk_bytes=chunk_bytes,
            packs=(*shared, *own),
            regions=_entries(diffs, encodings, layout, chunk_bytes),
            extents=ExtentTable.of([rows for one in layout.regions for rows in one.tables]),
            structure=structure,
        )
        manifest = replace(manifest, root=checkpoint_root(manifest.regions))
        before_commit()
    except BaseException:
        memory.rollback()
        _forget(tier, [f"{lineage.prefix}/{pack.key}" for pack in own])
        raise
    try:
        tier.put(
            f"{lineage.prefix}/{checkpoint.manifest_key}", [manifest_file.encode(manifest)]
        )
    except BaseException:
        memory.rollback()
        raise
    memory.commit(manifest, layout.cells)
    remember_changes(diffs, memory, chunk_bytes=chunk_bytes, adapt=cell_bytes is None)
    if manifest.written_bytes > _TELLING_BYTES:
        memory.put_bytes_per_s = manifest.written_bytes / max(put_s, 1e-6)
    return Base(manifest, memory)


_TELLING_BYTES = 1 << 20  # Less is put too quickly to tell how fast a tier is.

_Planned = tuple[list[RegionDiff], list[RegionEncoding], Layout, Memory]


def _planned(
    tier: Tier,
    lineage: LineageId,
    regions: Sequence[NamedRegion],
    memory: Memory,
    *,
    chunk_bytes: int,
    cell_bytes: int | None,
    goal: Goal,
) -> _Planned:
    """Diff and lay out, against what is still there.

    Scratch disks are cleaned behind our back, the oldest files first. A delta that names what is
    gone would be durable and worthless.
    """
    while True:
        diffs = find_changes(regions, memory, chunk_bytes=chunk_bytes, cell_bytes=cell_bytes)
        encodings = choose_encodings(
            diffs, memory, goal=goal, cores=len(os.sched_getaffinity(0))
        )
        layout = lay_out(diffs, memory, encodings, delta_fraction_max=delta_fraction_max(goal))
        shared = [memory.packs[number] for number in layout.shared]
        gone = [pack for pack in shared if not _is_there(tier, lineage, pack)]
        if not gone:
            return diffs, encodings, layout, memory
        memory.rollback()
        if memory.of and not set(gone).isdisjoint(memory.of.packs):
            memory = Memory()  # The parent itself is broken.
        else:
            memory.forget(gone)


def _is_there(tier: Tier, lineage: LineageId, pack: PackRef) -> bool:
    try:
        return tier.size(f"{lineage.prefix}/{pack.key}") == pack.size_bytes
    except NotFoundError:
        return False


def _forget(tier: Tier, keys: Sequence[str]) -> None:
    """Delete packs of a save that failed before its commit: a full disk needs the room.

    Not after a failed commit: the manifest may have arrived although its answer did not.
    """
    for key in keys:
        with contextlib.suppress(TierError):  # What stays is garbage for the next prune.
            tier.delete(key)


def checkpoint_root(entries: Sequence[RegionEntry]) -> bytes:
    """Return the root of a checkpoint from the names and roots of its regions."""
    return _root_of(
        [_root_of([digest.digest(entry.name.encode()), entry.root]) for entry in entries]
    )


def _root_of(digests: Sequence[bytes]) -> bytes:
    return merkle.root(np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2))


def _entries(
    diffs: Sequence[RegionDiff],
    encodings: Sequence[RegionEncoding],
    layout: Layout,
    chunk_bytes: int,
) -> tuple[RegionEntry, ...]:
    return tuple(
        RegionEntry(
            name=diff.region.name,
            size_bytes=len(diff.region.data),
            root=merkle.root(diff.changes.chunks),
            extent_count=len(layers.bottom),
            deltas=layers.kinds,
            encoding=encoding.reasons,
            cell_bytes=0 if diff.cell_bytes == chunk_bytes else diff.cell_bytes,
        )
        for diff, encoding, layers in zip(diffs, encodings, layout.regions, strict=True)
    )


def _put_pack(
    tier: Tier,
    where: str,
    key: str,
    layout: Layout,
    number: int,
    diffs: Sequence[RegionDiff],
    memory: Memory,
) -> PackRef:
    """Encode the frames of one pack and put it as a gather list."""
    scratch, frames = Scratch(), []
    for pieces in layout.plan.frames_of(number):
        encoding = layout.encodings[int(layout.plan.encoding[pieces.start])]
        plain = _gather(layout.plan, pieces, [diff.region.data for diff in diffs])
        if encoding.op is not None:
            parents = [
                memory.bytes_at_hand.get(diff.region.name, memoryview(b"")) for diff in diffs
            ]
            plain = _delta(plain, _gather(layout.plan, pieces, parents), encoding)
        codec, filter_, word, stored = encode_frame(plain, encoding, scratch)
        frames.append(StoredFrame(stored, len(plain), codec, filter_, word))
    table, sealed = encode_table(frames, [digest.digest(frame.stored) for frame in frames])
    parts: list[bytes | memoryview] = [HEAD, *(frame.stored for frame in frames), table]
    tier.put(where, parts)
    return PackRef(
        key=key,
        size_bytes=sum(len(part) for part in parts),
        plain_bytes=sum(frame.plain_bytes for frame in frames),
        frame_count=len(frames),
        table_seal=sealed,
    )


def _delta(new: memoryview, old: memoryview, encoding: Encoding) -> memoryview:
    assert encoding.op is not None, "only deltas are made of deltas"
    out = memoryview(bytearray(len(new)))
    make_delta(new, old, out, op=encoding.op, word_bytes=encoding.op_word)
    return out


def _gather(plan: PackPlan, pieces: slice, sources: Sequence[memoryview]) -> memoryview:
    """Return the plain bytes of a frame: a view where it is one piece, else a copy."""
    region, start, length = plan.region[pieces], plan.start[pieces], plan.length[pieces]
    if len(region) == 1:
        first = int(start[0])
        return sources[int(region[0])][first : first + int(length[0])]
    target = np.cumsum(length, dtype=np.uint64) - length
    plain = memoryview(bytearray(int(length.sum())))
    edges = np.flatnonzero(np.diff(region, prepend=-1, append=-1))
    for a, b in itertools.pairwise(edges.tolist()):
        source = sources[int(region[a])]
        copy_ranges(source, plain, start[a:b], target[a:b], length[a:b])
    return plain
