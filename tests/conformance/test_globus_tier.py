"""The tier on Globus passes the suite that every tier passes.

Method: the real SDK, down to its HTTP requests; they are answered by an imitation of the
service that copies files between two folders. That Globus itself moves data is not tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from globus_service import REMOTE, STAGING, GlobusService, client, imitated

from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.globus import GlobusTier
from ckptflow.tiers.globus_carrier import GlobusPlaces
from ckptflow.tiers.globus_tasks import Polling
from ckptflow.tiers.tier import Tier


def places(folder: Path) -> GlobusPlaces:
    return GlobusPlaces(REMOTE, "/store/here", STAGING, folder / "staging" / "ckpt", "/ckpt")


class TestGlobusTier(TierConformance):
    @pytest.fixture
    def tier(self, tmp_path: Path) -> Iterator[Tier]:
        with imitated(GlobusService(tmp_path)):
            yield GlobusTier(places(tmp_path), client=client(), polling=Polling(60.0, 0.001))


class TestGlobusTierWithoutRenames(TierConformance):
    @pytest.fixture
    def tier(self, tmp_path: Path) -> Iterator[Tier]:
        with imitated(GlobusService(tmp_path)):
            yield GlobusTier(
                places(tmp_path),
                client=client(),
                polling=Polling(60.0, 0.001),
                commit="direct",
                cache_bytes=0,
            )
