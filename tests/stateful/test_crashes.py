"""Die before every change of a save, a flush, a prune: the newest commit restores, and no more.

Over two tiers, full and delta checkpoints, and with what an earlier death has left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ckptflow.data.regions import flatten
from ckptflow.flush import copy_checkpoint
from ckptflow.model import CheckpointId, LineageId, Manifest
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.prune import prune
from ckptflow.store.restore import read_checkpoint
from ckptflow.store.resume import restore_newest
from ckptflow.store.save import write_checkpoint
from ckptflow.testing.crashes import crash_everywhere
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

LINEAGE = LineageId("run", "task")
KEEP = Retention(newest=2)


def state_of(step: int) -> dict[str, Any]:
    """Each step changes one tenth, so that the first is full and the others are deltas."""
    state = {"a": np.zeros(1000, np.uint8), "b": np.full(50, float(step))}
    for one in range(1, step + 1):
        begin = one * 100 % 1000
        state["a"][begin : begin + 100] = np.random.default_rng(one).integers(0, 255, 100)
    return state


def bits(state: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.items()}


def save(tier: Tier, step: int, base: Base | None) -> Base:
    ensure_store(tier)
    flat = flatten(state_of(step))
    regions = [NamedRegion(one.name, one.data.data, one.item_bytes) for one in flat.regions]
    return write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(step, 1),
        structure=flat.structure,
        regions=regions,
        base=base,
        chunk_bytes=64,
    )


def saved(tier: Tier, last: int) -> Base | None:
    base = None
    for step in range(1, last + 1):
        base = save(tier, step, base)
    return base


def new_tiers() -> list[MemoryTier]:
    return [MemoryTier("near", level=1), MemoryTier("far", level=3)]


def is_whole(tier: Tier, manifest: Manifest) -> bool:
    buffers = [bytearray(region.size_bytes) for region in manifest.regions]
    read_checkpoint([tier], manifest, [memoryview(one) for one in buffers])
    wanted = flatten(state_of(manifest.id.step)).regions
    return [bytes(one) for one in buffers] == [bytes(one.data.data) for one in wanted]


def restored(tiers: Sequence[Tier]) -> int:
    """Return the step that a restart gets; whatever has a manifest is whole where it is."""
    lineage = Lineage(tiers, LINEAGE)
    for tier in tiers:
        for found in lineage.checkpoints_on(tier):
            assert is_whole(tier, lineage.manifest_on(tier, found.id))
    found = restore_newest(lineage, None)
    if found is None:
        return 0
    assert not found.skipped
    assert bits(found.state) == bits(state_of(found.id.step))
    return found.id.step


def seen_by(
    make_store: Callable[[], Sequence[Tier]], action: Callable[[Sequence[Tier]], object]
) -> list[int]:
    """Return what a restart gets after each death, in order, and then without one."""
    seen: list[int] = []
    crash_everywhere(make_store, action, lambda tiers, _at: seen.append(restored(tiers)))
    return [*seen[1:], seen[0]]


@pytest.mark.parametrize("before", [0, 1, 3])
def test_save(before: int) -> None:
    """There is one instant at which the new one exists, and it is the last change."""
    bases: list[Base | None] = []

    def store() -> list[MemoryTier]:
        tiers = new_tiers()
        bases.append(saved(tiers[0], before))
        return tiers

    seen = seen_by(store, lambda tiers: save(tiers[0], before + 1, bases[-1]))
    assert seen == [before] * (len(seen) - 1) + [before + 1]
    assert len(seen) > 2


@pytest.mark.parametrize("there", [0, 1, 2])
def test_flush(there: int) -> None:
    """The far tier has what it had, or the new one; whatever happens, the near one has it."""

    def store() -> list[MemoryTier]:
        tiers = new_tiers()
        saved(tiers[0], 3)
        for step in range(1, there + 1):
            copy(tiers, step)
        return tiers

    def copy(tiers: Sequence[Tier], step: int) -> None:
        lineage = Lineage(tiers[:1], LINEAGE)
        manifest = lineage.manifest_on(tiers[0], CheckpointId(step, 1))
        copy_checkpoint(tiers, tiers[1], LINEAGE, manifest)

    far: list[int] = []

    def check(tiers: Sequence[Tier], _at: int | None) -> None:
        assert restored(tiers) == 3
        far.append(restored(tiers[1:]))

    crash_everywhere(store, lambda tiers: copy(tiers, 3), check)
    assert far[0] == 3
    commit = far.index(3, 1)  # After it the hold is taken away.
    assert far[1:] == [there] * (commit - 1) + [3] * (len(far) - commit)
    assert commit > 2


def test_a_flush_that_was_killed_is_completed_by_the_next() -> None:
    def store() -> list[MemoryTier]:
        tiers = new_tiers()
        saved(tiers[0], 3)
        return tiers

    def copy(tiers: Sequence[Tier]) -> None:
        manifest = Lineage(tiers[:1], LINEAGE).manifest_on(tiers[0], CheckpointId(3, 1))
        copy_checkpoint(tiers, tiers[1], LINEAGE, manifest)

    def check(tiers: Sequence[Tier], _at: int | None) -> None:
        copy(tiers)
        assert restored(tiers[1:]) == 3

    assert crash_everywhere(store, copy, check) > 3


def test_prune() -> None:
    """What is kept is whole throughout; a second prune finishes the work of a killed one."""

    def store() -> list[MemoryTier]:
        tiers = new_tiers()
        saved(tiers[0], 6)
        return tiers

    def action(tiers: Sequence[Tier]) -> None:
        prune(Lineage(tiers[:1], LINEAGE), tiers[0], KEEP)

    left: list[int] = []

    def check(tiers: Sequence[Tier], _at: int | None) -> None:
        assert restored(tiers) == 6
        action(tiers)
        assert restored(tiers) == 6
        assert [found.id.step for found in Lineage(tiers, LINEAGE).valid()] == [6, 5]
        keys = tiers[0].iter_keys("")
        left.append(len([key for key in keys if "/guards/" not in key]))  # Those time out.

    assert crash_everywhere(store, action, check) > 3
    assert len(set(left)) == 1
