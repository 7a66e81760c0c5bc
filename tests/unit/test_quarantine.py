"""A checkpoint that failed in several attempts is passed over, told of, and never lost."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.errors import CorruptionError, RestoreError, TierUnavailable
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store import quarantine
from ckptflow.store.catalog import Lineage
from ckptflow.store.quarantine import quarantine_key
from ckptflow.store.resume import restore_newest
from ckptflow.store.survey import survey_checkpoints
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.sealed import SealedTier
from ckptflow.tiers.storekey import StoreKey
from ckptflow.tiers.tier import Tier

SaveState = Callable[..., Lineage]
LINEAGE = LineageId("exp", "task")
PREFIX = f"{LINEAGE.prefix}/"
NEWEST, OLDER = CheckpointId(2, 1), CheckpointId(1, 1)


@pytest.fixture
def tier(save_state: SaveState) -> MemoryTier:
    tier, rng = MemoryTier("disk", level=3), np.random.default_rng(5)
    state = {"state": {"w": rng.standard_normal(3000)}, "rng": None}  # As a task saves it.
    save_state(tier, str(LINEAGE), 1, state)
    state["state"]["w"][400:500] = rng.standard_normal(100)
    save_state(tier, str(LINEAGE), 2, state)
    return tier


def pack_of(tier: Tier, step: int) -> str:
    (key,) = (key for key in tier.iter_keys(f"{PREFIX}packs") if f"/{step:012d}" in key)
    return key


def damage(tier: Tier, key: str) -> bytes:
    data = tier.get(key)
    tier.put(key, [data[:20] + bytes([data[20] ^ 1]) + data[21:]])
    return data


def restored(tier: Tier, attempt: int | None, notes: list[str] | None = None) -> CheckpointId:
    notes = [] if notes is None else notes
    found = restore_newest(Lineage([tier], LINEAGE), None, attempt=attempt, note=notes.append)
    assert found is not None
    return found.id


def records(tier: Tier) -> list[str]:
    return [key.rpartition("/")[2] for key in tier.iter_keys(f"{PREFIX}quarantine")]


def test_three_attempts_make_a_quarantine_and_it_says_how_to_get_out(tier: MemoryTier) -> None:
    sound = damage(tier, pack_of(tier, 2))
    for attempt in (2, 3, 3, 3):
        assert restored(tier, attempt) == OLDER
    assert records(tier) == [f"{2:012d}.{1:08d}.{by:08d}" for by in (2, 3)]
    assert quarantine.known_bad(Lineage([tier], LINEAGE)) == set()
    assert restored(tier, 4) == OLDER
    assert quarantine.known_bad(Lineage([tier], LINEAGE)) == {NEWEST}

    tier.put(pack_of(tier, 2), [sound])  # It would restore now, but nobody knows.
    notes: list[str] = []
    lineage = Lineage([tier], LINEAGE)
    found = restore_newest(lineage, None, attempt=5, note=notes.append)
    assert found is not None
    assert found.id == OLDER
    ((skipped, why),) = found.skipped
    assert skipped == NEWEST
    assert "`ckptflow quarantine exp/task@2.1 --lift`" in why
    assert why in notes[0]
    assert [one.status for one in survey_checkpoints(lineage)] == ["quarantined", "ok"]

    assert quarantine.lift(lineage, NEWEST) == 3
    assert restored(tier, 6) == NEWEST
    assert records(tier) == []


def test_records_say_who_and_why(tier: MemoryTier) -> None:
    damage(tier, pack_of(tier, 2))
    restored(tier, 7)
    (record,) = quarantine.reasons(Lineage([tier], LINEAGE), NEWEST)
    assert (record["step"], record["attempt"], record["by"]) == (2, 1, 7)
    assert "has no sound copy" in str(record["reason"])
    (key,) = tier.iter_keys(f"{PREFIX}quarantine")
    tier.put(key, [b"no JSON"])
    assert quarantine.reasons(Lineage([tier], LINEAGE), NEWEST) == [{"by": 7}]


def test_the_last_one_is_tried_all_the_same(tier: MemoryTier) -> None:
    """All are quarantined, and one is sound by now; or all others are damaged."""
    sound = damage(tier, pack_of(tier, 1))  # The newer one needs this pack, too.
    for attempt in (2, 3, 4):
        with pytest.raises(RestoreError, match="None of the 2 checkpoints"):
            restored(tier, attempt)
    assert quarantine.known_bad(Lineage([tier], LINEAGE)) == {NEWEST, OLDER}
    tier.put(pack_of(tier, 1), [sound])
    assert restored(tier, 5) == NEWEST


def test_behind_a_damaged_one_the_quarantined_one_is_tried(tier: MemoryTier) -> None:
    sound = damage(tier, pack_of(tier, 2))
    for attempt in (2, 3, 4):
        assert restored(tier, attempt) == OLDER
    tier.put(pack_of(tier, 2), [sound])
    damage(tier, PREFIX + OLDER.manifest_key)
    found = restore_newest(Lineage([tier], LINEAGE), None, attempt=5)
    assert found is not None
    assert found.id == NEWEST
    assert [one for one, _ in found.skipped] == [OLDER]


def test_a_step_that_is_asked_for_is_tried(tier: MemoryTier) -> None:
    sound = damage(tier, pack_of(tier, 2))
    for attempt in (2, 3, 4):
        restored(tier, attempt)
    tier.put(pack_of(tier, 2), [sound])
    found = restore_newest(Lineage([tier], LINEAGE), None, step=2, attempt=5)
    assert found is not None
    assert found.id == NEWEST


def test_a_tier_that_does_not_answer_proves_nothing(tier: MemoryTier) -> None:
    far = MemoryTier("far", level=4)
    for key in tier.iter_keys(""):
        far.put(key, [tier.get(key)])
    damage(tier, pack_of(tier, 2))

    def away(operation: str, key: str) -> None:
        raise TierUnavailable(f"no answer to {operation} {key}")

    lineage = Lineage([tier, FaultyTier(far, away)], LINEAGE)
    for attempt in (2, 3, 4):
        found = restore_newest(lineage, None, attempt=attempt)
        assert found is not None
        assert found.id == OLDER
    assert records(tier) == []


def test_what_was_pruned_meanwhile_was_not_damaged(tier: MemoryTier) -> None:
    def prune_first(operation: str, key: str) -> None:
        if operation == "get" and key == PREFIX + NEWEST.manifest_key:
            tier.delete(key)

    assert restored(FaultyTier(tier, prune_first), 2) == OLDER
    assert records(tier) == []


@pytest.mark.parametrize("broken", ["put", "iter_keys"])
def test_no_record_hinders_a_restore(tier: MemoryTier, broken: str) -> None:
    damage(tier, pack_of(tier, 2))

    def fail(operation: str, key: str) -> None:
        if operation == broken and "quarantine" in key:
            raise TierUnavailable(f"no answer to {operation}")

    notes: list[str] = []
    assert restored(FaultyTier(tier, fail), 2, notes) == OLDER
    assert any(f"no answer to {broken}" in note for note in notes)


def test_records_of_one_checkpoint_are_limited(tier: MemoryTier) -> None:
    lineage, notes = Lineage([tier], LINEAGE), list[str]()
    for by in range(2, 40):
        error = CorruptionError("damaged" * 500)
        quarantine.record_failure(lineage, NEWEST, by=by, error=error, note=notes.append)
    assert len(records(tier)) == quarantine.RECORDS_MAX
    sizes = [tier.size(key) for key in tier.iter_keys(f"{PREFIX}quarantine")]
    assert max(sizes) < 1000
    assert notes == []


def test_keys_that_are_no_records_are_ignored(tier: MemoryTier) -> None:
    for name in ("x", "1.2.3", f"{2:012d}.{1:08d}", f"{2:012d}.{1:08d}.{3:08d}.json"):
        tier.put(f"{PREFIX}quarantine/{name}", [json.dumps({}).encode()])
    assert quarantine.failures(Lineage([tier], LINEAGE)) == {}


def test_a_task_that_is_started_again_and_again_gets_past_it(tier: MemoryTier) -> None:
    """By the face that tasks have; each start is an attempt."""
    damage(tier, pack_of(tier, 2))
    for start in range(4):
        ckpt = Checkpointer(tier, run="exp", task="task", rng=False)
        with pytest.warns(CheckpointWarning, match="was skipped") as caught:
            ckpt.restore()
        assert ckpt.restored_step == 1
        ckpt.shut()
        assert any("is quarantined" in str(one.message) for one in caught) == (start == 3)


@pytest.mark.parametrize("text", [b"[" * 60_000, b"torn", b"7"])
def test_an_unreadable_record_is_a_failure_without_a_reason(
    tier: MemoryTier, text: bytes
) -> None:
    tier.put(f"{PREFIX}{quarantine_key(NEWEST, 2)}", [text])
    assert quarantine.reasons(Lineage([tier], LINEAGE), NEWEST) == [{"by": 2}]


def test_a_forged_record_in_a_sealed_store_ends_nothing(tier: MemoryTier) -> None:
    sealed, key = SealedTier(MemoryTier("sealed"), StoreKey(bytes(range(32)))), ""
    for key in tier.iter_keys(""):
        sealed.put(key, [tier.get(key)])
    sealed.inner.put(f"{PREFIX}{quarantine_key(NEWEST, 2)}", [b"x"])
    lineage = Lineage([sealed], LINEAGE)
    assert quarantine.reasons(lineage, NEWEST) == [{"by": 2}]
    found = restore_newest(lineage, None)
    assert found is not None
    assert found.id == NEWEST
