"""A private Slurm cluster on loopback, for tests and for trying things out: real daemons.

As a script it leaves one running, without systemd, docker or a database:

    python tests/services/slurm_cluster.py start FOLDER [--nodes 4] [--proctrack cgroup]
    python tests/services/slurm_cluster.py node FOLDER start|kill|fail|freeze|thaw|boot node2
    python tests/services/slurm_cluster.py stop FOLDER

`SlurmCluster` has its own munged, slurmctld and one slurmd for each virtual node; a node is a
`Machine`, with a ``/local`` that vanishes with it. All of them lie in one more machine, the
head, and end with it, and that with the process that started it. Several clusters can run at
once, on ports that were free an instant ago.

`slurm_conf` says what it is like. Needs root, and ``apt-get install slurm-wlm munge``.
``tests/services/test_slurm_cluster.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from machines import Machine, Program
from slurm_conf import Settings, slurm_conf

FREEZER = Path("/sys/fs/cgroup/freezer")

_PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sinfo", "unshare", "nsenter")
_START_S, _STARTS_MAX = 90.0, 3
_COMMAND_S = 60.0
_FIRST_PORT, _LAST_PORT, _PORTS = 10_000, 19_900, 64
_MARK = "cluster.json"  # Only folders with this file are ever removed.


def why_not(proctrack: str = "linuxproc") -> str | None:
    """Return why there can be no cluster here, or None."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return (
            f"Slurm is not installed: apt-get install slurm-wlm munge ({missing[0]} is missing)"
        )
    if os.geteuid() != 0:
        return "a private Slurm cluster needs root: its nodes are namespaces"
    if proctrack == "cgroup" and not os.access(FREEZER / "cgroup.procs", os.W_OK):
        return f"proctrack/cgroup needs the cgroup v1 freezer, writable at {FREEZER}"
    return None


@dataclass(frozen=True)
class Job:
    """One line of squeue."""

    number: int
    state: str
    partition: str
    nodes: str
    name: str


class SlurmCluster:
    """One cluster with its files below ``folder``.

    Args:
        folder: new or empty.
        settings: what it is like.
        outlive: whether it goes on when the process that started it is gone.
    """

    def __init__(
        self, folder: Path, settings: Settings | None = None, *, outlive: bool = False
    ) -> None:
        self.folder = folder.absolute()
        self.settings = settings or Settings()
        self._outlive = outlive
        self._port = 0
        self._nodes: dict[str, Node] = {}
        self._daemons: list[Program] = []
        self.head = Machine("head", self.folder / "machines", outlive=outlive)

    @classmethod
    def open(cls, folder: Path) -> SlurmCluster:
        """Return a cluster that another process has started."""
        record = json.loads((folder / _MARK).read_text())
        cluster = cls(folder, Settings(**record["settings"]), outlive=True)
        cluster._port = record["port"]
        cluster._make_nodes()
        return cluster

    # --- what clients need ---

    @property
    def conf(self) -> Path:
        """Its slurm.conf."""
        return self.folder / "slurm.conf"

    @property
    def env(self) -> dict[str, str]:
        """What any command of Slurm finds the cluster by."""
        return {"SLURM_CONF": str(self.conf)}

    def node(self, which: int | str) -> Node:
        """Return a node by its number, from 1 on, or its name."""
        return self._nodes[which if isinstance(which, str) else self._name(which)]

    @property
    def nodes(self) -> list[Node]:
        """All nodes, in the order of their numbers."""
        return list(self._nodes.values())

    def login(self, name: str) -> Machine:
        """Return a machine beside the nodes, on which one works. It is off."""
        return Machine(name, self.folder / "machines", inside=self.head)

    def command(self, *words: str, check: bool = True) -> str:
        """Run a command of Slurm, and return what it prints.

        Raises:
            RuntimeError: it fails, if ``check``.
        """
        done = subprocess.run(
            words,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{shlex.join(words)} fails: {done.stderr.strip()}")
        return done.stdout

    def jobs(self, *options: str) -> list[Job]:
        """Return the jobs that have not ended; ``options`` are squeue's."""
        text = self.command("squeue", "-h", "-o", "%A|%T|%P|%N|%j", *options)
        found = [line.split("|") for line in text.splitlines()]
        return [Job(int(number), *rest) for number, *rest in found]

    def states(self) -> dict[str, str]:
        """Return the state of each node, as sinfo names it."""
        text = self.command("sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T")
        return dict(line.split() for line in text.splitlines())

    def wait_idle(self, *nodes: str, limit_s: float = _START_S) -> None:
        """Wait until nodes, all if none is named, are up and free."""
        wanted = nodes or tuple(self._nodes)

        def are_idle() -> bool:
            states = self.states()
            return all(states.get(name) == "idle" for name in wanted)

        self.wait(are_idle, f"{wanted} to be idle", limit_s=limit_s)

    def wait(self, condition: Callable[[], object], what: str, *, limit_s: float) -> None:
        """Ask until something is so.

        Raises:
            RuntimeError: it does not become so within the limit.
        """
        deadline_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline_s:
                states = self.command("sinfo", "-N", "-l", check=False)
                raise RuntimeError(f"waited {limit_s} s for {what}\n{states}")
            time.sleep(0.1)  # Waits for other processes; there is no event for it.

    # --- its life ---

    def start(self) -> None:
        """Start it, and return when all nodes are idle.

        Raises:
            RuntimeError: there can be no cluster here, or it does not start; the message
                has the ends of its logs.
        """
        if reason := why_not(self.settings.proctrack):
            raise RuntimeError(reason)
        if self.folder.exists() and any(self.folder.iterdir()):
            raise RuntimeError(f"{self.folder} is not empty")
        for number in range(_STARTS_MAX):
            self._port = _free_ports(self.settings.nodes + 1, number)
            self._write()
            self._launch()
            try:
                self.wait_idle()
            except RuntimeError as error:
                log, text = self._logs(), str(error)
                self.stop()
            else:
                return
        raise RuntimeError(f"Slurm does not start. {text}\n{log}")

    def stop(self) -> None:
        """End everything that belongs to it, and remove its folder."""
        self.head.kill()
        for ended in [*self._daemons, *(node.machine for node in self.nodes)]:
            ended.wait()
        self._daemons = []
        if (self.folder / _MARK).exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self._short, ignore_errors=True)
        if self.settings.proctrack == "cgroup":
            for name in self._nodes:
                _remove_groups(FREEZER / f"slurm_{name}")

    def _name(self, number: int) -> str:
        # Slurm names a node's groups after it, and there is one tree of them on the host.
        prefix = f"c{self._port}n" if self.settings.proctrack == "cgroup" else "node"
        return f"{prefix}{number}"

    @property
    def _short(self) -> Path:
        # The path of a socket may have 107 bytes; folders of tests are deep, TMPDIR may be.
        return Path("/tmp", f"ckptflow-slurm-{self._port}")

    def _make_nodes(self) -> None:
        self._nodes = {}
        for number in range(1, self.settings.nodes + 1):
            name = self._name(number)
            self._nodes[name] = Node(self, name)

    def _write(self) -> None:
        for name in ("machines", "munge", "log", "state"):
            (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._short.mkdir(mode=0o755, exist_ok=True)
        (self._short / "spool").mkdir(mode=0o700, exist_ok=True)
        self._make_nodes()
        record = {"port": self._port, "settings": asdict(self.settings)}
        (self.folder / _MARK).write_text(json.dumps(record))
        self.conf.write_text(
            slurm_conf(
                self.settings,
                [node.name for node in self.nodes],
                folder=self.folder,
                munge=self.munge_socket,
                spool=self._short / "spool",
                first_port=self._port,
            )
        )
        lines = ["CgroupPlugin=cgroup/v1", "CgroupAutomount=no", "ConstrainCores=no", ""]
        uses_groups = self.settings.proctrack == "cgroup"
        (self.folder / "cgroup.conf").write_text("\n".join(lines) if uses_groups else "")

    def _launch(self) -> None:
        self.head.start()
        munge = self.folder / "munge"
        if not (munge / "key").exists():
            subprocess.run(["mungekey", "-c", "-k", munge / "key"], check=True)
        self._daemon(
            *("munged", "--foreground", "--force", f"--key-file={munge / 'key'}"),
            *(f"--socket={self.munge_socket}", f"--pid-file={self._short / 'munged.pid'}"),
            *(f"--seed-file={munge / 'seed'}", f"--log-file={self.folder / 'log' / 'munged'}"),
        )
        self.wait(self.munge_socket.exists, "munged", limit_s=_START_S)
        self._daemon("slurmctld", "-D", "-f", str(self.conf))
        for node in self.nodes:
            node.machine.start()

    @property
    def munge_socket(self) -> Path:
        """Where its munged listens."""
        return self._short / "munge.sock"

    def _daemon(self, *command: str) -> None:
        with (self.folder / "log" / f"{command[0]}.out").open("ab") as out:
            program = self.head.popen(command, cwd=self.folder, stdout=out, stderr=out)
        self._daemons.append(program)

    def _logs(self) -> str:
        found = sorted((self.folder / "log").glob("*")) + [
            node.machine.log for node in self.nodes
        ]
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in found
            if path.exists()
        )


class Node:
    """One node of a cluster, as something that can fail."""

    def __init__(self, cluster: SlurmCluster, name: str) -> None:
        self.name, self._cluster = name, cluster
        slurmd = shlex.join(["slurmd", "-D", "-N", name, "-f", str(cluster.conf)])
        folder = cluster.folder / "machines"
        self.machine = Machine(name, folder, inside=cluster.head, daemon=slurmd)

    def start(self) -> None:
        """Switch it on, and return when it can be used."""
        began = datetime.now().replace(microsecond=0)  # noqa: DTZ005  Slurm's are local.
        if self.machine.is_on:
            began = datetime.min  # noqa: DTZ901
        self.machine.start()
        cluster, name = self._cluster, self.name

        def is_up() -> bool:
            if not self._registered_since(began):
                return False
            state = cluster.states().get(name, "")
            if state.startswith("down"):  # As set by hand: it stays so.
                cluster.command(
                    "scontrol", "update", f"nodename={name}", "state=resume", check=False
                )
            return state in {"idle", "allocated", "mixed"}

        cluster.wait(is_up, f"{name} to come up", limit_s=_START_S)

    def _registered_since(self, began: datetime) -> bool:
        text = self._cluster.command("scontrol", "show", "node", self.name)
        found = re.search(r"SlurmdStartTime=(\d\S+)", text)
        return found is not None and datetime.fromisoformat(found[1]) >= began

    def kill(self) -> None:
        """Crash it. Slurm notices by itself, after `Settings.node_timeout_s`."""
        self.machine.kill()

    def fail(self) -> None:
        """Crash it, and tell Slurm so at once."""
        self.kill()
        update = f"nodename={self.name}"
        self._cluster.command("scontrol", "update", update, "state=down", "reason=crashed")

    def boot(self) -> None:
        """Switch it off and on again."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Make it hang."""
        self.machine.freeze()

    def thaw(self) -> None:
        """Let it go on as if no time had passed."""
        self.machine.thaw()


def _free_ports(count: int, turn: int) -> int:
    """Return the first of some ports in a row that nobody listens on."""
    assert count <= _PORTS
    every = range(_FIRST_PORT, _LAST_PORT, _PORTS)
    shift = os.getpid() + 7 * turn
    for number in range(len(every)):
        first = every[(number + shift) % len(every)]
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _remove_groups(folder: Path) -> None:
    """Remove the empty groups that Slurm leaves behind."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # Somebody else's, or not empty yet.
            Path(path).rmdir()


@contextlib.contextmanager
def running(folder: Path, settings: Settings | None = None) -> Iterator[SlurmCluster]:
    """A cluster that runs meanwhile."""
    cluster = SlurmCluster(folder, settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="slurm_cluster.py", description=__doc__.split("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start a cluster and leave it running")
    start.add_argument("folder", type=Path)
    start.add_argument("--nodes", type=int, default=4)
    start.add_argument("--proctrack", choices=["linuxproc", "cgroup"], default="linuxproc")
    stop = commands.add_parser("stop", help="end it, and remove its folder")
    stop.add_argument("folder", type=Path)
    node = commands.add_parser("node", help="let something happen to a node")
    node.add_argument("folder", type=Path)
    node.add_argument("action", choices=["start", "kill", "fail", "freeze", "thaw", "boot"])
    node.add_argument("node")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "start":
            settings = Settings(nodes=chosen.nodes, proctrack=chosen.proctrack)
            cluster = SlurmCluster(chosen.folder, settings, outlive=True)
            cluster.start()
            for name, value in cluster.env.items():
                print(f"export {name}={value}")
        elif chosen.command == "stop":
            SlurmCluster.open(chosen.folder).stop()
        else:
            cluster = SlurmCluster.open(chosen.folder)
            getattr(cluster.node(chosen.node), chosen.action)()
    except (RuntimeError, OSError, KeyError) as error:
        sys.exit(f"slurm_cluster.py: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
