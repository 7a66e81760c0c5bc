"""Write one checkpoint: digest, diff, encode, put the packs, put the manifest.

The put of the manifest is the commit, and it comes last; a crash before it leaves garbage
that nobody reads, and every earlier checkpoint as it was. ``tests/unit/test_save.py``
crashes a save before each of its writes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow import manifest as manifest_file
from ckptflow.data import digest, merkle
from ckptflow.data.codec import FrameEncoder
from ckptflow.data.pack import HEAD, PackPlan, encode_table
from ckptflow.data.ranges import copy_ranges
from ckptflow.errors import NotFoundError, TierError
from ckptflow.model import CheckpointId, ExtentTable, LineageId, Manifest, PackRef, RegionEntry
from ckptflow.store.layout import Base, Layout, NamedRegion, lay_out
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
            a base of which a pack that is needed has gone.
        chunk_bytes: unit of comparison; a multiple of 8, at least 16.
        metrics: numbers from the application, kept in the manifest.
        before_commit: called when all packs are durable; an exception stops the commit.
        now: the clock, UTC.
        nonce: draws 8 hex digits for the key of each pack.

    Raises:
        TierError: the tier failed; earlier checkpoints are untouched.
    """
    if base and base.manifest.chunk_bytes != chunk_bytes:
        base = None
    digests = {item.name: digest.chunk_digests(item.data, chunk_bytes) for item in regions}
    layout = lay_out(regions, digests, base, chunk_bytes=chunk_bytes)
    shared = [base.manifest.packs[number] for number in layout.shared] if base else []
    if not all(_is_there(tier, lineage, pack) for pack in shared):
        # Scratch disks are cleaned behind our back, the oldest files first. A delta that names
        # what is gone would be durable and worthless.
        base, shared = None, []
        layout = lay_out(regions, digests, None, chunk_bytes=chunk_bytes)
    own: list[PackRef] = []
    try:
        for number in range(layout.plan.pack_count):
            key = checkpoint.pack_key(number, nonce())
            own.append(
                _put_pack(tier, lineage, key, layout.plan, number=number, regions=regions)
            )
        manifest = Manifest(
            lineage=lineage,
            id=checkpoint,
            parent=base.manifest.id if base and shared else None,
            kind="delta" if shared else "full",
            created=now().isoformat(timespec="milliseconds"),
            writer=WRITER,
            metrics=dict(metrics or {}),
            root=b"",
            chunk_bytes=chunk_bytes,
            packs=(*shared, *own),
            regions=_entries(regions, digests, layout),
            extents=ExtentTable.of(layout.rows),
            structure=structure,
        )
        manifest = replace(manifest, root=checkpoint_root(manifest.regions))
        before_commit()
    except BaseException:
        _forget(tier, [f"{lineage.prefix}/{pack.key}" for pack in own])
        raise
    tier.put(f"{lineage.prefix}/{checkpoint.manifest_key}", [manifest_file.encode(manifest)])
    return Base(manifest, digests)


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
    regions: Sequence[NamedRegion], digests: Mapping[str, NDArray[np.uint64]], layout: Layout
) -> tuple[RegionEntry, ...]:
    return tuple(
        RegionEntry(item.name, len(item.data), merkle.root(digests[item.name]), len(rows))
        for item, rows in zip(regions, layout.rows, strict=True)
    )


def _put_pack(
    tier: Tier,
    lineage: LineageId,
    key: str,
    plan: PackPlan,
    *,
    number: int,
    regions: Sequence[NamedRegion],
) -> PackRef:
    """Encode the frames of one pack and put it as a gather list."""
    encoder = FrameEncoder()
    frames = [
        (*encoder.encode(plain), len(plain))
        for plain in (_gather(plan, pieces, regions) for pieces in plan.frames_of(number))
    ]
    stored = [frame for _, frame, _ in frames]
    table, sealed = encode_table(
        stored=[len(frame) for frame in stored],
        plain=[size_bytes for _, _, size_bytes in frames],
        codec=[codec for codec, _, _ in frames],
        digest=[digest.digest(frame) for frame in stored],
    )
    parts: list[bytes | memoryview] = [HEAD, *stored, table]
    tier.put(f"{lineage.prefix}/{key}", parts)
    return PackRef(
        key=key,
        size_bytes=sum(len(part) for part in parts),
        plain_bytes=sum(size_bytes for _, _, size_bytes in frames),
        frame_count=len(frames),
        table_seal=sealed,
    )


def _gather(plan: PackPlan, pieces: slice, regions: Sequence[NamedRegion]) -> memoryview:
    """Return the plain bytes of a frame: a view where it is one piece, else a copy."""
    region, start, length = plan.region[pieces], plan.start[pieces], plan.length[pieces]
    if len(region) == 1:
        first = int(start[0])
        return regions[int(region[0])].data[first : first + int(length[0])]
    target = np.cumsum(length, dtype=np.uint64) - length
    plain = memoryview(bytearray(int(length.sum())))
    edges = np.flatnonzero(np.diff(region, prepend=-1, append=-1))
    for a, b in itertools.pairwise(edges.tolist()):
        source = regions[int(region[a])].data
        copy_ranges(source, plain, start[a:b], target[a:b], length[a:b])
    return plain
