"""Two workflows on real Slurm under a random failure every 5 seconds: no result may be wrong.

A private cluster has nodes for two workflows of 50 tasks, each of 20 steps with a checkpoint
after each. Every 5 seconds one of them is struck: a worker or a manager is killed, a node
crashes and is switched on again later, an allocation is cancelled. A workflow that ends with
failed tasks is started again by the same command; one that has finished makes room for a
new one, until the time is over. Each result is compared with that of an undisturbed task, bit
by bit. The order of the failures follows from the seed; when they meet whom does not.

Needs root and Slurm; without them it says so.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
for _folder in ("services", "slurm"):
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / _folder))

from disturbed_run import DisturbedRun, Plan  # noqa: E402
from machines import command_of  # noqa: E402
from report import Claim, finish, parser, require  # noqa: E402
from slurm_cluster import Node, SlurmCluster, running, why_not  # noqa: E402
from slurm_conf import Settings  # noqa: E402

TASKS, STEPS = 50, 20
NODES, WORKFLOWS = 3, 2
EVERY_S = 5.0
RESTARTS_MAX = 20  # By the same command; a workflow that needs more of them does not get on.
WORKER, MANAGER = "spawn_main", "-m ckptflow.workflow.blocks.pool"


class Lane:
    """One workflow after the other on nodes of its own, until somebody says stop.

    Attributes:
        wrong: results that were not those of an undisturbed task.
        finished: workflows that finished, and tasks in them.
        restarts: times that the same command was given again, and why.
        interrupted: attempts of tasks that were interrupted; steps and seconds lost by that.
    """

    def __init__(
        self, name: str, cluster: SlurmCluster, numbers: list[int], folder: Path, pause_s: float
    ) -> None:
        self._name, self._cluster, self._numbers = name, cluster, numbers
        self._folder = folder
        self._plan = Plan(nodes=NODES, blocks=NODES, steps=STEPS, pause_s=pause_s, tasks=TASKS)
        self.wrong: list[str] = []
        self.finished = self.restarts = self.again = self.interrupted = 0
        self.lost_s = 0.0
        self.reasons: list[str] = []
        self.failure: BaseException | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the first workflow has computed something."""
        return any((self._folder / "0" / "tasks").glob("*.jsonl"))

    def work(self, is_over: Callable[[], bool]) -> None:
        """Run workflows; what goes wrong is kept for whoever waits."""
        try:
            while not is_over():
                self._one()
        except BaseException as error:  # noqa: BLE001  The thread ends here.
            self.failure = error

    def _one(self) -> None:
        folder = self._folder / str(self.finished)
        run = DisturbedRun(self._name, self._plan, self._cluster, self._numbers, folder)
        try:
            for _ in range(RESTARTS_MAX):
                run.start()
                status = run.end()
                if status == 0:
                    break
                self.restarts += 1
                self.reasons += run.errors.strip().splitlines()[-1:]
            require(status == 0, f"{self._name} does not finish: {run.errors[-2000:]}")
            result = run.result(run.printed())
        finally:
            run.close()
        self.wrong += [
            task for task, digest in result.expected.items() if result.digests[task] != digest
        ]
        self.finished += 1
        self.interrupted += len(result.failures)
        self.again += sum(failure.lost_steps for failure in result.failures)
        self.lost_s += sum(failure.lost_s for failure in result.failures)


class Striker:
    """Lets something fail every now and then.

    Args:
        cluster: where.
        seed: decides what comes after what.
    """

    def __init__(self, cluster: SlurmCluster, seed: int) -> None:
        self._cluster, self._random = cluster, random.Random(seed)
        self._down: list[Node] = []
        self.struck: Counter[str] = Counter()

    def strike(self) -> None:
        """Let one thing fail, if there is one of its kind."""
        kind = self._random.choice(["worker", "worker", "manager", "node", "allocation"])
        chance = self._random.random()
        if len(self._down) > 1:
            self._down.pop(0).start()
        jobs = [job for job in self._cluster.jobs() if job.state == "RUNNING"]
        if not jobs:
            return
        job = jobs[int(chance * len(jobs))]
        node = self._cluster.node(job.nodes)
        if kind == "allocation":
            self._cluster.command("scancel", str(job.number), check=False)
        elif kind == "node":
            node.fail()
            self._down.append(node)
        else:
            what = WORKER if kind == "worker" else MANAGER
            found = [pid for pid in node.machine.pids() if what in command_of(pid)]
            if not found:
                return  # They are not there yet.
            os.kill(found[int(chance * 7919) % len(found)], signal.SIGKILL)
        self.struck[kind] += 1

    def mend(self) -> None:
        """Switch on again what is off."""
        while self._down:
            self._down.pop().start()


def soak(
    folder: Path, seconds: float, *, pause_s: float, seed: int
) -> tuple[list[Lane], Striker]:
    """Let workflows run and fail for so long, and finish then."""
    names = [f"lane{number}" for number in range(WORKFLOWS)]
    nodes = {
        name: list(range(1 + NODES * number, 1 + NODES * (number + 1)))
        for number, name in enumerate(names)
    }
    settings = Settings(nodes=NODES * WORKFLOWS, partitions=nodes)
    with running(folder / "cluster", settings) as cluster:
        striker, over = Striker(cluster, seed), threading.Event()
        lanes = [Lane(name, cluster, nodes[name], folder / name, pause_s) for name in names]
        threads = [threading.Thread(target=lane.work, args=(over.is_set,)) for lane in lanes]
        for thread in threads:
            thread.start()
        while not all(lane.is_under_way or lane.failure for lane in lanes):
            time.sleep(0.2)  # Waits for other processes; there is no event for it.
        began_s = time.monotonic()
        for number in range(1, 1 + round(seconds / EVERY_S)):
            time.sleep(max(0.0, began_s + number * EVERY_S - time.monotonic()))
            if any(thread.is_alive() for thread in threads):
                striker.strike()
        over.set()
        striker.mend()
        for thread in threads:
            thread.join()
    for lane in lanes:
        if lane.failure is not None:
            raise lane.failure
    return lanes, striker


def main() -> None:
    """Measure, print, claim."""
    words = parser(__doc__)
    words.add_argument(
        "--seconds", type=float, help="how long things fail; 600, or 60 with --quick"
    )
    words.add_argument("--seed", type=int, default=1, help="of what fails")
    given = words.parse_args()
    if reason := why_not():
        print(f"soak: nothing was done: {reason}")
        return
    seconds = given.seconds or (60.0 if given.quick else 600.0)
    with tempfile.TemporaryDirectory(prefix="ckptflow-soak-") as folder:
        began_s = time.monotonic()
        lanes, striker = soak(
            Path(folder), seconds, pause_s=0.02 if given.quick else 0.1, seed=given.seed
        )
        took_s = time.monotonic() - began_s
    finished = sum(lane.finished for lane in lanes)
    wrong = [task for lane in lanes for task in lane.wrong]
    interrupted = sum(lane.interrupted for lane in lanes)
    again = sum(lane.again for lane in lanes)
    row = {
        "seconds": round(took_s),
        "failures": sum(striker.struck.values()),
        **{
            f"{kind}s": striker.struck[kind]
            for kind in ("worker", "manager", "node", "allocation")
        },
        "workflows finished": finished,
        "tasks": finished * TASKS,
        "interrupted tasks": interrupted,
        "steps computed again": again,
        "same command again": sum(lane.restarts for lane in lanes),
        "wrong results": len(wrong),
    }
    for reason in [reason for lane in lanes for reason in lane.reasons]:
        print(f"started again after: {reason[:300]}")
    lost_s = sum(lane.lost_s for lane in lanes) / max(1, interrupted)
    claims = [
        Claim("soak_wrong_results", len(wrong), "<=", 0),
        Claim("soak_finished_workflows", finished, ">=", WORKFLOWS),
        Claim("soak_work_lost_s_per_interrupted_task", lost_s, "<=", 1),
    ]
    finish(
        f"{WORKFLOWS} workflows of {TASKS} tasks of {STEPS} steps", [row], claims, given.json
    )
    require(not wrong, f"wrong results: {json.dumps(wrong)}")
    require(interrupted > 0, "no task was interrupted: this shows nothing")


if __name__ == "__main__":
    main()
