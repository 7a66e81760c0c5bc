"""A tier in shared memory passes the suite, on its own and seen from two processes' sides."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.shared_memory import SharedMemoryTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB


@pytest.fixture
def shared() -> Iterator[SharedMemoryTier]:
    tier = SharedMemoryTier(f"test-{uuid.uuid4().hex}", capacity_bytes=4 * MIB)
    yield tier
    tier.remove()


class TestSharedMemoryTier(TierConformance):
    @pytest.fixture
    def tier(self, shared: SharedMemoryTier) -> Tier:
        return shared
