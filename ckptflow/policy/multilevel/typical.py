"""What tiers can do where nobody has measured them: published values, by kind and level.

They tell the order of magnitude and no more; ``ckptflow calibrate`` measures. Each value says
where it is from, and whether it was read there. ``tests/unit/test_plan_tune.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ckptflow.model import SHARED_LEVEL
from ckptflow.policy.multilevel.tier_costs import TierCosts

FRONTIER_NODES: Final = 9408


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    """A kind of tier, as it is somewhere.

    Attributes:
        what: it is.
        write_bytes_per_s: of one writer that is alone.
        read_bytes_per_s: of one reader that is alone.
        node_write_bytes_per_s: of all writers of a node; where nodes share the tier, what each
            of them can have if all write.
        node_read_bytes_per_s: likewise of readers.
        most_bytes_per_s: of all nodes together; ``None``: no such limit.
        latency_s: of a checkpoint there, and of a restore, that has no bytes.
        source: where the values are from.
        checked: whether they were read there, and are not remembered or assumed.
    """

    what: str
    write_bytes_per_s: float
    read_bytes_per_s: float
    node_write_bytes_per_s: float
    node_read_bytes_per_s: float
    most_bytes_per_s: float | None = None
    latency_s: float = 0.0
    source: str
    checked: bool

    def costs(self, name: str, level: int, *, nodes: int) -> TierCosts:
        """Return a tier of this kind, for a run on so many nodes."""
        return TierCosts(
            name=name,
            level=level,
            write_bytes_per_s=self.write_bytes_per_s,
            read_bytes_per_s=self.read_bytes_per_s,
            write_shared_bytes_per_s=self._shared(
                self.write_bytes_per_s, self.node_write_bytes_per_s, level, nodes
            ),
            read_shared_bytes_per_s=self._shared(
                self.read_bytes_per_s, self.node_read_bytes_per_s, level, nodes
            ),
            write_latency_s=self.latency_s,
            read_latency_s=self.latency_s,
        )

    def _shared(self, alone: float, of_node: float, level: int, nodes: int) -> float:
        if level < SHARED_LEVEL:
            return of_node
        together = max(alone, of_node * nodes)
        return (
            together if self.most_bytes_per_s is None else min(together, self.most_bytes_per_s)
        )


_WIDE_AREA_SOURCE: Final = (
    "https://fasterdata.es.net/data-transfer-tools: 10 Gb/s, 53 ms there and back: 675 MB/s "
    "with 4 streams of Globus, 825 MB/s with 8"
)
TYPICAL: Final[Mapping[str, Typical]] = MappingProxyType({
    "memory": Typical(
        what="memory of the node",
        write_bytes_per_s=8e9,
        read_bytes_per_s=8e9,
        node_write_bytes_per_s=100e9,
        node_read_bytes_per_s=100e9,
        source="an assumption: a thread copies some 8 GB/s, two sockets some 100 GB/s",
        checked=False,
    ),
    "node": Typical(
        what="NVMe drives of the node",
        write_bytes_per_s=3.7e9,
        read_bytes_per_s=8e9,
        node_write_bytes_per_s=3.7e9,
        node_read_bytes_per_s=8e9,
        source=f"Frontier: 35 and 75 TB/s of {FRONTIER_NODES} nodes (insidehpc.com, May 2021)",
        checked=True,
    ),
    "filesystem": Typical(
        what="parallel file system",
        write_bytes_per_s=1e9,
        read_bytes_per_s=1e9,
        node_write_bytes_per_s=4.6e12 / FRONTIER_NODES,
        node_read_bytes_per_s=5.5e12 / FRONTIER_NODES,
        latency_s=0.1,
        source=(
            f"Orion: 4.6 and 5.5 TB/s of its disks (blocksandfiles.com, June 2022), as each of "
            f"{FRONTIER_NODES} nodes of Frontier can have if all write; that one writer has "
            f"1 GB/s and a commit takes 0.1 s are assumptions"
        ),
        checked=True,
    ),
    "object": Typical(
        what="object store over a wide area network",
        write_bytes_per_s=675e6,
        read_bytes_per_s=675e6,
        node_write_bytes_per_s=825e6,
        node_read_bytes_per_s=825e6,
        most_bytes_per_s=825e6,
        latency_s=0.15,
        source=(
            f"{_WIDE_AREA_SOURCE}; S3: 100 to 200 ms until the first byte "
            f"(docs.aws.amazon.com, request rate and performance)"
        ),
        checked=True,
    ),
    "globus": Typical(
        what="transfers over a wide area network",
        write_bytes_per_s=675e6,
        read_bytes_per_s=675e6,
        node_write_bytes_per_s=825e6,
        node_read_bytes_per_s=825e6,
        most_bytes_per_s=825e6,
        source=_WIDE_AREA_SOURCE,
        checked=True,
    ),
    "sftp": Typical(
        what="SSH over a wide area network",
        write_bytes_per_s=4 * 17.5e6,
        read_bytes_per_s=4 * 17.5e6,
        node_write_bytes_per_s=825e6,
        node_read_bytes_per_s=825e6,
        most_bytes_per_s=825e6,
        source=f"{_WIDE_AREA_SOURCE}, and 17.5 MB/s with one of scp; 4 connections each",
        checked=True,
    ),
})  # fmt: skip
_OF_KIND: Final[Mapping[str, str]] = MappingProxyType({
    "shared_memory": "memory", "memory": "memory", "device": "memory",
    "object": "object", "fsspec": "object", "globus": "globus", "sftp": "sftp", "peer": "node",
})  # fmt: skip

_OF_LEVEL: Final = ("memory", "node", "node", "filesystem", "object")


def typical(kind: str, level: int) -> Typical:
    """Return what is typical of a kind of tiers, as a site file names it, on a level."""
    if kind in _OF_KIND:
        return TYPICAL[_OF_KIND[kind]]
    return TYPICAL["filesystem" if level >= SHARED_LEVEL else "node"]


def typical_of_level(level: int) -> Typical:
    """Return what is typical of a level, where nothing is known of the tier but that."""
    return TYPICAL[_OF_LEVEL[level]]
