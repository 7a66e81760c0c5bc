"""An SFTP server passes the suite that every tier passes: with all of OpenSSH's extensions,
with none of them, served by OpenSSH's own program, and behind all of OpenSSH.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sftp_service import OpensshServer, SftpServer, openssh_server, openssh_sftp_server

from ckptflow.testing.conformance import TierConformance
from ckptflow.tiers.sftp import SftpTier


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    with SftpServer(tmp_path_factory.mktemp("server")).running() as server:
        yield server


@pytest.fixture(scope="module")
def poor_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    lacking = ["--lacking", "fsync", "posix-rename", "hardlink", "statvfs", "limits"]
    with SftpServer(tmp_path_factory.mktemp("server"), lacking).running() as server:
        yield server


@pytest.fixture(scope="module")
def openssh_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    program = openssh_sftp_server()
    if program is None:
        pytest.skip("OpenSSH's sftp-server is not installed (openssh-sftp-server)")
    arguments = ["--sftp-server", program]
    with SftpServer(tmp_path_factory.mktemp("server"), arguments).running() as server:
        yield server


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    if openssh_server() is None:
        pytest.skip("OpenSSH's sshd is not installed (openssh-server)")
    server = OpensshServer(tmp_path_factory.mktemp("server"))
    if problem := server.problem():
        pytest.skip(f"OpenSSH's sshd does not start here: {problem}")
    with server.running():
        yield server


class TestSftpTier(TierConformance):
    @pytest.fixture
    def tier(self, server: SftpServer, tmp_path: Path) -> Iterator[SftpTier]:
        with server.tier(tmp_path / "not" / "yet" / "there") as tier:
            yield tier


class TestSftpTierWithoutExtensions(TierConformance):
    @pytest.fixture
    def tier(self, poor_server: SftpServer, tmp_path: Path) -> Iterator[SftpTier]:
        with poor_server.tier(tmp_path / "store") as tier:
            yield tier


class TestSftpTierOfOpenssh(TierConformance):
    @pytest.fixture
    def tier(self, openssh_files: SftpServer, tmp_path: Path) -> Iterator[SftpTier]:
        with openssh_files.tier(tmp_path / "store") as tier:
            yield tier


class TestSftpTierBehindOpenssh(TierConformance):
    @pytest.fixture
    def tier(self, sshd: SftpServer, tmp_path: Path) -> Iterator[SftpTier]:
        with sshd.tier(tmp_path / "store") as tier:
            yield tier
