"""One process at a time runs a workflow of one name.

The lock is a folder of numbered files, and the one with the greatest number counts. Who wants
the lock looks at the holder; if that is gone, it creates the next number, which only one can,
on shared file systems too. The file says who holds it, on which host, since when.

A holder on this host is alive if its process is (same number *and* same start time, since
numbers are used again). One on another host cannot be asked; it renews the file's time every
few seconds, and is taken for dead when it has not for two minutes. All times are those of the
file system, so hosts with wrong clocks agree. The same host is one with the same name, booted
at the same time, whose processes have the same numbers: a container may share its name. One of
the same name that is not the same is waited for, for half a minute: mostly it was booted again.

Should a holder live that was taken for dead, it finds the lock gone when it next renews it, and
stops; its tasks are fenced (see the format page). The lock keeps order, it does not guard data.

``tests/unit/test_lock.py``, ``tests/process/test_two_hosts.py``.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ckptflow.errors import RunLocked, WorkflowError
from ckptflow.tiers import durable

STALE_AFTER_S = 120.0
RENEWALS = 8  # In that time: so many may be late in a row.
RENEW_EVERY_S = STALE_AFTER_S / RENEWALS
TWIN_RENEWALS = 2.0  # So long a holder of this host's name may be silent, in renewals.

_TRIES = 100
_TWIN_LOOK_S = 0.5
_START_TIME_TOLERANCE_S = 2.0  # The kernel's clock tick, and a clock that is being set.


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        host: name of its host.
        pid: its process number there.
        started_s: when the process started, seconds since 1970.
        session: random name of this run's life; workers carry it in their environment.
        released: whether it gave the lock back.
        machine: which boot of which host, and whose process numbers; empty if not recorded.
    """

    host: str
    pid: int
    started_s: float
    session: str
    released: bool = False
    machine: str = ""

    @staticmethod
    def of_this_process(session: str) -> Holder:
        """Return what this process writes into a lock."""
        process = psutil.Process()
        return Holder(
            socket.gethostname(),
            process.pid,
            process.create_time(),
            session,
            machine=_machine(),
        )

    def is_here(self) -> bool:
        """Tell whether it ran on this host, where it can be looked for by its number."""
        return self.host == socket.gethostname() and self.machine in ("", _machine())

    def is_running(self) -> bool:
        """Tell whether the process exists on this host."""
        try:
            process = psutil.Process(self.pid)
            same: bool = abs(process.create_time() - self.started_s) < _START_TIME_TOLERANCE_S
            return same and bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False


class RunLock:
    """The lock of one run.

    Args:
        folder: the lock's folder; made if absent.
        run: name of the run, for messages.
        session: random name of this run's life.
        is_running: asked whether a holder on this host exists.
        stale_after_s: how long a holder elsewhere may be silent before it is taken for dead.
            All processes that use the lock should have the same.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run: str,
        session: str,
        is_running: Callable[[Holder], bool] = Holder.is_running,
        stale_after_s: float = STALE_AFTER_S,
    ) -> None:
        self._folder, self._run, self._session = folder, run, session
        self._folders, self._is_running = durable.Folders(), is_running
        self._stale_after_s = stale_after_s
        self._number: int | None = None
        self.dead_holders: list[Holder] = []

    def acquire(self) -> None:
        """Take the lock.

        Afterwards ``dead_holders`` lists who died with it; their workers may live on.

        Raises:
            RunLocked: a live process holds it; the message says which, where and since when.
        """
        self._folders.make(self._folder)
        for _ in range(_TRIES):
            newest = max(self._numbers(), default=0)
            self._refuse_if_alive(newest)
            mine = json.dumps(asdict(Holder.of_this_process(self._session))).encode()
            try:
                durable.create_exclusive(self._path(newest + 1), mine, self._folders)
            except FileExistsError:
                continue  # Somebody was faster: look at them.
            if max(self._numbers()) > newest + 1:
                # This process slept between looking and creating; others came and went.
                self._path(newest + 1).unlink(missing_ok=True)
                continue
            self._number = newest + 1
            self._sweep(newest)
            return
        raise WorkflowError(f"The lock {self._folder} changed hands {_TRIES} times; give up.")

    def check(self) -> None:
        """Look, without taking it, whether the lock could be had.

        Raises:
            RunLocked: a live process holds it; the message says which, where and since when.
        """
        self._refuse_if_alive(max(self._numbers(), default=0))

    @property
    def renew_every_s(self) -> float:
        """How often the holder has to show that it lives."""
        return self._stale_after_s / RENEWALS

    @property
    def is_mine(self) -> bool:
        """Whether this process holds the lock, as far as the folder shows right now."""
        return self._number is not None and self._path(self._number).exists()

    def renew(self) -> None:
        """Show processes on other hosts that this one lives.

        A file system that does not answer for a while is in nobody's way.

        Raises:
            RunLocked: another process has taken the lock over. Once; then it is not held.
        """
        if self._number is None:
            return
        try:
            os.utime(self._path(self._number))
            newest = max(self._numbers(), default=self._number)
        except FileNotFoundError:
            newest = max(self._numbers(), default=self._number)
            if newest == self._number:
                newest += 1  # Gone altogether: somebody has cleared the folder.
        except OSError:
            return
        if newest > self._number:
            self._number = None
            raise RunLocked(self._taken_over(self._read(newest)))

    def _taken_over(self, holder: Holder | None) -> str:
        who = f"process {holder.pid} on {holder.host}" if holder else "somebody else"
        return (
            f"Run {self._run!r} was taken over by {who}: this process gave no sign of life for "
            f"{self._stale_after_s:.0f} s, or none that reached the file system. It stops, and "
            f"leaves the run to the other."
        )

    def release(self) -> None:
        """Give the lock back. The file stays, so that numbers only grow."""
        if self._number is None:
            return
        path, self._number = self._path(self._number), None
        if not path.exists():
            return  # Taken over, and nobody has noticed.
        holder = asdict(Holder.of_this_process(self._session)) | {"released": True}
        durable.write_atomic(path, [json.dumps(holder).encode()], self._folders)

    def holder(self) -> Holder | None:
        """Return who has the lock, or had it last; ``None`` if nobody ever had."""
        newest = max(self._numbers(), default=0)
        return self._read(newest) if newest else None

    def is_held(self) -> bool | None:
        """Tell whether a live process holds it, touching nothing; ``None`` if nobody ever had.

        Of a holder on another host the time of its file is compared with this host's clock.
        """
        newest = max(self._numbers(), default=0)
        holder = self._read(newest) if newest else None
        if holder is None:
            return None
        if holder.released:
            return False
        if holder.is_here():
            return self._is_running(holder)
        renewed_s = self.renewed_s()
        return renewed_s is not None and time.time() - renewed_s < STALE_AFTER_S

    def renewed_s(self) -> float | None:
        """Return when its holder last showed that it lives; ``None`` if nobody ever had it."""
        newest = max(self._numbers(), default=0)
        try:
            return self._path(newest).stat().st_mtime if newest else None
        except FileNotFoundError:
            return None  # Taken over this instant.

    def _refuse_if_alive(self, number: int) -> None:
        holder = self._read(number) if number else None
        if holder is None or holder.released:
            return
        if holder.is_here():
            alive, how = self._is_running(holder), "it is running"
        else:
            silent_s, limit_s = self._silent_s(number), self._stale_after_s
            if holder.host == socket.gethostname():
                limit_s = min(limit_s, TWIN_RENEWALS * self.renew_every_s)
                silent_s = self._wait_for_twin(number, silent_s, limit_s)
            alive, how = (
                silent_s < limit_s,
                f"it gave a sign of life {silent_s:.0f} s ago",
            )
        if alive:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.started_s))
            raise RunLocked(
                f"Run {self._run!r} is held by process {holder.pid} on {holder.host}, started "
                f"{since}; {how}. Wait for it, stop it, or give this run another name."
            )
        self.dead_holders.append(holder)

    def _wait_for_twin(self, number: int, silent_s: float, limit_s: float) -> float:
        """Wait until a holder of this host's name lives, or has been silent for too long.

        Most likely it is this host, before it was booted again: then there is nobody left, and
        no reason to have somebody come back in two minutes.
        """
        while silent_s < limit_s:
            time.sleep(min(_TWIN_LOOK_S, limit_s - silent_s))
            before_s, silent_s = silent_s, self._silent_s(number)
            if silent_s < before_s:
                break  # It has renewed: another host, or a container, of the same name.
        return silent_s

    def _silent_s(self, number: int) -> float:
        """Return how long ago the holder renewed the lock, by the file system's own clock."""
        probe = self._folder / f".probe-{self._session}"
        try:
            probe.touch()
            return probe.stat().st_mtime - self._path(number).stat().st_mtime
        except FileNotFoundError:
            return 0.0  # It was released this instant: look again.
        finally:
            probe.unlink(missing_ok=True)

    def _sweep(self, newest_old: int) -> None:
        for number in self._numbers():
            if number <= newest_old:
                self._path(number).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        return [int(path.stem) for path in self._folder.glob("*.lock") if path.stem.isdigit()]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.lock"

    def _read(self, number: int) -> Holder | None:
        try:
            return Holder(**json.loads(self._path(number).read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None  # Taken back this instant, or no lock of ours: nobody can be asked.


@functools.cache
def _machine() -> str:
    """Return what tells two hosts of one name apart, and two boots of one host."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        numbers = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return f"{boot} {numbers}"
