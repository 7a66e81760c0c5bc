"""Every tier of the product passes the suite that the product ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier


class TestMemoryTier(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        return MemoryTier()


class TestPosixTier(TierConformance):
    @pytest.fixture
    def tier(self, tmp_path: Path) -> Tier:
        return PosixTier(tmp_path / "not" / "yet" / "there", name="disk")
