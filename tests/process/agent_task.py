"""A task whose checkpoints an agent copies; it says what happens, and goes on when told.

Its arguments are a folder, its name, options of `Flushing` as JSON, and maybe the word
``drifting``: then a save changes little of the state. In the folder are the
tiers: ``inner`` (level 1), ``shared`` (level 3, holds the claims, gets the first checkpoint),
``site/far`` (level 4). Each line that it reads is a command: ``save``, ``saves`` (twenty),
``wait`` for the far tier, or ``close``. It answers each with a line.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np

from ckptflow import Checkpointer, PosixTier
from ckptflow.flush import Flushing

PLACES = {"inner": ("inner", 1), "shared": ("shared", 3), "far": ("site/far", 4)}
SIZE = 20_000


def tiers_in(folder: Path) -> list[PosixTier]:
    return [
        PosixTier(folder / path, name=name, level=level)
        for name, (path, level) in PLACES.items()
    ]


def state_of(step: int) -> dict[str, object]:
    return {"w": np.random.default_rng(step).standard_normal(SIZE), "i": step}


def drifting_state_of(step: int) -> dict[str, object]:
    """Of which each step changes a twentieth, and a little of the rest."""
    w = np.random.default_rng(0).standard_normal(SIZE)
    part = SIZE // 20
    for earlier in range(1, step + 1):
        w[(earlier % 20) * part :][:part] = np.random.default_rng(earlier).standard_normal(part)
    return {"w": w, "i": step}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    folder, task, flushing = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    state_at = drifting_state_of if "drifting" in sys.argv[4:] else state_of
    warnings.simplefilter("ignore")
    ckpt = Checkpointer(
        tiers_in(folder),
        run="exp",
        task=task,
        every="never",
        keep=2,
        flush_every={"shared": 1_000_000_000},
        flushing=Flushing(**{"agent": True, "retry_s": 0, **flushing}),
        rng=False,
    )
    state = ckpt.restore(lambda: state_at(0))
    say(f"resumed {state['i']}")
    step, ticket = int(state["i"]), None
    for line in sys.stdin:
        command = line.strip()
        if command == "save":
            step += 1
            ticket = ckpt.save(step, state_at(step))
            ticket.wait()
            say(f"saved {step}")
        elif command == "wait":
            ticket.wait(4)
            say(f"far {step}")
        elif command == "saves":
            for _ in range(20):
                step += 1
                ticket = ckpt.save(step, state_at(step))
                ticket.wait()
            say(f"saved {step}")
        elif command == "close":
            ckpt.close()
            say("closed")
        elif command == "end":
            break


if __name__ == "__main__":
    main()
