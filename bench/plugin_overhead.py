"""What ckptflow adds to a task that does nothing: the same tasks with Parsl alone and with it.

Both sides use the same executor, of the same Config, in the same process: tasks are sent with
Parsl's decorator and with ours, in batches that take turns, so that whatever else the machine
does meets both. Parsl alone does not remember results; ckptflow does, in a file, and keeps
its journal. The goal is for worker processes; threads, where a task costs Parsl a third of a
millisecond, are measured for information.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import parsl
from report import Claim, Row, arguments, finish, ratio, require

import ckptflow as cf

GOAL = 1.15
BATCH = 50


@parsl.python_app
def bare(x: int) -> int:
    return x


@cf.python_app(key=("x",))
def checkpointed(x: int, ckpt: Any) -> int:  # noqa: ARG001 - it is what is measured.
    return x


def batch(app: Callable[..., Any], numbers: range) -> float:
    """Submit one task a number, wait for all; return the seconds it took."""
    began = time.perf_counter()
    futures = [app(number) for number in numbers]
    results = [future.result() for future in futures]
    seconds = time.perf_counter() - began
    require(results == list(numbers), "a task returned something else than it was given")
    return seconds


def measure(site: str, tasks: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each batch: with Parsl alone, and with ckptflow."""
    alone, ours = [], []
    with (
        tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as store,
        cf.run("overhead", site=site, store=store) as run,
    ):
        batch(bare, range(BATCH))  # Workers start, pages and caches warm up.
        batch(checkpointed, range(-BATCH, 0))
        for start in range(0, tasks, BATCH):
            numbers = range(start, start + BATCH)
            pair = [(alone, bare), (ours, checkpointed)]
            for seconds, app in pair if start % (2 * BATCH) else reversed(pair):
                seconds.append(batch(app, numbers))
        require(not (Path(store) / "lineages").exists(), "an idle task wrote to the store")
    require(run.exit_code == 0, "the run did not end well")
    require(len(run.summary().tasks) == tasks + BATCH, "a task is missing in the summary")
    return alone, ours


def row(executor: str, alone: list[float], ours: list[float], tasks: int) -> Row:
    return {
        "executor": executor,
        "tasks": tasks,
        "parsl ms/task": round(1e3 * sum(alone) / tasks, 3),
        "ckptflow ms/task": round(1e3 * sum(ours) / tasks, 3),
        "ratio of totals": round(sum(ours) / sum(alone), 3),
        "median ratio": round(ratio(ours, alone), 3),
    }


def main() -> None:
    """Measure, print, claim."""
    given = arguments(__doc__)
    tasks = 1000 if given.quick else 4000
    rows, overhead = [], 0.0
    for executor, site in (("htex", "local"), ("threads", "local_threads")):
        alone, ours = measure(site, tasks)
        rows.append(row(executor, alone, ours, tasks))
        if executor == "htex":
            # The median of pairs: one hiccup of the machine in one batch must not decide.
            overhead = ratio(ours, alone)
    claims = [Claim("plugin_overhead", overhead, "<=", GOAL)]
    finish(f"{tasks} tasks that do nothing", rows, claims, given.json_path)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
