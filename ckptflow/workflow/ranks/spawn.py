"""Start ranks on this node, where no MPI is: ``python -m ckptflow.workflow.ranks.spawn``.

    spawn --ranks=4 -- python train.py

Each process has the variables of torchrun for one node. If one fails the others are ended: by
SIGTERM soon, by SIGKILL a little later. Signals are passed on. The status is that of the first
that failed. ``tests/process/test_ranked_tasks.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

TERM_AFTER_S, KILL_AFTER_S = 3.0, 8.0  # After the first failure.

_POLL_S = 0.05
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def main(arguments: Sequence[str]) -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(prog="ckptflow.workflow.ranks.spawn")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for one in processes:
            with contextlib.suppress(ProcessLookupError):
                one.send_signal(number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    for rank in range(options.ranks):
        environment = _environment(rank, options.ranks)
        one = subprocess.Popen(options.command, env=environment)
        processes.append(one)  # One by one: signals are passed on from the first.
    return _wait(processes)


def _environment(rank: int, world: int) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
    }


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all; after the first failure not for long. Return what it was."""
    status, failed_s = 0, 0.0
    while running := [one for one in processes if one.poll() is None]:
        if status == 0:
            status = next((one.returncode for one in processes if one.returncode), 0)
            failed_s = time.monotonic()
        elif (since_s := time.monotonic() - failed_s) > TERM_AFTER_S:
            for one in running:
                one.send_signal(signal.SIGKILL if since_s > KILL_AFTER_S else signal.SIGTERM)
            time.sleep(_POLL_S * 4)
        time.sleep(_POLL_S)  # There are several to wait for, and signals to hear meanwhile.
    status = status or next((one.returncode for one in processes if one.returncode), 0)
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
