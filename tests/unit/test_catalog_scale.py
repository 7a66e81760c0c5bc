"""The newest checkpoint of very many: found by a number of calls that does not grow with them.

Manifests are empty files where only their names count. What is counted is calls to the tier,
and how many keys they gave back; the time is that of ``bench/catalog.py``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import TierUnavailable
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.inventory import Known
from ckptflow.store.prune import plan_prune, prune
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier, last_keys

LINEAGE = LineageId("exp", "task")
MANIFESTS = f"{LINEAGE.prefix}/manifests"


class CountingTier(FaultyTier):
    """Counts the calls, and the keys of manifests that they give back."""

    def __init__(self, inner: Tier) -> None:
        self.calls: Counter[str] = Counter()
        self.keys = 0
        super().__init__(inner, lambda operation, _key: self.calls.update([operation]))

    def last_keys(self, prefix: str, count: int) -> list[str]:
        found = super().last_keys(prefix, count)
        self.keys += len(found)
        return found

    def iter_keys(self, prefix: str) -> Iterator[str]:
        for key in super().iter_keys(prefix):
            self.keys += "/manifests/" in key
            yield key


def key_of(step: int, attempt: int = 1) -> str:
    return f"{LINEAGE.prefix}/{CheckpointId(step, attempt).manifest_key}"


def state_of(step: int) -> dict[str, Any]:
    return {"w": np.full(1000, step / 7)}


def in_memory(_folder: Path, count: int) -> Tier:
    tier = MemoryTier("memory", level=3)
    for step in range(count):
        tier.put(key_of(step), [b""])
    return tier


def in_files(folder: Path, count: int) -> Tier:
    (folder / MANIFESTS).mkdir(parents=True)
    parent = os.open(folder / MANIFESTS, os.O_RDONLY)
    for step in range(count):
        name = key_of(step).rpartition("/")[2]
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=parent))
    os.close(parent)
    return PosixTier(folder, level=3)


MANY = [
    pytest.param(in_memory, 100_000, id="100000 in memory"),
    pytest.param(in_files, 5_000, id="5000 files"),
    pytest.param(in_files, 100_000, id="100000 files", marks=pytest.mark.slow),
]


@pytest.mark.damaged_store
@pytest.mark.parametrize(("make", "count"), MANY)
def test_what_a_task_does_costs_a_bounded_number_of_calls(
    make: Callable[[Path, int], Tier], count: int, tmp_path: Path
) -> None:
    inner = make(tmp_path, count)
    Lineage([inner], LINEAGE).claim()
    tier = CountingTier(inner)
    newest = Lineage([tier], LINEAGE).newest()
    assert newest is not None
    assert newest.id.step == count - 1
    assert tier.calls.total() <= 6
    assert tier.keys <= 16
    with Checkpointer(inner, run="exp", task="task", keep="all") as ckpt:
        ckpt._history._looked = True
        ckpt.save(count, state_of(count))
    tier = CountingTier(inner)
    with Checkpointer(tier, run="exp", task="task", keep="all") as ckpt:
        assert ckpt.restore(state_of(0))["w"][0] == count / 7
        ckpt.save(count + 1, state_of(count + 1)).wait()
        assert ckpt.export().step == count + 1
    assert tier.keys <= 16 * 4
    assert tier.calls.total() <= 60


def test_a_walk_looks_at_more_and_more() -> None:
    inner = MemoryTier("disk", level=3)
    ensure_store(inner)
    for step in range(1000):
        inner.put(key_of(step), [b""])
    tier = CountingTier(inner)
    walk = Lineage([tier], LINEAGE).valid_newest_first()
    assert [next(walk).id.step for _ in range(600)] == list(range(999, 399, -1))
    assert tier.calls["last_keys"] == 3
    assert tier.calls["iter_keys"] == 3  # Of attempts.
    assert [one.id.step for one in walk] == list(range(399, -1, -1))


def test_a_walk_gives_what_the_whole_list_gives() -> None:
    """Tiers with different parts, other people's keys, void ones, and one that is away."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        tiers = [MemoryTier(f"t{number}", level=number) for number in range(3)]
        for tier in tiers:
            ensure_store(tier)
            for step in rng.integers(0, 400, int(rng.integers(0, 150))).tolist():
                tier.put(key_of(step, int(rng.integers(1, 4))), [b""])
            for number in range(int(rng.integers(0, 40))):
                tier.put(f"{MANIFESTS}/zz-{number}", [b"somebody else's"])
        lineage = Lineage(tiers, LINEAGE)
        if rng.random() < 0.5:
            start = CheckpointId(int(rng.integers(0, 400)), 1)
            lineage.record_resume(int(rng.integers(2, 5)), start)
        if rng.random() < 0.3:
            away = FaultyTier(tiers[0], _away)
            lineage = Lineage([away, *tiers[1:]], LINEAGE)
        walked = [(one.id, [t.name for t in one.tiers]) for one in lineage.valid_newest_first()]
        assert walked == [(one.id, [t.name for t in one.tiers]) for one in lineage.valid()]
        newest = lineage.newest()
        assert (newest.id if newest else None) == (walked[0][0] if walked else None)


def _away(_operation: str, _key: str) -> None:
    raise TierUnavailable("away")


def test_steps_are_found_one_by_one() -> None:
    tier = MemoryTier("disk", level=3)
    ensure_store(tier)
    for step in range(100):
        for attempt in (1, 2):
            tier.put(key_of(step, attempt), [b""])
    lineage = Lineage([tier], LINEAGE)
    assert [one.id for one in lineage.valid_of_step(40)] == [
        CheckpointId(40, 2),
        CheckpointId(40, 1),
    ]
    assert lineage.valid_of_step(100) == []


def test_attempts_that_lost_their_claims_are_still_counted() -> None:
    tier = MemoryTier("disk", level=3)
    ensure_store(tier)
    for step in range(500):
        tier.put(key_of(step, 7 if step == 2 else 6), [b""])
    lineage = Lineage([tier], LINEAGE)
    assert lineage.claim() == 8  # No claim is left: all are looked at.
    for key in list(tier.iter_keys(f"{LINEAGE.prefix}/attempts")):
        tier.delete(key)
    tier.create(f"{LINEAGE.prefix}/attempts/00000003.claim", b"{}")
    assert lineage.claim() == 8  # Nor do the claims that are left explain the last ones.


# --- prune ---


def test_a_prune_reads_every_manifest_once(tmp_path: Path) -> None:
    tier = CountingTier(PosixTier(tmp_path, level=3))
    with Checkpointer(tier, run="exp", task="task", keep="newest=1,every=1") as ckpt:
        for step in range(1, 31):
            before = tier.calls["get"]
            ckpt.save(step, state_of(step)).wait()
            ckpt._writer.settle()  # type: ignore[union-attr]
            reads = tier.calls["get"] - before
            assert reads <= 12, f"step {step}: {reads} reads"  # Not one more with each step.


def test_what_a_prune_remembers_is_what_it_reads(tmp_path: Path) -> None:
    tier, known = PosixTier(tmp_path, level=3), Known()
    rules = Retention(newest=2, every_steps=5)
    with Checkpointer(tier, run="exp", task="task", keep="all") as ckpt:
        for step in range(1, 31):
            ckpt.save(step, state_of(step)).wait()
            lineage = ckpt.lineage
            plan = plan_prune(lineage, tier, rules, known=known)
            assert plan == plan_prune(lineage, tier, rules)
            if step % 7 == 0:
                prune(lineage, tier, rules, known=known)


# --- last keys ---


def test_folders_and_other_files_among_the_last(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path)
    for number in range(20):
        tier.put(f"a/{number:03d}", [b""])
        tier.put(f"a/z{number:03d}/deeper", [b""])
        (tmp_path / "a" / f"~odd {number}").touch()
        (tmp_path / "a" / f".hidden{number}").touch()
    assert last_keys(tier, "a", 3) == ["a/019", "a/018", "a/017"]
    assert last_keys(tier, "a", 100) == [f"a/{number:03d}" for number in reversed(range(20))]


def test_links_are_no_keys(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path)
    tier.put("a/1", [b""])
    (tmp_path / "a" / "2").symlink_to(tmp_path / "a" / "1")
    assert last_keys(tier, "a", 5) == ["a/1"]
