"""A private RabbitMQ node on loopback: own name, ports, data, cookie and port mapper.

Debian's package has the program; its own wrapper would start the system's node, as another
user, so the script below it is started instead. A node leaves its port mapper (epmd) behind;
this one has one to itself, on a port of its own, and ends it by its number.

    python rabbitmq.py FOLDER     # runs a node until its input ends; prints its address
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START_S = 120.0
_PR_SET_PDEATHSIG = 1

MISSING = (
    None
    if SERVER.exists() and shutil.which("erl")
    else "RabbitMQ is not installed: apt-get install rabbitmq-server"
)
"""Why there can be no node here; ``None`` if there can."""


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[str]:
    """Run a node in ``folder``; yield its address, ``amqp://...``."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    amqp, distribution, mapper = _free_ports(3)
    environment = _environment(folder, amqp, distribution, mapper)
    with (folder / "log").open("wb") as log:
        node = subprocess.Popen(
            [str(SERVER)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509
        )
    try:
        _wait(node, amqp, folder / "log")
        yield f"amqp://guest:guest@127.0.0.1:{amqp}/%2F"
    finally:
        _end(node, mapper)


def _environment(folder: Path, amqp: int, distribution: int, mapper: int) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": str(folder),  # Where the cookie is made.
        "RABBITMQ_NODENAME": f"ckptflow-{amqp}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(amqp),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_CONFIG_FILE": str(folder / "no-config"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "no-config"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "no-environment"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "no-plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",  # Does not spin when idle.
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


def _wait(node: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        if node.poll() is not None:
            raise RuntimeError(
                f"RabbitMQ ended with {node.returncode}: {log.read_text()[-2000:]}"
            )
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)  # Another process; there is no event for it.
    raise RuntimeError(f"RabbitMQ did not listen within {_START_S:.0f} s: {log}")


def _end(node: subprocess.Popen[bytes], mapper: int) -> None:
    """Kill the node and what it has started; it keeps nothing that anybody wants."""
    ours: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        ours = psutil.Process(node.pid).children(recursive=True)
    for process in psutil.process_iter(["name"]):
        # The mapper has left the session; it is known by the port that only we gave it.
        with contextlib.suppress(psutil.Error, OSError):
            if process.info["name"] == "epmd":
                environment = process.environ()
                if environment.get("ERL_EPMD_PORT") == str(mapper):
                    ours.append(process)
    node.kill()
    for process in ours:
        with contextlib.suppress(psutil.Error):
            process.kill()
    node.wait()
    psutil.wait_procs(ours, timeout=10)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    with rabbitmq(Path(sys.argv[1]).absolute()) as address:
        print(address, flush=True)
        sys.stdin.read()
