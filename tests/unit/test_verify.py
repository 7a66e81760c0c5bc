"""Whatever is damaged is found, on the tier where it lies, and nothing else is suspected."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ckptflow import manifest as manifest_file
from ckptflow.data.pack import FRAME_PLAIN_MAX
from ckptflow.errors import CorruptionError, TierUnavailable
from ckptflow.flush import copy_checkpoint
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store import verify as verify_module
from ckptflow.store.catalog import Lineage
from ckptflow.store.descriptor import ensure_store
from ckptflow.store.memory import NamedRegion
from ckptflow.store.save import checkpoint_root, write_checkpoint
from ckptflow.store.verify import (
    CopyReport,
    Sample,
    check_pack,
    parse_sample,
    verify,
    verify_lineage,
)
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.metered import MeteredTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]

LINEAGE = LineageId("exp", "task")
PREFIX = f"{LINEAGE.prefix}/"
NEWEST = PREFIX + CheckpointId(2, 1).manifest_key


@pytest.fixture
def near(save_state: SaveState) -> MemoryTier:
    tier, rng = MemoryTier("near"), np.random.default_rng(5)
    state = {"w": rng.standard_normal(3000), "packed": np.arange(4000) // 50}
    save_state(tier, str(LINEAGE), 1, state)
    state["w"][100:300] = rng.standard_normal(200)
    save_state(tier, str(LINEAGE), 2, state)
    return tier


@pytest.fixture
def far(near: MemoryTier) -> MemoryTier:
    tier = MemoryTier("far", level=3)
    lineage = Lineage([near], LINEAGE)
    copy_checkpoint([near], tier, LINEAGE, lineage.manifest(lineage.checkpoints()[0]))
    return tier


def reports(*tiers: Tier) -> list[CopyReport]:
    lineage = Lineage(tiers, LINEAGE)
    return verify(lineage, lineage.checkpoints()[0])


def flip(tier: Tier, key: str, place: int, bit: int = 0) -> None:
    data = bytearray(tier.get(key))
    data[place] ^= 1 << bit
    tier.put(key, [data])


def packs(tier: Tier) -> list[str]:
    return list(tier.iter_keys(f"{PREFIX}packs"))


def test_every_copy_is_read_whole(near: MemoryTier, far: MemoryTier) -> None:
    size = sum(near.size(key) for key in [NEWEST, *packs(near)])
    assert reports(near, far) == [
        CopyReport(CheckpointId(2, 1), "near", size, (), size),
        CopyReport(CheckpointId(2, 1), "far", size, (), size),
    ]
    assert all(report.sound for report in reports(near, far))


@pytest.mark.parametrize("number", [0, 1])
def test_a_flipped_bit_anywhere_in_a_pack_is_found_where_it_lies(
    near: MemoryTier, far: MemoryTier, number: int
) -> None:
    """Also where no restore of this checkpoint would read."""
    key = packs(far)[number]
    data = far.get(key)
    for percent in range(0, 101, 2):
        place = min(len(data) - 1, len(data) * percent // 100)
        flip(far, key, place, percent % 8)
        sound, damaged = reports(near, far)
        assert sound.sound
        assert damaged.problems, f"bit {percent % 8} of byte {place}"
        assert all(key in text and "'far'" in text for text in damaged.problems)
        far.put(key, [data])


def test_a_flipped_bit_anywhere_in_the_manifest_is_found(near: MemoryTier) -> None:
    data = near.get(NEWEST)
    for percent in range(0, 101, 2):
        flip(near, NEWEST, min(len(data) - 1, len(data) * percent // 100))
        (report,) = reports(near)
        assert NEWEST in report.problems[0]
        assert report.checked_bytes == 0
        near.put(NEWEST, [data])


def test_every_damaged_frame_is_named(
    near: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "_PIECE_BYTES_MIN", 1)  # Frame by frame.
    monkeypatch.setattr(verify_module, "_PIECE_BYTES_MAX", 1)
    (report,) = reports(near)
    assert report.sound
    key = packs(near)[0]
    for place in (20, near.size(key) - 250):
        flip(near, key, place)
    (report,) = reports(near)
    assert len(report.problems) >= 1
    assert all(
        "Frame " in text and "does not match its digest" in text for text in report.problems
    )


def test_damage_is_found_in_whichever_of_many_frames_of_one_size(save_state: SaveState) -> None:
    """Those are digested together, so many at a time."""
    tier = MemoryTier("near", level=1)
    state = {"w": np.random.default_rng(0).integers(0, 255, 18_300_001, np.uint8)}
    lineage = save_state(tier, "exp/large", 1, state, chunk_bytes=65536)
    manifest = lineage.manifest(lineage.checkpoints()[0])
    (ref,) = manifest.packs
    assert ref.frame_count > 16
    data = bytearray(tier.get(f"{lineage.id.prefix}/{ref.key}"))
    frames = check_pack(memoryview(data), ref, where="there")
    for number in range(len(frames)):
        place = int(frames.offset[number + 1]) - 1
        data[place] ^= 1
        with pytest.raises(CorruptionError, match=f"Frame {number} of pack there"):
            check_pack(memoryview(data), ref, where="there")
        data[place] ^= 1


def test_problems_of_all_packs_are_listed(near: MemoryTier) -> None:
    first, second = packs(near)
    near.delete(first)
    near.put(second, [near.get(second)[:-1]])
    (report,) = reports(near)
    assert len(report.problems) == 2
    assert f"holds no '{first}'" in report.problems[0]
    assert f"'{second}' on tier 'near' has" in report.problems[1]


def test_an_older_checkpoint_does_not_suffer_from_a_newer_ones_damage(near: MemoryTier) -> None:
    near.delete(packs(near)[1])
    lineage = Lineage([near], LINEAGE)
    newest, oldest = lineage.checkpoints()
    assert not verify(lineage, newest)[0].sound
    assert verify(lineage, oldest)[0].sound


def test_a_manifest_that_was_moved_is_not_sound(near: MemoryTier) -> None:
    """Its bytes are as they were written, but a restore would not take it."""
    moved = NEWEST.replace("000000000002", "000000000007")
    near.put(moved, [near.get(NEWEST)])
    (report,) = reports(near)
    assert report.id == CheckpointId(7, 1)
    assert "says that it is step 2 (attempt 1) of exp/task: it was moved there" in str(report)


def test_frames_that_are_sound_and_not_the_state(near: MemoryTier) -> None:
    lineage = Lineage([near], LINEAGE)
    manifest = lineage.manifest(lineage.checkpoints()[0])
    wrong = replace(manifest.regions[0], root=bytes(16))
    changed = replace(manifest, regions=(wrong, *manifest.regions[1:]))
    near.put(NEWEST, [manifest_file.encode(changed)])
    (report,) = reports(near)
    assert "The root of exp/task step 2 (attempt 1) is not that of its regions" in str(report)


def test_a_tier_that_does_not_answer_is_a_problem_and_no_crash(near: MemoryTier) -> None:
    def fail(operation: str, key: str) -> None:
        if "/packs/" in key:
            raise TierUnavailable(f"no answer to {operation}")

    (report,) = reports(FaultyTier(near, fail))
    assert set(report.problems) == {"no answer to size"}


def test_packs_that_checkpoints_share_are_read_once_and_so_is_what_did_not_change(
    near: MemoryTier,
) -> None:
    lineage = Lineage([tier := MeteredTier(near)], LINEAGE)
    verify(lineage, lineage.checkpoints()[1])
    first = tier.read_bytes
    verify(lineage, lineage.checkpoints()[0])
    second = tier.read_bytes - first
    for _ in verify_lineage(lineage, lineage.checkpoints()):
        pass
    assert tier.read_bytes - first - second < 0.8 * (first + second)


def test_memory_stays_bounded_however_large_the_state_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one budget of state, of one array, with delta layers on it."""
    budget, size = 4 << 20, 36 << 20
    monkeypatch.setattr(verify_module, "MEMORY_BYTES", budget)
    rng = np.random.default_rng(1)
    data = rng.integers(0, 1 << 30, size // 8)
    tier, base = PosixTier(tmp_path / "store"), None
    ensure_store(tier)
    for step in (1, 2):
        data += rng.integers(0, 3, size // 8)
        region = NamedRegion("w", memoryview(data.copy()).cast("B"), 8)
        base = write_checkpoint(
            tier,
            LINEAGE,
            CheckpointId(step, 1),
            structure=None,
            regions=[region],
            base=base,
            chunk_bytes=4096,
            goal="small",
        )
        base.memory.bytes_at_hand = {"w": region.data}
    assert base is not None
    assert base.manifest.regions[0].deltas
    del base, region
    lineage = Lineage([tier], LINEAGE)
    tracemalloc.start()
    try:
        (report,) = verify(lineage, lineage.checkpoints()[0], threads=2)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.sound
    shutil.rmtree(tmp_path / "store")  # The witness would take ten times as long.
    # Besides: scratch of each thread for two frames, and twice the digests.
    assert peak_bytes < budget + 2 * 2 * FRAME_PLAIN_MAX + (4 << 20) < size


def test_a_wrong_root_behind_sound_frames_is_found_in_any_window(
    near: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "MEMORY_BYTES", 4 * 640)
    lineage = Lineage([near], LINEAGE)
    manifest = lineage.manifest(lineage.checkpoints()[0])
    assert verify(lineage, lineage.checkpoints()[0])[0].sound
    for number, region in enumerate(manifest.regions):
        regions = list(manifest.regions)
        regions[number] = replace(region, root=bytes(16))
        changed = replace(manifest, regions=tuple(regions), root=checkpoint_root(regions))
        near.put(NEWEST, [manifest_file.encode(changed)])
        (report,) = reports(near)
        assert f"Region {region.name!r} of exp/task step 2" in str(report)
        assert "although all frames are sound" in str(report)


@pytest.mark.damaged_store
def test_a_sample_looks_at_its_share_and_finds_what_lies_there(tmp_path: Path) -> None:
    tier, rng = PosixTier(tmp_path / "store"), np.random.default_rng(2)
    ensure_store(tier)
    manifest = write_checkpoint(
        tier,
        LINEAGE,
        CheckpointId(1, 1),
        structure=None,
        regions=[NamedRegion("w", memoryview(rng.bytes(40 << 20)))],
        base=None,
        chunk_bytes=4096,
    ).manifest
    lineage = Lineage([tier], LINEAGE)
    (found,) = lineage.checkpoints()
    (report,) = verify(lineage, found, sample=parse_sample("5%"))
    assert report.sound
    assert report.checked_share == pytest.approx(0.05, rel=0.1)
    assert verify(lineage, found, sample=parse_sample("0.05"))[0] == report
    (pack,) = packs(tier)
    flip(tier, pack, 17)
    seen = [not verify(lineage, found, sample=Sample(0.25, seed))[0].sound for seed in range(8)]
    assert True in seen
    assert False in seen
    assert manifest.packs[0].frame_count == 40


def test_a_checkpoint_that_is_packed_again_meanwhile_is_not_damaged(
    near: MemoryTier, packed_again: Callable[[MemoryTier], Tier]
) -> None:
    tier = packed_again(near)
    lineage = Lineage([tier], LINEAGE)
    (report,) = verify(lineage, lineage.checkpoints()[0])
    assert report.sound
    assert len(packs(near)) == 1


def test_tiers_that_fail_between_others_do_not_stop_them(
    near: MemoryTier, far: MemoryTier
) -> None:
    def fail(operation: str, key: str) -> None:
        raise TierUnavailable(f"no answer to {operation}")

    lineage = Lineage([near, far], LINEAGE)
    (found, *_) = lineage.checkpoints()
    broken = FaultyTier(near, fail)
    lineage = Lineage([broken, far], LINEAGE)
    first, second = verify(lineage, replace(found, tiers=(broken, far)))
    assert first.problems == ("no answer to get",)
    assert second.sound
