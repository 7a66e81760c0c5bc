"""Virtual machines that are nothing but Linux namespaces: cheap, and they die at one stroke.

A `Machine` has its own process ids, host name, boot id, ``/etc/hosts``, and memory file systems
at ``/local`` and ``/dev/shm``, which vanish with it. All else it shares with the host, so that
any other folder is a shared file system between machines. Its first process is a shell that
reaps orphans; SIGKILL of that one ends all others with it, as a power cut would. Machines
can lie inside another one and then end with it.

Needs root. ``tests/services/test_slurm_cluster.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

LOCAL = Path("/local")

_START_S = 60.0
_END_S = 30.0
_PR_SET_PDEATHSIG = 1
_LOCAL_SIZE = "1g"


class Machine:
    """One machine.

    Args:
        name: its host name.
        folder: where its process id, its boot id and what it prints are kept.
        inside: the machine with which it ends.
        outlive: whether it goes on when the thread that started it is gone. One inside
            another one goes on as long as that.
        daemon: what it starts when it boots, as shell text.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        inside: Machine | None = None,
        outlive: bool = False,
        daemon: str = "sleep infinity",
    ) -> None:
        self.name, self._folder, self._inside = name, folder, inside
        self._outlive, self._daemon = outlive, daemon
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Machine {self.name}>"

    @property
    def log(self) -> Path:
        """What its daemon prints."""
        return self._folder / f"{self.name}.out"

    @property
    def _record(self) -> Path:
        return self._folder / f"{self.name}.pid"

    @property
    def pid(self) -> int:
        """Its first process, as the host numbers it; 0 if it is off."""
        try:
            number, began = self._record.read_text().split()
        except (OSError, ValueError):
            return 0
        found = stat_of(int(number))
        return int(number) if found is not None and found == ("alive", began) else 0

    @property
    def is_on(self) -> bool:
        """Whether it runs; a frozen one does."""
        return self.pid != 0

    def start(self) -> None:
        """Boot it; return when its daemon has been started. It may run already.

        Raises:
            RuntimeError: it does not boot; the message has what it printed.
        """
        if self.is_on:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        LOCAL.mkdir(exist_ok=True)
        ready = self._folder / f"{self.name}.ready"
        ready.unlink(missing_ok=True)
        enter = self._inside.enter() if self._inside else []
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [
                    *enter,
                    *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"),
                    *("--propagation", "slave", "bash", "-c", self._boot(ready)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=None if self._outlive or enter else _die_with_parent,  # noqa: PLW1509
            )
        _wait(ready.exists, _START_S, f"{self} to boot", self._process, self.log)
        first = self._process.pid
        for _ in range(2 if enter else 1):  # nsenter, unshare, shell.
            first = children_of(first)[0]
        found = stat_of(first)
        assert found is not None
        self._record.write_text(f"{first} {found[1]}")

    def _boot(self, ready: Path) -> str:
        hosts, boot_id = (self._folder / f"{self.name}.{what}" for what in ("hosts", "boot_id"))
        hosts.write_text(f"127.0.0.1 localhost {self.name}\n")
        boot_id.write_text(f"{uuid.uuid4()}\n")
        return f"""
            set -e
            hostname {self.name}
            mount --bind {shlex.quote(str(hosts))} /etc/hosts
            mount --bind {shlex.quote(str(boot_id))} /proc/sys/kernel/random/boot_id
            mount -t tmpfs -o size={_LOCAL_SIZE},mode=1777 local {LOCAL}
            mount -t tmpfs -o size={_LOCAL_SIZE},mode=1777 shm /dev/shm
            set +e
            {self._daemon} &
            touch {shlex.quote(str(ready))}
            wait $!
            # A machine whose daemon has ended is still on, and the shell reaps what is left.
            while :; do sleep 3600 & wait $!; done
        """

    def enter(self) -> list[str]:
        """Return the words that run what follows them on this machine."""
        pid = self.pid
        if not pid:
            raise RuntimeError(f"{self} is off")
        return ["nsenter", "--target", str(pid), "--pid", "--mount", "--uts", "--"]

    def popen(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
    ) -> Program:
        """Start a program on it."""
        step = 'cd "$1" && shift && exec "$@"'
        words = ["bash", "-c", step, "bash", str(cwd or Path.cwd()), *command]
        return Program(
            [*self.enter(), *words],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    def pids(self) -> list[int]:
        """Return its processes, as the host numbers them."""
        first = self.pid
        mine = _namespace(first) if first else None
        if mine is None:
            return []
        return [pid for pid in every_pid() if _namespace(pid) == mine]

    def kill(self) -> None:
        """Crash it: all its processes and memory file systems are gone at once."""
        pid = self.pid
        if pid:
            os.kill(pid, signal.SIGKILL)
            _wait(lambda: not self.is_on, _END_S, f"{self} to end")
        self._record.unlink(missing_ok=True)
        self.wait()

    def wait(self) -> None:
        """Wait for the end of one that has been killed, alone or with what it lies in."""
        if self._process is not None:
            self._process.wait(timeout=_END_S)
            self._process = None

    def freeze(self) -> None:
        """Make it hang: nothing runs, nothing answers, nothing is lost."""

        def stands_still() -> bool:
            moving = [pid for pid in self.pids() if _state_of(pid) not in {*"TZX", ""}]
            for pid in moving:  # Somebody may fork meanwhile.
                _signal(pid, signal.SIGSTOP)
            return not moving

        _wait(stands_still, _END_S, f"{self} to stand still")

    def thaw(self) -> None:
        """Let it go on as if no time had passed."""
        for pid in self.pids():
            _signal(pid, signal.SIGCONT)


class Program(subprocess.Popen[bytes]):
    """A program on a machine. The process here is the one that has entered it."""

    def kill_inside(self) -> None:
        """SIGKILL the program itself. What it has started lives on."""
        for pid in children_of(self.pid):
            _signal(pid, signal.SIGKILL)
        self.wait(timeout=_END_S)


def every_pid() -> list[int]:
    """Return all processes of the host."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def children_of(pid: int) -> list[int]:
    """Return the children of a process, the oldest first."""
    try:
        return [
            int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it is gone."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def command_of(pid: int) -> str:
    """Return the command line of a process; empty if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    return words.replace("\0", " ").strip()


def stat_of(pid: int) -> tuple[str, str] | None:
    """Return ``alive`` or ``dead``, and when it began; None if there is none.

    Nobody may reap a dead process where the host's first process is no real init.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return "dead" if fields[0] in "ZX" else "alive", fields[19]


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # Gone, or a zombie.
        return None


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(
    condition: Callable[[], object],
    limit_s: float,
    what: str,
    process: subprocess.Popen[bytes] | None = None,
    log: Path | None = None,
) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline_s:
            text = log.read_text(errors="replace")[-2000:] if log else ""
            raise RuntimeError(f"waited for {what} {limit_s} s. {text}")
        time.sleep(0.02)  # Waits for another process; there is no event for it.


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
