"""What `test_limited_saves.py` runs: saves of a process that may do little.

``arrays``: five hundred of them, with 64 open files at the most. ``full``: a save to a tier
that has no room for it, at the end of a script that looks at nothing.
"""

from __future__ import annotations

import json
import resource
import sys

import numpy as np

from ckptflow.checkpointer import Checkpointer
from ckptflow.tiers.memory import MemoryTier

COUNT = 500


def arrays(store: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    state = {f"layer.{number}": np.full(8, number) for number in range(COUNT)}
    with Checkpointer(store) as ckpt:
        ckpt.save(1, state)
        for number in range(0, COUNT, 100):
            state[f"layer.{number}"] += 1
        ckpt.save(2, state)
    with Checkpointer(store) as ckpt:
        back = ckpt.restore()
    equal = sum(bool((back[name] == value).all()) for name, value in state.items())
    sys.stdout.write(json.dumps([ckpt.restored_step, equal]) + "\n")


def full(_store: str) -> None:
    with Checkpointer(MemoryTier("small", capacity_bytes=20_000)) as ckpt:
        ckpt.save(1, {"w": np.random.default_rng(0).standard_normal(10_000)})


if __name__ == "__main__":
    {"arrays": arrays, "full": full}[sys.argv[1]](sys.argv[2])
