"""Every tier of the product passes the suite that the product ships."""

from __future__ import annotations

import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from ckptflow.errors import ConfigError, TierFull
from ckptflow.testing.conformance import TierConformance
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.durable import PARTIAL_SUFFIX
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.metered import MeteredTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.sealed import SealedTier
from ckptflow.tiers.storekey import StoreKey
from ckptflow.tiers.tier import Tier


class TestMemoryTier(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        return MemoryTier()


class TestPosixTier(TierConformance):
    @pytest.fixture
    def tier(self, tmp_path: Path) -> Tier:
        return PosixTier(tmp_path / "not" / "yet" / "there", name="disk")


class TestFaultyTierWithoutFaults(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        return FaultyTier(MemoryTier(), lambda _operation, _key: None)


class TestMeteredTier(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        return MeteredTier(MemoryTier())


class TestSealedTier(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        return SealedTier(MemoryTier(), StoreKey(bytes(32)))


class TestSealedAndEncryptedTier(TierConformance):
    @pytest.fixture
    def tier(self, tmp_path: Path) -> Tier:
        return SealedTier(PosixTier(tmp_path / "store"), StoreKey(bytes(32)), encrypt=True)


def test_memory_tier_has_a_capacity() -> None:
    tier = MemoryTier(capacity_bytes=10)
    tier.put("a", [b"12345"])
    tier.put("a", [b"1234567890"])
    with pytest.raises(TierFull, match=r"no room for 'b': 1 B.*capacity of 10 B"):
        tier.put("b", [b"x"])
    with pytest.raises(TierFull, match="no room for 'c'"):
        tier.create("c", b"x")
    assert list(tier.iter_keys("")) == ["a"]


def test_memory_tier_takes_a_values_memory_once_and_none_for_what_does_not_fit() -> None:
    tier, parts = MemoryTier(capacity_bytes=9_000_000), [bytes(4_000_000), bytearray(4_000_000)]
    tracemalloc.start()
    try:
        tier.put("a", parts)
        assert tracemalloc.get_traced_memory()[1] < 8_500_000
        tracemalloc.reset_peak()
        with pytest.raises(TierFull, match="'b'"):
            tier.put("b", parts)
        assert tracemalloc.get_traced_memory()[1] < 8_500_000
    finally:
        tracemalloc.stop()


def test_posix_files_and_folders_are_private(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path / "store")
    tier.put("a/b/key", [b"x"])
    tier.create("a/claim", b"x")
    for path in (tmp_path / "store").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_posix_root_may_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(ConfigError, match=r"'nvme' needs a folder, but .*store is a file"):
        PosixTier(tmp_path / "store", name="nvme")


def test_posix_does_not_follow_a_link_out_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    tier = PosixTier(tmp_path / "store")
    tier.put("here", [b"x"])
    (tmp_path / "store" / "link").symlink_to(tmp_path / "secret")
    assert list(tier.iter_keys("")) == ["here"]
    with pytest.raises(Exception, match="link"):
        tier.get("link")


def test_posix_sweeps_what_killed_writers_left_a_day_ago(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path)
    tier.put("a/key", [b"x"])
    old, new = (tmp_path / "a" / f".{name}{PARTIAL_SUFFIX}" for name in ("old", "new"))
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert list(tier.iter_keys("")) == ["a/key"]
    assert tier.sweep() == 1
    assert not old.exists()
    assert new.exists()
