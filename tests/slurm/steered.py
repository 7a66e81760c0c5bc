"""The workflow of `test_policy.py`: two tasks whose saves a plan decides, one on each node.

    ckptflow run steered.py -- FOLDER SIZE PAUSE_S

Each appends a line of JSON to FOLDER/NAME.jsonl for whatever it does, as those of `counting`
do. When FOLDER/enough exists they stop to compute, and wait for FOLDER/over to end: meanwhile
nothing changes in the store. The last line of stdout has the digests of the results.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import ckptflow as cf

TASKS = ("task0", "task1")
PART = 128  # Of the state, this part changes in a step.


def start(name, size):
    """The state before the first step: whole numbers, so that every bit is known."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return {"i": 0, "x": np.arange(size, dtype=np.uint64) * np.uint64(seed)}


def advance(state):
    """One step: a part changes, in a way that depends on the part before it."""
    x, i = state["x"], state["i"]
    width = len(x) // PART
    before, now = (x[at % PART * width :][:width] for at in (i, i + 1))
    now *= np.uint64(6364136223846793005)
    now += np.uint64(int(before.sum()) % 2**63)
    state["i"] += 1


def digest(state):
    return hashlib.sha256(state["x"].tobytes()).hexdigest()


def undisturbed(name, size, steps):
    """What the task called ``name`` returns if nothing happens to it."""
    state = start(name, size)
    for _ in range(steps):
        advance(state)
    return digest(state)


@cf.python_app(key=("name",))
def count(name, folder, size, pause_s, ckpt):
    import os
    import socket
    import time

    def say(event, step):
        where = {"host": socket.gethostname(), "pid": os.getpid(), "parent": os.getppid()}
        job = int(os.environ.get("SLURM_JOB_ID", "0"))
        line = {"time": time.time(), "event": event, "step": step, "attempt": ckpt.attempt}
        with Path(folder, f"{name}.jsonl").open("a", buffering=1) as file:
            file.write(json.dumps({**line, **where, "job": job}) + "\n")

    def is_safe(ticket):
        try:
            ticket.wait(timeout_s=0.0)  # Wherever it was to go.
        except TimeoutError:
            return False
        return True

    state = ckpt.restore(start(name, size))
    say("start", state["i"])
    tickets = []
    while not Path(folder, "enough").exists():
        time.sleep(pause_s)
        advance(state)
        say("computed", state["i"])
        ticket = ckpt.step(state["i"], state)
        if ticket is not None:
            tickets.append(ticket)
        while tickets and is_safe(tickets[0]):
            say("durable", tickets.pop(0).step)
    for ticket in tickets:
        ticket.wait()
        say("durable", ticket.step)
    say("end", state["i"])
    while not Path(folder, "over").exists():
        time.sleep(0.05)
    return digest(state)


def main(folder, size, pause_s):
    Path(folder).mkdir(parents=True, exist_ok=True)
    with cf.run("steered", retries=12):
        futures = {name: count(name, folder, size, pause_s) for name in TASKS}
        results = {name: future.result() for name, future in futures.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
