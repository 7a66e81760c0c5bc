"""Filesystems of fsspec pass the suite that every tier passes."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.filesystem import FilesystemTier
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.tier import Tier


class TestLocalFilesystem(TierConformance):
    @pytest.fixture
    def tier(self, tmp_path: Path) -> Tier:
        return FilesystemTier(fsspec.filesystem("file"), str(tmp_path / "not" / "yet"))


class TestMemoryFilesystem(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        return FilesystemTier(fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}")


class TestMemoryFilesystemByMoves(TierConformance):
    """The way of filesystems whose files have no descriptor here."""

    @pytest.fixture
    def tier(self) -> Tier:
        path = f"/{uuid.uuid4().hex}"
        return FilesystemTier(fsspec.filesystem("memory"), path, commit="move")


class TestFolderOfAFilesystem(TierConformance):
    @pytest.fixture
    def tier(self, tmp_path: Path) -> Tier:
        fs = DirFileSystem(path=str(tmp_path / "below"), fs=fsspec.filesystem("file"))
        return FilesystemTier(fs, "store")


class TestFilesystemFromAnAddress(TierConformance):
    @pytest.fixture
    def tier(self, tmp_path: Path) -> Tier:
        return open_tier(spec_of(f"fsspec+file://{tmp_path}/store"))
