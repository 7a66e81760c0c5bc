"""Nodes with a tier each, whose tasks save states that anybody can compute again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ckptflow.data.regions import flatten
from ckptflow.model import STORE_KEY, CheckpointId, LineageId, Manifest
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.prune import prune
from ckptflow.store.redundancy.protect import Protected, protect
from ckptflow.store.redundancy.rebuild import Rebuilt, rebuild
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.survey import Member, look, member_of
from ckptflow.store.resume import restore_newest
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

BLOCK = 700  # So that objects have several blocks.


def lineage_of(node: int) -> LineageId:
    return LineageId("exp", f"task{node}")


def state_of(node: int, step: int) -> dict[str, Any]:
    """A state whose size differs from node to node."""
    fixed = np.random.default_rng(node).standard_normal(50 + 37 * node)
    own = np.random.default_rng((node, step)).standard_normal(20)
    return {"fixed": fixed, "own": own, "step": step}


def bits(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tobytes() if isinstance(v, np.ndarray) else v for k, v in state.items()}


def save(tier: Tier, node: int, step: int, base: Base | None = None, attempt: int = 1) -> Base:
    """Commit the state of a node at a step; with a base as a delta."""
    flat = flatten(state_of(node, step))
    views = flat.copy_into(memoryview(bytearray(flat.total_bytes)))
    regions = [
        NamedRegion(region.name, view) for region, view in zip(flat.regions, views, strict=True)
    ]
    return write_checkpoint(
        tier,
        lineage_of(node),
        CheckpointId(step, attempt),
        structure=flat.structure,
        regions=regions,
        base=base,
        chunk_bytes=64,
    )


def restored_step(tiers: Tier | Sequence[Tier], node: int) -> int | None:
    """Restore the newest checkpoint of a node's task, compare its bits, return its step."""
    where = [tiers] if isinstance(tiers, Tier) else list(tiers)
    found = restore_newest(Lineage(where, lineage_of(node)), None)
    if found is None:
        return None
    assert bits(found.state) == bits(state_of(node, found.id.step))
    return found.id.step


def member_with_id(tier: Tier, number: int) -> Member:
    """A member with an id of our choice, so that who leads is the same in every run."""
    record = {"format": "ckptflow-store", "version": 1, "store": f"{number:032x}"}
    tier.put(STORE_KEY, [json.dumps(record).encode()])
    return member_of(tier)


def copy_of(tier: Tier, name: str = "") -> MemoryTier:
    """A tier with the same values, as a disk is when it is put into another node."""
    copy = MemoryTier(name or tier.name, level=tier.level)
    for key in tier.iter_keys(""):
        copy.put(key, [tier.get(key)])
    return copy


def spoil(tier: Tier, key: str, how: str) -> None:
    """Damage a value: ``gone``, ``cut`` or ``flipped``."""
    data = bytearray(tier.get(key))
    tier.delete(key)
    if how == "cut":
        tier.put(key, [data[: len(data) // 2]])
    elif how == "flipped":
        data[len(data) // 2] ^= 4
        tier.put(key, [data])


class Nodes:
    """Some nodes, in memory unless their tiers are given."""

    def __init__(self, count: int = 0, tiers: Sequence[Tier] = ()) -> None:
        self.tiers: list[Tier] = [
            *(tiers or (MemoryTier(f"node{number}", level=1) for number in range(count)))
        ]
        self.members: list[Member] = [member_of(tier) for tier in self.tiers]
        self.bases: dict[int, Base] = {}

    def copy(self) -> Nodes:
        """The same nodes, with tiers of their own."""
        return Nodes(tiers=[copy_of(tier) for tier in self.tiers])

    def save(self, step: int, nodes: Sequence[int] | None = None) -> None:
        for node in range(len(self.tiers)) if nodes is None else nodes:
            base = save(self.tiers[node], node, step, self.bases.get(node))
            self.bases[node] = base

    def manifest(self, node: int) -> Manifest:
        """The manifest of what a node saved last."""
        return self.bases[node].manifest

    def protect(self, scheme: Scheme, **options: Any) -> Protected:
        return protect(look(self.members), scheme, block_bytes=BLOCK, **options)

    def prune(self, node: int, keep: int) -> None:
        tier = self.tiers[node]
        prune(Lineage([tier], lineage_of(node)), tier, Retention(newest=keep))

    def rebuild(self, lost: Sequence[int], target: Tier | None = None) -> tuple[Rebuilt, Tier]:
        """Rebuild without some nodes; the others are found in another order."""
        left = [one for node, one in enumerate(self.members) if node not in lost]
        target = target or MemoryTier("new", level=1)
        return rebuild(look(left[::-1]), target), target

    def number(self, member: str) -> int:
        """Which node has that id."""
        return next(n for n, one in enumerate(self.members) if one.id == member)
