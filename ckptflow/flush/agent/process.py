"""What makes a process an agent: its lock, its log, its signals, and how far it steps back."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from ckptflow.flush.agent.folder import (
    LEASES,
    LOCK,
    check_private,
    make_private,
    sweep_leases,
    try_lock,
)
from ckptflow.flush.agent.server import Agent
from ckptflow.flush.options import Flushing
from ckptflow.tiers.tier import Tier

_LINE = "%(asctime)s %(levelname)s %(message)s"
_LOWEST_OF_BEST_EFFORT = 7
AUTOGROUP = Path("/proc/self/autogroup")


def run_agent(
    folder: Path,
    tiers: Sequence[Tier],
    options: Flushing,
    *,
    on_begin: Callable[[str], None] = lambda _text: None,
) -> bool:
    """Be the agent of a folder until idle or told to end; call it in the main thread.

    Args:
        folder: the private folder.
        tiers: of the store, inner ones first.
        options: what copies may take, and the grace.
        on_begin: told ``ready`` when it listens, or ``taken`` if there is one already.

    Returns:
        Whether it was the agent; ``False``: there is one already.

    Raises:
        TierDenied: the folder is not safe to use.
    """
    check_private(folder)
    lock = try_lock(folder / LOCK)
    if lock is None:
        on_begin("taken")
        return False
    try:
        logging.basicConfig(
            stream=sys.stderr,
            level=logging.INFO,
            format=_LINE,
        )
        _step_back(options.nice)
        make_private(folder / LEASES)  # Who cleans /tmp removes empty folders.
        sweep_leases(folder)
        agent = Agent(folder, tiers, options)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop(options.grace_s))
        # Warnings are for tasks; a batch system may send them to all processes of a node.
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        agent.listen()
        on_begin("ready")
        agent.serve()
    finally:
        os.close(lock)
    return True


def _step_back(nice: int) -> None:
    """Let the computation go first, as far as the system allows.

    Where each session is a group of its own, the agent's would get as much of the cores as
    the task's, however nice its members are: see sched(7), "The autogroup feature".
    """
    with contextlib.suppress(OSError):
        os.nice(nice)
    with contextlib.suppress(OSError):
        AUTOGROUP.write_text(str(nice))
    with contextlib.suppress(psutil.Error, OSError, AttributeError, ValueError):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, _LOWEST_OF_BEST_EFFORT)
