"""A meter counts what came back, and nothing else."""

from __future__ import annotations

import pytest

from ckptflow.errors import CorruptionError, NotFoundError
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.metered import MeteredTier


def test_bytes_that_came_back_are_counted() -> None:
    tier = MeteredTier(MemoryTier("m"))
    tier.put("a", [b"0123456789"])
    assert (tier.name, tier.read_bytes) == ("m", 0)
    assert tier.size("a") == 10
    assert list(tier.iter_keys("")) == ["a"]
    assert tier.read_bytes == 0
    tier.get("a")
    tier.get("a", start_bytes=8, size_bytes=5)
    assert tier.read_bytes == 12
    tier.read_into("a", memoryview(bytearray(3)), start_bytes=1)
    assert tier.read_bytes == 15


def test_what_failed_is_not_counted() -> None:
    tier = MeteredTier(MemoryTier())
    tier.put("a", [b"0123456789"])
    with pytest.raises(NotFoundError, match="b"):
        tier.get("b")
    with pytest.raises(CorruptionError, match="a"):
        tier.read_into("a", memoryview(bytearray(11)))
    assert tier.read_bytes == 0
