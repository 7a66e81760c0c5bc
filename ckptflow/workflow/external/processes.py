"""The processes of a command: found by what they carry in their environment, and ended.

A process group does not hold them all: launchers of ranks begin groups of their own. What is
started by the command inherits its environment, so that the mark of the attempt is found on
every process of this node, whoever its parent is by now.

The command also ends when the worker does. A shell beside it holds the read end of a pipe of
which the worker has the other end; when that closes, however the worker came to its end, the
shell kills the group. ``tests/process/test_external.py``.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from ckptflow.workflow.blocks.processes import handles

MARK = "CKPTFLOW_CODE"  # Folder and attempt, as "3:/path/of/the/folder".

_ENTRY = f"{MARK}=".encode()
_GONE_S = 10.0  # SIGKILL is not refused; only a process within a system call takes a while.
_LOOK_AGAIN_S = 0.02
_ACCESS = os.O_ACCMODE


def mark_of(folder: Path, attempt: int) -> str:
    """Return what the processes of an attempt carry."""
    return f"{attempt}:{folder}"


def marked(wanted: Callable[[str], bool]) -> Iterator[psutil.Process]:
    """Yield the processes of this node whose mark is wanted, of this user only."""
    # Read here and not by psutil.process_iter, whose memory of processes several threads share.
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            # It may have ended, or belong to somebody else.
            with contextlib.suppress(psutil.Error, OSError):
                mark = _mark_in((place / "environ").read_bytes())
                if mark is not None and wanted(mark):
                    yield psutil.Process(int(place.name))


def of_attempt(mark: str) -> list[psutil.Process]:
    """Return the processes of one attempt."""
    return list(marked(lambda found: found == mark))


def end(wanted: Callable[[str], bool]) -> int:
    """Kill the processes whose mark is wanted, and those that they start meanwhile.

    Returns:
        How many there were.

    Raises:
        TimeoutError: some did not go.
    """
    killed: set[int] = set()
    end_s = time.monotonic() + _GONE_S
    while found := list(marked(wanted)):
        if time.monotonic() > end_s:
            raise TimeoutError(
                f"Processes {sorted(one.pid for one in found)} of a command on this node did "
                f"not end within {_GONE_S:.0f} s of SIGKILL."
            )
        for process in found:
            killed.add(process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        # Not waited for: whoever started it wants to know its status. A zombie has no mark.
        time.sleep(_LOOK_AGAIN_S)
    return len(killed)


def signal_handlers(mark: str, number: signal.Signals) -> int:
    """Send a signal to those processes of an attempt that handle it; others would die of it.

    Returns:
        How many got it.
    """
    sent = 0
    for process in of_attempt(mark):
        if handles(process.pid, number):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
                sent += 1
    return sent


def is_written_by(mark: str, device: int, inode: int) -> bool:
    """Tell whether a process of the attempt, on this node, has a file open for writing."""
    for process in of_attempt(mark):
        folder = f"/proc/{process.pid}/fd"
        with contextlib.suppress(OSError):
            for entry in Path(folder).iterdir():
                with contextlib.suppress(OSError):
                    found = entry.stat()
                    is_it = (found.st_dev, found.st_ino) == (device, inode)
                    if is_it and _is_writable(process.pid, entry.name):
                        return True
    return False


class Lifeline:
    """A pipe that closes when this process ends, and then the command is killed.

    Use it as a context manager around the command.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_inheritable(self._read, True)  # noqa: FBT003  It has no name.

    @property
    def script(self) -> str:
        """Lines for the head of a shell script that leads its own process group."""
        read = self._read
        return (
            # Not a child of this shell, whose `wait` would wait for it.
            f"( ( trap '' TERM INT HUP; read -r _ <&{read}; kill -KILL -- -$$ ) "
            f"</dev/null >/dev/null 2>&1 & )\n"
            f"exec {read}<&-\n"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._write)
        os.close(self._read)


def exports(variables: dict[str, str]) -> str:
    """Return shell lines that put variables into the environment."""
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())


def _mark_in(environment: bytes) -> str | None:
    for entry in environment.split(b"\0"):
        if entry.startswith(_ENTRY):
            return os.fsdecode(entry[len(_ENTRY) :])
    return None


def _is_writable(pid: int, descriptor: str) -> bool:
    text = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="ascii")
    flags = next((line.split()[1] for line in text.splitlines() if "flags:" in line), "0")
    return int(flags, 8) & _ACCESS != os.O_RDONLY
