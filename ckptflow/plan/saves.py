"""What a save costs the process that computes, besides the time of its tier.

``tests/unit/test_calibration.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.checkpointer import Checkpointer
from ckptflow.checkpointer.ticket import Ticket
from ckptflow.data.digest import many_chunk_digests
from ckptflow.data.regions import flatten
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.memory import Base, NamedRegion
from ckptflow.store.packing import CHUNK_BYTES
from ckptflow.store.save import write_checkpoint
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

RUN = "calibrate"
_REPETITIONS = 3
_ENCODED_BYTES_MAX = 4 * MIB  # The densest packing is slow, and as slow for more.
_LOOP_NUMBERS = 32_768  # A piece of work that takes a few tenths of a millisecond.


def measure_saves(tier: Tier, *, limit_s: float, size_bytes: int) -> dict[str, Any]:
    """Return the numbers of `ckptflow.plan.calibration.SaveCosts`, but for the host.

    Args:
        tier: a store in which nothing else is; the saves beside which a loop runs go there.
        limit_s: about how long that loop may take.
        size_bytes: of the state; it is taken several times.
    """
    rng = np.random.default_rng(0)
    state = rng.integers(0, 1 << 64, max(size_bytes, MIB) // 8, np.uint64)
    encode_bytes_per_s, ratio = _encoding(min(state.nbytes, _ENCODED_BYTES_MAX))
    return {
        "size_bytes": state.nbytes,
        "capture_bytes_per_s": state.nbytes / _blocked_s(state),
        "digest_bytes_per_s": state.nbytes / _best_s(lambda: _digest(state)),
        "unchanged_bytes_per_s": state.nbytes / _unchanged_s(state),
        "encode_bytes_per_s": encode_bytes_per_s,
        "encode_ratio": ratio,
        "interference": _interference(tier, state, limit_s),
    }


def _blocked_s(state: NDArray[np.uint64]) -> float:
    """Return for how long `save` blocks when everything has changed since the last one."""
    blocked_s = []
    memory = MemoryTier("calibrate-saves")
    with Checkpointer(memory, run=RUN, task="saves", every="never", keep=1, rng=False) as ckpt:
        for step in range(1, _REPETITIONS + 2):
            state += np.uint64(1)
            began_s = time.monotonic()
            ticket = ckpt.save(step, {"state": state})
            blocked_s.append(time.monotonic() - began_s)
            ticket.wait()
    return max(median(blocked_s[1:]), 1e-9)  # The first one also takes the memory.


def _digest(state: NDArray[np.uint64]) -> None:
    many_chunk_digests([state.view(np.uint8).data], CHUNK_BYTES)


def _unchanged_s(state: NDArray[np.uint64]) -> float:
    memory, lineage = MemoryTier("calibrate-unchanged"), LineageId(RUN, "unchanged")
    flat = flatten({"state": state})
    last: list[Base | None] = [None]
    steps = iter(range(1, _REPETITIONS + 2))

    def save() -> None:
        last[0] = write_checkpoint(
            memory,
            lineage,
            CheckpointId(next(steps), 1),
            structure=flat.structure,
            regions=[NamedRegion(flat.regions[0].name, state.view(np.uint8).data)],
            base=last[0],
            chunk_bytes=CHUNK_BYTES,
        )

    save()
    return _best_s(save)


def _encoding(size_bytes: int) -> tuple[float, float]:
    """Return bytes a second of the densest packing, and bytes stored for each byte."""
    at = np.linspace(0, 50, size_bytes // 4, dtype=np.float32)
    smooth = np.sin(at) + np.float32(1e-4) * np.random.default_rng(0).standard_normal(
        len(at), np.float32
    )
    flat = flatten({"state": smooth})
    began_s = time.monotonic()
    written = write_checkpoint(
        MemoryTier("calibrate-encoded"),
        LineageId(RUN, "encoded"),
        CheckpointId(1, 1),
        structure=flat.structure,
        regions=[NamedRegion(flat.regions[0].name, smooth.view(np.uint8).data, item_bytes=4)],
        base=None,
        chunk_bytes=CHUNK_BYTES,
        goal="small",
    )
    took_s = max(time.monotonic() - began_s, 1e-9)
    stored_bytes = sum(pack.size_bytes for pack in written.manifest.packs)
    return smooth.nbytes / took_s, stored_bytes / smooth.nbytes


def _interference(tier: Tier, state: NDArray[np.uint64], limit_s: float) -> float:
    """Return by what part a loop is slower while saves are in flight.

    Quiet and busy stretches take turns, so that whatever else slows this computer down meets
    both.
    """
    quiet, busy = list[float](), list[float]()
    stretch_s = limit_s / (4 * _REPETITIONS)
    with Checkpointer(
        tier, run=RUN, task="interference", every="never", keep=1, rng=False
    ) as ckpt:
        for step in range(1, _REPETITIONS + 1):
            quiet.append(_rate(lambda: True, stretch_s))
            state += np.uint64(1)
            ticket = ckpt.save(step, {"state": state})
            busy.append(_rate(partial(_is_in_flight, ticket), 3 * stretch_s))
            ticket.wait()
    return max(0.0, median(quiet) / median(busy) - 1)


def _is_in_flight(ticket: Ticket) -> bool:
    return not ticket.settled


def _rate(goes_on: Callable[[], bool], limit_s: float) -> float:
    """Return pieces of work a second, as long as it goes on and may; one piece at least."""
    numbers, count = np.linspace(1, 2, _LOOP_NUMBERS), 0
    began_s = time.monotonic()
    while not count or (time.monotonic() < began_s + limit_s and goes_on()):
        np.sqrt(numbers, out=numbers)
        numbers += 1.0
        count += 1
    return count / max(time.monotonic() - began_s, 1e-9)


def _best_s(call: Callable[[], object]) -> float:
    """Return how long a call takes when nothing else holds it up."""
    took_s = []
    for _ in range(_REPETITIONS):
        began_s = time.monotonic()
        call()
        took_s.append(time.monotonic() - began_s)
    return max(min(took_s), 1e-9)
