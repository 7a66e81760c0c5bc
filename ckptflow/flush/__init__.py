"""Copy checkpoints outward, to tiers that survive more, in the background.

`copying` copies one checkpoint; `flusher` copies many, one lane a tier; `agent` is the process
of a node that goes on with it when a task has ended; `scavenge` saves what little time allows.
"""

from __future__ import annotations

from ckptflow.flush.copying import Transport, copy_checkpoint
from ckptflow.flush.flusher import Flusher
from ckptflow.flush.options import Flushing, parse_flushing
from ckptflow.flush.requests import FlushProgress, FlushRequest

__all__ = [
    "FlushProgress",
    "FlushRequest",
    "Flusher",
    "Flushing",
    "Transport",
    "copy_checkpoint",
    "parse_flushing",
]
