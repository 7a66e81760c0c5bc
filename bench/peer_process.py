"""Runs one visit of `peers.py` in a process of its own, and watches what that takes."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from peer_visit import Order

BENCH = Path(__file__).resolve().parent
SAMPLE_S = 0.05
LINE_CHARACTERS = 200


@dataclass(slots=True)
class Visited:
    """What one visit told.

    Attributes:
        events: of `peer_visit`, each with ``child_bytes``: the most memory that all processes
            started by it held for themselves since the event before.
        reason: why there are no more of them; empty where nothing went wrong.
        seconds: how long it took.
    """

    order: Order
    events: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""
    seconds: float = 0.0


def visit(order: Order, *, python: str, timeout_s: float) -> Visited:
    """Run a visit; kill it, and all that it started, when its time is up."""
    found, began = Visited(order), time.monotonic()
    command = [python, "-c", "import peer_visit; peer_visit.main()", json.dumps(asdict(order))]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        try:
            listen(process, found, deadline=began + timeout_s)
            if process.poll() is None:
                found.reason = f"not done after {timeout_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if found.reason or process.returncode:
            found.reason = "; ".join(filter(None, [found.reason, last_line(errors)]))
    for event in found.events:
        if event["event"] in {"missing", "failed"}:
            found.reason = event["reason"].splitlines()[0]
    found.seconds = time.monotonic() - began
    return found


def environment() -> dict[str, str]:
    """Return the variables of a visit: what is computed takes one core, and no device."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(BENCH.parent), str(BENCH)]),
        "OPENBLAS_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
    }


def listen(process: subprocess.Popen[str], found: Visited, *, deadline: float) -> None:
    """Take events until there are no more, and the process has ended, or time is up."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    assert process.stdout is not None
    threading.Thread(target=forward, args=(process.stdout, lines), daemon=True).start()
    peak_bytes = 0
    while (left_s := deadline - time.monotonic()) > 0:
        peak_bytes = max(peak_bytes, bytes_of_children(process.pid))
        try:
            line = lines.get(timeout=min(SAMPLE_S, left_s))
        except queue.Empty:
            continue
        if line is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=left_s)
            return
        found.events.append(json.loads(line) | {"child_bytes": peak_bytes})
        peak_bytes = 0


def forward(lines: IO[str], into: queue.SimpleQueue[str | None]) -> None:
    for line in lines:
        into.put(line)
    into.put(None)


def bytes_of_children(process: int) -> int:
    """Return the private memory of all processes that it, or one of these, has started."""
    found, left = 0, children(process)
    while left:
        child = left.pop()
        left += children(child)
        try:
            text = Path(f"/proc/{child}/status").read_text(encoding="ascii")
        except OSError:  # It has ended.
            continue
        counted = text.partition("RssAnon:")[2].split()
        found += int(counted[0]) << 10 if counted else 0  # One that nobody waited for has none.
    return found


def children(process: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text(encoding="ascii").split())
    return found


def last_line(errors: IO[str]) -> str:
    """Return the last line that was written, which names the error if there was one."""
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return lines[-1][:LINE_CHARACTERS] if lines else ""
