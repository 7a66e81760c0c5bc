"""Read what a manifest names, and if that has gone, what another manifest of it names.

A consolidation replaces the manifest of a checkpoint, and then a prune may delete packs of the
old one; and two tiers may hold two manifests of one checkpoint. So who misses something asks
for the manifest again, on every tier, before it gives a checkpoint up.
``tests/unit/test_consolidate.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ckptflow.errors import CorruptionError, NotFoundError, TierError
from ckptflow.model import Manifest
from ckptflow.store.catalog import Found, Lineage

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
