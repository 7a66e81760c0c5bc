"""Notices between processes: what they keep, when they end, and what nonsense does."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ckptflow.errors import TierUnavailable
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.guards import announced, hold, read_notices
from ckptflow.testing.faults import Crash, CrashingTier
from ckptflow.tiers.memory import MemoryTier

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
        json.dumps({"since": "soon", "packs": [], "manifest": None}).encode(),
        json.dumps({"since": 7, "packs": [], "manifest": None}).encode(),
        json.dumps({"since": "2025-01-01T00:00:00", "packs": [], "manifest": None}).encode(),
        json.dumps({"since": datetime.now(UTC).isoformat(), "packs": 3}).encode(),
        json.dumps(
            {"since": datetime.now(UTC).isoformat(), "packs": [], "manifest": [1]}
        ).encode(),
    ],
    ids=range(10),
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
