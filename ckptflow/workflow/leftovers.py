"""Processes that outlive the one that started them, and how to end them.

When the process that runs a workflow is killed, Parsl's interchange, managers and workers
live on for a while, and their tasks go on computing. Everything that a run starts carries the
run's folder and its session in its environment, so a restart finds what is left of dead
sessions on this host and ends it. First it asks, by SIGTERM: a task about to save may do
so. What runs on other hosts is fenced by the store instead.

``tests/unit/test_leftovers.py``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from ckptflow.workflow.blocks.time_left import RUN_FOLDER

SESSION = "CKPTFLOW_SESSION"

GRACE_S = 2.0
STOP_GRACE_S = 15.0  # When tasks were running, and may save.


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that was found, and whether it was ended."""

    pid: int
    name: str
    session: str


def mark(run_folder: Path, session: str) -> dict[str, str]:
    """Return the variables that what a run starts carries in its environment.

    The third keeps setproctitle, which Parsl's interchange uses, from writing the title over
    the environment, where nobody could read the other two.
    """
    return {RUN_FOLDER: str(run_folder), SESSION: session, "SPT_NOENV": "1"}


def find_leftovers(run_folder: Path, is_over: Callable[[str], bool]) -> list[Leftover]:
    """Return the processes of this user, on this host, that belong to sessions that are over.

    This process and those that it descends from are left out, whatever they carry.

    Args:
        run_folder: the run's folder, as given to `mark`.
        is_over: tells whether a session is.
    """
    return _sorted(_found(run_folder, is_over).values())


def end_leftovers(
    run_folder: Path, is_over: Callable[[str], bool], *, grace_s: float = GRACE_S
) -> list[Leftover]:
    """End what `find_leftovers` finds, and return it.

    Args:
        run_folder: the run's folder, as given to `mark`.
        is_over: tells whether a session is.
        grace_s: how long they may take to end by themselves.
    """
    found = _found(run_folder, is_over)
    _end(found, grace_s)
    return _sorted(found.values())


def _found(run_folder: Path, is_over: Callable[[str], bool]) -> dict[psutil.Process, Leftover]:
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found: dict[psutil.Process, Leftover] = {}
    for process in psutil.process_iter():
        if process.pid in spared:
            continue
        # A process may end, or belong to somebody else, or refuse to be looked at.
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            session = environment.get(SESSION, "")
            if environment.get(RUN_FOLDER) == str(run_folder) and is_over(session):
                found[process] = Leftover(process.pid, process.name(), session)
    return found


def _sorted(leftovers: Iterable[Leftover]) -> list[Leftover]:
    return sorted(leftovers, key=lambda leftover: leftover.pid)


def _end(processes: Collection[psutil.Process], grace_s: float) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(list(processes), timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)
