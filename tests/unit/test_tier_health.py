"""What is remembered and told of tiers that fail."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ckptflow.checkpointer.health import TierHealth, condition_of, sentence
from ckptflow.checkpointer.runners import Hanging
from ckptflow.errors import (
    CheckpointError,
    FlushError,
    TierDenied,
    TierFull,
    TierUnavailable,
)
from ckptflow.policy.health import Condition
from ckptflow.tiers.memory import MemoryTier

NVME, PFS, BUCKET = (
    MemoryTier(name, level=n) for n, name in ((1, "nvme"), (3, "pfs"), (4, "s3"))
)
TIERS = [NVME, PFS, BUCKET]


class Clock:
    """Stands still until it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def health(told: list[str] | None = None) -> tuple[TierHealth, Clock]:
    clock = Clock()
    now = datetime(2025, 1, 1, tzinfo=UTC)
    tell = (told if told is not None else []).append
    return TierHealth(tell=tell, clock_s=clock, now=lambda: now), clock


def names(tiers: list[MemoryTier]) -> list[str]:
    return [tier.name for tier in tiers]


def test_those_that_failed_come_last_until_their_time() -> None:
    tiers, clock = health()
    assert tiers.in_order(TIERS) == TIERS
    assert tiers.failed(NVME, TierUnavailable("gone"))
    assert tiers.in_order(TIERS) == [PFS, BUCKET, NVME]
    clock.now_s = 5.0
    assert tiers.in_order(TIERS) == TIERS
    assert not tiers.failed(NVME, TierUnavailable("gone"))  # No news.
    tiers.failed(PFS, TierDenied("expired"))
    tiers.failed(BUCKET, TierFull("full"))
    assert tiers.in_order(TIERS) == TIERS  # Better than not to try at all.


def test_one_that_hangs_is_not_asked_at_all_before_its_time() -> None:
    tiers, clock = health()
    tiers.failed(PFS, Hanging(PFS, 600.0))
    assert tiers.in_order(TIERS) == [NVME, BUCKET]
    assert tiers.in_order([PFS]) == []
    clock.now_s = 60.0
    assert tiers.in_order(TIERS) == TIERS


def test_a_trouble_is_told_when_it_is_over() -> None:
    told: list[str] = []
    tiers, _ = health(told)
    tiers.worked(NVME)
    assert told == []
    tiers.failed(NVME, TierFull("No room."))
    tiers.missed([NVME, PFS])
    tiers.missed([NVME])
    tiers.worked(NVME)
    tiers.worked(NVME)
    assert told == [
        "tier 'nvme' (level 1) was found full at 2025-01-01T00:00:00+00:00, missed "
        "2 checkpoints, is back since 2025-01-01T00:00:00+00:00"
    ]
    assert tiers.in_order(TIERS) == TIERS
    assert tiers.failed(NVME, TierUnavailable("again"))  # News, but the first error stays.
    (report,) = tiers.report()
    assert (report["error"], report["condition"], report["back"]) == ("No room.", "full", None)


def test_a_report_has_a_bounded_size() -> None:
    tiers, _ = health()
    for number in range(1000):
        tiers.failed(NVME, TierUnavailable(f"{number}" * 1000))
    assert len(str(tiers.report())) < 1000


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (TierFull("x"), Condition.FULL),
        (TierDenied("x"), Condition.DENIED),
        (TierUnavailable("x"), Condition.FAILING),
        (CheckpointError("x"), Condition.FAILING),
    ],
)
def test_the_condition_is_that_of_the_cause(
    error: CheckpointError, condition: Condition
) -> None:
    flush = FlushError("did not reach")
    flush.__cause__ = error
    assert condition_of(error) == condition_of(flush) == condition


def test_a_sentence_of_what_a_store_says_is_made_of_anything() -> None:
    assert "not back yet" in sentence({})
