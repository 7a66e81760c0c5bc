"""A rank of a bash app: attaches, saves each step, and says where it began and ended."""

from __future__ import annotations

import os
import sys

import numpy as np

import ckptflow

with ckptflow.attach(replicated=["i", "w"]) as ckpt:
    state = ckpt.restore({"i": 0, "w": np.ones(100)})
    while state["i"] < int(sys.argv[1]):
        state["i"] += 1
        state["w"] *= 1.5
        ckpt.save(state["i"], state)
        ckpt.step(state["i"], state)
    ckpt.wait()
    words = ckpt.rank, ckpt.world, ckpt.restored_step, ckpt.last_step, ckpt.attempt
    print(*words, "MASTER_ADDR" in os.environ, file=sys.stderr)
