"""A probe writes, reads back and deletes; and says what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Buffer

from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.probe import probe


class Forgetful(MemoryTier):
    """Returns other bytes than it was given."""

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        super().put(key, [bytes(16)])


def test_a_tier_that_works() -> None:
    tier, times = MemoryTier("nvme", level=1), iter([0.0, 2.0, 5.0, 6.0])
    found = probe(tier, size_bytes=1000, clock_s=lambda: next(times))
    assert (found.tier, found.level, found.size_bytes, found.problem) == ("nvme", 1, 1000, None)
    assert (found.write_s, found.read_s) == (2.0, 1.0)
    assert list(tier.iter_keys("")) == []


def test_a_tier_that_is_full() -> None:
    found = probe(MemoryTier("small", capacity_bytes=10))
    assert found.problem is not None
    assert "small" in found.problem


def test_a_tier_that_lies() -> None:
    tier = Forgetful("liar")
    found = probe(tier)
    assert found.problem is not None
    assert "returned other bytes than were written" in found.problem
    assert list(tier.iter_keys("")) == []
