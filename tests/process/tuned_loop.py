"""The loop that `test_tuned_loop.py` watches: NumPy, an interval, and a line for each save.

It has no end. A line says the step, and the reason of the decision.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from ckptflow.checkpointer import Checkpointer


def main(store: str, every: str) -> None:
    with Checkpointer(store, every=every, keep=2) as ckpt:
        state = ckpt.restore({"i": 0, "w": np.zeros(500_000), "fixed": np.ones(500_000)})
        while True:
            state["i"] += 1
            state["w"] += np.sin(state["w"] + state["i"])
            decision = ckpt.decide(state["i"])
            if decision.due:
                ckpt.save(state["i"], state)
                sys.stdout.write(json.dumps([state["i"], decision.reason]) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
