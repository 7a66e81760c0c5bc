"""Folders and addresses in a list make one store, as they do on the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ckptflow import Checkpointer
from ckptflow.errors import ConfigError
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier


def test_a_list_of_folders_is_a_store_on_several_tiers(tmp_path: Path) -> None:
    places = [tmp_path / "inner", f"file://{tmp_path}/outer"]
    with Checkpointer(places) as ckpt:
        tiers = [(tier.name, tier.level) for tier in ckpt.lineage.tiers]
        assert tiers == [("store1", 1), ("store2", 3)]
        assert ckpt.lineage.fence_tier.name == "store2"
        ckpt.save(1, {"w": np.arange(5)}).wait(3)
    shutil.rmtree(tmp_path / "inner")
    assert Checkpointer(places).restore()["w"].tolist() == [0, 1, 2, 3, 4]


def test_folders_and_tiers_may_be_mixed(tmp_path: Path) -> None:
    inner, outer = MemoryTier("node"), PosixTier(tmp_path / "b", name="pfs", level=3)
    for given, expected in (
        ([inner, str(tmp_path / "a")], [("node", 0), ("store2", 3)]),
        ([tmp_path / "a", outer], [("store1", 1), ("pfs", 3)]),
        ([tmp_path / "a"], [("store", 3)]),
    ):
        with Checkpointer(given) as ckpt:
            assert [(tier.name, tier.level) for tier in ckpt.lineage.tiers] == expected


def test_what_is_no_place_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 is neither a tier nor the folder or address"):
        Checkpointer([tmp_path, 3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="a store is a folder, or an address of"):
        Checkpointer([tmp_path, "moon://x"])
    with pytest.raises(ConfigError, match="told apart by their names"):
        Checkpointer([tmp_path, MemoryTier("store1")])
