"""The workflow of the scenarios: a few tasks that count, save each step, and say what they do.

    ckptflow run counting.py -- STEPS PAUSE_S TASKS FOLDER

Each task appends a line of JSON to FOLDER/NAME.jsonl for whatever it does. A line is written
at once and whole, so the file tells what an attempt has done, however it ended. The last line
of stdout has the digests of the results. Tasks end before STEPS when FOLDER/enough exists.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import ckptflow as cf

SIZE = 20_000


def start(name):
    """The state before the first step: whole numbers, so that every bit is known."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return {"i": 0, "x": np.arange(SIZE, dtype=np.uint64) + np.uint64(seed)}


def advance(state):
    """One step: some of the numbers change, in a way that depends on all of them."""
    x = state["x"]
    head = x[: SIZE // 10]
    head *= np.uint64(6364136223846793005)
    head += np.uint64(int(x.sum()) % 2**63)
    x[:] = np.roll(x, 1)
    state["i"] += 1


def digest(state):
    return hashlib.sha256(state["x"].tobytes()).hexdigest()


def undisturbed(name, steps):
    """What the task called ``name`` returns if nothing happens to it."""
    state = start(name)
    for _ in range(steps):
        advance(state)
    return digest(state)


@cf.python_app(key=("name",), every=1)
def count(name, steps, pause_s, folder, ckpt):
    import os
    import socket
    import time

    from ckptflow.errors import CheckpointError

    def say(event, step, **more):
        where = {"host": socket.gethostname(), "pid": os.getpid(), "parent": os.getppid()}
        job = int(os.environ.get("SLURM_JOB_ID", "0"))
        line = {"time": time.time(), "event": event, "step": step, "attempt": ckpt.attempt}
        with Path(folder, f"{name}.jsonl").open("a", buffering=1) as file:
            file.write(json.dumps({**line, **where, "job": job, **more}) + "\n")

    def is_safe(ticket):
        try:
            ticket.wait(3, timeout_s=0.0)  # On storage that survives the node.
        except TimeoutError:
            return False
        return True

    state = ckpt.restore(start(name))
    say("start", state["i"])
    tickets = []
    try:
        while state["i"] < steps and not Path(folder, "enough").exists():
            time.sleep(pause_s)
            advance(state)
            say("computed", state["i"])
            ticket = ckpt.step(state["i"], state)
            if ticket is not None:
                tickets.append(ticket)
            while tickets and is_safe(tickets[0]):
                say("durable", tickets.pop(0).step)
    except CheckpointError as error:
        say(type(error).__name__, state["i"], text=str(error))
        raise
    say("end", state["i"])
    return digest(state)


def main(steps, pause_s, tasks, folder):
    Path(folder).mkdir(parents=True, exist_ok=True)
    with cf.run("counting", retries=6):
        futures = {
            f"task{number}": count(f"task{number}", steps, pause_s, folder)
            for number in range(tasks)
        }
        results = {name: future.result() for name, future in futures.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
