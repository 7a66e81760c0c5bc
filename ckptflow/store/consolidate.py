"""Write what a checkpoint needs into packs of its own, so that a restore opens few, and flat.

It needs neither the task nor its memory, and runs on any tier. The bytes are moved in the order
in which they lie, so that each is read and written once however many rows refer to it; delta
layers are applied. Then all is read back and compared with the roots, and only then a manifest
of the same checkpoint takes the place of the old one: that put is the commit. Before it there
is garbage; the packs of the old manifest stay until a prune finds them needless.
``tests/unit/test_consolidate.py`` crashes it before each of its writes.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ckptflow import manifest as manifest_file
from ckptflow.data import digest
from ckptflow.errors import NotFoundError, TierError
from ckptflow.model import CheckpointId, ExtentTable, Manifest, PackRef
from ckptflow.policy.consolidation import Shape, Verdict, judge
from ckptflow.store.catalog import Lineage
from ckptflow.store.guards import hold
from ckptflow.store.packer import joined
from ckptflow.store.partial import PartialReader
from ckptflow.store.planning.layout import place
from ckptflow.store.planning.lines import Layers
from ckptflow.store.planning.pieces import Draft
from ckptflow.store.planning.wear import Worn, live_bytes
from ckptflow.store.rewriting import choose_encodings, new_packs
from ckptflow.store.save import WRITER
from ckptflow.tiers.tier import Tier

LIVE_MIN = 0.5  # Of its own packs those stay of which so much is needed.


@dataclass(frozen=True, slots=True)
class Consolidation:
    """What came of one checkpoint on one tier.

    Attributes:
        id: which.
        tier: where.
        verdict: whether it was worth it, with reasons.
        before: what it was.
        after: what it is now; ``None`` if it is as it was.
        written_bytes: of new packs.
    """

    id: CheckpointId
    tier: str
    verdict: Verdict
    before: Shape
    after: Shape | None = None
    written_bytes: int = 0


def plan_consolidation(lineage: Lineage, tier: Tier, checkpoint: CheckpointId) -> Consolidation:
    """Say whether a checkpoint on a tier is worth consolidating. Nothing is touched.

    Raises:
        NotFoundError, CorruptionError, FormatError, TierError: it cannot be read.
    """
    shape = shape_of(lineage.manifest_on(tier, checkpoint))
    return Consolidation(checkpoint, tier.name, judge(shape, level=tier.level), shape)


def consolidate(
    lineage: Lineage,
    tier: Tier,
    checkpoint: CheckpointId,
    *,
    force: bool = False,
    note: Callable[[str], None] = lambda _text: None,
    nonce: Callable[[], str] = lambda: secrets.token_hex(4),
    pace: Callable[[int], None] = lambda _bytes: None,
) -> Consolidation:
    """Consolidate a checkpoint on a tier, if that is worth it.

    Its bytes are read from that tier, and where that copy is damaged, from the others. Takes
    memory for about one pack and one part (`ckptflow.store.partial.PART_BYTES`).

    Args:
        lineage: whose.
        tier: where; nothing is written anywhere else.
        checkpoint: which.
        force: do it even if it is not worth it, as long as it changes anything.
        note: told of every copy that was skipped.
        nonce: draws 8 hex digits for the key of each pack.
        pace: called with the bytes that are to be read or written next; may wait. What it
            raises ends the consolidation, and the checkpoint is as it was.

    Raises:
        NotFoundError: the checkpoint is not on the tier, or was deleted meanwhile.
        CorruptionError: some of its bytes have no sound copy; it stays as it is.
        TierError: the tier failed; the checkpoint is as it was.
        FormatError: it was written by a newer version.
    """
    with hold(tier, lineage.id, checkpoint) as holding:
        old = lineage.manifest_on(tier, checkpoint)
        shape = shape_of(old)
        verdict = judge(shape, level=tier.level)
        unchanged = Consolidation(checkpoint, tier.name, verdict, shape)
        if not verdict.worth and not (force and shape.can_improve):
            return unchanged
        others = [other for other in lineage.tiers if other is not tier]
        with PartialReader([tier, *others], old, note=note, before_read=pace) as reader:
            new, packs = _rewritten(tier, old, reader, nonce, pace)
        try:
            with PartialReader([tier], new, note=note, before_read=pace) as reader:
                reader.check_roots()
            manifest_file.check_extents(new)
            if lineage.manifest_on(tier, checkpoint).packs != old.packs:
                raise NotFoundError(
                    f"{lineage.id} {checkpoint} on tier {tier.name!r} was written anew while "
                    f"it was consolidated; it stays as it is now."
                )
            holding.confirm(found=False)
        except BaseException:
            _forget(tier, old, packs)
            raise
        key = f"{lineage.id.prefix}/{checkpoint.manifest_key}"
        tier.put(key, [manifest_file.encode(new)])  # The commit.
    written_bytes = sum(pack.size_bytes for pack in packs)
    return replace(unchanged, after=shape_of(new), written_bytes=written_bytes)


def shape_of(manifest: Manifest) -> Shape:
    """Return what a restore of a checkpoint has to do, from its manifest alone."""
    live = live_bytes(_layers(manifest), len(manifest.packs))
    above = [rows for tables in manifest.region_layers() for rows in tables[1:]]
    stored = np.array([pack.size_bytes for pack in manifest.packs], np.float64)
    plain = np.array([max(pack.plain_bytes, 1) for pack in manifest.packs], np.float64)
    return Shape(
        packs=len(manifest.packs),
        older_packs=len(manifest.packs) - len(manifest.own_packs),
        layers=max((len(entry.deltas) for entry in manifest.regions), default=0),
        delta_bytes=sum(int(rows.extent.sum()) for rows in above),
        live_bytes=int(live.sum()),
        stored_bytes=int(stored.sum()),
        dead_bytes=int((stored * (1 - np.minimum(live / plain, 1))).sum()),
    )


def _layers(manifest: Manifest) -> list[Layers]:
    return [
        Layers(
            tables[0],
            tuple(
                (kind.op, kind.word_bytes, rows)
                for kind, rows in zip(entry.deltas, tables[1:], strict=True)
            ),
        )
        for entry, tables in zip(manifest.regions, manifest.region_layers(), strict=True)
    ]


def _rewritten(
    tier: Tier,
    old: Manifest,
    reader: PartialReader,
    nonce: Callable[[], str],
    pace: Callable[[int], None],
) -> tuple[Manifest, list[PackRef]]:
    """Put the new packs; return the manifest that names them, and them."""
    layers = _layers(old)
    plain_bytes = np.array([pack.plain_bytes for pack in old.packs], np.uint64)
    chosen, draft = choose_encodings(old, reader), Draft()
    moving = Worn(_left_behind(old, layers), plain_bytes, draft, layers, chosen.of_region)
    layers = [moving.replace(number, one) for number, one in enumerate(layers)]
    plan, _, layers, kept = place(layers, draft, chosen.encodings, len(old.packs))
    packs: list[PackRef] = []
    try:
        for number, frames in enumerate(new_packs(plan, chosen.encodings, reader)):
            digests = [digest.digest(frame.stored) for frame in frames]
            pack, parts = joined(frames, digests, old.id.pack_key(number, nonce()))
            pace(pack.size_bytes)
            tier.put(f"{old.lineage.prefix}/{pack.key}", parts)
            packs.append(pack)
    except BaseException:
        _forget(tier, old, packs)
        raise
    regions = tuple(
        replace(
            entry,
            extent_count=len(one.bottom),
            deltas=one.kinds,
            encoding=chosen.reasons.get(number, entry.encoding),
        )
        for number, (entry, one) in enumerate(zip(old.regions, layers, strict=True))
    )
    extents = ExtentTable.of([rows for one in layers for rows in one.tables])
    new = replace(
        old,
        kind="full",
        parent=None,
        writer=WRITER,
        packs=(*(old.packs[number] for number in kept), *packs),
        regions=regions,
        extents=extents,
    )
    return new, packs


def _left_behind(old: Manifest, layers: Sequence[Layers]) -> NDArray[np.bool_]:
    """Tell which packs are left behind: all but its own that are mostly needed, no deltas."""
    live = live_bytes(layers, len(old.packs))
    plain = np.array([pack.plain_bytes for pack in old.packs], np.float64)
    own = np.array([pack in old.own_packs for pack in old.packs], np.bool_)
    deltas = ExtentTable.of([rows for one in layers for rows in one.tables[1:]])
    own[np.unique(deltas.pack[deltas.stored])] = False
    return ~(own & (live >= LIVE_MIN * plain))


def _forget(tier: Tier, old: Manifest, packs: Sequence[PackRef]) -> None:
    for pack in packs:
        with contextlib.suppress(TierError):  # What stays is garbage for the next prune.
            tier.delete(f"{old.lineage.prefix}/{pack.key}")
