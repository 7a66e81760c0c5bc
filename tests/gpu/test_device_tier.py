"""A tier in the memory of a real GPU; ``tests/gpu_emulated`` has one without.

Skipped where CuPy or a device is missing.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import ConfigError, TierFull
from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.device import DeviceTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

pytestmark = pytest.mark.gpu


def on_a_gpu(capacity_bytes: int) -> DeviceTier:
    try:
        return DeviceTier(capacity_bytes=capacity_bytes)
    except ConfigError as error:
        pytest.skip(str(error))


class TestDeviceTier(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        return on_a_gpu(MIB)


def test_large_values_come_back() -> None:
    tier, data = on_a_gpu(200 * MIB), os.urandom(70 * MIB + 13)
    tier.put("key", [data[:1000], data[1000:]])
    assert tier.get("key") == data
    target = bytearray(10 * MIB)
    tier.read_into("key", target, start_bytes=33 * MIB + 5)
    assert target == data[33 * MIB + 5 : 43 * MIB + 5]


def test_more_than_the_gpu_has_is_full() -> None:
    tier = on_a_gpu(1 << 60)
    block = np.zeros(256 * MIB, np.uint8)
    with pytest.raises(TierFull, match="No memory of the GPU"):
        tier.put("key", [block] * 4096)  # 1 TiB
    tier.put("key", [b"value"])
    assert tier.get("key") == b"value"


def test_a_task_goes_back_to_what_is_on_the_gpu() -> None:
    tier = on_a_gpu(64 * MIB)
    with Checkpointer(tier) as ckpt:
        state = ckpt.restore({"field": np.zeros(100_000)})
        for step in range(1, 4):
            state["field"] += step
            ckpt.save(step, state)
        state["field"][:] = -1
        state = ckpt.restore(state, step=2)
    assert (state["field"] == 3).all()
