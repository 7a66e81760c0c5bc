"""Another node's tier passes the suite of all tiers, over TCP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.peer import PeerTier
from ckptflow.tiers.peer_server import PeerServer
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.storekey import StoreKey
from ckptflow.tiers.tier import Tier

KEY = StoreKey(bytes(range(32)))


@pytest.fixture(params=["memory", "posix"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    return MemoryTier() if request.param == "memory" else PosixTier(tmp_path / "store")


class TestPeerTier(TierConformance):
    @pytest.fixture
    def tier(self, served: Tier) -> Iterator[Tier]:
        with PeerServer(served, KEY) as server:
            tier = PeerTier(server.address, KEY)
            yield tier
            tier.close()
