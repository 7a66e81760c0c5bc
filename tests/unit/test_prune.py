"""Nothing that is kept, in flight or being written loses a byte to a prune; garbage goes.

Crashes: a prune is repeated with a tier that dies before each of its deletes. Concurrency: a
save runs between any two calls that a prune makes, and a prune between any two of a save.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow import manifest as manifest_file
from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.errors import (
    ConfigError,
    CorruptionError,
    NotFoundError,
    TierFull,
    TierUnavailable,
)
from ckptflow.flush import copy_checkpoint
from ckptflow.manifest import seal
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention, parse_retention
from ckptflow.store import quarantine
from ckptflow.store.catalog import Lineage
from ckptflow.store.guards import DELETE_WITHIN, hold
from ckptflow.store.inventory import Known
from ckptflow.store.prune import PrunePlan, plan_prune, prune
from ckptflow.store.quarantine import record_failure
from ckptflow.store.redundancy.stripes import REDUNDANCY
from ckptflow.store.resume import read_state
from ckptflow.testing.faults import Crash, CrashingTier, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]

LINEAGE = LineageId("exp", "task")
PREFIX = f"{LINEAGE.prefix}/"
CHUNK_ITEMS = 8  # Of float64 in one chunk.


def state_of(step: int) -> dict[str, Any]:
    """The state of a step: a part that never changes, one that always does, one growing."""
    rng = np.random.default_rng(1)
    state = {"fixed": rng.standard_normal(800), "grown": rng.standard_normal(800)}
    state["grown"][: CHUNK_ITEMS * step] = -1.5
    state["own"] = np.random.default_rng(step).standard_normal(100)
    return state


def clone(tier: Tier) -> MemoryTier:
    copy = MemoryTier(tier.name, level=tier.level)
    for key in tier.iter_keys(""):
        copy.put(key, [tier.get(key)])
    return copy


def steps_restored(tier: Tier) -> list[int]:
    """Restore every checkpoint that counts, compare its bits, and return the steps."""
    lineage = Lineage([tier], LINEAGE)
    steps = []
    for found in lineage.valid():
        state, _ = read_state([tier], lineage.manifest(found), None)
        expected = state_of(found.id.step)
        assert {name: value.tobytes() for name, value in state.items()} == {
            name: value.tobytes() for name, value in expected.items()
        }, found.id
        steps.append(found.id.step)
    return steps


def packs(tier: Tier) -> list[str]:
    return [key.removeprefix(PREFIX) for key in tier.iter_keys(f"{PREFIX}packs")]


def named(tier: Tier) -> set[str]:
    lineage = Lineage([tier], LINEAGE)
    return {
        pack.key for found in lineage.checkpoints() for pack in lineage.manifest(found).packs
    }


def manifest_key(step: int, attempt: int = 1) -> str:
    return f"{PREFIX}{CheckpointId(step, attempt).manifest_key}"


def run(tier: Tier, keep: int | str = 2, **options: Any) -> PrunePlan:
    return prune(Lineage([tier], LINEAGE), tier, parse_retention(keep), **options)


@pytest.fixture
def disk(save_state: SaveState) -> MemoryTier:
    """Five checkpoints of one attempt, each a delta on the one before."""
    tier = MemoryTier("disk")
    for step in range(1, 6):
        save_state(tier, str(LINEAGE), step, state_of(step), metrics={"loss": abs(step - 2.5)})
    return tier


# --- what goes and what stays ---


@pytest.mark.parametrize("keep", [1, 2, 3, 5, 9])
def test_the_newest_stay_whole_and_no_needless_pack_stays(disk: MemoryTier, keep: int) -> None:
    assert steps_restored(disk) == [5, 4, 3, 2, 1]
    run(disk, keep)
    assert steps_restored(disk) == [5, 4, 3, 2, 1][:keep]
    assert set(packs(disk)) == named(disk)


def test_other_rules_of_retention(disk: MemoryTier) -> None:
    plan = run(disk, "newest=1,every=4,best=loss:min:2")
    assert steps_restored(disk) == [5, 4, 3, 2]
    assert [(verdict.id.step, verdict.keep) for verdict in plan.verdicts] == [
        (5, True),
        (4, True),
        (3, True),
        (2, True),
        (1, False),
    ]
    reasons = {verdict.id.step: " ".join(verdict.reasons) for verdict in plan.verdicts}
    assert "loss" in reasons[2]
    assert "no rule keeps it" in reasons[1]


def test_a_plan_touches_nothing_and_says_what_a_prune_does(disk: MemoryTier) -> None:
    before = {key: disk.get(key) for key in disk.iter_keys("")}
    plan = plan_prune(Lineage([disk], LINEAGE), disk, Retention(newest=2))
    assert {key: disk.get(key) for key in disk.iter_keys("")} == before
    deleted: list[str] = []
    assert run(disk, 2, on_deleted=deleted.append) == plan
    assert deleted == [*plan.manifests, *plan.packs]
    gone = before.keys() - set(disk.iter_keys(""))
    assert gone == set(deleted)
    assert plan.freed_bytes == sum(len(before[key]) for key in plan.packs) > 0


def test_pruning_again_finds_nothing(disk: MemoryTier) -> None:
    run(disk, 2)
    plan = run(disk, 2)
    assert (plan.manifests, plan.packs, plan.freed_bytes) == ((), (), 0)


def test_what_is_copied_outward_stays(disk: MemoryTier) -> None:
    plan = run(disk, 1, in_flight=[CheckpointId(2, 1)])
    assert steps_restored(disk) == [5, 2]
    assert [verdict.reasons for verdict in plan.verdicts if verdict.id.step == 2] == [
        ("is being copied outward",)
    ]
    run(disk, 1)
    assert steps_restored(disk) == [5]


def test_an_empty_tier(save_state: SaveState, disk: MemoryTier) -> None:
    other = MemoryTier("other", level=3)
    plan = prune(Lineage([disk, other], LINEAGE), other, Retention(newest=1))
    assert plan == PrunePlan("other", (), (), (), 0)
    assert steps_restored(disk) == [5, 4, 3, 2, 1]


def test_every_tier_keeps_its_own_newest(disk: MemoryTier) -> None:
    """Only the older ones have reached the outer tier yet."""
    far = MemoryTier("far", level=3)
    for key in disk.iter_keys(""):
        if not any(f"/{step:012d}." in key for step in (4, 5)):
            far.put(key, [disk.get(key)])
    prune(Lineage([disk, far], LINEAGE), far, Retention(newest=1))
    assert steps_restored(far) == [3]
    assert steps_restored(disk) == [5, 4, 3, 2, 1]


# --- damage ---


@pytest.mark.parametrize("damage", ["cut manifest", "no pack"])
def test_the_last_good_one_stays_although_it_is_not_the_newest(
    disk: MemoryTier, damage: str
) -> None:
    if damage == "no pack":
        own = [key for key in disk.iter_keys(f"{PREFIX}packs") if "/000000000005." in key]
        disk.delete(own[0])
    else:
        disk.put(manifest_key(5), [disk.get(manifest_key(5))[:-1]])
    run(disk, 1)
    lineage = Lineage([disk], LINEAGE)
    assert [found.id.step for found in lineage.valid()] == [5, 4]
    disk.delete(manifest_key(5))
    assert steps_restored(disk) == [4]


def test_while_a_kept_manifest_is_unreadable_no_pack_goes(disk: MemoryTier) -> None:
    before = packs(disk)
    disk.put(manifest_key(5), [b"damaged"])
    plan = run(disk, 1)
    assert plan.packs == ()
    assert packs(disk) == before


def _failing(operation: str, part: str) -> Callable[[str, str], None]:
    def fail(called: str, key: str) -> None:
        if called == operation and part in key:
            raise TierUnavailable(f"{operation} of {key} timed out")

    return fail


@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_manifest_that_cannot_be_read_now_is_not_damaged(disk: MemoryTier, step: int) -> None:
    """Deleting what did not answer in time would lose good checkpoints, milestones even."""
    before = set(disk.iter_keys(""))
    faulty = FaultyTier(disk, _failing("get", CheckpointId(step, 1).manifest_key))
    with pytest.raises(TierUnavailable, match="timed out"):
        run(faulty, "newest=2,every=1")
    assert set(disk.iter_keys("")) == before


def test_manifests_that_cannot_be_listed_now_are_not_absent(
    disk: MemoryTier, save_state: SaveState
) -> None:
    """Else all packs of older attempts would look like garbage."""
    lineage = Lineage([disk], LINEAGE)
    lineage.record_resume(2, CheckpointId(5, 1))
    before = set(disk.iter_keys(""))
    with pytest.raises(TierUnavailable, match="timed out"):
        run(FaultyTier(disk, _failing("iter_keys", "manifests")), 1)
    far = FaultyTier(clone(disk), _failing("iter_keys", "manifests"))
    far.inner._name = "far"
    with pytest.raises(TierUnavailable, match="timed out"):
        prune(Lineage([disk, far], LINEAGE), far, Retention(newest=1))
    assert set(disk.iter_keys("")) == set(far.inner.iter_keys("")) == before


def test_a_checkpoint_of_a_newer_format_stays_with_whatever_it_needs(disk: MemoryTier) -> None:
    data = bytearray(disk.get(manifest_key(1)))
    data[8] = 2  # The version.
    sealed = bytes(data[:-16]) + manifest_file.seal(bytes(data[:-16]))
    disk.put(manifest_key(1), [sealed])
    before = packs(disk)
    plan = run(disk, 1)
    assert disk.get(manifest_key(1)) == sealed
    assert packs(disk) == before
    (verdict,) = (verdict for verdict in plan.verdicts if verdict.id.step == 1)
    assert verdict.keep
    assert "format" in " ".join(verdict.reasons)


# --- garbage, and what only looks like it ---


def half_saved(tier: Tier, save_state: SaveState, step: int, attempt: int) -> list[str]:
    """Put the packs of a checkpoint without its manifest; return their keys."""
    before = set(packs(tier))
    with pytest.raises(Crash):
        save_state(
            CrashingTier(tier, crash_at=1), str(LINEAGE), step, state_of(step), attempt=attempt
        )
    return sorted(set(packs(tier)) - before)


@pytest.mark.parametrize(
    ("step", "attempt", "resumed", "stays"),
    [
        (6, 1, 1, True),  # Being written by the attempt that wrote the newest.
        (4, 1, 1, False),  # That attempt has committed step 5 since.
        (6, 1, 2, False),  # Its attempt was overtaken.
        (4, 2, 2, True),  # Being written by an attempt that went back.
        (9, 3, 2, True),  # Of an attempt that has claimed, and not yet said so.
    ],
)
def test_packs_that_no_manifest_names(
    disk: MemoryTier, save_state: SaveState, step: int, attempt: int, resumed: int, stays: bool
) -> None:
    lineage = Lineage([disk], LINEAGE)
    if resumed == 2:
        lineage.record_resume(2, CheckpointId(5, 1))
    keys = half_saved(disk, save_state, step, attempt)
    assert keys
    run(disk, 9)
    assert [key in packs(disk) for key in keys] == [stays] * len(keys)
    assert steps_restored(disk) == [5, 4, 3, 2, 1]


def test_packs_that_are_being_copied_here_stay(disk: MemoryTier, save_state: SaveState) -> None:
    """A newer checkpoint has overtaken the copy, its inner tier being full."""
    keys = half_saved(disk, save_state, 4, 1)
    run(disk, 9, in_flight=[CheckpointId(4, 1)])
    assert set(keys) <= set(packs(disk))


def test_void_checkpoints_go_with_their_packs(disk: MemoryTier, save_state: SaveState) -> None:
    lineage = Lineage([disk], LINEAGE)
    lineage.record_resume(2, CheckpointId(3, 1))
    plan = run(disk, 9)
    assert steps_restored(disk) == [3, 2, 1]
    assert set(packs(disk)) == named(disk)
    assert {verdict.id.step for verdict in plan.verdicts if not verdict.keep} == {4, 5}
    save_state(disk, str(LINEAGE), 4, state_of(4), attempt=2)
    assert steps_restored(disk) == [4, 3, 2, 1]


def test_strangers_are_left_alone(disk: MemoryTier) -> None:
    strangers = [f"{PREFIX}packs/notes.txt", f"{PREFIX}manifests/x", "other/y", f"{PREFIX}z"]
    for key in strangers:
        disk.put(key, [b"x"])
    run(disk, 1)
    assert set(strangers) <= set(disk.iter_keys(""))


def test_what_killed_writers_left_is_swept_up(tmp_path: Path, save_state: SaveState) -> None:
    """Each kill may leave the part of a pack, which nothing else would ever remove."""
    tier = PosixTier(tmp_path)
    save_state(tier, str(LINEAGE), 1, state_of(1))
    old, new, other = (
        tmp_path / folder / f".{number}.partial"
        for number, folder in enumerate(
            [f"{PREFIX}packs", f"{PREFIX}packs", "lineages/exp/another"]
        )
    )
    other.parent.mkdir()
    for path in (old, new, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, 0))
    run(tier, 1)
    assert [path.exists() for path in (old, new, other)] == [False, True, True]
    assert steps_restored(tier) == [1]


# --- crashes and company ---


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_a_crash_before_any_delete_costs_nothing_that_is_kept(
    disk: MemoryTier, keep: int
) -> None:
    counting = CrashingTier(clone(disk))
    run(counting, keep)
    kept, left = steps_restored(counting.inner), set(counting.inner.iter_keys(""))
    assert counting.changes >= 5 - keep
    for crash_at in range(counting.changes):
        copy = clone(disk)
        with pytest.raises(Crash):
            run(CrashingTier(copy, crash_at=crash_at), keep)
        assert steps_restored(copy)[: len(kept)] == kept
        run(copy, keep)
        assert {key for key in copy.iter_keys("") if "/guards/" not in key} == left
        run(copy, keep, now=lambda: datetime.now(UTC) + timedelta(hours=1))
        assert set(copy.iter_keys("")) == left  # Nor what the dead one had announced.


def test_manifests_go_before_packs(disk: MemoryTier) -> None:
    log: list[str] = []
    run(FaultyTier(disk, lambda op, key: log.append(key) if op == "delete" else None), 1)
    kinds = ["manifests" in key for key in log]
    assert kinds == sorted(kinds, reverse=True)
    assert len(set(kinds)) == 2


def test_two_prunes_at_once(disk: MemoryTier) -> None:
    """Another prune runs to its end before any call of this one."""
    calls = 0

    def count(_operation: str, _key: str) -> None:
        nonlocal calls
        calls += 1

    run(FaultyTier(clone(disk), count), 2)
    total = calls
    for number in range(1, total + 1):
        copy, calls = clone(disk), 0

        def other(
            _operation: str, _key: str, copy: MemoryTier = copy, at: int = number
        ) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                run(copy, 2)

        run(FaultyTier(copy, other), 2)
        assert steps_restored(copy) == [5, 4]
        assert set(packs(copy)) == named(copy)


def test_a_save_during_a_prune_comes_out_whole(save_state: SaveState) -> None:
    """The writer is the attempt that wrote everything else, and its next checkpoint a delta."""
    for number in range(200):
        tier = MemoryTier(f"disk-{number}")
        for step in range(1, 6):
            save_state(tier, str(LINEAGE), step, state_of(step))
        seen = 0

        def save_once(_operation: str, _key: str, at: int = number, tier: Tier = tier) -> None:
            nonlocal seen
            if seen == at:
                for step in (6, 7):
                    save_state(tier, str(LINEAGE), step, state_of(step))
            seen += 1

        run(FaultyTier(tier, save_once), 1)
        if seen <= number:
            break
        assert steps_restored(tier)[0] == 7, number
    else:
        pytest.fail("a prune of five checkpoints takes fewer calls")
    assert number > 10


def test_a_prune_during_a_save_takes_nothing_that_it_needs(save_state: SaveState) -> None:
    for number in range(200):
        tier = MemoryTier(f"disk-{number}")
        for step in range(1, 6):
            save_state(tier, str(LINEAGE), step, state_of(step))
        seen = 0

        def prune_once(_operation: str, _key: str, at: int = number, tier: Tier = tier) -> None:
            nonlocal seen
            if seen == at:
                run(tier, 1)
            seen += 1

        save_state(FaultyTier(tier, prune_once), str(LINEAGE), 6, state_of(6))
        if seen <= number:
            break
        assert steps_restored(tier) == [6, 5], number
    else:
        pytest.fail("a save takes fewer calls")
    assert number >= 3


def test_a_deleted_pack_is_no_error(disk: MemoryTier) -> None:
    def vanish(operation: str, key: str) -> None:
        if operation == "size":
            raise NotFoundError(key)

    garbage = f"{PREFIX}packs/000000000002.00000001.0009.00000000.pack"
    disk.put(garbage, [b"nobody names it, and somebody else deletes it first"])
    sizes = {key: disk.size(key) for key in disk.iter_keys("")}
    plan = run(FaultyTier(disk, vanish), 1)
    assert garbage in plan.packs
    assert plan.freed_bytes == sum(sizes[key] for key in plan.packs if key != garbage)
    assert steps_restored(disk) == [5]


# --- what is known besides ---


def test_what_was_proven_stays_until_something_newer_is(disk: MemoryTier) -> None:
    proven = [CheckpointId(2, 1), CheckpointId(3, 1)]
    plan = run(disk, 1, proven=proven)
    assert steps_restored(disk) == [5, 3]
    reasons = {verdict.id.step: verdict.reasons for verdict in plan.verdicts}
    assert reasons[3] == ("the newest that was read as a whole and found sound",)
    run(disk, 1, proven=[*proven, CheckpointId(5, 1)])
    assert steps_restored(disk) == [5]


def test_what_was_proven_and_is_damaged_since_is_no_use(disk: MemoryTier) -> None:
    victim = Lineage([disk], LINEAGE).manifest_on(disk, CheckpointId(3, 1)).own_packs[0]
    disk.delete(PREFIX + victim.key)
    run(disk, 1, proven=[CheckpointId(3, 1)])
    lineage = Lineage([disk], LINEAGE)
    assert CheckpointId(3, 1) not in [found.id for found in lineage.checkpoints()]


def test_a_task_keeps_what_it_was_restored_from(tmp_path: Path) -> None:
    def lives(keep: int, *steps: int) -> list[int]:
        with Checkpointer(tmp_path, keep=keep, rng=False) as ckpt:
            ckpt.restore(state_of(0))
            for step in steps:
                ckpt.save(step, state_of(step)).wait()
        return [found.id.step for found in ckpt.lineage.valid()]

    assert lives(1, 1, 2, 3) == [3]
    assert lives(1, 4, 5, 6) == [6, 3]  # Only 3 is known to come back.
    assert lives(1, 7) == [7, 6]


def test_what_somebody_holds_stays_with_its_packs(disk: MemoryTier) -> None:
    with hold(disk, LINEAGE, CheckpointId(2, 1)):
        plan = run(disk, 1)
    assert steps_restored(disk) == [5, 2]
    reasons = {verdict.id.step: verdict.reasons for verdict in plan.verdicts}
    assert reasons[2] == ("is in use elsewhere",)
    run(disk, 1)
    assert steps_restored(disk) == [5]


def test_notices_of_the_dead_go(disk: MemoryTier) -> None:
    with (
        pytest.raises(Crash),
        hold(CrashingTier(disk, crash_at=1), LINEAGE, CheckpointId(2, 1)),
    ):
        pass
    run(disk, 1)
    assert steps_restored(disk) == [5, 2]
    run(disk, 1, now=lambda: datetime.now(UTC) + timedelta(days=2))
    assert steps_restored(disk) == [5]
    assert not list(disk.iter_keys(f"{PREFIX}guards"))


def test_a_prune_that_was_asleep_deletes_nothing_any_more(disk: MemoryTier) -> None:
    """Others take its announcement for that of a dead process, and rely on the packs."""
    slept = [timedelta(0)]

    def doze(operation: str, key: str) -> None:
        if operation == "put" and "/guards/" in key:  # The announcement is there.
            slept.append(timedelta(minutes=6))

    lineage = Lineage([FaultyTier(disk, doze)], LINEAGE)
    before = set(disk.iter_keys(""))
    began = datetime.now(UTC)
    plan = prune(
        lineage,
        lineage.tiers[0],
        Retention(newest=1),
        now=lambda: began + sum(slept, timedelta(0)),
    )
    assert len(slept) == 2
    assert set(disk.iter_keys("")) == before
    assert (plan.manifests, plan.packs, plan.freed_bytes) == ((), (), 0)


def test_a_tier_that_is_full_to_the_last_byte_can_be_pruned(disk: MemoryTier) -> None:
    """Not even the word that packs are about to go would fit."""

    def full(operation: str, key: str) -> None:
        used = sum(disk.size(one) for one in disk.iter_keys(""))
        if operation == "put" and used >= before:
            raise TierFull("no room for anything")

    before = sum(disk.size(one) for one in disk.iter_keys(""))
    lineage = Lineage([FaultyTier(disk, full)], LINEAGE)
    plan = prune(lineage, lineage.tiers[0], Retention(newest=1))
    assert len(plan.manifests) == len(set(plan.manifests)) == 4
    assert plan.packs
    assert [found.id.step for found in lineage.checkpoints()] == [5]
    assert set(packs(disk)) == named(disk)


# --- tiers ---


def fail(tier: Tier, step: int, attempts: int, *others: Tier) -> None:
    """Some attempts could not restore a checkpoint."""
    lineage, broken = Lineage([tier, *others], LINEAGE), CorruptionError("broken")
    for by in range(2, 2 + attempts):
        record_failure(lineage, CheckpointId(step, 1), by=by, error=broken, note=print)


def test_a_quarantined_checkpoint_does_not_push_out_the_last_usable_one(
    disk: MemoryTier,
) -> None:
    fail(disk, 5, quarantine.FAILURES)
    fail(disk, 4, quarantine.FAILURES - 1)
    plan = run(disk, 1)
    reasons = {verdict.id.step: verdict.reasons for verdict in plan.verdicts if verdict.keep}
    assert reasons.keys() == {5, 4}
    assert reasons[4] == ("the newest that is not quarantined",)
    assert steps_restored(disk) == [5, 4]


def test_with_a_checkpoint_its_records_go(disk: MemoryTier) -> None:
    outer = MemoryTier("outer", level=3)
    copy_checkpoint(
        [disk], outer, LINEAGE, Lineage([disk], LINEAGE).manifest_on(disk, CheckpointId(2, 1))
    )
    for step in (1, 2, 5):
        fail(disk, step, 2, outer)
    lineage = Lineage([disk, outer], LINEAGE)
    prune(lineage, disk, Retention(newest=1))
    assert quarantine.failures(lineage).keys() == {CheckpointId(2, 1), CheckpointId(5, 1)}


def test_records_that_cannot_be_deleted_hinder_no_prune(disk: MemoryTier) -> None:
    def broken(operation: str, key: str) -> None:
        if operation == "delete" and "/quarantine/" in key:
            raise TierUnavailable("away")

    fail(disk, 1, 1)
    run(FaultyTier(disk, broken), 1)
    assert steps_restored(disk) == [5]
    assert quarantine.failures(Lineage([disk], LINEAGE))


def test_each_tier_keeps_its_own(tmp_path: Path) -> None:
    near, far = PosixTier(tmp_path / "near", name="near"), MemoryTier("far", level=3)
    keep = {"near": 1, "far": "newest=2,every=3"}
    with Checkpointer([near, far], keep=keep, rng=False) as ckpt:
        for step in range(1, 9):
            ckpt.save(step, state_of(step)).wait(3)
    lineage = ckpt.lineage
    assert [found.id.step for found in lineage.checkpoints_on(near)] == [8]
    assert [found.id.step for found in lineage.checkpoints_on(far)] == [8, 7, 6, 3]


def test_a_table_names_tiers_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep names 'nvme'; the tiers are"):
        Checkpointer(tmp_path, keep={"nvme": 1})


def test_room_limits_a_tier_as_it_fills(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep="bytes=13kB", rng=False) as ckpt:
        for step in range(1, 9):
            ckpt.save(step, {"w": np.random.default_rng(step).standard_normal(500)})
    tier = ckpt.lineage.tiers[0]
    sizes = [tier.size(key) for key in tier.iter_keys(f"{ckpt.lineage.id.prefix}/packs")]
    assert 8000 < sum(sizes) <= 13_000
    assert [found.id.step for found in ckpt.lineage.valid()] == [8, 7, 6]


def test_an_older_safer_copy_outlives_a_newer_weaker_one(save_state: SaveState) -> None:
    """Steps 1 to 3 reached the far tier, 4 and 5 did not yet; then the near one is lost."""
    near, far = MemoryTier("near", level=1), MemoryTier("far", level=4)
    for step in range(1, 6):
        save_state(near, str(LINEAGE), step, state_of(step))
        if step <= 3:
            manifest = Lineage([near], LINEAGE).manifest_on(near, CheckpointId(step, 1))
            copy_checkpoint([near], far, LINEAGE, manifest)
    lineage = Lineage([near, far], LINEAGE)
    for tier in (near, far):
        prune(lineage, tier, Retention(newest=1))
    assert steps_restored(near) == [5]
    assert steps_restored(far) == [3]  # The newest of what would be left without the other.
    copy_checkpoint([near], far, LINEAGE, lineage.manifest_on(near, CheckpointId(5, 1)))
    prune(lineage, far, Retention(newest=1))
    assert steps_restored(far) == [5]  # Now the newer one is as safe.


# --- what is known, what time is left, what room there is ---


def test_what_was_whole_and_lacks_an_older_pack_since_is_damaged(
    save_state: SaveState,
) -> None:
    """A cleaner of old files took it. Else good checkpoints would go for the sake of it."""
    tier, known = MemoryTier("disk"), Known()
    save_state(tier, str(LINEAGE), 1, {"own": np.random.default_rng(1).standard_normal(800)})
    grown = {"own": np.random.default_rng(2).standard_normal(800)}
    for step in (2, 3):
        grown["own"][: CHUNK_ITEMS * step] = step
        save_state(tier, str(LINEAGE), step, grown)
    run(tier, 3, known=known)
    (gone,) = (key for key in packs(tier) if key.startswith(f"packs/{2:012d}."))
    tier.delete(PREFIX + gone)
    assert (
        run(tier, 1, known=known).verdicts
        == plan_prune(Lineage([tier], LINEAGE), tier, Retention(newest=1)).verdicts
    )
    assert CheckpointId(1, 1) in [found.id for found in Lineage([tier], LINEAGE).checkpoints()]


def test_a_prune_whose_plan_took_long_deletes_all_the_same(disk: MemoryTier) -> None:
    """Each manifest takes a minute to read; the announcement comes after that."""
    clock, planned = [datetime.now(UTC)], list[str]()

    def slow(operation: str, key: str) -> None:
        if operation == "put":
            planned.append(key)
        if operation == "get" and not planned:
            clock[0] += timedelta(minutes=1)

    began, deleted = clock[0], list[str]()
    plan = run(FaultyTier(disk, slow), 2, now=lambda: clock[0], on_deleted=deleted.append)
    assert clock[0] - began > DELETE_WITHIN
    assert deleted == [*plan.manifests, *plan.packs]
    assert len(plan.manifests) == 3
    assert plan.packs
    assert steps_restored(disk) == [5, 4]
    assert set(packs(disk)) == named(disk)


@pytest.mark.parametrize("slow_from", [0, 1, 2, 3, 4, 5])
def test_a_prune_that_is_out_of_time_says_what_it_deleted(
    disk: MemoryTier, slow_from: int
) -> None:
    clock, deleted = [datetime.now(UTC)], list[str]()
    sizes = {key: disk.size(key) for key in disk.iter_keys("")}

    def note(key: str) -> None:
        deleted.append(key)
        if len(deleted) == slow_from:
            clock[0] += 2 * DELETE_WITHIN

    def stall(operation: str, _key: str) -> None:
        if operation == "put" and not slow_from:
            clock[0] += 2 * DELETE_WITHIN

    plan = run(FaultyTier(disk, stall), 1, now=lambda: clock[0], on_deleted=note)
    assert deleted == [*plan.manifests, *plan.packs]
    assert len(deleted) == slow_from
    assert set(deleted) == sizes.keys() - set(disk.iter_keys(""))
    assert plan.freed_bytes == sum(sizes[key] for key in plan.packs)
    assert steps_restored(disk)[0] == 5


@pytest.mark.parametrize("left", ["remains", "notice"])
def test_a_full_tier_without_a_needless_manifest_can_be_pruned(
    tmp_path: Path, save_state: SaveState, left: str
) -> None:
    """What makes room is what a killed writer left, or a notice of the dead."""
    tier = PosixTier(tmp_path)
    for step in (1, 2):
        save_state(tier, str(LINEAGE), step, state_of(step))
    garbage = f"{PREFIX}{CheckpointId(1, 1).pack_key(0, 'deadbeef')}"
    tier.put(garbage, [b"x" * 1000])
    rest = tmp_path / PREFIX / ("packs/.0.partial" if left == "remains" else "guards/x")
    if left == "notice":
        rest = tmp_path / PREFIX / "guards" / f"{'a' * 16}.hold"
    rest.parent.mkdir(exist_ok=True)
    rest.write_bytes(b"of nobody")
    os.utime(rest, (0, 0))

    def full(operation: str, _key: str) -> None:
        if operation == "put" and rest.exists():
            raise TierFull("no room for anything")

    plan = run(FaultyTier(tier, full), 9)
    assert garbage in plan.packs
    assert not rest.exists()
    assert set(packs(tier)) == named(tier)
    assert steps_restored(tier) == [2, 1]


# --- what a stranger left, and what fails behind a save ---


@pytest.mark.damaged_store
def test_a_nested_record_of_a_stranger_hinders_nothing(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=2, rng=False) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, state_of(step)).wait()
    prefix, tier = ckpt.lineage.id.prefix, ckpt.lineage.tiers[0]
    nested = b"[" * 200_000
    for key in (f"guards/{'a' * 16}.prune", "attempts/00000001.resume"):
        tier.delete(f"{prefix}/{key}")
        tier.put(f"{prefix}/{key}", [nested])
    with Checkpointer(tmp_path, keep=2, rng=False) as ckpt:
        ckpt.restore(state_of(0))
        assert ckpt.restored_step == 3
        for step in (4, 5):
            ckpt.save(step, state_of(step)).wait()
    steps = [found.id.step for found in Lineage([tier], ckpt.lineage.id).valid()]
    assert steps[:2] == [5, 4]


def test_a_prune_that_meets_a_newer_format_does_not_fail_the_save(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path, level=1)
    line = b'{"format":"ckptflow-stripe","version":2}'
    text = line + b"\n" + seal(line).hex().encode() + b"\n"
    tier.put(f"{REDUNDANCY}/{'0' * 32}/stripe.json", [text])
    ckpt = Checkpointer(tier, keep=1, rng=False)

    def live() -> None:
        with ckpt:
            for step in (1, 2, 3):
                ckpt.save(step, state_of(step)).wait()

    with pytest.warns(CheckpointWarning, match="version 2"):
        live()
    assert [found.id.step for found in ckpt.lineage.valid()] == [3, 2, 1]


@pytest.mark.parametrize("deletes", range(12))
@pytest.mark.parametrize("is_full", [False, True])
def test_what_is_freed_counts_garbage_only_when_it_went(
    disk: MemoryTier, deletes: int, is_full: bool
) -> None:
    for nonce in ("aaaaaaaa", "bbbbbbbb"):
        disk.put(f"{PREFIX}{CheckpointId(2, 1).pack_key(0, nonce)}", [b"x" * 1000])
    clock, deleted = [datetime.now(UTC)], list[str]()
    sizes = {key: disk.size(key) for key in disk.iter_keys("")}

    def note(key: str) -> None:
        deleted.append(key)
        if len(deleted) == deletes:
            clock[0] += 2 * DELETE_WITHIN

    def full(operation: str, _key: str) -> None:
        if operation == "put" and is_full and not deleted:
            raise TierFull("no room")

    tier = FaultyTier(disk, full)
    plan = run(tier, 1, now=lambda: clock[0], on_deleted=note)
    assert deleted == [*plan.manifests, *plan.packs]
    assert plan.freed_bytes == sum(sizes[key] for key in deleted if "/packs/" in key)
