"""A run that was carried to another place or name is the same run, and goes on there.

Method for crashes: a copy is counted, and repeated once for each of its changes, dying just
before it; after each the target has nothing but whole checkpoints, and a second copy completes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import ConfigError, FormatError, NotFoundError, TierFull
from ckptflow.flush import copy_checkpoint
from ckptflow.model import STORE_KEY, CheckpointId, LineageId
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage, lineages
from ckptflow.store.moving.carry import copy_run
from ckptflow.store.prune import prune
from ckptflow.store.resume import restore_newest
from ckptflow.store.verify import verify
from ckptflow.testing.faults import Crash, CrashingTier, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

TASKS = ("left", "right")


def work(
    tier: Tier | Path, run: str, steps: Iterable[int], tasks: Iterable[str] = TASKS
) -> None:
    """Take some steps of a run, one attempt for each task."""
    for number, task in enumerate(tasks):
        with Checkpointer(tier, run=run, task=task, rng=False, keep="all") as ckpt:
            state = ckpt.restore(blank())
            for step in steps:
                rng = np.random.default_rng((number, step))
                state["w"][50 * (step % 9) :][:50] = rng.standard_normal(50)
                state["i"] = step
                ckpt.save(step, state).wait()


def blank() -> dict[str, Any]:
    return {"i": 0, "w": np.random.default_rng(0).standard_normal(500)}


def states(tiers: Iterable[Tier], run: str) -> dict[str, list[tuple[CheckpointId, bytes]]]:
    """Every checkpoint of a run that counts, by task, with its bits."""
    tiers, found = list(tiers), {}
    for one in lineages(tiers, run):
        lineage = Lineage(tiers, one)
        found[one.task] = []
        for checkpoint in lineage.valid():
            assert all(copy.sound for copy in verify(lineage, checkpoint))
            back = restore_newest(lineage, None, step=checkpoint.id.step)
            assert back is not None
            found[one.task].append((checkpoint.id, back.state["state"]["w"].tobytes()))
    return found


def contents(tier: Tier) -> dict[str, bytes]:
    return {key: tier.get(key) for key in tier.iter_keys("lineages")}


@pytest.fixture
def source() -> MemoryTier:
    tier = MemoryTier("source", level=3)
    work(tier, "exp", (1, 2, 3))
    work(tier, "exp", (4, 5))
    return tier


def test_a_copy_is_the_same_to_the_bit(source: MemoryTier) -> None:
    target = MemoryTier("target", level=3)
    seen: list[str] = []
    report = copy_run([source], "exp", target, on_object=seen.append)
    assert report.complete
    assert contents(target) == contents(source)
    assert (report.put, report.checkpoints) == (len(contents(source)), 10)
    assert report.put_bytes == sum(map(len, contents(source).values()))
    assert len(seen) == report.put
    again = copy_run([source], "exp", target)
    assert (again.put, again.checkpoints, again.complete) == (0, 10, True)
    assert again.same == report.put


def test_a_copy_goes_on_where_the_first_was(source: MemoryTier) -> None:
    target = MemoryTier("target", level=3)
    copy_run([source], "exp", target)
    work(target, "exp", (6,))
    lineage = Lineage([target], LineageId("exp", "left"))
    assert [one.attempt for one in lineage.attempts()] == [1, 2, 3]
    assert lineage.attempts()[-1].resume == {
        "attempt": 3,
        "step": 5,
        "manifest": CheckpointId(5, 2).manifest_key,
    }
    # And what was added there comes back.
    assert copy_run([target], "exp", source).put == 2 * (
        2 + 2
    )  # Claim, resume, pack, manifest.
    assert contents(source) == contents(target)


def test_under_another_name_beside_the_first(source: MemoryTier) -> None:
    before = contents(source)
    report = copy_run([source], "exp", source, name="exp-2")
    assert report.complete
    assert states([source], "exp") == states([source], "exp-2")
    after = contents(source)
    assert {key: data for key, data in after.items() if "/exp/" in key} == before
    renamed = {key.replace("/exp-2/", "/exp/"): data for key, data in after.items()}
    packs = [key for key in before if "/packs/" in key]
    assert all(renamed[key] == before[key] for key in packs)
    manifest = Lineage([source], LineageId("exp-2", "left")).checkpoints()[0]
    assert (
        Lineage([source], LineageId("exp-2", "left")).manifest(manifest).lineage.run == "exp-2"
    )
    work(source, "exp-2", (6,))
    assert [one.step for one, _ in states([source], "exp-2")["left"]] == [6, 5, 4, 3, 2, 1]
    assert [one.step for one, _ in states([source], "exp")["left"]] == [5, 4, 3, 2, 1]
    assert copy_run([source], "exp", source, name="exp-2").put == 0


def test_two_stores_become_one(source: MemoryTier) -> None:
    target = MemoryTier("target", level=3)
    work(target, "other", (1, 2))
    others = states([target], "other")
    copy_run([source], "exp", target)
    assert states([target], "other") == others
    assert states([target], "exp") == states([source], "exp")


def test_histories_that_have_parted_are_not_mixed(source: MemoryTier) -> None:
    """The same run went on in both places: attempt 3 of one task is not that of the other."""
    target = MemoryTier("target", level=3)
    copy_run([source], "exp", target)
    work(source, "exp", (6, 7), tasks=["left"])
    work(target, "exp", (6,), tasks=["left"])
    work(source, "exp", (6,), tasks=["right"])
    before = contents(target)
    report = copy_run([source], "exp", target)
    assert not report.complete
    (conflict,) = report.conflicts
    assert "the two histories of exp/left have parted" in conflict
    now = contents(target)
    assert {key: now[key] for key in before} == before
    assert all("/right/" in key for key in now.keys() - before.keys())
    assert states([target], "exp")["right"] == states([source], "exp")["right"]
    assert copy_run([source], "exp", target, name="exp-b").complete


@pytest.mark.parametrize("kind", ["packs", "manifests", "attempts"])
def test_nothing_is_overwritten(source: MemoryTier, kind: str) -> None:
    target = MemoryTier("target", level=3)
    key = next(source.iter_keys(f"lineages/exp/left/{kind}"))
    target.put(key, [b"something else"])
    report = copy_run([source], "exp", target)
    assert any(f"{key!r} on tier 'target'" in text for text in report.conflicts)
    assert target.get(key) == b"something else"
    if kind == "packs":
        assert "exp/left step 1 (attempt 1) was left behind: not all packs" in report.left[0]
    if kind == "attempts":
        assert [key for key in contents(target) if "/left/" in key] == [key]
    for other in source.iter_keys("lineages/exp/right"):
        assert target.get(other) == source.get(other)


def test_a_checkpoint_that_was_packed_again_is_the_same_one(source: MemoryTier) -> None:
    target, lineage = MemoryTier("target", level=3), LineageId("exp", "left")
    copy_run([source], "exp", target)
    full = MemoryTier("full")
    work(full, "exp", (1, 2, 3, 4, 5), tasks=["left"])  # Attempt 1, other packs.
    for key in contents(full):
        if "/packs/" in key:
            target.put(key, [full.get(key)])
    key = f"{lineage.prefix}/{CheckpointId(1, 1).manifest_key}"
    target.put(key, [full.get(key)])
    assert target.get(key) != source.get(key)
    assert copy_run([source], "exp", target).complete
    assert target.get(key) == full.get(key)


def test_void_checkpoints_stay_behind(source: MemoryTier) -> None:
    lineage = Lineage([source], LineageId("exp", "left"))
    lineage.record_resume(lineage.claim(), CheckpointId(3, 1))
    target = MemoryTier("target", level=3)
    assert copy_run([source], "exp", target).checkpoints == 3 + 5
    found = Lineage([target], LineageId("exp", "left")).checkpoints()
    assert [(one.id.step, one.void) for one in found] == [(3, False), (2, False), (1, False)]


def test_objects_come_from_whichever_tier_has_them_sound(source: MemoryTier) -> None:
    near, lineage = MemoryTier("near", level=1), Lineage([source], LineageId("exp", "left"))
    for found in reversed(lineage.checkpoints()):
        copy_checkpoint([source], near, lineage.id, lineage.manifest(found))
    expected = states([source], "exp")
    for number, key in enumerate(key for key in contents(near) if "/left/" in key):
        tier = (near, source)[number % 2]
        data = bytearray(tier.get(key))
        data[len(data) // 2] ^= 8
        tier.put(key, [data])
    target = MemoryTier("target", level=3)
    assert copy_run([near, source], "exp", target).complete
    assert states([target], "exp") == expected


def test_what_is_packed_again_meanwhile_comes_all_the_same(
    packed_again: Callable[[MemoryTier], Tier],
) -> None:
    source, target = MemoryTier("source", level=3), MemoryTier("target", level=3)
    work(source, "exp", (1, 2, 3), tasks=["left"])
    expected = states([source], "exp")["left"][:1]
    assert copy_run([packed_again(source)], "exp", target).complete
    assert states([target], "exp")["left"] == expected


def test_what_has_no_sound_copy_is_left_behind_and_told(source: MemoryTier) -> None:
    key = list(source.iter_keys("lineages/exp/left/packs"))[-1]
    source.put(key, [source.get(key)[:-1]])
    target = MemoryTier("target", level=3)
    report = copy_run([source], "exp", target)
    (text,) = report.left
    assert "exp/left step 5 (attempt 2) was left behind" in text
    assert key in text
    assert [one.step for one, _ in states([target], "exp")["left"]] == [4, 3, 2, 1]


def test_a_crash_before_any_change_leaves_whole_checkpoints_only(source: MemoryTier) -> None:
    undisturbed = CrashingTier(MemoryTier("target", level=3))
    copy_run([source], "exp", undisturbed)
    expected = states([source], "exp")
    checkpoints = sum(len(found) for found in expected.values())
    # A descriptor, and a hold on what each needs, which is taken back.
    assert undisturbed.changes == len(contents(source)) + 1 + 2 * checkpoints
    for crash_at in range(undisturbed.changes):
        target = MemoryTier("target", level=3)
        with pytest.raises(Crash):
            copy_run([source], "exp", CrashingTier(target, crash_at=crash_at))
        for task, found in states([target], "exp").items():  # Each is sound: see there.
            assert found == expected[task][len(expected[task]) - len(found) :]
        assert copy_run([source], "exp", target).complete
        there = {key: data for key, data in contents(target).items() if "/guards/" not in key}
        assert there == contents(source)


def test_a_full_target_says_so_and_can_be_completed(source: MemoryTier) -> None:
    target, puts = MemoryTier("target", level=3), []

    def fail(operation: str, key: str) -> None:
        if operation == "put" and len(puts) == 5:
            raise TierFull("no room")
        puts.extend([key] * (operation == "put"))

    with pytest.raises(TierFull, match="no room"):
        copy_run([source], "exp", FaultyTier(target, fail))
    assert copy_run([source], "exp", target).complete


def test_wrong_names_touch_nothing(source: MemoryTier) -> None:
    target = MemoryTier("target", level=3)
    with pytest.raises(NotFoundError, match="There is no run 'other'"):
        copy_run([source], "other", target)
    with pytest.raises(ConfigError, match="cannot be the name of a run"):
        copy_run([source], "exp", target, name="../up")
    assert list(target.iter_keys("")) == []
    target.put(STORE_KEY, [b'{"format": "ckptflow-store", "version": 2}'])
    with pytest.raises(FormatError, match="version 2"):
        copy_run([source], "exp", target)
    assert list(target.iter_keys("")) == [STORE_KEY]


@pytest.mark.parametrize("carry", [shutil.copytree, shutil.move])
def test_the_folder_of_a_store_may_be_copied_or_moved(
    tmp_path: Path, carry: Callable[[Path, Path], object]
) -> None:
    here, there = tmp_path / "here", tmp_path / "far" / "away"
    work(here, "exp", (1, 2))
    expected = states([PosixTier(here)], "exp")
    there.parent.mkdir()
    carry(here, there)
    assert states([PosixTier(there)], "exp") == expected
    work(there, "exp", (3,))
    assert [one.step for one, _ in states([PosixTier(there)], "exp")["left"]] == [3, 2, 1]
    for path in there.rglob("*"):
        assert not path.is_symlink()
        assert str(here).encode() not in (path.read_bytes() if path.is_file() else b"")


@pytest.fixture
def parted(save_state: Callable[..., Lineage]) -> tuple[MemoryTier, MemoryTier]:
    """Three checkpoints that share nothing, and a target that has the newest only."""
    source, target = MemoryTier("source", level=3), MemoryTier("target", level=3)
    for step in (1, 2, 3):
        state = {"w": np.random.default_rng(step).standard_normal(500)}
        lineage = save_state(source, "exp/left", step, state)
    newest = lineage.manifest_on(source, CheckpointId(3, 1))
    copy_checkpoint([source], target, lineage.id, newest)
    return source, target


def prune_before(target: Tier, part: str, done: list[str]) -> Tier:
    """A tier that is pruned by another process before each put of a key with that part."""
    lineage = LineageId("exp", "left")

    def prune_first(operation: str, key: str) -> None:
        if operation == "put" and part in key:
            done.append(key)
            prune(Lineage([target], lineage), target, Retention(newest=9))

    return FaultyTier(target, prune_first)


def test_a_prune_elsewhere_takes_no_pack_whose_manifest_is_about_to_be_put(
    parted: tuple[MemoryTier, MemoryTier],
) -> None:
    source, target = parted
    pruned: list[str] = []
    assert copy_run([source], "exp", prune_before(target, "/manifests/", pruned)).complete
    assert len(pruned) == 2
    assert contents(target) == contents(source)


def test_what_a_prune_took_before_is_told_and_left_behind_and_comes_later(
    parted: tuple[MemoryTier, MemoryTier],
) -> None:
    source, target = parted
    pruned: list[str] = []
    report = copy_run([source], "exp", prune_before(target, "/guards/", pruned))
    assert pruned
    assert not report.complete
    assert any("a prune took packs of it. Repeat." in text for text in report.left)
    lineage = Lineage([target], LineageId("exp", "left"))
    for found in lineage.checkpoints():
        assert all(copy.sound for copy in verify(lineage, found))
    assert copy_run([source], "exp", target).complete
    assert contents(target) == contents(source)
