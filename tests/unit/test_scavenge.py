"""Little time: the newest of every task first, nothing that cannot make it, a true report.

Time passes only when a put on a tier takes some.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from ckptflow.errors import TierFull, TierUnavailable
from ckptflow.flush.scavenge import Scavenger, ScavengeReport, safe_tiers, scavenge
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.resume import read_state
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]
PUT_S = 1.0


class Clock:
    """Each put of a pack takes a second."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def on_call(self, operation: str, key: str) -> None:
        if operation == "put" and "/packs/" in key:
            self.now_s += PUT_S


@pytest.fixture
def disk(save_state: SaveState) -> MemoryTier:
    """Three tasks of different sizes, three checkpoints each, all of them full."""
    tier = MemoryTier("disk", level=1)
    for task, size in (("a", 3000), ("b", 1000), ("c", 2000)):
        for step in (1, 2, 3):
            state = {"w": np.random.default_rng(step).standard_normal(size)}
            save_state(tier, f"exp/{task}", step, state)
    return tier


def scavenged(
    tiers: list[Tier], deadline_s: float, clock: Clock, **arguments
) -> ScavengeReport:
    scavenger = Scavenger(tiers, deadline_s, clock=clock, **arguments)
    scavenger.run()
    return scavenger.stop()


def names(report: ScavengeReport, outcome: str) -> list[str]:
    return [f"{one.lineage[-1]}{one.step}" for one in report.rescues if one.outcome == outcome]


def on(tier: Tier) -> set[str]:
    found = set()
    for task in ("a", "b", "c"):
        lineage = Lineage([tier], LineageId("exp", task))
        for one in lineage.valid():
            read_state([tier], lineage.manifest(one), None)
            found.add(f"{task}{one.id.step}")
    return found


def test_with_time_enough_everything_is_saved_newest_first_and_small_first(
    disk: MemoryTier,
) -> None:
    clock, pfs = Clock(), MemoryTier("pfs", level=3)
    report = scavenged([disk, FaultyTier(pfs, clock.on_call)], 100.0, clock)
    assert report.complete
    assert names(report, "copied") == ["b3", "c3", "a3", "b2", "c2", "a2", "b1", "c1", "a1"]
    assert on(pfs) == set(names(report, "copied"))


def test_what_cannot_make_it_is_passed_over(disk: MemoryTier) -> None:
    clock, pfs = Clock(), MemoryTier("pfs", level=3)
    report = scavenged([disk, FaultyTier(pfs, clock.on_call)], 2 * PUT_S, clock)
    # The first took a second, so twice its bytes would take two, and only one is left.
    assert names(report, "copied") == ["b3", "b2"]
    assert names(report, "late") == ["c3", "a3", "c2", "a2", "b1", "c1", "a1"]
    assert not report.complete
    assert "do not fit into 1.0 s at" in report.rescues[1].reason
    assert on(pfs) == {"b3", "b2"}


def test_a_rate_that_is_known_before_decides_the_first(disk: MemoryTier) -> None:
    """At 30 kB/s one second is enough for 8 and 16 kB each, not for 24 kB."""
    clock, pfs = Clock(), MemoryTier("pfs", level=3)
    report = scavenged([disk, pfs], 0.6, clock, rates={"pfs": 30_000.0})
    assert names(report, "late")[0] == "a3"
    assert "at 3e+04 bytes/s" in next(o for o in report.rescues if o.outcome == "late").reason
    assert names(report, "copied")[:2] == ["b3", "c3"]


def test_what_is_safe_already_is_not_tried(disk: MemoryTier) -> None:
    clock, pfs = Clock(), MemoryTier("pfs", level=3)
    scavenged([disk, pfs], 100.0, clock)
    again = scavenged([disk, pfs], 100.0, clock)
    assert again.rescues == []
    assert again.complete


def test_a_tier_that_fails_gives_way_to_the_next(disk: MemoryTier) -> None:
    def full(operation: str, key: str) -> None:
        if operation == "put":
            raise TierFull("no room left")

    bucket = MemoryTier("bucket", level=4)
    pfs = FaultyTier(MemoryTier("pfs", level=3), full)
    report = scavenged([disk, pfs, bucket], 100.0, Clock())
    assert report.complete
    assert len(on(bucket)) == 9
    assert {one.target for one in report.rescues} == {"bucket"}
    failed = scavenged([disk, pfs], 100.0, Clock())
    assert {one.outcome for one in failed.rescues} == {"failed"}
    assert "no room left" in failed.rescues[0].reason


def test_what_cannot_be_looked_at_is_a_problem_and_the_rest_is_saved(
    disk: MemoryTier, save_state: SaveState
) -> None:
    manifest = "lineages/exp/a/manifests/000000000003.00000001.ckpt"
    damaged = disk.get(manifest)
    disk.put(manifest, [damaged[:-9]])

    def down(operation: str, key: str) -> None:
        raise TierUnavailable("is gone")

    partner = FaultyTier(MemoryTier("partner", level=2), down)
    pfs = MemoryTier("pfs", level=3)
    report = scavenged([disk, partner, pfs], 100.0, Clock())
    assert on(pfs) == {"a2", "a1", "b3", "b2", "b1", "c3", "c2", "c1"}
    assert not report.complete
    texts = "\n".join(report.problems)
    assert "tier 'partner': is gone" in texts
    assert "exp/a step 3" in texts


def test_a_put_that_hangs_is_left_behind_at_the_deadline(disk: MemoryTier) -> None:
    hung, go_on = threading.Event(), threading.Event()

    def hang(operation: str, key: str) -> None:
        if operation == "put" and "/c/packs/" in key:
            hung.set()
            go_on.wait(60)

    pfs = MemoryTier("pfs", level=3)
    tiers = [disk, FaultyTier(pfs, hang)]
    report = scavenge(tiers, 2.0)
    assert hung.is_set()
    assert names(report, "copied") == ["b3"]
    assert names(report, "late") == ["c3"]
    assert report.unseen
    go_on.set()


def test_which_tiers_are_safe() -> None:
    disk, partner = MemoryTier("disk", level=1), MemoryTier("partner", level=2)
    pfs, bucket = MemoryTier("pfs", level=3), MemoryTier("bucket", level=4)
    assert safe_tiers([disk, partner, pfs, bucket]) == [pfs, bucket]
    assert safe_tiers([disk, partner]) == [partner]
