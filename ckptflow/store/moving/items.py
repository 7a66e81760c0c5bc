"""What a run consists of while it is on its way, and what became of it.

The order is that of a save: what is recorded of the attempts, which says what is void; then for
each checkpoint, the oldest first, its packs and at last its manifest. So whoever stops in the
middle has nothing but whole checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ckptflow.model import CheckpointId, LineageId, PackRef


@dataclass(frozen=True, slots=True)
class Record:
    """A claim, a resume or an end."""

    lineage: LineageId
    key: str  # Relative to the lineage, as all keys here.
    data: bytes


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack, checked."""

    lineage: LineageId
    ref: PackRef
    data: bytes

    @property
    def key(self) -> str:
        """Its key, relative to the lineage."""
        return self.ref.key


@dataclass(frozen=True, slots=True)
class ManifestItem:
    """A manifest, as it was stored."""

    lineage: LineageId
    id: CheckpointId
    data: bytes

    @property
    def key(self) -> str:
        """Its key, relative to the lineage."""
        return self.id.manifest_key


Item: TypeAlias = "Record | Pack | ManifestItem"


@dataclass(slots=True)
class MoveReport:
    """What became of a run.

    Attributes:
        put: objects that were written.
        put_bytes: their size.
        same: objects that were there already.
        checkpoints: those that are there now, in whole.
        conflicts: keys that hold something else there, a sentence each; that was not touched.
        left: checkpoints that were left behind, a sentence each.
    """

    put: int = 0
    put_bytes: int = 0
    same: int = 0
    checkpoints: int = 0
    conflicts: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether all of the run is there now."""
        return not self.conflicts and not self.left
