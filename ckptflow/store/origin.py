"""Where a process runs, as its surroundings tell: what a claim says beside its number.

It is for people who look for a log or a node. Nothing is decided by it.
``tests/unit/test_origin.py``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

# Of each scheduler, the variable that has its number of the allocation.
_ALLOCATIONS = {
    "slurm": "SLURM_JOB_ID",
    "pbs": "PBS_JOBID",
    "lsf": "LSB_JOBID",
    "flux": "FLUX_JOB_ID",
}
_RESTARTS = "SLURM_RESTART_COUNT"
_PARSL = {
    "block": "PARSL_WORKER_BLOCK_ID",
    "manager": "PARSL_WORKER_POOL_ID",
    "worker": "PARSL_WORKER_RANK",
}
_TEXT_MAX = 200  # The environment belongs to the site: a claim stays small.


def origin(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return where this process runs: host and process, and what else is known.

    Args:
        environment: its variables; those of this process if not given.

    Returns:
        ``host`` and ``pid``; within a worker of Parsl ``block``, ``manager`` and ``worker``;
        within an allocation ``allocation``, such as ``slurm:4711``, and how often the
        scheduler had started it before, if it had, as ``allocation_restarts``.
    """
    variables = os.environ if environment is None else environment
    found: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
    for field, name in _PARSL.items():
        if text := variables.get(name):
            found[field] = text[:_TEXT_MAX]
    for scheduler, name in _ALLOCATIONS.items():
        if text := variables.get(name):
            found["allocation"] = f"{scheduler}:{text[:_TEXT_MAX]}"
            break
    restarts = variables.get(_RESTARTS, "")
    if restarts.isdecimal() and int(restarts):
        found["allocation_restarts"] = int(restarts)
    return found
