"""Store short known runs and fills as new bytes where a row costs more than they do.

A row of an extent table takes a few bytes, and so does a cell of well compressible bytes.
Beside new bytes, which have a row anyway, a short run is cheaper as some more of them.
``tests/unit/test_short_runs.py``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ckptflow.data.scan import Kind, Runs

ROW_BYTES = 8  # Stored, of a row that is unlike those before it.
SHORT_BYTES_MAX = 256  # What is longer may be part of a period, which costs nothing.
NO_CELL = np.uint64(2**64 - 1)  # In ``ref``: bytes that are new only because that is cheaper.


def without_short_runs(runs: Runs, *, ratio: float | NDArray[np.float64]) -> Runs:
    """Return runs of which none is shorter than its row is worth, if it touches new bytes.

    Args:
        runs: of one region; or of several that lie apart.
        ratio: plain over stored bytes, expected of the new bytes, for all runs or for each.
    """
    least = np.minimum(SHORT_BYTES_MAX, ROW_BYTES * np.asarray(ratio))
    short = (runs.length_bytes < least) & (runs.kind != Kind.NEW)
    if not short.any():
        return runs
    end = runs.start_bytes + runs.length_bytes
    # Runs that touch each other and are new or short make stretches.
    part = short | (runs.kind == Kind.NEW)
    begins = np.concatenate(
        [[True], (end[:-1] != runs.start_bytes[1:]) | ~part[:-1] | ~part[1:]]
    )
    heads = np.flatnonzero(begins)
    has_new = np.maximum.reduceat(runs.kind == Kind.NEW, heads)
    changed = short & has_new[np.cumsum(begins) - 1]
    kind = np.where(changed, np.uint8(Kind.NEW), runs.kind)
    return Runs(kind, runs.start_bytes, runs.length_bytes, np.where(changed, NO_CELL, runs.ref))
