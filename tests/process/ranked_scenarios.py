"""Workflows whose tasks have ranks and meet misfortunes; a script, run by test_ranked_tasks.

    ranked_scenarios.py SCENARIO FOLDER

Prints one JSON object: per name what came of it. Ranks tell in files of FOLDER what they met.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import ckptflow as cf
from ckptflow.errors import Preempted
from ckptflow.site import load_site

ROWS = 12


class Mine(Exception):
    """Defined by the script; ranks have a copy of it only."""


def start(rank, world):
    first, last = ROWS * rank // world, ROWS * (rank + 1) // world
    rows = np.arange(float(first), last)[:, None] * np.ones(50)
    return {"i": 0, "w": np.ones(200), "rows": cf.Box(rows, (first, 0), (ROWS, 50))}


def advance(state):
    state["i"] += 1
    state["w"] *= 1.25
    state["rows"].array[:] = state["rows"].array * 1.5 + state["i"]


def die_within_save(ckpt, step):
    """Have this process killed when the packs of a step are there, and its manifest is not."""
    tier = ckpt.lineage.tiers[0]
    put = tier.put

    def deadly(key, parts):
        put(key, parts)
        if f"packs/{step:012d}" in key:
            os.kill(os.getpid(), signal.SIGKILL)

    tier.put = deadly


def tell(folder, name, *words):
    with (Path(folder) / name).open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


@cf.python_app(key=("name",), ranks=2, every=1, replicated=["i", "w"])
def grow(name, steps, misfortune, folder, ckpt):
    state = ckpt.restore(start(ckpt.rank, ckpt.world))
    tell(folder, name, ckpt.attempt, ckpt.rank, ckpt.world, os.getpid(), ckpt.restored_step)
    is_victim = ckpt.attempt == 1 and ckpt.rank == ckpt.world - 1
    if misfortune == "within-save" and is_victim:
        die_within_save(ckpt, 3)
    while state["i"] < steps:
        if misfortune == "signal" and ckpt.attempt == 1:
            time.sleep(0.02 * (1 + ckpt.rank))  # One is far ahead of the other.
        advance(state)
        if misfortune == "signal" and is_victim and state["i"] == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        if misfortune == "raise" and ckpt.rank == 1:
            raise Mine("no more", [1, 2])
        if misfortune == "hang" and ckpt.attempt == 1 and state["i"] == 4:
            ckpt.wait()
            tell(folder, f"{name}-hangs", ckpt.rank, os.getpid(), os.getppid())
            time.sleep(600)
        try:
            ckpt.step(state["i"], state)
        except Preempted:
            tell(folder, f"{name}-stops", ckpt.rank, state["i"])
            raise
    ckpt.wait()
    if ckpt.world > 1:
        return [ckpt.attempt, ckpt.restored_step, float(state["w"].sum())]
    whole = state["rows"].array
    return [ckpt.attempt, ckpt.restored_step, whole.tobytes().hex()[-512:], state["w"].sum()]


@cf.python_app(ranks=3)
def plain(word):
    """Takes no checkpoints."""
    return [word, os.environ["RANK"], os.environ["WORLD_SIZE"], "MASTER_PORT" in os.environ]


@cf.bash_app(key=("name",), ranks=2, every="1s")
def command(name, line, ckpt, stderr=None):
    return line.format(launch=ckpt.launch, python=sys.executable, here=Path(__file__).parent)


def outcome(future):
    try:
        return {"value": future.result()}
    except Exception as error:  # noqa: BLE001  It is what is asked for.
        notes = getattr(error, "__notes__", [])
        return {"error": type(error).__name__, "text": str(error), "notes": notes,
                "mine": isinstance(error, Mine), "args": repr(error.args)}  # fmt: skip


def misfortunes(folder):
    """Many tasks, each with another misfortune; one goes on with another number of ranks."""
    found = {}
    line = "{launch} {python} {here}/ranked_program.py 4 && $PARSL_MPI_PREFIX {python} "
    line += "{here}/ranked_program.py 7"
    with cf.run(
        "exp",
        site="local_threads",
        store=folder / "store",
        retries=1,
        retry_handler=lambda error, task: 9.0,
    ) as run:
        futures = {
            "lost": grow("lost", 6, "within-save", folder),
            "told": grow("told", 150, "signal", folder),
            "raised": grow("raised", 3, "raise", folder),
            "plain": plain("here"),
            "bash": command("a", line, stderr=str(folder / "stderr")),
            "exits": command("exits", "exit 3"),
            "straight": grow.on(ranks=1)("straight", 8, None, folder),
        }
        found = {name: outcome(future) for name, future in futures.items()}
        found["one"] = outcome(grow.on(ranks=1)("lost", 8, None, folder))
    return found, run


def hangs(folder):
    """The ranks of a task hang within step 4; somebody ends them, or what started them."""
    site = load_site(os.environ["SITE"], overrides={"executor.workers": 1})
    app = grow.on(ranks=2, launcher=os.environ.get("LAUNCHER"))
    with cf.run("exp", site=site, store=folder / "store", retries=1) as run:
        found = {"hangs": outcome(app("a", 7, "hang", folder))}
    return found, run


def elastic(folder):
    """The same task on four, two and three ranks, with further to go each time."""
    found = {}
    with cf.run("exp", site="local_threads", store=folder / "store", retries=0) as run:
        for ranks, steps in ((4, 3), (2, 5), (3, 8)):
            app = grow.on(ranks=ranks, launcher=os.environ.get("LAUNCHER"))
            found[f"{ranks}"] = outcome(app("a", steps, None, folder))
        found["1"] = outcome(grow.on(ranks=1)("a", 9, None, folder))
        found["straight"] = outcome(grow.on(ranks=1)("b", 9, None, folder))
    return found, run


def torchrun(folder):
    """A rank dies, and torchrun starts all of them again within the task."""
    line = "{python} -m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=1 "
    line += "{here}/ranked_torch.py 6"
    with cf.run("exp", site="local_threads", store=folder / "store", retries=0) as run:
        app = command.on(every=1)
        found = {"torch": outcome(app("torch", line, stderr=str(folder / "stderr")))}
    return found, run


SCENARIOS = {
    "torchrun": torchrun,
    "misfortunes": misfortunes,
    "hangs": hangs,
    "elastic": elastic,
}


def main(name, folder):
    found, run = SCENARIOS[name](Path(folder))
    print(json.dumps({"found": found, "summary": run.summary().as_json()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
