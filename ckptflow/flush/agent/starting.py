"""Start an agent that outlives whoever starts it.

The new process leaves the session of its starter and is nobody's child, keeps none of its
files, and has its own log. It inherits the environment, and with it whatever credentials for
a store the environment names; nothing secret is handed over otherwise. Of several that are
started at once the first to lock the folder stays. ``tests/process/test_agent.py``.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ckptflow.errors import TierUnavailable
from ckptflow.flush.agent.folder import LOCK, LOG, is_locked
from ckptflow.flush.agent.protocol import connect
from ckptflow.flush.options import Flushing

START_S = 60.0

# A run ends what carries these, and its tasks are known by them: see `ckptflow.workflow`.
NOT_INHERITED = (
    "CKPTFLOW_RUN_FOLDER",
    "CKPTFLOW_SESSION",
    "CKPTFLOW_ATTEMPT",
    "CKPTFLOW_REPORT",
    "CKPTFLOW_BOARD",
)

_PAUSE_S = 0.1
_LOG_BYTES_MAX = 1 << 20
_LAUNCH = """
import os, sys
if os.fork():
    raise SystemExit
os.setsid()
if os.fork():
    raise SystemExit
command = [sys.executable, "-P", "-m", "ckptflow.flush.agent", *sys.argv[1:]]
os.execv(sys.executable, command)
"""


def connected(
    folder: Path, specs: Sequence[Mapping[str, Any]], options: Flushing
) -> socket.socket:
    """Return a connection to the agent of a folder, started if there is none.

    Raises:
        TierUnavailable: none could be started within `START_S`.
        TierDenied: the folder is not safe to use.
    """
    ends_s = time.monotonic() + START_S
    while True:
        try:
            return connect(folder)
        except TierUnavailable:
            if time.monotonic() > ends_s:
                raise
        if is_locked(folder / LOCK) or start(folder, specs, options) != "ready":
            time.sleep(_PAUSE_S)  # Another is about to listen, or about to end.


def start(folder: Path, specs: Sequence[Mapping[str, Any]], options: Flushing) -> str:
    """Start an agent; return ``ready`` when it listens, or ``taken`` if there is one already.

    Raises:
        TierUnavailable: it did not begin; the message says why.
    """
    reader, writer = os.pipe()
    try:
        try:
            process = _launch(folder, writer)
        finally:
            os.close(writer)
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps({"tiers": list(specs), "options": asdict(options)}).encode())
        process.wait()
        answer = _answer(reader)
    except OSError as error:
        raise TierUnavailable(f"No agent could be started: {error}.") from error
    finally:
        os.close(reader)
    if answer not in {"ready", "taken"}:
        why = answer or f"it ended, or said nothing for {START_S:.0f} s"
        raise TierUnavailable(f"No agent could be started: {why}. See {folder / LOG}.")
    return answer


def _launch(folder: Path, writer: int) -> subprocess.Popen[bytes]:
    log = folder / LOG
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(log, flags, 0o600)
    try:
        if os.fstat(descriptor).st_size > _LOG_BYTES_MAX:
            os.ftruncate(descriptor, 0)
        return subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _LAUNCH, str(folder), str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=descriptor,
            cwd="/",
            env=_environment(),
            pass_fds=[writer],
        )
    finally:
        os.close(descriptor)


def _environment() -> dict[str, str]:
    kept = {}
    for key in list(os.environ):  # Other threads change it meanwhile.
        value = os.environ.get(key)
        if value is not None and key not in NOT_INHERITED:
            kept[key] = value
    ours = str(Path(__file__).parents[3])
    paths = [ours, *kept.get("PYTHONPATH", "").split(os.pathsep)]
    kept["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    kept["CUDA_VISIBLE_DEVICES"] = ""  # Copies need no GPU; its memory is the task's.
    return kept


def _answer(reader: int) -> str:
    """Return what the agent says when it is ready or gives up; empty if it says nothing."""
    data, ends_s = b"", time.monotonic() + START_S
    while (left_s := ends_s - time.monotonic()) > 0:
        poll = select.poll()  # `select` takes no descriptor above 1023.
        poll.register(reader, select.POLLIN)
        if not poll.poll(left_s * 1000):
            break
        piece = os.read(reader, 4096)
        if not piece:
            break
        data += piece
    return data.decode(errors="replace").strip()
