"""Ten thousand tasks in one run: memory stays flat, and the plan of a restart takes seconds.

A script sends tasks in windows, as one does whose results are small, and looks at its memory
after each. Every tenth task saves a checkpoint; every hundredth saves one and fails. Then the
plan of a restart is asked for on the command line, and the same script is run again: what has
finished is reused, what has failed goes on from its checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from report import Claim, arguments, finish, require

GROWTH_GOAL, PLAN_GOAL_S = 1.25, 5.0
WINDOWS = 20
RUN = "many"

# What a user would write.
SCRIPT = """
import json
import sys
import time
from pathlib import Path

import psutil

import ckptflow as cf

TASKS, WINDOWS = int(sys.argv[1]), int(sys.argv[2])


@cf.python_app(key=("number",), every=1)
def work(number, ckpt):
    if number % 10:
        return number
    state = ckpt.restore({"i": 0, "number": number})
    first = state["i"] == 0
    if first:
        state["i"] = 1
        ckpt.step(1, state)
        if number % 100 == 0:
            raise ValueError("it is the hundredth")
    return number


if __name__ == "__main__":
    began_s, memory, wrong = time.perf_counter(), [], 0
    with cf.run("many", site="local", store=sys.argv[3], retries=0) as run:
        size = TASKS // WINDOWS
        for first in range(0, TASKS, size):
            numbers = range(first, first + size)
            futures = [work(number) for number in numbers]
            for number, future in zip(numbers, futures, strict=True):
                error = future.exception()
                wrong += error is None and future.result() != number
            del futures, future, error
            memory.append(psutil.Process().memory_info().rss)
    states = [task.status for task in run.summary().tasks]
    found = {name: states.count(name) for name in set(states)}
    seconds = time.perf_counter() - began_s
    Path(sys.argv[4]).write_text(
        json.dumps({"memory": memory, "states": found, "wrong": wrong, "seconds": seconds})
    )
"""


def life(script: Path, tasks: int, folder: Path) -> dict[str, Any]:
    """Run the script; return what it found."""
    found = folder / "found.json"
    words = [str(script), str(tasks), str(WINDOWS), str(folder / "store"), str(found)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    subprocess.run(
        [sys.executable, *words], check=True, cwd=folder, env=environment, capture_output=True
    )
    life: dict[str, Any] = json.loads(found.read_text())
    require(life["wrong"] == 0, "a task returned something else than it was given")
    return life


def plan(folder: Path) -> tuple[float, dict[str, int]]:
    """Return how long the plan of a restart takes a user, and what it plans."""
    began_s = time.perf_counter()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ckptflow.cli", "restart", RUN, "--dry-run", "--json"),
            *("--store", str(folder / "store")),
        ],
        check=True,
        cwd=folder,
        capture_output=True,
    )
    seconds = time.perf_counter() - began_s
    actions = [task["action"] for task in json.loads(done.stdout)["plan"]["tasks"]]
    return seconds, {action: actions.count(action) for action in set(actions)}


def main() -> None:
    """Measure, print, claim."""
    given = arguments(__doc__)
    tasks = 2_000 if given.quick else 10_000
    with tempfile.TemporaryDirectory(prefix="ckptflow-bench-") as name:
        folder = Path(name)
        script = folder / "script.py"
        script.write_text(SCRIPT)
        first = life(script, tasks, folder)
        plan_s, actions = plan(folder)
        second = life(script, tasks, folder)
    failed = tasks // 100
    require(first["states"] == {"finished": tasks - failed, "failed": failed}, f"{first}")
    require(second["states"] == {"reused": tasks - failed, "finished": failed}, f"{second}")
    require(sum(actions.values()) == tasks, f"the plan names {actions}")
    memory = first["memory"]
    early, late = memory[WINDOWS // 5], memory[-1]
    per_task_bytes = (late - early) / (tasks * (1 - 1 / 5))
    row = {
        "tasks": tasks,
        "first life s": round(first["seconds"], 1),
        "memory early MiB": round(early / 2**20),
        "memory late MiB": round(late / 2**20),
        "bytes a task": round(per_task_bytes),
        "plan s": round(plan_s, 2),
        "second life s": round(second["seconds"], 1),
    }
    claims = [
        Claim("many_tasks_memory_late_over_early", late / early, "<=", GROWTH_GOAL),
        Claim("many_tasks_restart_plan_s", plan_s, "<=", PLAN_GOAL_S),
    ]
    finish(f"{tasks} tasks in one run", [row], claims, given.json_path)


if __name__ == "__main__":
    main()
