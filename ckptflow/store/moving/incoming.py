"""Bring a run into a store, perhaps under another name, next to what is there.

An object that is there already is not written again, so that what was interrupted is simply
repeated. One that is there with other bytes is a conflict: it is told, and nothing is
overwritten. If it is one of the attempts the two histories have parted, and nothing more of
that task is taken. A manifest is put only when all its packs are there. Under another name
manifests are written anew, since each says whose it is; packs are what they were.
``tests/unit/test_moving.py``.
"""

from __future__ import annotations

from dataclasses import replace

from ckptflow import manifest as manifest_file
from ckptflow.errors import AlreadyExists, CheckpointError, CorruptionError, NotFoundError
from ckptflow.model import LineageId, Manifest, PackRef
from ckptflow.store.catalog import decode_manifest
from ckptflow.store.copies import open_pack
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.guards import hold
from ckptflow.store.moving.items import Item, ManifestItem, MoveReport, Pack, Record
from ckptflow.tiers.tier import Tier


class Incoming:
    """Puts the objects of a run into one tier.

    Args:
        target: where.
        name: what the run is called there; its own name if ``None``.

    Raises:
        ConfigError: ``name`` cannot be the name of a run.
        FormatError: the target is a store of a newer version.
        TierError: the target failed.
    """

    def __init__(self, target: Tier, *, name: str | None = None) -> None:
        if name is not None:
            LineageId(name, "any")  # Refused before anything is written.
        ensure_store(target)
        self._target, self._name = target, name
        self._packs: dict[LineageId, set[PackRef]] = {}  # That are there, checked.
        self._parted: set[LineageId] = set()
        self.report = MoveReport()

    def has(self, lineage: LineageId, ref: PackRef) -> bool:
        """Tell whether a pack is there already, by its size and the digests of its frames."""
        there = self._packs.setdefault(lineage, set())
        if ref in there:
            return True
        try:
            open_pack(self._target, self._renamed(lineage), ref)
        except (NotFoundError, CorruptionError):
            return False
        there.add(ref)
        self.report.same += 1
        return True

    def take(self, item: Item) -> None:
        """Put one object, unless it is there, or may not be.

        Raises:
            TierError: the target failed.
            FormatError: a manifest is of a newer version.
            CorruptionError: a manifest is damaged.
        """
        if item.lineage in self._parted:
            return
        if isinstance(item, Record):
            self._take_record(item)
        elif isinstance(item, Pack):
            self._take_pack(item)
        else:
            self._take_manifest(item)

    def _renamed(self, lineage: LineageId) -> LineageId:
        return lineage if self._name is None else LineageId(self._name, lineage.task)

    def _key(self, item: Item) -> str:
        return f"{self._renamed(item.lineage).prefix}/{item.key}"

    def _take_record(self, item: Record) -> None:
        key = self._key(item)
        there = self._there(key)
        if there is None:
            there = self._create(key, item.data)
        elif there == item.data:
            self.report.same += 1
        if there != item.data:
            self._parted.add(item.lineage)
            self.report.conflicts.append(
                f"{key!r} on tier {self._target.name!r} is that of another attempt: the two "
                f"histories of {self._renamed(item.lineage)} have parted, and nothing of it "
                f"was taken. Take it under another name."
            )

    def _create(self, key: str, data: bytes) -> bytes:
        """Put a record; return what is there then. A claim may be made at the same instant."""
        try:
            if self._target.can_create:
                self._target.create(key, data)
            else:
                self._target.put(key, [data])
        except AlreadyExists:
            return self._target.get(key)
        self._count(data)
        return data

    def _take_pack(self, item: Pack) -> None:
        if self.has(item.lineage, item.ref):
            return
        key = self._key(item)
        if self._exists(key):
            self._conflict(key)
            return
        self._target.put(key, [item.data])
        self._count(item.data)
        self._packs[item.lineage].add(item.ref)

    def _is_there(self, lineage: LineageId, pack: PackRef) -> bool:
        try:
            return self._target.size(f"{lineage.prefix}/{pack.key}") == pack.size_bytes
        except NotFoundError:
            return False

    def _take_manifest(self, item: ManifestItem) -> None:
        key, lineage = self._key(item), self._renamed(item.lineage)
        manifest = decode_manifest(item.data, item.lineage, item.id, where=f"{item.key!r}")
        if not set(manifest.packs) <= self._packs.get(item.lineage, set()):
            self.report.left.append(
                f"{lineage} {item.id} was left behind: not all packs that it names came."
            )
            return
        data = item.data
        if lineage != item.lineage:
            manifest = replace(manifest, lineage=lineage)
            data = manifest_file.encode(manifest)
        there = self._there(key)
        if there is None:
            packs = [pack.key for pack in manifest.packs]
            with hold(self._target, lineage, item.id, packs) as holding:
                # No manifest named them before the hold: a prune may have taken some.
                gone = {pack for pack in manifest.packs if not self._is_there(lineage, pack)}
                if not gone:
                    holding.confirm(found=True)
                    self._target.put(key, [data])  # The commit there.
                    self._count(data)
            if gone:
                self._packs[item.lineage] -= gone
                self.report.left.append(
                    f"{lineage} {item.id} was left behind: a prune took packs of it. Repeat."
                )
                return
        elif _is_same(there, data, manifest):
            self.report.same += 1
        else:
            self._conflict(key)
            return
        self.report.checkpoints += 1

    def _there(self, key: str) -> bytes | None:
        try:
            return self._target.get(key)
        except NotFoundError:
            return None

    def _exists(self, key: str) -> bool:
        try:
            return self._target.size(key) >= 0
        except NotFoundError:
            return False

    def _count(self, data: bytes) -> None:
        self.report.put += 1
        self.report.put_bytes += len(data)

    def _conflict(self, key: str) -> None:
        self.report.conflicts.append(
            f"{key!r} on tier {self._target.name!r} holds something else; it stays. If it is "
            f"damaged, repair that store first."
        )


def _is_same(there: bytes, data: bytes, manifest: Manifest) -> bool:
    """Tell whether both are the same checkpoint; one may have been packed again."""
    if there == data:
        return True
    try:
        other = decode_manifest(there, manifest.lineage, manifest.id, where="there")
    except CheckpointError:
        return False
    return (other.root, other.structure) == (manifest.root, manifest.structure)
