"""What the leader asks the kernel of Linux: whose child is whose, who handles which signal.

``tests/unit/test_leader.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SPAWNED = b"multiprocessing.spawn"
_AGENT = b"ckptflow.flush.agent"  # Outlives tasks on purpose.


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def deaf_child(ignored: Iterable[int]) -> Callable[[], None]:
    """Return what a child does before it starts: it ignores signals, and dies with its parent.

    What is ignored stays so in all that the child starts, until one of them handles it.
    """
    library, parent = ctypes.CDLL(None, use_errno=True), os.getpid()
    numbers = tuple(ignored)

    def prepare() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # It was gone before we could ask.
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    return prepare


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = (path / "stat").read_text(encoding="ascii", errors="replace")
                parent = int(text.rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(path.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def oldest_spawned(pid: int) -> int | None:
    """Return the first process that Python's multiprocessing has spawned below a process.

    Of a pool of Parsl that is the one that keeps the queues and the table of its tasks: the
    pool starts it before any worker.
    """
    found = []
    for one in descendants(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if _SPAWNED in Path(f"/proc/{one}/cmdline").read_bytes():
                text = Path(f"/proc/{one}/stat").read_text(encoding="ascii", errors="replace")
                found.append((int(text.rpartition(")")[2].split()[19]), one))
    return min(found)[1] if found else None


def is_agent(pid: int) -> bool:
    """Tell whether a process is one that copies checkpoints for the node."""
    try:
        return _AGENT in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def handles(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal; no, where that cannot be known."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)


def kill(pids: Iterable[int]) -> None:
    """End processes at once."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
