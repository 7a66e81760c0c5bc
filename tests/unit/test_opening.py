"""Tiers are opened from plain data and from addresses; what cannot be is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier


@pytest.mark.parametrize(
    "tier",
    [PosixTier("/nowhere/at/all", name="pfs", level=3), MemoryTier("test-opening", level=0)],
    ids=lambda tier: tier.spec["kind"],
)
def test_a_spec_opens_the_same_tier(tier: Tier) -> None:
    opened = open_tier(tier.spec)
    assert type(opened) is type(tier)
    assert opened.spec == tier.spec


def test_memory_of_one_name_is_one() -> None:
    spec = {"kind": "memory", "name": "test-opening-one", "level": 0}
    assert open_tier(spec) is open_tier(spec)


def test_a_folder_is_an_address(tmp_path: Path) -> None:
    assert spec_of(tmp_path)["path"] == str(tmp_path)
    assert spec_of(f"file://{tmp_path}/a%20b")["path"] == f"{tmp_path}/a b"


@pytest.mark.parametrize("url", ["gopher://x/y", "file://host/path"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=url):
        spec_of(url)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="kind 'tape'"):
        open_tier({"kind": "tape", "name": "a", "level": 4})
