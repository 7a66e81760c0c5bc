"""The loop that `test_tuned_loop.py` watches: NumPy, an interval, and a line for each save.

It has no end. A line says the step, what the save blocked, what was computed since
the one before, and the decision's reason.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from ckptflow.checkpointer import Checkpointer


def main(store: str, every: str) -> None:
    with Checkpointer(store, every=every, keep=2) as ckpt:
        state = ckpt.restore({"i": 0, "w": np.zeros(500_000), "fixed": np.ones(500_000)})
        computed_s = 0.0
        while True:
            began_s = time.monotonic()
            state["i"] += 1
            state["w"] += np.sin(state["w"] + state["i"])
            computed_s += time.monotonic() - began_s
            reason = ckpt.decide(state["i"]).reason
            began_s = time.monotonic()
            if ckpt.step(state["i"], state) is None:
                continue
            blocked_s = time.monotonic() - began_s
            line = [state["i"], blocked_s, computed_s, reason]
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            computed_s = 0.0


if __name__ == "__main__":
    main(*sys.argv[1:])
