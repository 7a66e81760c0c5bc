"""A restore from far away has many reads under way at once, whatever the number of cores."""

from __future__ import annotations

import threading

import numpy as np

from ckptflow.checkpointer import Checkpointer
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier

AT_ONCE = 6


def test_reads_from_a_remote_tier_go_side_by_side() -> None:
    state = {"w": np.random.default_rng(5).integers(0, 256, 56 << 20, np.uint8)}
    inner = MemoryTier(level=4)
    with Checkpointer([inner], rng=False) as ckpt:
        ckpt.save(1, state).wait()
    lock, enough, running = threading.Lock(), threading.Event(), 0
    alone: list[str] = []

    def wait_for_others(operation: str, key: str) -> None:
        nonlocal running
        if operation != "read_into":
            return
        with lock:
            running += 1
            if running >= AT_ONCE:
                enough.set()
        if not enough.wait(60):
            alone.append(key)
        with lock:
            running -= 1

    with Checkpointer([FaultyTier(inner, wait_for_others)], rng=False) as ckpt:
        restored = ckpt.restore()
    assert not alone
    assert np.array_equal(restored["w"], state["w"])
