"""Take a run out of a store: every object once, in order, compared with its digests.

Objects come from whichever tier has them sound. Void checkpoints stay, as do records of
quarantine, which speak of copies and not of the run. ``tests/unit/test_moving.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from ckptflow.errors import CheckpointError, CorruptionError
from ckptflow.model import Manifest, PackRef, parse_attempt_key
from ckptflow.store.catalog import Found, Lineage, decode_manifest
from ckptflow.store.checking.packs import check_pack
from ckptflow.store.find import is_there
from ckptflow.store.moving.items import Item, ManifestItem, Pack, Record
from ckptflow.tiers.tier import Tier

T = TypeVar("T")


def outgoing(
    lineage: Lineage,
    *,
    has: Callable[[PackRef], bool],
    leave: Callable[[str], None],
) -> Iterator[Item]:
    """Yield what a lineage consists of.

    Args:
        lineage: which.
        has: asked of each pack before it is read; what is there already is not yielded.
        leave: told, in a sentence, of each checkpoint that has no sound copy.

    Raises:
        TierError: a tier failed, so that it cannot be told what there is.
    """
    prefix = f"{lineage.id.prefix}/"
    checkpoints = [found for found in lineage.checkpoints() if not found.void]
    # After the checkpoints: what is recorded later can make them void, and not the reverse.
    for key in lineage.fence_tier.iter_keys(f"{prefix}attempts"):
        if parse_attempt_key(relative := key.removeprefix(prefix)):
            yield Record(lineage.id, relative, lineage.fence_tier.get(key))
    done: set[PackRef] = set()

    def packs(found: Found, manifest: Manifest) -> Iterator[Pack]:
        for ref in manifest.packs:
            if ref not in done and not has(ref):
                yield Pack(lineage.id, ref, _pack(lineage, found, ref))
            done.add(ref)

    for found in reversed(checkpoints):
        last: bytes | None = b""
        try:
            while last is not None:
                data, manifest = _manifest(lineage, found)
                try:
                    yield from packs(found, manifest)
                    last = None
                except CorruptionError:
                    if data == last:
                        raise
                    last = data  # Once more: it may have been packed again meanwhile.
            yield ManifestItem(lineage.id, found.id, data)
        except CorruptionError as error:
            if any(is_there(tier, lineage.id, found.id) for tier in found.tiers):
                why = " ".join([str(error), *getattr(error, "__notes__", ())])
                leave(f"{lineage.id} {found.id} was left behind: {why}")
            # Else a live run has pruned it meanwhile.


def _manifest(lineage: Lineage, found: Found) -> tuple[bytes, Manifest]:
    key = f"{lineage.id.prefix}/{found.id.manifest_key}"

    def read(tier: Tier) -> tuple[bytes, Manifest]:
        data = tier.get(key)
        where = f"{key!r} on tier {tier.name!r}"
        return data, decode_manifest(data, lineage.id, found.id, where=where)

    return _first(found.tiers, read, f"The manifest of {lineage.id} {found.id}")


def _pack(lineage: Lineage, found: Found, ref: PackRef) -> bytes:
    key = f"{lineage.id.prefix}/{ref.key}"
    others = [tier for tier in lineage.tiers if tier not in found.tiers]

    def read(tier: Tier) -> bytes:
        where = f"{key!r} on tier {tier.name!r}"
        if (size_bytes := tier.size(key)) != ref.size_bytes:
            raise CorruptionError(
                f"Pack {where} has {size_bytes} bytes instead of {ref.size_bytes}."
            )
        data = tier.get(key)
        check_pack(data, ref, where=where)
        return data

    return _first((*found.tiers, *others), read, f"Pack {key!r}")


def _first(tiers: tuple[Tier, ...], read: Callable[[Tier], T], what: str) -> T:
    failures = []
    for tier in tiers:
        try:
            return read(tier)
        except CheckpointError as error:
            failures.append(error)
    raised = CorruptionError(f"{what} has no sound copy.")
    for failure in failures:
        raised.add_note(str(failure))
    raise raised
