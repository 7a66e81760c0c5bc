"""A throttled tier takes as long as it should, and all its callers share one link."""

from __future__ import annotations

import pytest

from ckptflow.errors import ConfigError
from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.throttled import ThrottledTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB


class Time:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_s, self.waits = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now_s


def throttled(time: Time, **limits: float) -> ThrottledTier:
    def sleep(wait_s: float) -> None:
        time.waits.append(wait_s)
        time.now_s += wait_s

    return ThrottledTier(MemoryTier(), clock_s=time, sleep=sleep, **limits)


class TestThrottledTier(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        return throttled(Time(), write_bytes_per_s=1e9, read_bytes_per_s=1e9, latency_s=0.001)


def test_writes_and_reads_take_their_time() -> None:
    time = Time()
    tier = throttled(time, write_bytes_per_s=2 * MIB, read_bytes_per_s=8 * MIB, latency_s=0.5)
    tier.put("key", [bytes(MIB), bytes(3 * MIB)])
    assert time.waits == [pytest.approx(2.5)]
    tier.read_into("key", bytearray(4 * MIB))
    assert time.waits[1:] == [pytest.approx(1.0)]
    tier.create("other", bytes(MIB))
    assert time.waits[2:] == [pytest.approx(1.0)]
    assert len(tier.get("key")) == 4 * MIB
    assert time.waits[3:] == [pytest.approx(1.0)]


@pytest.mark.parametrize("use", ["size", "delete"])
def test_a_small_call_costs_the_latency(use: str) -> None:
    time = Time()
    tier = throttled(time, latency_s=0.25)
    tier.inner.put("key", [b"x"])
    getattr(tier, use)("key")
    assert time.waits == [0.25]


def test_callers_share_the_link() -> None:
    """Two that begin at the same moment are through when the sum of their bytes is."""
    time = Time()
    waits: list[float] = []
    tier = ThrottledTier(MemoryTier(), write_bytes_per_s=1000, clock_s=time, sleep=waits.append)
    tier.put("a", [bytes(500)])
    tier.put("b", [bytes(500)])
    assert waits == [0.5, 1.0]
    time.now_s = 5.0  # An idle link saves nothing up.
    tier.put("c", [bytes(500)])
    assert waits[2:] == [0.5]


def test_senseless_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than 0 B/s"):
        ThrottledTier(MemoryTier(), read_bytes_per_s=0)
    with pytest.raises(ConfigError, match="-1 s"):
        ThrottledTier(MemoryTier(), latency_s=-1)
