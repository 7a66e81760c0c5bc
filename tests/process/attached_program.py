"""A program inside a bash app: attaches to the attempt, and is stopped by a signal once."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

import ckptflow

with ckptflow.attach() as ckpt:
    state = ckpt.restore({"i": 0, "w": np.ones(100)})
    while state["i"] < int(sys.argv[1]):
        state["i"] += 1
        state["w"] *= 1.5
        if state["i"] == 4 and ckpt.attempt == 1:
            os.kill(os.getpid(), signal.SIGUSR2)
        ckpt.step(state["i"], state)
    sys.stdout.write(f"{ckpt.attempt} {ckpt.restored_step} {state['w'].sum()!r}\n")
