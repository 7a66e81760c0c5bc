"""How a loop of torch's DataLoader tells that a worker is gone, and how to end the others.

torch raises RuntimeError when the kernel tells it of the death, wherever the program is at that
moment, or when it asks, every 5 s while it waits for a batch. If the worker had just offered a
batch, fetching that fails first, as an error of a connection.
``tests/process/test_resumable_data.py``.
"""

from __future__ import annotations

import contextlib
from multiprocessing.connection import wait
from typing import Any

# How torch's messages begin when what loads is gone, or answers too late.
_LOST = ("DataLoader worker (pid", "DataLoader timed out", "Pin memory thread exited")
_OF_A_SAMPLE = "Caught "  # So begins what the data set raised in a worker.
GRACE_S = 5.0  # For a worker whose connection broke to be seen dead.


def loss(loop: Any, error: BaseException) -> str | None:
    """Return how ``loop`` lost a worker, or None if ``error`` is of another kind.

    Takes up to `GRACE_S`, if a connection broke and no worker is dead.
    """
    if _is_loss(error):
        return str(error).rstrip(". ")
    workers = getattr(loop, "_workers", ())
    broken = isinstance(error, OSError | EOFError) and not str(error).startswith(_OF_A_SAMPLE)
    if not workers or not broken:
        return None
    try:
        gone = wait([worker.sentinel for worker in workers], timeout=GRACE_S)
    except RuntimeError as told:
        if not _is_loss(told):
            raise
        return str(told).rstrip(". ")
    return f"a worker has ended ({type(error).__name__}: {error})" if gone else None


def end_workers(loop: Any) -> None:
    """End the workers of ``loop`` that are left.

    Until then torch raises once more, wherever the program is, whenever a child of it ends. It
    waits up to 5 s for each of them, and kills those that have not ended by then.
    """
    end = getattr(loop, "_shutdown_workers", None)
    if end is not None:
        with contextlib.suppress(RuntimeError):  # Once more, as they end.
            end()


def _is_loss(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error).startswith(_LOST)
