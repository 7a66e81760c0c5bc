"""Notices between processes: what they keep, when they end, and what nonsense does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.errors import FlushError, TierUnavailable
from ckptflow.flush import copy_checkpoint
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention
from ckptflow.store import guards
from ckptflow.store.catalog import Lineage
from ckptflow.store.guards import (
    ANNOUNCEMENT_AGE_MAX,
    HOLD_AGE_MAX,
    announced,
    hold,
    read_notices,
)
from ckptflow.store.prune import prune
from ckptflow.testing.faults import Crash, CrashingTier, FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.sealed import SealedTier
from ckptflow.tiers.storekey import StoreKey

LINEAGE = LineageId("exp", "task")
FOLDER = f"{LINEAGE.prefix}/guards"
THIS = CheckpointId(3, 1)
OWN, OTHER, NOBODYS = THIS.pack_key(0, "0" * 8), "packs/old.pack", "packs/x.pack"


@pytest.fixture
def tier() -> MemoryTier:
    return MemoryTier("disk")


def later(**by: float) -> Any:
    return lambda: datetime.now(UTC) + timedelta(**by)


def test_a_hold_keeps_a_checkpoint_and_packs_and_ends(tier: MemoryTier) -> None:
    with hold(tier, LINEAGE, THIS, [OTHER]):
        notices = read_notices(tier, LINEAGE)
        assert notices.checkpoints == {THIS}
        assert [notices.protects(pack) for pack in (OWN, OTHER, NOBODYS)] == [True, True, False]
        assert not notices.announced
    assert not list(tier.iter_keys(FOLDER))


def test_an_announcement_tells_what_goes_and_ends(tier: MemoryTier) -> None:
    with announced(tier, LINEAGE, [OTHER]) as key:
        assert read_notices(tier, LINEAGE).announced == {OTHER}
        assert not read_notices(tier, LINEAGE, but=key).announced
        assert not read_notices(tier, LINEAGE).protects(OTHER)
    assert not list(tier.iter_keys(FOLDER))


def test_they_end_also_when_something_fails(tier: MemoryTier) -> None:
    for notice in (hold(tier, LINEAGE, THIS), announced(tier, LINEAGE, [OTHER])):
        with pytest.raises(ZeroDivisionError), notice:
            raise ZeroDivisionError
    assert not list(tier.iter_keys(FOLDER))


def test_a_hold_waits_for_what_was_announced_before(tier: MemoryTier) -> None:
    deleting = announced(tier, LINEAGE, [OTHER])
    deleting.__enter__()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            deleting.__exit__(None, None, None)

    with hold(tier, LINEAGE, THIS, [OTHER], sleep=sleep):
        assert len(waits) == 3
    with announced(tier, LINEAGE, [NOBODYS]), hold(tier, LINEAGE, THIS, [OTHER], sleep=sleep):
        assert len(waits) == 3  # What is not needed may go.


def test_a_hold_waits_for_what_its_checkpoint_wrote(tier: MemoryTier) -> None:
    with (
        announced(tier, LINEAGE, [OWN]),
        pytest.raises(TierUnavailable, match="about to be deleted"),
        hold(tier, LINEAGE, THIS, wait_s=1, sleep=lambda _s: None),
    ):
        pass


def test_a_hold_does_not_wait_for_ever(tier: MemoryTier) -> None:
    with (
        announced(tier, LINEAGE, [OTHER]),
        pytest.raises(TierUnavailable, match="about to be deleted for 9 s"),
        hold(tier, LINEAGE, THIS, [OTHER], wait_s=9, sleep=lambda _s: None),
    ):
        pass
    assert not list(tier.iter_keys(FOLDER))


def test_the_dead_do_not_count_for_long(tier: MemoryTier) -> None:
    dying = CrashingTier(tier, crash_at=1)
    with pytest.raises(Crash), hold(dying, LINEAGE, THIS, [OTHER]):
        pass
    dying = CrashingTier(tier, crash_at=1)
    with pytest.raises(Crash), announced(dying, LINEAGE, [NOBODYS]):
        pass
    fresh = read_notices(tier, LINEAGE)
    assert (fresh.held, fresh.announced, fresh.outdated) == ({OTHER}, {NOBODYS}, [])
    hour = read_notices(tier, LINEAGE, now=later(hours=1))
    assert (hour.held, hour.announced, len(hour.outdated)) == ({OTHER}, set(), 1)
    days = read_notices(tier, LINEAGE, now=later(days=2))
    assert (days.held, days.checkpoints, len(days.outdated)) == (set(), set(), 2)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 200_000,
        json.dumps({"since": "soon", "packs": [], "manifest": None}).encode(),
        json.dumps({"since": 7, "packs": [], "manifest": None}).encode(),
        json.dumps({"since": "2025-01-01T00:00:00", "packs": [], "manifest": None}).encode(),
        json.dumps({"since": datetime.now(UTC).isoformat(), "packs": 3}).encode(),
        json.dumps(
            {"since": datetime.now(UTC).isoformat(), "packs": [], "manifest": [1]}
        ).encode(),
    ],
    ids=range(11),
)
def test_nonsense_keeps_nothing_and_is_cleaned_up(tier: MemoryTier, text: bytes) -> None:
    key = f"{FOLDER}/{'0' * 16}.hold"
    tier.put(key, [text])
    notices = read_notices(tier, LINEAGE)
    assert not notices.held
    assert not notices.checkpoints
    assert notices.outdated == [key]


def test_other_keys_are_left_alone(tier: MemoryTier) -> None:
    tier.put(f"{FOLDER}/readme.txt", [b"somebody else's"])
    assert read_notices(tier, LINEAGE).outdated == []


def test_a_hold_confirms_while_it_counts(tier: MemoryTier) -> None:
    with hold(tier, LINEAGE, THIS) as holding:
        holding.confirm(found=False)
        holding.confirm(found=True)  # A tier that has nothing to settle.


def test_a_hold_too_old_to_count_refuses_the_commit(tier: MemoryTier) -> None:
    with hold(tier, LINEAGE, THIS) as holding:
        for age in (HOLD_AGE_MAX, HOLD_AGE_MAX - ANNOUNCEMENT_AGE_MAX):
            old = replace(holding, since=holding.since - age)
            with pytest.raises(TierUnavailable, match="its hold may not count any more"):
                old.confirm(found=False)
        replace(holding, since=holding.since - HOLD_AGE_MAX / 2).confirm(found=False)


def test_names_of_packs_that_were_found_are_settled_and_no_others(tmp_path: Path) -> None:
    settled: list[str] = []

    def note(operation: str, key: str) -> None:
        if operation == "settle":
            settled.append(key)

    with hold(FaultyTier(PosixTier(tmp_path), note), LINEAGE, THIS) as holding:
        holding.confirm(found=False)
        assert settled == []
        holding.confirm(found=True)
        assert settled == [f"{LINEAGE.prefix}/packs"]


def test_a_copy_that_outlived_its_hold_is_not_committed_and_can_be_made_again(
    save_state: Callable[..., Lineage], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = MemoryTier("near", level=1), MemoryTier("far", level=3)
    lineage = save_state(near, str(LINEAGE), 1, {"w": np.arange(3000)})
    manifest = lineage.manifest(lineage.checkpoints()[0])

    class Clock(datetime):
        ahead = timedelta()

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + cls.ahead

    def take_long(operation: str, key: str) -> None:
        if operation == "put" and "/packs/" in key:
            Clock.ahead = timedelta(hours=25)

    monkeypatch.setattr(guards, "datetime", Clock)
    with pytest.raises(FlushError, match="Try again: what has arrived is used"):
        copy_checkpoint([near], FaultyTier(far, take_long), LINEAGE, manifest)
    assert not list(far.iter_keys(f"{LINEAGE.prefix}/manifests"))
    again: list[str] = []
    copy_checkpoint(
        [near], FaultyTier(far, lambda *call: again.append(" ".join(call))), LINEAGE, manifest
    )
    assert [call for call in again if call.startswith("put") and "/guards/" not in call] == [
        f"put {LINEAGE.prefix}/{manifest.id.manifest_key}"
    ]


@pytest.mark.parametrize("kind", ["hold", "prune"])
def test_a_notice_that_somebody_without_the_key_put_keeps_nothing_and_ends_nothing(
    save_state: Callable[..., Lineage], kind: str
) -> None:
    inner = MemoryTier("far", level=3)
    tier = SealedTier(inner, StoreKey(bytes(range(32))))
    key = f"{FOLDER}/{'a' * 16}.{kind}"
    for step in (1, 2, 3):
        save_state(tier, str(LINEAGE), step, {"w": np.arange(3000) + step})
        inner.put(key, [b"torn"])
    notices = read_notices(tier, LINEAGE)
    assert (notices.held, notices.announced, notices.outdated) == (set(), set(), [key])
    lineage = Lineage([tier], LINEAGE)
    plan = prune(lineage, tier, Retention(newest=1))
    assert len(plan.manifests) == 2
    assert [found.id.step for found in lineage.valid()] == [3]
    assert not list(inner.iter_keys(FOLDER))
