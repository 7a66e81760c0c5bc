"""What has one sound copy is sound on all tiers after a repair, and nothing else is touched.

Method for crashes: a repair is counted, and repeated once for each of its changes, dying just
before it; after each the newest checkpoint restores, no damaged object is believed, and a
second repair completes the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ckptflow import manifest as manifest_file
from ckptflow.errors import TierFull, TierUnavailable
from ckptflow.flush import copy_checkpoint
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention
from ckptflow.store import guards, quarantine
from ckptflow.store.catalog import Lineage
from ckptflow.store.prune import prune
from ckptflow.store.repair import RepairReport, Spare, repair
from ckptflow.store.resume import restore_newest
from ckptflow.store.save import checkpoint_root
from ckptflow.store.verify import verify
from ckptflow.testing.faults import Crash, CrashingTier, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]
LINEAGE = LineageId("exp", "task")
PREFIX = f"{LINEAGE.prefix}/"


@pytest.fixture
def near(save_state: SaveState) -> MemoryTier:
    tier, rng = MemoryTier("near", level=1), np.random.default_rng(5)
    state = {"w": rng.standard_normal(3000), "packed": np.arange(4000) // 50}
    for step in (1, 2, 3):
        state["w"][100 * step : 100 * step + 50] = rng.standard_normal(50)
        save_state(tier, str(LINEAGE), step, state)
    return tier


@pytest.fixture
def far(near: MemoryTier) -> MemoryTier:
    tier, lineage = MemoryTier("far", level=3), Lineage([near], LINEAGE)
    for found in reversed(lineage.checkpoints()):
        copy_checkpoint([near], tier, LINEAGE, lineage.manifest(found))
    return tier


def contents(tier: Tier) -> dict[str, bytes]:
    return {key: tier.get(key) for key in tier.iter_keys("lineages")}


def unguarded(tier: Tier) -> dict[str, bytes]:
    """Without the holds of processes that died, which time out."""
    return {key: data for key, data in contents(tier).items() if "/guards/" not in key}


def fill(tier: MemoryTier, objects: dict[str, bytes]) -> None:
    for key in tier.iter_keys("lineages"):
        tier.delete(key)
    for key, data in objects.items():
        tier.put(key, [data])


def damages(data: bytes) -> dict[str, bytes | None]:
    middle = len(data) // 2
    return {
        "gone": None,
        "cut": data[:middle],
        "empty": b"",
        "longer": data + b"x",
        "flipped": data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :],
    }


def suffer(tier: MemoryTier, key: str, how: str) -> None:
    damaged = damages(tier.get(key))[how]
    tier.delete(key)
    if damaged is not None:
        tier.put(key, [damaged])


def mend(*tiers: Tier, spares: tuple[Spare, ...] = (), **options: bool) -> RepairReport:
    lineage = Lineage(tiers, LINEAGE)
    return repair(lineage, lineage.checkpoints(), spares=spares, **options)


def all_sound(*tiers: Tier) -> bool:
    lineage = Lineage(tiers, LINEAGE)
    return all(one.sound for found in lineage.checkpoints() for one in verify(lineage, found))


@pytest.mark.parametrize("how", ["gone", "cut", "empty", "longer", "flipped"])
def test_every_object_of_either_tier_is_mended_to_the_bit(
    near: MemoryTier, far: MemoryTier, how: str
) -> None:
    for tier, other in ((near, far), (far, near)):
        before = contents(tier)
        for key in before:
            suffer(tier, key, how)
            if how == "gone" and "/manifests/" in key:
                assert mend(near, far).mended == []  # It may have been pruned.
                assert [one.key for one in mend(near, far, everywhere=True).mended] == [key]
            else:
                (mended,) = mend(near, far).mended
                assert (mended.tier, mended.key, mended.source) == (tier.name, key, other.name)
                assert mended.size_bytes == len(before[key])
                assert "'" in mended.why
            assert contents(tier) == before
    assert all_sound(near, far)


def test_damage_of_all_kinds_at_once_each_from_the_other(
    near: MemoryTier, far: MemoryTier
) -> None:
    before, keys = contents(near), sorted(contents(near))
    for number, key in enumerate(keys):
        suffer((near, far)[number % 2], key, ["cut", "flipped", "longer"][number % 3])
    report = mend(near, far)
    assert report.complete
    assert len(report.mended) == len(keys)
    assert contents(near) == contents(far) == before
    assert sorted(report.sound) == sorted(
        (CheckpointId(step, 1), tier) for step in (1, 2, 3) for tier in ("near", "far")
    )
    assert mend(near, far).mended == []


def test_a_dry_run_says_the_same_and_writes_nothing(near: MemoryTier, far: MemoryTier) -> None:
    for key in sorted(contents(near))[1:4]:
        suffer(near, key, "flipped")
    damaged = contents(near)
    said = mend(near, far, dry_run=True)
    assert contents(near) == damaged
    assert said.mended == mend(near, far).mended


def test_what_has_no_sound_copy_is_told_and_left(near: MemoryTier, far: MemoryTier) -> None:
    key = next(near.iter_keys(f"{PREFIX}packs"))
    suffer(near, key, "flipped")
    suffer(far, key, "cut")
    damaged = contents(near), contents(far)
    report = mend(near, far)
    assert not report.complete
    assert {(one.tier, one.key) for one in report.lost} == {("near", key), ("far", key)}
    assert all(len(one.reasons) == 2 for one in report.lost)
    assert (contents(near), contents(far)) == damaged


def test_no_manifest_is_put_before_all_its_packs_are_sound(
    near: MemoryTier, far: MemoryTier
) -> None:
    newest = PREFIX + CheckpointId(3, 1).manifest_key
    pack = list(near.iter_keys(f"{PREFIX}packs"))[-1]
    suffer(near, newest, "cut")
    for tier in (near, far):
        suffer(tier, pack, "flipped")
    damaged = contents(near)
    report = mend(near, far)
    assert {one.key for one in report.lost} == {newest, pack}
    assert contents(near) == damaged


def test_a_crash_before_any_change_leaves_all_that_was(
    near: MemoryTier, far: MemoryTier
) -> None:
    whole = contents(near)
    for number, key in enumerate(sorted(whole)):
        suffer(near, key, ["cut", "flipped", "longer"][number % 3])
    damaged = contents(near)
    undisturbed = CrashingTier(near)
    mend(undisturbed, far)
    assert undisturbed.changes == len(whole) + 2 * 3  # A hold each, which is taken back.
    for crash_at in range(undisturbed.changes):
        fill(near, damaged)
        with pytest.raises(Crash):
            mend(CrashingTier(near, crash_at=crash_at), far)
        now = unguarded(near)
        mended = {key for key in now if now[key] == whole[key]}
        assert crash_at - 6 <= len(mended) <= crash_at
        assert all(now[key] == damaged[key] for key in now.keys() - mended)
        for checkpoint in (CheckpointId(step, 1) for step in (1, 2, 3)):
            lineage = Lineage([near], LINEAGE)
            if PREFIX + checkpoint.manifest_key in mended:  # Then all of it is there.
                (report,) = verify(
                    lineage, next(f for f in lineage.checkpoints() if f.id == checkpoint)
                )
                assert report.sound
        found = restore_newest(Lineage([near, far], LINEAGE), None)
        assert found is not None
        assert found.id == CheckpointId(3, 1)
        assert mend(near, far).complete
        assert unguarded(near) == whole


def test_a_tier_that_does_not_answer_is_not_overwritten(
    near: MemoryTier, far: MemoryTier
) -> None:
    def away(operation: str, key: str) -> None:
        if operation in ("get", "read_into", "size") and "/packs/" in key:
            raise TierUnavailable(f"no answer to {operation}")
        assert operation not in ("put", "delete")

    report = mend(FaultyTier(near, away), far)
    assert report.mended == []
    assert {one.reasons for one in report.lost} == {("no answer to size",)}
    assert {tier for _, tier in report.sound} == {"far"}


def test_a_full_tier_is_told_of(near: MemoryTier, far: MemoryTier) -> None:
    suffer(near, next(near.iter_keys(f"{PREFIX}packs")), "cut")

    def full(operation: str, key: str) -> None:
        if operation == "put":
            raise TierFull("no room")

    report = mend(FaultyTier(near, full), far)
    assert report.mended == []
    assert {one.reasons[-1] for one in report.lost} == {"no room"}


def test_what_a_live_run_prunes_meanwhile_does_not_come_back(
    near: MemoryTier, far: MemoryTier
) -> None:
    """Its manifest is read; then it goes, and its packs with it."""
    oldest = CheckpointId(1, 1)
    for key in list(near.iter_keys(PREFIX + "manifests"))[1:]:
        near.delete(key)

    def prune(operation: str, key: str) -> None:
        if operation == "size" and "/packs/" in key:
            near.delete(PREFIX + oldest.manifest_key)
            near.delete(key)

    report = mend(FaultyTier(near, prune), far)
    assert report.mended == []
    assert list(near.iter_keys(PREFIX + "manifests")) == []


def test_what_is_packed_again_meanwhile_is_not_missed(
    near: MemoryTier, packed_again: Callable[[MemoryTier], Tier]
) -> None:
    tier = packed_again(near)
    newest = Lineage([tier], LINEAGE).checkpoints()[:1]
    report = repair(Lineage([tier], LINEAGE), newest)
    assert report.complete
    assert report.mended == []
    assert report.sound == [(CheckpointId(3, 1), "near")]
    assert len(list(near.iter_keys(f"{PREFIX}packs"))) == 1


class Vault:
    """A spare that has some objects, or says that it has."""

    name = "vault"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def object(self, key: str) -> bytes | None:
        return self._objects.get(key)


def test_a_spare_gives_what_no_tier_has(near: MemoryTier) -> None:
    whole = contents(near)
    for key in whole:
        suffer(near, key, "cut")
    report = mend(near, spares=(Vault({}), Vault(whole)))
    assert report.complete
    assert {one.source for one in report.mended} == {"vault"}
    assert contents(near) == whole


def test_what_a_spare_gives_is_not_trusted(near: MemoryTier) -> None:
    whole, keys = contents(near), sorted(contents(near))
    for key in whole:
        suffer(near, key, "flipped")
    damaged = contents(near)
    swapped = dict(zip(keys, [whole[key] for key in (*keys[1:], keys[0])], strict=True))
    flipped = {key: damages(data)["flipped"] or b"" for key, data in whole.items()}
    report = mend(near, spares=(Vault(swapped), Vault(flipped)))
    assert report.mended == []
    assert contents(near) == damaged


def test_a_repair_does_not_lift_what_has_a_wrong_root(near: MemoryTier) -> None:
    """Its objects are sound, and yet nobody can restore it."""
    lineage = Lineage([near], LINEAGE)
    found = lineage.checkpoints()[0]
    manifest = lineage.manifest(found)
    regions = [replace(region, root=bytes(16)) for region in manifest.regions]
    wrong = replace(manifest, regions=tuple(regions), root=checkpoint_root(regions))
    near.put(PREFIX + found.id.manifest_key, [manifest_file.encode(wrong)])
    for attempt in (2, 3, 4):
        restore_newest(lineage, None, attempt=attempt)
    assert mend(near).complete
    assert quarantine.known_bad(lineage) == {found.id}


def test_a_repair_lifts_the_quarantine(near: MemoryTier, far: MemoryTier) -> None:
    lineage, pack = Lineage([near, far], LINEAGE), list(near.iter_keys(f"{PREFIX}packs"))[-1]
    suffer(near, pack, "flipped")
    sound = far.get(pack)
    far.delete(pack)
    for attempt in (2, 3, 4):
        restore_newest(lineage, None, attempt=attempt)
    assert quarantine.known_bad(lineage) == {CheckpointId(3, 1)}
    far.put(pack, [sound])
    assert mend(near, far, dry_run=True).mended
    assert quarantine.known_bad(lineage) == {CheckpointId(3, 1)}
    mend(near, far)
    assert quarantine.known_bad(lineage) == set()


def alone(step: int) -> dict[str, object]:
    """A state of which nothing is in that of any other step."""
    return {"w": np.random.default_rng(step).standard_normal(3000)}


def test_a_prune_elsewhere_takes_no_pack_before_its_manifest_is_there(
    save_state: SaveState,
) -> None:
    """The far tier has a newer one already: what an older one needs looks like garbage."""
    near, far = MemoryTier("near", level=1), MemoryTier("far", level=3)
    for step in (1, 2, 3):
        save_state(near, str(LINEAGE), step, alone(step))
    newest = Lineage([near], LINEAGE).manifest_on(near, CheckpointId(3, 1))
    copy_checkpoint([near], far, LINEAGE, newest)
    pruned: list[str] = []

    def prune_first(operation: str, key: str) -> None:
        if operation == "put" and "/manifests/" in key:
            pruned.append(key)
            prune(Lineage([far], LINEAGE), far, Retention(newest=9))

    report = mend(near, FaultyTier(far, prune_first), everywhere=True)
    assert len(pruned) == 2
    assert report.complete
    assert contents(far) == contents(near)
    assert all_sound(near, far)


def test_a_dry_run_leaves_no_word_where_a_checkpoint_lacks(near: MemoryTier) -> None:
    far = MemoryTier("far", level=3)
    log: list[str] = []
    spied = FaultyTier(far, lambda op, _key: log.append(op))
    assert mend(near, spied, everywhere=True, dry_run=True).mended
    assert not {"put", "create", "delete"} & set(log)


def test_a_manifest_is_not_put_when_its_hold_is_too_old(
    near: MemoryTier, far: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = PREFIX + CheckpointId(3, 1).manifest_key
    suffer(far, newest, "cut")
    damaged = contents(far)
    with monkeypatch.context() as patch:
        patch.setattr(guards, "HOLD_AGE_MAX", 2 * guards.ANNOUNCEMENT_AGE_MAX)
        report = mend(near, far)
    assert not report.complete
    (lost,) = report.lost
    assert lost.key == newest
    assert "its hold may not count any more" in lost.reasons[-1]
    assert contents(far) == damaged
    assert mend(near, far).complete
    assert all_sound(near, far)
