"""A tier in the memory of a GPU, with an imitation of CuPy over memory of the host."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from imitation_cupy import CUDARuntimeError, Imitation

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import ConfigError, TierFull, TierUnavailable
from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.device import DeviceTier
from ckptflow.tiers.opening import open_tier
from ckptflow.tiers.tier import Tier


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Imitation:
    imitation = Imitation()
    monkeypatch.setitem(sys.modules, "cupy", imitation)
    return imitation


class TestDeviceTier(TierConformance):
    @pytest.fixture
    def tier(self, cupy: Imitation) -> Tier:
        return DeviceTier(capacity_bytes=1 << 20)


def test_copies_have_a_stream_of_their_own(cupy: Imitation) -> None:
    tier = DeviceTier(capacity_bytes=100)
    tier.put("key", [b"val", b"ue"])
    assert tier.get("key") == b"value"
    streams = {entry.split()[-1] for entry in cupy.log if entry.startswith("copy")}
    assert len(streams) == 1
    assert streams.isdisjoint({"0", "2"})


def test_its_capacity_is_a_limit_before_memory_is_taken(cupy: Imitation) -> None:
    tier = DeviceTier(capacity_bytes=10)
    tier.put("a", [b"12345678"])
    before = len(cupy.memory)
    with pytest.raises(TierFull, match=r"no room for 'b': 3 B.*capacity of 10 B"):
        tier.put("b", [b"abc"])
    assert len(cupy.memory) == before
    tier.delete("a")
    tier.put("b", [b"abc"])


def test_memory_that_the_gpu_does_not_have_is_full(
    cupy: Imitation, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = DeviceTier("gpu", capacity_bytes=1000)

    def alloc(size_bytes: int) -> None:
        raise MemoryError(f"Out of memory allocating {size_bytes} bytes")

    monkeypatch.setattr(cupy.cuda, "alloc", alloc)
    with pytest.raises(TierFull, match=r"write the 7 B of 'key'.*'gpu'.*Out of memory"):
        tier.put("key", [b"1234567"])


def test_a_driver_that_fails_is_unavailable(
    cupy: Imitation, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = DeviceTier("gpu", capacity_bytes=1000)
    tier.put("key", [b"1234567"])

    def copy(*_: object) -> None:
        raise CUDARuntimeError("cudaErrorECCUncorrectable")

    monkeypatch.setattr(tier._memory._runtime, "memcpyAsync", copy)  # type: ignore[attr-defined]
    with pytest.raises(TierUnavailable, match=r"read the 7 B of 'key'.*ECC"):
        tier.get("key")
    with pytest.raises(TierUnavailable, match=r"write the 1 B of 'other'.*ECC"):
        tier.put("other", [b"x"])


def test_a_spec_opens_the_same_tier_in_the_process(cupy: Imitation) -> None:
    spec = {
        "kind": "device",
        "name": "test-device-spec",
        "level": 0,
        "capacity_bytes": 99,
        "number": 1,
    }
    tier = open_tier(spec)
    assert tier.spec == spec
    assert open_tier(spec) is tier


def test_what_is_missing_is_said(cupy: Imitation, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no CUDA device 7; the driver shows 2"):
        DeviceTier(capacity_bytes=1, number=7)
    with pytest.raises(ConfigError, match="needs a capacity, got 0 B"):
        DeviceTier(capacity_bytes=0)

    def none() -> int:
        raise CUDARuntimeError("cudaErrorNoDevice")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", none)
    with pytest.raises(ConfigError, match=r"memory of a GPU needs a CUDA device.*NoDevice"):
        DeviceTier(capacity_bytes=1)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ConfigError, match=r"needs CuPy.*pip install 'ckptflow\[cuda12\]'"):
        DeviceTier(capacity_bytes=1)


def test_a_task_goes_back_to_what_is_on_the_device(cupy: Imitation) -> None:
    with Checkpointer(DeviceTier(capacity_bytes=10_000_000)) as ckpt:
        state = ckpt.restore({"field": np.zeros(100_000)})
        for step in range(1, 4):
            state["field"] += step
            ckpt.save(step, state)
        state["field"][:] = -1
        state = ckpt.restore(state, step=2)
    assert (state["field"] == 3).all()
