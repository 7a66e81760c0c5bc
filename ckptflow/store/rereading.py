"""Read what a manifest names, and if that has gone, what another manifest of it names.

A consolidation replaces the manifest of a checkpoint, and then a prune may delete packs of the
old one; and two tiers may hold two manifests of one checkpoint. So who misses something asks
for the manifest again, on every tier, before it gives a checkpoint up.
``tests/unit/test_consolidate.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ckptflow import manifest as manifest_file
from ckptflow.errors import CorruptionError, FormatError, NotFoundError, TierError
from ckptflow.model import Manifest, PackRef
from ckptflow.store.catalog import Found, Lineage
from ckptflow.tiers.tier import Tier

MANIFESTS_MAX = 8  # Different manifests of one checkpoint that are tried.

Result = TypeVar("Result")


def with_manifest(lineage: Lineage, found: Found, use: Callable[[Manifest], Result]) -> Result:
    """Return what ``use`` makes of a manifest; called again if it fails and there is another.

    Args:
        lineage: whose checkpoint it is.
        found: which, and where.
        use: reads packs; called with one manifest after the other until it succeeds.

    Raises:
        CorruptionError: no manifest is sound, or the last failure of ``use``.
        FormatError: a manifest was written by a newer version.
    """
    tried: list[Manifest] = []
    manifest: Manifest | None = lineage.manifest(found)
    while True:
        assert manifest is not None, "the loop ends when there is no other"
        try:
            return use(manifest)
        except (CorruptionError, NotFoundError):
            tried.append(manifest)
            manifest = _other(lineage, found, tried)
            if manifest is None or len(tried) == MANIFESTS_MAX:
                raise


def is_whole(tier: Tier, manifest: Manifest) -> bool:
    """Tell whether a tier has a manifest of the same checkpoint, and every pack that it names.

    Raises:
        TierError: it could not be asked.
    """
    there = _manifest_on(tier, manifest)
    return there is not None and all(_is_there(tier, there, pack) for pack in there.packs)


def consolidated(tiers: Sequence[Tier], manifest: Manifest) -> Manifest | None:
    """Return a manifest of the same checkpoint that names other packs, if a tier has one.

    Raises:
        TierError: a tier could not be asked.
    """
    for tier in tiers:
        there = _manifest_on(tier, manifest)
        if there is not None and there.packs != manifest.packs:
            return there
    return None


def _manifest_on(tier: Tier, manifest: Manifest) -> Manifest | None:
    """Return what a tier has of a checkpoint, if that is the same: of the same id and root."""
    key = f"{manifest.lineage.prefix}/{manifest.id.manifest_key}"
    try:
        data = tier.get(key, size_bytes=manifest_file.OBJECT_BYTES_MAX + 1)
        there = manifest_file.decode(data, where=f"{key!r} on tier {tier.name!r}")
    except (NotFoundError, CorruptionError, FormatError):
        return None
    return there if (there.id, there.root) == (manifest.id, manifest.root) else None


def _is_there(tier: Tier, manifest: Manifest, pack: PackRef) -> bool:
    try:
        return tier.size(f"{manifest.lineage.prefix}/{pack.key}") == pack.size_bytes
    except NotFoundError:
        return False


def _other(lineage: Lineage, found: Found, tried: list[Manifest]) -> Manifest | None:
    """Return a manifest that names other packs than those that were tried."""
    for tier in found.tiers:
        try:
            manifest = lineage.manifest_on(tier, found.id)
        except (CorruptionError, NotFoundError, TierError):
            continue
        if all(manifest.packs != one.packs for one in tried):
            return manifest
    return None
