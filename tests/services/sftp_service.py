"""Start and stop the SFTP server of the tests, with keys that only this session knows."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import socket
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


def openssh_server() -> str | None:
    """Return the path of OpenSSH's server, where it is installed."""
    return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")


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
        self._process = self._started()
        end_s = time.monotonic() + START_S
        while not self._listens():
            assert self._process.poll() is None, "the SFTP server ended"
            assert time.monotonic() < end_s, f"no SFTP server after {START_S} s"
            time.sleep(0.02)
        public = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}")
        return self

    def _started(self) -> subprocess.Popen[bytes]:
        (self.folder / "port").unlink(missing_ok=True)
        script = Path(__file__).with_name("sftp_server.py")
        return subprocess.Popen(
            [sys.executable, script, self.folder, "--port", str(self.port), *self.arguments]
        )

    def _listens(self) -> bool:
        told = self.folder / "port"
        self.port = int(told.read_text()) if told.exists() else self.port
        return told.exists()

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
            "user": getpass.getuser(),
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


@dataclass
class OpensshServer(SftpServer):
    """OpenSSH's own server, for the user that runs the tests."""

    def problem(self) -> str | None:
        """Return why it does not start here: root needs a user and a folder for it."""
        command = [*self._command(), "-t"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return (result.stderr.strip() or "unknown") if result.returncode else None

    def _started(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("w") as log:
            return subprocess.Popen([*self._command(), "-D", "-e"], stderr=log)

    def _command(self) -> list[str]:
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
        fields = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": self.folder / "host_key",
            "AuthorizedKeysFile": self.folder / "authorized_keys",
            "PidFile": "none",
            "StrictModes": "no",  # The folders of tests may be those of everybody.
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "Subsystem": "sftp internal-sftp",
        }
        path = self.folder / "sshd_config"
        path.write_text("".join(f"{name} {value}\n" for name, value in fields.items()))
        return [f"{openssh_server()}", "-f", str(path)]

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return True
