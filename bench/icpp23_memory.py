"""How much memory a way to keep checkpoints takes beside the state, by the kernel's account.

In a fresh process: load a state, reset the high-water mark of resident memory, save a whole
series, each next state read into the memory of the one before, and look at the mark. So all
counts that the process has at once: scratch, what is written, digests and the record of what
was seen; pages of files do not, and neither do programs that it starts.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from icpp23_rivals import Way, ways

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_over_state(way: Way, states: Sequence[Path]) -> float:
    """Return the peak memory of a fresh process beside the state, as a multiple of it."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, way.name, way.chunk_bytes, states).result()


def _measure(name: str, chunk_bytes: int, states: Sequence[Path]) -> float:
    (way,) = (
        way for way in ways([chunk_bytes]) if (way.name, way.chunk_bytes) == (name, chunk_bytes)
    )
    state = np.fromfile(states[0], np.uint8)
    with tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as folder:
        warm = way.make(Path(folder) / "warm")
        for _ in range(2):
            warm.save(state[: 1 << 16])
        keeper = way.make(Path(folder) / "measured")
        before_bytes = _resident("VmRSS")
        RESET.write_text("5")
        for path in states:
            with path.open("rb", buffering=0) as file:
                file.readinto(state.data)
            keeper.save(state)
        return (_resident("VmHWM") - before_bytes) / state.nbytes


def _resident(what: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) << 10
    raise OSError(f"{STATUS} does not say {what}: this needs Linux.")
