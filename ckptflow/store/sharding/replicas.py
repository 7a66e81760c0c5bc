"""Whether what all ranks should hold alike is alike: digests, compared before a commit.

Each rank stores a share of what is replicated, so a difference would lose bytes that nobody
stored. So a rank digests all of it, puts a small record of that, and only then looks for the
records of others. Of two ranks that differ at least one sees the other's record; it does not
commit, and so the set is never complete. No rank waits for another one.
``tests/unit/test_sharded.py``.

Digests are of *groups*: replicated regions in their order, small ones joined until they are
`GROUP_BYTES` together. Boxes that several ranks hold are a group each.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ckptflow.data import merkle
from ckptflow.data.backend import kernels
from ckptflow.data.boxes import Placed
from ckptflow.data.buffers import U64s
from ckptflow.data.division import Flattened
from ckptflow.data.leaves import shown
from ckptflow.data.memory import Bytes, address_of
from ckptflow.data.tree import iter_plain
from ckptflow.errors import CheckpointError, NotFoundError, ReplicasDiffer, TierError
from ckptflow.manifest import seal
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.sharding.mapping import Classify, WholeRegion
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

GROUP_BYTES = 1 * MIB
CHUNK_BYTES = 64 << 10  # Of regions, for the root of a group.

_MARKS_MAX = 4096  # Checksums in a record; of more groups each stands for several.
_RECORDS_KEPT = 8
_SHOWN_MAX = 4

_KEY = re.compile(
    r"replicas/(\d{12})\.(\d{8})\.(\d{5})\.(whole|boxes)\.([0-9a-f]{16})\.([0-9a-f]{32})"
)


@dataclass(frozen=True, slots=True)
class Group:
    """Something that several ranks hold: its name, and the root of its bytes."""

    label: str
    root: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """What one rank has of what others should have alike."""

    replicated: tuple[Group, ...]
    boxed: tuple[Group, ...]

    @property
    def whole(self) -> tuple[str, ...]:
        """Roots of the replicated groups in hex."""
        return tuple(one.root.hex() for one in self.replicated)


class Compared:
    """What of a state other ranks should have alike: which regions, in which groups.

    Args:
        regions: the whole regions of a state.
        shared_boxes: boxes that other ranks have, by the number of their region.
    """

    def __init__(
        self, regions: Sequence[WholeRegion], shared_boxes: Mapping[int, Placed]
    ) -> None:
        self._groups = list(groups(regions))
        self._labels = [_label(regions, numbers) for numbers in self._groups]
        self._boxes = [
            f"{regions[n].name}@{list(place.offset)}+{list(place.lengths)}"
            for n, place in shared_boxes.items()
        ]
        self._groups += [[number] for number in shared_boxes]

    def see(self, flattened: Flattened, classify: Classify) -> Seen:
        """Digest it; costs about one read of it.

        Args:
            flattened: the state of this rank.
            classify: tells, by the name of a leaf, who holds it.
        """
        roots = _roots(flattened, self._groups)
        boxes = len(self._boxes)
        whole, boxed = roots[: len(roots) - boxes], roots[len(roots) - boxes :]
        values = (
            Group(name, seal(repr(value).encode()))
            for name, value in iter_plain(flattened.structure)
            if classify(name) == "replicated"
        )
        return Seen(
            (*map(Group, self._labels, whole), *values), tuple(map(Group, self._boxes, boxed))
        )


def groups(regions: Sequence[WholeRegion]) -> Iterator[list[int]]:
    """Yield the numbers of replicated regions that are digested together."""
    together: list[int] = []
    size_bytes = 0
    for number, region in enumerate(regions):
        if region.kind != "replicated":
            continue
        if region.size_bytes >= GROUP_BYTES:
            if together:
                yield together
            yield [number]
            together, size_bytes = [], 0
            continue
        together.append(number)
        size_bytes += region.size_bytes
        if size_bytes >= GROUP_BYTES:
            yield together
            together, size_bytes = [], 0
    if together:
        yield together


def _label(regions: Sequence[WholeRegion], numbers: Sequence[int]) -> str:
    first, last = regions[numbers[0]], regions[numbers[-1]]
    sizes = seal(repr([(regions[n].name, regions[n].size_bytes) for n in numbers]).encode())
    more = f" to {shown(last.name)}" if len(numbers) > 1 else ""
    return f"{shown(first.name)}{more}#{sizes.hex()[:8]}"


def _roots(flattened: Flattened, grouped: Sequence[Sequence[int]]) -> list[bytes]:
    """Return the root of each group of regions; what lies on the host is digested there."""
    numbers = np.array([number for group in grouped for number in group], np.intp)
    address, nbytes = flattened.table.address[numbers], flattened.table.nbytes[numbers]
    gathered: dict[int, Bytes] = {}  # They live until all is digested.
    for index in np.flatnonzero((address == 0) & (nbytes > 0)).tolist():
        region = flattened.region(int(numbers[index]))
        gathered[index] = np.empty(region.nbytes, np.uint8)
        region.copy_into(gathered[index])
        address[index] = address_of(gathered[index])
    rows = np.concatenate([[0], np.cumsum(-(-nbytes // CHUNK_BYTES))])
    chunks: U64s = np.empty((int(rows[-1]), 2), np.uint64)
    columns = address.view(np.uint64), nbytes.astype(np.uint64)
    kernels().digest_memory(*columns, CHUNK_BYTES, chunks)
    edges = rows[np.cumsum([0, *map(len, grouped)])].tolist()
    return [merkle.root(chunks[a:b]) for a, b in itertools.pairwise(edges)]


class ReplicaCheck:
    """Compares what this rank has seen with what others have, through records in the store.

    Args:
        tier: the fence tier of the set.
        set_: whose.
        rank: who looks.
    """

    def __init__(self, tier: Tier, set_: LineageId, rank: int) -> None:
        self._tier, self._set, self._rank = tier, set_, rank
        self._mine: list[str] = []  # Keys of our records, as of the last look.

    def compare(self, checkpoint: CheckpointId, seen: Seen) -> None:
        """Say what was seen, then compare; call it before the commit.

        Raises:
            ReplicasDiffer: some other rank has something else.
            TierError: the records could not be put or listed.
        """
        mine: dict[str, tuple[str, str, tuple[Group, ...]]] = {}
        for what, groups_ in (("whole", seen.replicated), ("boxes", seen.boxed)):
            if groups_:
                labels = seal("\n".join(one.label for one in groups_).encode()).hex()[:16]
                root = seal(b"".join(one.root for one in groups_)).hex()
                mine[what] = labels, root, groups_
                self._record(checkpoint, what, labels, root, groups_)
        prefix = f"{self._set.prefix}/"
        keys = list(self._tier.iter_keys(f"{prefix}replicas"))
        matches = {key: _KEY.fullmatch(key.removeprefix(prefix)) for key in keys}
        self._mine = [key for key, one in matches.items() if one and int(one[3]) == self._rank]
        for key, match in matches.items():
            if not match or CheckpointId(int(match[1]), int(match[2])) != checkpoint:
                continue
            rank, what = int(match[3]), match[4]
            if rank == self._rank or what not in mine:
                continue
            labels, root, groups_ = mine[what]
            if what == "whole" and match[5] != labels:
                raise self._other_names(checkpoint, rank)
            if match[5] == labels and match[6] != root:
                raise self._differ(checkpoint, rank, key, groups_)

    def forget(self) -> None:
        """Delete our records but the last few: a rank that is behind may still look for them.

        One that is further behind finds no difference here. Then the manifests have it, and a
        reader refuses the set.
        """
        old = self._mine[:-_RECORDS_KEPT]
        for key in old:
            self._tier.delete(key)
        self._mine = self._mine[-_RECORDS_KEPT:]

    def _record(
        self, checkpoint: CheckpointId, what: str, labels: str, root: str, all_: Sequence[Group]
    ) -> None:
        name = f"{checkpoint.step:012d}.{checkpoint.attempt:08d}.{self._rank:05d}"
        key = f"{self._set.prefix}/replicas/{name}.{what}.{labels}.{root}"
        record = {"rank": self._rank, "marks": [mark.hex() for mark in _marks(all_)]}
        self._tier.put(key, [json.dumps(record, sort_keys=True).encode()])

    def _other_names(self, checkpoint: CheckpointId, rank: int) -> ReplicasDiffer:
        return ReplicasDiffer(
            f"{self._set} {checkpoint}: ranks {self._rank} and {rank} do not hold the same "
            f"replicated arrays and values: names, sizes or types differ. Nothing was "
            f"committed by this rank. Leave out of replicated= what is not alike on all ranks.",
        )

    def _differ(
        self, checkpoint: CheckpointId, rank: int, key: str, all_: Sequence[Group]
    ) -> ReplicasDiffer:
        names = self._differing(key, all_)
        listed = "; ".join(names[:_SHOWN_MAX]) or "they"
        more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
        return ReplicasDiffer(
            f"{self._set} {checkpoint}: what is called replicated is not alike on ranks "
            f"{self._rank} and {rank}: {listed}{more} differ. Nothing was committed by this "
            f"rank, so the checkpoint stays incomplete. Leave out of replicated= what each "
            f"rank has for itself; if these should be alike, the ranks have drifted apart.",
            tuple(names),
        )

    def _differing(self, key: str, all_: Sequence[Group]) -> list[str]:
        """Return which groups differ from those of a record, as far as that can be told."""
        try:
            theirs = json.loads(self._tier.get(key, size_bytes=1 << 20))["marks"]
        except (NotFoundError, TierError, CheckpointError, ValueError, KeyError, TypeError):
            return []
        mine = [mark.hex() for mark in _marks(all_)]
        several = np.array_split(np.arange(len(all_)), len(mine))
        return [
            all_[int(numbers[0])].label.partition("#")[0]
            for numbers, a, b in zip(several, mine, theirs, strict=False)
            if a != b
        ]


def _marks(all_: Sequence[Group]) -> list[bytes]:
    """Return a checksum for each group, or for several together where there are very many."""
    parts = np.array_split(np.arange(len(all_)), min(len(all_), _MARKS_MAX))
    return [seal(b"".join(all_[int(n)].root for n in part))[:4] for part in parts]
