"""The task that `test_kill9.py` kills: arrays, random numbers, and a checkpointer.

It says on stdout where it resumed, and which steps are durable as soon as it knows; at the end
it says what its state has come to.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import numpy as np

from ckptflow.checkpointer import Checkpointer


def initial() -> dict[str, Any]:
    return {
        "i": 0,
        "field": np.zeros((60, 200)),
        "counts": np.zeros(5000, np.int32),
        "history": [],
        "constant": np.arange(20_000.0),
        "rng": np.random.default_rng(1),
    }


def advance(state: dict[str, Any]) -> None:
    """One step, which depends on all that the state holds and on the process's generators."""
    rng, i = state["rng"], state["i"]
    state["field"][i % 60] += rng.standard_normal(200) * state["constant"][i]
    state["counts"][rng.integers(0, 5000, 50)] += 1
    state["history"].append(random.random() + float(state["field"].sum()))
    state["i"] = i + 1


def digest(state: dict[str, Any]) -> str:
    plain = (state["rng"].bit_generator.state, state["history"], random.getstate())
    total = hashlib.sha256(repr(plain).encode())
    for name in ("field", "counts", "constant"):
        total.update(state[name].tobytes())
    return total.hexdigest()


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(store: str, every: int, steps: int) -> None:
    random.seed(7)
    with Checkpointer(store, every=every) as ckpt:
        state = ckpt.restore(initial())
        say("resumed", ckpt.restored_step or 0)
        tickets = []
        while state["i"] < steps:
            advance(state)
            if (ticket := ckpt.step(state["i"], state)) is not None:
                tickets.append(ticket)
            for ticket in [one for one in tickets if one.durable]:
                tickets.remove(ticket)
                say("durable", ticket.step)
    say("final", digest(state))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
