"""Start and stop the SFTP server of the tests, with keys that only this session knows."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from ckptflow.tiers.sftp import SftpTier
from ckptflow.tiers.sftp_connection import SftpAddress

START_S = 60.0


def openssh_sftp_server() -> str | None:
    """Return the path of OpenSSH's program that serves files, where it is installed."""
    places = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec")
    return shutil.which("sftp-server") or next(
        (found for place in places if (found := shutil.which("sftp-server", path=place))), None
    )


@dataclass
class SftpServer:
    """A server process and the keys that belong to it.

    Attributes:
        folder: its keys, and who may come in.
        arguments: further ones of ``sftp_server.py``.
    """

    folder: Path
    arguments: list[str] = field(default_factory=list)
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("host_key", "identity"):
            key = asyncssh.generate_private_key("ssh-ed25519")
            key.write_private_key(self.folder / name)
            (self.folder / name).chmod(0o600)
            key.write_public_key(self.folder / f"{name}.pub")
        shutil.copy(self.folder / "identity.pub", self.folder / "authorized_keys")

    def start(self) -> SftpServer:
        """Start it, on the port that it had before if it has run."""
        (self.folder / "port").unlink(missing_ok=True)
        script = Path(__file__).with_name("sftp_server.py")
        self._process = subprocess.Popen(
            [sys.executable, script, self.folder, "--port", str(self.port), *self.arguments]
        )
        end_s = time.monotonic() + START_S
        while not (self.folder / "port").exists():
            assert self._process.poll() is None, "the SFTP server ended"
            assert time.monotonic() < end_s, f"no SFTP server after {START_S} s"
            time.sleep(0.02)
        self.port = int((self.folder / "port").read_text())
        public = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}")
        return self

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it the hard way."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @contextlib.contextmanager
    def running(self) -> Iterator[SftpServer]:
        """Run it meanwhile."""
        try:
            yield self.start()
        finally:
            self.kill()

    def address(self, **changes: object) -> SftpAddress:
        """Return how to get in; ``changes`` make it wrong."""
        fields: dict[str, object] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "somebody",
            "identity": str(self.folder / "identity"),
            "known_hosts": str(self.folder / "known_hosts"),
            "timeout_s": 20.0,
        }
        return SftpAddress(**{**fields, **changes})

    @contextlib.contextmanager
    def tier(self, path: Path, **changes: object) -> Iterator[SftpTier]:
        """Open a tier in a folder of it."""
        tier = SftpTier(self.address(**changes), str(path), name="far")
        try:
            yield tier
        finally:
            tier.close()
