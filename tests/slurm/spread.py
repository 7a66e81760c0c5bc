"""A workflow with one task of several ranks on several nodes; run by test_ranks_on_slurm.

    ckptflow run spread.py --site SITE -- RANKS NODES STEPS PAUSE_S FOLDER

Ranks append a line of JSON to FOLDER/lines.jsonl for whatever they do. What the task returns on
one rank is a digest of all its rows.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import ckptflow as cf

ROWS = 24


def start(rank, world):
    first, last = ROWS * rank // world, ROWS * (rank + 1) // world
    rows = np.arange(float(first), last)[:, None] * np.ones(64)
    return {"i": 0, "rows": cf.Box(rows, (first, 0), (ROWS, 64))}


def advance(state):
    state["i"] += 1
    rows = state["rows"].array
    rows[:, state["i"] % 64] = np.cos(rows).sum(axis=1) + state["i"]


def undisturbed(steps):
    """What one rank returns if nothing happens."""
    state = start(0, 1)
    for _ in range(steps):
        advance(state)
    return hashlib.sha256(state["rows"].array.tobytes()).hexdigest()[:16]


@cf.python_app(key=(), ranks=2, every=5, replicated=["i"])
def spread(steps, pause_s, folder, ckpt):
    import os
    import socket
    import time

    from ckptflow.errors import Preempted

    def say(event, step):
        line = {"event": event, "step": step, "rank": ckpt.rank, "world": ckpt.world,
                "attempt": ckpt.attempt, "host": socket.gethostname(), "pid": os.getpid(),
                "job": os.environ.get("SLURM_JOB_ID")}  # fmt: skip
        with Path(folder, "lines.jsonl").open("a", buffering=1) as file:
            file.write(json.dumps(line) + "\n")

    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        from mpi4py import MPI

        assert (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) == (ckpt.rank, ckpt.world)
        together = MPI.COMM_WORLD.barrier
    else:
        together = None
    state = ckpt.restore(start(ckpt.rank, ckpt.world))
    say("start", state["i"])
    while state["i"] < steps:
        if together is not None:
            together()
        time.sleep(pause_s)
        advance(state)
        try:
            ckpt.step(state["i"], state)
        except Preempted:
            say("stop", state["i"])
            raise
        say("done", state["i"])
    return hashlib.sha256(state["rows"].array.tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    ranks, nodes, steps = map(int, sys.argv[1:4])
    with cf.run("spread", retries=3) as run:
        print(
            spread.on(ranks=ranks, nodes=nodes)(steps, float(sys.argv[4]), sys.argv[5]).result()
        )
    print(run.summary(), file=sys.stderr)
