"""A workflow whose blocks end; a script, run by test_ending. Prints what became of the tasks.

Arguments: the site file, a folder for notes, how often a task may be lost.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import ckptflow as cf

STEPS, WAITS_AT = 12, 5


@cf.python_app(key=("name",), every=10**6)
def count(name, notes, ckpt):
    """Saves only if it has to stop; the first attempt waits at a step, and would for ever."""
    state = ckpt.restore({"i": 0, "w": np.ones(1000)})
    while state["i"] < STEPS:
        state["i"] += 1
        state["w"] *= 1.01
        ckpt.step(state["i"], state)
        if state["i"] == WAITS_AT and ckpt.attempt == 1:
            Path(notes, name).write_text(str(os.getpid()))
            while True:
                time.sleep(0.02)
                ckpt.step(state["i"], state)
    block = os.environ["PARSL_WORKER_BLOCK_ID"]
    return [ckpt.attempt, ckpt.restored_step, block, float(state["w"].sum())]


@cf.python_app(key=("number",))
def small(number):
    """Saves nothing. There are more of them than workers, so that some wait in the queue."""
    return os.environ["PARSL_WORKER_BLOCK_ID"]


def main() -> None:
    site, notes, retries = sys.argv[1:4]
    with cf.run("exp", site=site, retries=int(retries)) as run:
        tasks = [count(name, notes) for name in "ab"]
        small_ones = [small(number) for number in range(4)]
        results = [task.result() for task in tasks]
        blocks = [one.result() for one in small_ones]
    summary = run.summary().as_json()
    print(json.dumps({"results": results, "blocks": blocks, "summary": summary}))


if __name__ == "__main__":
    main()
