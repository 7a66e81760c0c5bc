"""Run the commands of a scheduler, which may hang when it does.

Parsl's own way waits no longer than it should, but leaves the command running, and raises where
its callers expect an exit status. ``tests/unit/test_scheduler_commands.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile

TIMED_OUT = 124  # As coreutils' timeout says it.


def run_command(command: str, timeout_s: float) -> tuple[int, str, str]:
    """Run a shell command; return its exit status, its output, and what it said on stderr.

    After ``timeout_s`` it is killed with all that it has started, and the status is
    `TIMED_OUT`. Output goes through files: a process that outlives the command and keeps a pipe
    open could otherwise hold up whoever reads it.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            program = command.split(maxsplit=1)[0]
            return TIMED_OUT, "", f"{program} did not answer within {timeout_s:g} s"
        out.seek(0)
        err.seek(0)
        return status, _text(out.read()), _text(err.read())


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
