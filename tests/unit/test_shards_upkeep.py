"""Shards are checkpoints: verified, repaired, consolidated, copied and archived like any."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptflow as cf
from ckptflow.model import LineageId
from ckptflow.store.consolidate import consolidate
from ckptflow.store.moving.archive import read_archive, write_archive
from ckptflow.store.moving.carry import copy_run
from ckptflow.store.prune import prune
from ckptflow.store.repair import repair
from ckptflow.store.sharding.sets import ShardSets
from ckptflow.store.verify import verify_lineage
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

SET = LineageId("default", "main")


def state(step: int) -> dict[str, Any]:
    values = np.random.default_rng(0).normal(size=30_000)
    values[: 100 * step] = step
    return {"w": values, "step": step}


def save(tiers: list[Tier], *steps: int, launch: str = "a") -> None:
    with ExitStack() as stack:
        for rank in range(2):
            one = stack.enter_context(
                cf.ShardedCheckpointer(
                    tiers, rank=rank, world=2, launch=launch, replicated="*", rng=False,
                    keep="all", every="never",
                )
            )  # fmt: skip
            one.restore({})
            for step in steps:
                one.save(step, state(step))


def restored(tiers: list[Tier]) -> Any:
    with cf.ShardedCheckpointer(tiers, rank=0, world=1, launch="z", rng=False) as one:
        return one.restore({})


def check(tiers: list[Tier], step: int) -> None:
    found = restored(tiers)
    assert found["step"] == step
    assert (found["w"] == state(step)["w"]).all()


def shards(tiers: list[Tier]) -> list[Any]:
    sets = ShardSets(tiers, SET)
    return [sets.shard(rank, 2) for rank in range(2)]


def test_verified_and_consolidated() -> None:
    tier = MemoryTier("store", level=3)
    save([tier], 1, 2, 3)
    for lineage in shards([tier]):
        assert consolidate(lineage, tier, lineage.newest().id, force=True).after is not None
        for report, _ in verify_lineage(lineage, lineage.checkpoints()):
            assert report.sound
        prune(lineage, tier, cf.Retention(newest=1))
    check([tier], 3)


@pytest.mark.damaged_store
def test_repaired_from_another_tier() -> None:
    inner, outer = MemoryTier("inner", level=1), MemoryTier("outer", level=3)
    save([inner, outer], 1)
    for key in outer.iter_keys("lineages"):
        if key.endswith(".pack"):
            outer.put(key, [b"\\0" * outer.size(key)])
    for lineage in shards([inner, outer]):
        assert repair(lineage, lineage.checkpoints()).complete
    check([outer], 1)


def by_copy(source: MemoryTier, target: MemoryTier, _folder: Path) -> None:
    copy_run([source], "default", target)


def by_archive(source: MemoryTier, target: MemoryTier, folder: Path) -> None:
    with (folder / "run.tar").open("wb") as file:
        write_archive([source], "default", file)
    with (folder / "run.tar").open("rb") as file:
        read_archive(file, target)


@pytest.mark.parametrize("move", [by_copy, by_archive])
def test_moved_as_a_run(
    move: Callable[[MemoryTier, MemoryTier, Path], None], tmp_path: Path
) -> None:
    source, target = MemoryTier("store", level=3), MemoryTier("there", level=3)
    save([source], 1, 2)
    with ExitStack() as stack:  # A later launch made step 2 void.
        for rank in range(2):
            one = stack.enter_context(
                cf.ShardedCheckpointer(
                    source, rank=rank, world=2, launch="b", replicated="*", rng=False,
                    keep="all", every="never",
                )
            )  # fmt: skip
            one.restore({}, step=1)
            if rank == 0:
                one.save(2, state(2))
    move(source, target, tmp_path)
    check([target], 1)


def test_what_ranks_flush_is_complete_outside_when_all_have() -> None:
    inner, outer = MemoryTier("inner", level=1), MemoryTier("outer", level=3)
    sets = ShardSets([outer], SET)
    with ExitStack() as stack:
        for rank in range(2):
            one = stack.enter_context(
                cf.ShardedCheckpointer(
                    [inner, outer], rank=rank, world=2, launch="a", replicated="*", rng=False
                )
            )
            one.restore({})
            one.save(1, state(1)).wait(level=3)
            assert bool(list(sets.newest_first())) == (rank == 1)
    check([MemoryTier("inner", level=1), outer], 1)
