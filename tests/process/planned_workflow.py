"""A workflow under a multi-level policy: a task that dies at given steps, and one on ranks."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import ckptflow as cf

DIES_AT = {1: 40, 2: 70}


@cf.python_app(key=("seed",), version="1")
def count(seed, steps, ckpt):
    state = ckpt.restore({"i": 0, "w": np.zeros(20_000)})
    while state["i"] < steps:
        state["i"] += 1
        state["w"] += seed * state["i"]
        if state["i"] % 10:
            ckpt.step(state["i"], state)
        else:
            ckpt.save(state["i"], state)
        if state["i"] == DIES_AT.get(ckpt.attempt):
            ckpt.wait()
            os.kill(os.getpid(), signal.SIGKILL)
    return float(state["w"].sum())


@cf.python_app(ranks=2, version="1")
def together(steps, ckpt):
    state = ckpt.restore({"i": 0, "w": np.full(1000, float(ckpt.rank))})
    while state["i"] < steps:
        state["i"] += 1
        state["w"] += 1
        ckpt.step(state["i"], state)
    return float(state["w"].sum()) + ckpt.rank


def main(out: Path) -> None:
    with cf.run("planned", retries=9):
        one, two = count(3, 100), together(60)
        out.write_text(json.dumps([one.result(), two.result()]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
