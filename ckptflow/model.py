"""The nouns: what lineages, checkpoints and their parts are called, and their keys.

Plain frozen values. ``docs/reference/format-v1.md`` defines the keys; nothing else in the
package spells them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError

NAME_MAX = 120
SHARED_LEVEL = 3  # From here on all nodes see the same tier, and it outlives the allocation.
STEP_MAX = 10**12 - 1  # What 12 digits of a key hold.
STORE_KEY = "ckptflow-store.json"
LINEAGES = "lineages"
FILL = 0xFFFFFFFF  # In the pack column of an extent table: no pack, a repeated pattern.
KEEP = 0xFFFFFFFE  # In a delta layer: these bytes are as the layers below give them.

SHARD_DIGITS = 5
LOOKERS = 8  # Ranks of a program that look for the commits of all others, a call for each.
WORLD_MAX = 10**SHARD_DIGITS - 1  # Ranks of one program, as many as a name has digits for.

_SHARD = re.compile(r"(.+)\+(\d{5})of(\d{5})")
_NAME = re.compile(rf"[A-Za-z0-9_=+-][A-Za-z0-9._=+-]{{0,{NAME_MAX - 1}}}")
_MANIFEST_KEY = re.compile(r"manifests/(\d{12})\.(\d{8})\.ckpt")
_ATTEMPT_KEY = re.compile(r"attempts/(\d{8})\.(claim|resume|end)")
_GUARD_KEY = re.compile(r"guards/[0-9a-f]{16}\.(hold|prune)")
_PACK_KEY = re.compile(r"packs/(\d{12})\.(\d{8})\.(\d{4,6})\.[0-9a-f]{8}\.pack")


@dataclass(frozen=True, slots=True, order=True)
class LineageId:
    """The checkpoints of one task of one run.

    Raises:
        ConfigError: a name is not made of the characters that keys may have.
    """

    run: str
    task: str

    def __post_init__(self) -> None:
        for noun, name in (("run", self.run), ("task", self.task)):
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{name!r} cannot be the name of a {noun}: use 1 to {NAME_MAX} of the "
                    f"characters A-Z a-z 0-9 . _ = + - and do not begin with a dot."
                )

    def __str__(self) -> str:
        return f"{self.run}/{self.task}"

    @property
    def prefix(self) -> str:
        """Folder of the lineage on every tier."""
        return f"{LINEAGES}/{self.run}/{self.task}"

    @property
    def attempts_prefix(self) -> str:
        """Folder of the lineage whose attempts it has: its own, or of a shard, its set's."""
        shard = self.shard
        return self.prefix if shard is None else shard.set.prefix

    @property
    def shard(self) -> Shard | None:
        """Which rank of which set has this lineage; ``None`` if it is that of a whole task."""
        match = _SHARD.fullmatch(self.task)
        if match is None or not int(match[2]) < int(match[3]):
            return None
        return Shard(LineageId(self.run, match[1]), int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """The place of one rank among those that save together.

    Raises:
        ConfigError: the ranks do not have such a place, or the name of the task is too long.
    """

    set: LineageId
    rank: int
    world: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world <= WORLD_MAX:
            raise ConfigError(
                f"There is no rank {self.rank} of {self.world}: ranks count from 0, and there "
                f"are 1 to {WORLD_MAX} of them."
            )

    @property
    def looks(self) -> bool:
        """Whether this rank is one of those, about `LOOKERS`, that look what all have."""
        return self.rank % max(1, self.world // LOOKERS) == 0

    @property
    def lineage(self) -> LineageId:
        """The lineage of the shards of this rank."""
        digits = SHARD_DIGITS
        name = f"{self.set.task}+{self.rank:0{digits}}of{self.world:0{digits}}"
        return LineageId(self.set.run, name)


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """One checkpoint of a lineage. They sort from the oldest to the newest."""

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"step {self.step} (attempt {self.attempt})"

    @property
    def manifest_key(self) -> str:
        """Key of the manifest, relative to the lineage."""
        return f"manifests/{self.step:012d}.{self.attempt:08d}.ckpt"

    def pack_key(self, part: int, nonce: str) -> str:
        """Key of a pack, relative to the lineage; ``nonce`` is 8 hex digits, new each time.

        With it a save that is repeated elsewhere never gives one key two meanings.
        """
        return f"packs/{self.step:012d}.{self.attempt:08d}.{part:04d}.{nonce}.pack"

    @staticmethod
    def of_manifest(key: str) -> CheckpointId | None:
        """Read a relative manifest key; ``None`` if it is not one."""
        match = _MANIFEST_KEY.fullmatch(key)
        return CheckpointId(int(match[1]), int(match[2])) if match else None

    @staticmethod
    def of_pack(key: str) -> CheckpointId | None:
        """Read who wrote a pack from its relative key; ``None`` if it is not one."""
        match = _PACK_KEY.fullmatch(key)
        return CheckpointId(int(match[1]), int(match[2])) if match else None


def attempt_key(attempt: int, what: str) -> str:
    """Key of the ``claim``, ``resume`` or ``end`` of an attempt, relative to the lineage."""
    return f"attempts/{attempt:08d}.{what}"


def parse_attempt_key(key: str) -> tuple[int, str] | None:
    """Return (attempt, what) of a relative key; ``None`` if it is not one."""
    match = _ATTEMPT_KEY.fullmatch(key)
    return (int(match[1]), match[2]) if match else None


def guard_key(nonce: str, what: str) -> str:
    """Key of a ``hold`` or the announcement of a ``prune``; ``nonce`` is 16 hex digits."""
    return f"guards/{nonce}.{what}"


def is_guard_key(key: str) -> bool:
    """Tell whether a relative key is one of those."""
    return _GUARD_KEY.fullmatch(key) is not None


@dataclass(frozen=True, slots=True)
class PackRef:
    """A pack as a manifest names it."""

    key: str  # Relative to the lineage.
    size_bytes: int
    plain_bytes: int  # Length of its plain stream.
    frame_count: int
    table_seal: bytes


class DeltaOp(StrEnum):
    """How the words of a delta come from a new and an old word."""

    XOR = "xor"
    SUB = "sub"  # The difference, modulo the word, zigzag coded.


@dataclass(frozen=True, slots=True)
class DeltaLayer:
    """Rows that change what the layers below gave; `KEEP` rows fill the gaps between."""

    extent_count: int
    op: DeltaOp
    word_bytes: int  # 1, 2, 4 or 8.


@dataclass(frozen=True, slots=True)
class RegionEntry:
    """A region as a manifest names it.

    Attributes:
        name: of its first array.
        size_bytes: its length.
        root: Merkle root of the digests of its chunks.
        extent_count: rows of its bottom layer.
        deltas: the layers above that, the lowest first; usually none.
        encoding: how new bytes were stored this time and why, for people; may be empty.
        cell_bytes: unit of reuse within its chunks, for who goes on from here; 0: a chunk.
    """

    name: str
    size_bytes: int
    root: bytes
    extent_count: int
    deltas: tuple[DeltaLayer, ...] = ()
    encoding: str = ""
    cell_bytes: int = 0

    @property
    def row_counts(self) -> list[int]:
        """Rows of each layer, the bottom one first."""
        if not self.deltas:
            return [self.extent_count]
        return [self.extent_count, *(layer.extent_count for layer in self.deltas)]


def _no_periods() -> NDArray[np.uint64]:
    return np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class ExtentTable:
    """Where the bytes of regions lie: one row an extent, in the order of the regions.

    Attributes:
        length: bytes covered, uint64 [n].
        source: position in the plain stream of the pack, or the 8 bytes of a fill, uint64 [n].
        pack: number of the pack in the manifest's list, or `FILL` or `KEEP`, uint32 [n].
        period: 0, or how many bytes at ``source`` are repeated over the length, uint64 [n].
    """

    length: NDArray[np.uint64]
    source: NDArray[np.uint64]
    pack: NDArray[np.uint32]
    period: NDArray[np.uint64] = field(default_factory=_no_periods)

    def __post_init__(self) -> None:
        if len(self.period) != len(self.length):
            assert not len(self.period), "one period a row, or none at all"
            object.__setattr__(self, "period", np.zeros(len(self.length), np.uint64))

    def __len__(self) -> int:
        return len(self.length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExtentTable) and all(
            np.array_equal(getattr(self, column), getattr(other, column)) for column in _COLUMNS
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def stored(self) -> NDArray[np.bool_]:
        """Which rows lie in a pack, bool [n]."""
        return self.pack < KEEP

    @property
    def extent(self) -> NDArray[np.uint64]:
        """Bytes that each row takes of its pack, uint64 [n]; 0 if it needs none."""
        taken = np.where(self.period > 0, self.period, self.length)
        return np.where(self.stored, taken, np.uint64(0))

    def rows(self, start: int, stop: int) -> ExtentTable:
        """Return the rows from ``start`` to ``stop`` as views."""
        return self.take(slice(start, stop))

    def take(self, which: slice | NDArray[Any]) -> ExtentTable:
        """Return some rows: by slice, mask or numbers."""
        return ExtentTable(
            self.length[which], self.source[which], self.pack[which], self.period[which]
        )

    @staticmethod
    def of(rows: Sequence[ExtentTable]) -> ExtentTable:
        """Join tables."""
        if not rows:
            empty = np.empty(0, np.uint64)
            return ExtentTable(empty, empty, np.empty(0, np.uint32))
        return ExtentTable(
            np.concatenate([part.length for part in rows]),
            np.concatenate([part.source for part in rows]),
            np.concatenate([part.pack for part in rows]),
            np.concatenate([part.period for part in rows]),
        )


_COLUMNS = ("length", "source", "pack", "period")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint is: see the format page for each field."""

    lineage: LineageId
    id: CheckpointId
    parent: CheckpointId | None
    kind: str  # "full" or "delta".
    created: str
    writer: str
    metrics: dict[str, float]
    root: bytes
    chunk_bytes: int
    packs: tuple[PackRef, ...]
    regions: tuple[RegionEntry, ...]
    extents: ExtentTable
    structure: Any  # JSON-like; the grammar is data.tree's.
    pace: Mapping[str, Any] = field(default_factory=dict)  # Estimates, for the next attempt.

    @property
    def state_bytes(self) -> int:
        """Bytes of all regions: what a full copy would take."""
        return sum(region.size_bytes for region in self.regions)

    @property
    def own_packs(self) -> tuple[PackRef, ...]:
        """The packs written for this checkpoint, as opposed to older ones that it shares."""
        return tuple(pack for pack in self.packs if CheckpointId.of_pack(pack.key) == self.id)

    @property
    def written_bytes(self) -> int:
        """Bytes of the packs written for this checkpoint."""
        return sum(pack.size_bytes for pack in self.own_packs)

    def layer_edges(self) -> NDArray[np.intp]:
        """Return where the rows of each layer of each region begin; last, where they end."""
        counts = [count for region in self.regions for count in region.row_counts]
        return np.concatenate([np.zeros(1, np.intp), np.cumsum(counts, dtype=np.intp)])

    def region_layers(self) -> list[list[ExtentTable]]:
        """Return, for each region, the rows of its layers, the bottom one first."""
        edges = self.layer_edges().tolist()
        tables = (self.extents.rows(a, b) for a, b in itertools.pairwise(edges))
        return [[next(tables) for _ in region.row_counts] for region in self.regions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A reference to a saved state: small, picklable, and enough to load it elsewhere.

    ``tiers`` describes, as plain data, how to open the tiers that may hold it. ``root`` is the
    root of the checkpoint in hex: two exports with one root are the same bits.
    """

    run: str
    task: str
    step: int
    root: str
    state_bytes: int
    tiers: tuple[dict[str, Any], ...]
