"""Whatever is damaged is found, on the tier where it lies, and nothing else is suspected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ckptflow import manifest as manifest_file
from ckptflow.errors import TierUnavailable
from ckptflow.flush import copy_checkpoint
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store import verify as verify_module
from ckptflow.store.catalog import Lineage
from ckptflow.store.verify import CopyReport, verify
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
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
        CopyReport(CheckpointId(2, 1), "near", size, ()),
        CopyReport(CheckpointId(2, 1), "far", size, ()),
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
    monkeypatch.setattr(verify_module, "_READ_BYTES", 1)  # Frame by frame.
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
