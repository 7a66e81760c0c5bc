"""How long the plan of a restart takes for a run of ten thousand tasks, and what it weighs.

The run is laid out as the workflow leaves it: a journal with two starts, a store in which each
task has attempts and two checkpoints, and a script that has changed since. Manifests are there
in name only: a plan lists them and reads none.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import tracemalloc
from pathlib import Path

from report import Claim, Row, arguments, finish, require

from ckptflow.model import CheckpointId, LineageId, attempt_key
from ckptflow.store.descriptor import ensure_store
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow.journal import Journal
from ckptflow.workflow.planning import plan_restart
from ckptflow.workflow.sources import parts_in

GOAL_S = 5.0
BYTES_A_TASK = 20_000
SCRIPT = "def step(x):\n    return x + 1\n\n\ndef work(x):\n    return step(x)\n"


def lay_out(folder: Path, tasks: int) -> Path:
    """Make a run, half of whose tasks are finished; return its store."""
    script, store = folder / "flow.py", folder / "store"
    script.write_text(SCRIPT)
    ensure_store(PosixTier(store))
    with Journal(store / "runs" / "exp" / "journal.jsonl") as journal:
        for _ in range(2):
            journal.add("run-started", argv=["flow.py"], folder=str(folder), site="local")
            parts = parts_in(script, "work", folder)
            where = {"file": str(script), "name": "work", "folder": str(folder)}
            journal.add("app-defined", app="work", code="c", version=None, parts=parts, **where)
            for number in range(tasks):
                known = {"task": f"work-x={number}", "id": number}
                made_of = {"code": "c", "arguments": {"steps": "100"}}
                journal.add("task-launched", tries=1, **known, **made_of)
                if number % 2:
                    journal.add("task-finished", remembered=True, **known)
    for number in range(tasks):
        lineage = store / LineageId("exp", f"work-x={number}").prefix
        for name in ("manifests", "attempts", "packs"):
            (lineage / name).mkdir(parents=True)
        for key in (CheckpointId(step, 1).manifest_key for step in (10, 20)):
            (lineage / key).touch()
        (lineage / "packs" / f"{20:012d}.{1:08d}.0000.{number:016x}.pack").touch()
        for what in ("claim", "resume"):
            (lineage / attempt_key(1, what)).touch()
    script.write_text(SCRIPT.replace("x + 1", "x + 2"))
    return store


def main() -> None:
    """Measure, print, claim."""
    given = arguments(__doc__)
    tasks = 1000 if given.quick else 10_000
    folder = Path(tempfile.mkdtemp(prefix="ckptflow-bench-"))
    try:
        store = lay_out(folder, tasks)
        seconds = []
        for _ in range(3):
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            plan = plan_restart("exp", store=store)
            seconds.append(time.perf_counter() - began_s)
            cpu_s = time.process_time() - began_cpu_s
            require(len(plan.tasks) == tasks, "a task is missing")
            require(plan.tasks[0].resume_step == 20, "a task goes on from another step")
            require(all(one.changes for one in plan.tasks), "a change was not seen")
        tracemalloc.start()
        plan_restart("exp", store=store)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        shutil.rmtree(folder)
    row: Row = {
        "tasks": tasks,
        "first s": round(seconds[0], 3),
        "best s": round(min(seconds), 3),
        "of that CPU s": round(cpu_s, 3),
        "bytes a task": round(peak_bytes / tasks),
    }
    claims = [
        Claim("restart_plan_s", max(seconds), "<=", GOAL_S),
        Claim("restart_plan_bytes_a_task", peak_bytes / tasks, "<=", BYTES_A_TASK),
    ]
    finish(f"the plan of {tasks} tasks", [row], claims, given.json_path)


if __name__ == "__main__":
    main()
