"""What is done to running workflows: one function each, which follows what the tasks do.

A scenario gets a `DisturbedRun` that is not started yet, and returns what its last life
printed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from disturbed_run import DisturbedRun, Plan

Act = Callable[[DisturbedRun], str]


@dataclass(frozen=True)
class Scenario:
    """One of them.

    Attributes:
        name: what it is called.
        plan: what it starts with.
        act: what is done.
        fast: whether it belongs to the usual run.
        signals: whether it is about who gets which signal, so that the way in which Slurm
            tracks processes matters.
    """

    name: str
    plan: Plan
    act: Act
    fast: bool = False
    signals: bool = False


SCENARIOS: dict[str, Scenario] = {}

LIVES_MAX = 6
STRIKE = 6  # The step at which things happen.


def scenario(*, fast: bool = False, signals: bool = False, **plan) -> Callable[[Act], Act]:
    """Put a function into `SCENARIOS`, under its name."""

    def put(act: Act) -> Act:
        SCENARIOS[act.__name__] = Scenario(
            act.__name__, Plan(**plan), act, fast=fast, signals=signals
        )
        return act

    return put


@scenario(signals=True, walltime="2min", margin="15s", steps=100_000, pause_s=0.5, tasks=1)
def walltime_shorter_than_the_task(run: DisturbedRun) -> str:
    """The task works in three allocations, and is never caught by the end of one.

    On a machine so busy that workers start only when their allocation is about to end, the
    task is given up after some of them; then it is the same command again.
    """
    for _ in range(LIVES_MAX):
        run.start()
        if run.reaches_attempt(3):
            break
    run.wait_step(1, attempt=3)
    run.enough.touch()
    return run.finish()


@scenario(fast=True)
def worker_killed(run: DisturbedRun) -> str:
    run.start()
    line = run.wait_step(STRIKE)
    run.strikes("task0")
    run.kill_process(line, line.pid)
    return run.finish()


@scenario(nodes=2, fast=True)
def node_crashed(run: DisturbedRun) -> str:
    run.start()
    line = run.wait_all(STRIKE)
    run.strikes()
    run.node_of(line).fail()
    return run.finish()


@scenario(fast=True, signals=True)
def allocation_cancelled(run: DisturbedRun) -> str:
    run.start()
    line = run.wait_all(STRIKE)
    run.strikes()
    run.cluster.command("scancel", str(line.job))
    return run.finish()


@scenario(fast=True, steps=80)
def main_process_killed(run: DisturbedRun) -> str:
    """The same command again goes on, beside workers that still run."""
    run.start()
    run.wait_all(STRIKE)
    run.strikes()
    run.kill_main()
    run.start()
    return run.finish()


@scenario()
def undisturbed(run: DisturbedRun) -> str:
    """Nothing is done: what the others are compared with."""
    run.start()
    return run.finish()


@scenario()
def manager_killed(run: DisturbedRun) -> str:
    run.start()
    line = run.wait_all(STRIKE)
    run.strikes()
    run.kill_process(line, line.parent)
    return run.finish()


@scenario(nodes=3, nodes_per_block=2, tasks=4)
def node_of_two_crashed(run: DisturbedRun) -> str:
    """One node of a block of two; the other goes with it, and a third replaces it."""
    run.start()
    line = run.wait_all(STRIKE)
    run.strikes()
    run.node_of(line).fail()
    return run.finish()


@scenario(nodes=2, blocks=2, steps=60)
def node_frozen(run: DisturbedRun) -> str:
    """The node hangs, others take its tasks over, and then it wakes up: two writers."""
    run.start()
    line = run.wait_all(STRIKE)
    lost = [
        task for task in ("task0", "task1") if run.wait_step(1, task=task).host == line.host
    ]
    run.strikes(*lost)
    node = run.node_of(line)
    node.freeze()
    again = [run.wait_step(1, task=task, attempt=line.attempt + 1) for task in lost]
    run.notes["taken_over_at"] = {line.task: line.step for line in again}
    node.thaw()

    def are_over() -> bool:
        """The woken attempts have noticed, or are gone."""
        mine = [one for one in run.lines() if one.host == line.host and one.attempt == 1]
        noticed = {one.task for one in mine if one.event == "FencedError"}
        pids = {one.pid for one in mine if one.task not in noticed}
        return not any(run.find(node.machine, pid) for pid in pids)

    run.wait(are_over, "waits for the woken attempts to end")
    fenced = {one.task for one in run.lines() if one.event == "FencedError"}
    run.notes["fenced"] = sorted(fenced)
    return run.finish()


@scenario(signals=True)
def warned(run: DisturbedRun) -> str:
    """The signal that Slurm sends before the end of an allocation; and then the end."""
    run.start()
    line = run.wait_all(STRIKE)
    run.strikes()
    run.cluster.command("scancel", "--signal=USR2", str(line.job))

    def stopped() -> set[str]:
        return {one.task for one in run.lines() if one.event == "Preempted"}

    run.wait(lambda: len(stopped()) == 2, "waits for both tasks to stop")
    run.cluster.command("scancel", str(line.job))
    return run.finish()


@scenario(requeue=True, signals=True)
def requeued(run: DisturbedRun) -> str:
    """An allocation that Slurm starts again under the same number."""
    run.start()
    line = run.wait_all(STRIKE)
    run.strikes()
    run.cluster.command("scontrol", "requeue", str(line.job))
    return run.finish()


@scenario(partition="preemptible", signals=True)
def preempted(run: DisturbedRun) -> str:
    """Somebody more important needs the node for a while."""
    run.start()
    line = run.wait_all(STRIKE)
    run.strikes()
    run.cluster.command(
        *("sbatch", "--partition=urgent", f"--nodelist={line.host}", "--exclusive"),
        *("--output=/dev/null", "--wrap=sleep 1"),
    )
    return run.finish()


@scenario(steps=80)
def main_host_rebooted(run: DisturbedRun) -> str:
    """All processes beside the nodes are gone at once; the allocation lives on."""
    run.start()
    run.wait_all(STRIKE)
    run.strikes()
    run.login.kill()
    run.start()
    return run.finish()


@scenario()
def interchange_killed(run: DisturbedRun) -> str:
    """The run ends with an error that has a name; the same command again goes on."""
    run.start()
    run.wait_all(STRIKE)
    run.strikes()
    os.kill(run.interchange(), signal.SIGKILL)
    run.finish(status=1)
    run.notes["said"] = "The interchange of executor 'htex' has died" in run.errors
    run.start()
    return run.finish()


@scenario(nodes=2, local_tier=True)
def storage_lost_with_its_node(run: DisturbedRun) -> str:
    """Checkpoints are on the node first, and on shared storage a moment later."""
    run.start()
    line = run.wait_all(STRIKE)
    run.strikes()
    run.node_of(line).fail()
    return run.finish()


@scenario(nodes=2)
def scheduler_away(run: DisturbedRun) -> str:
    """All commands of the scheduler fail for a minute, and meanwhile a node crashes."""
    run.start()
    line = run.wait_all(STRIKE)
    run.scheduler_is_away.touch()
    run.strikes()
    run.node_of(line).fail()
    back_s = time.monotonic() + 60.0
    run.wait(lambda: time.monotonic() > back_s, "waits for a minute")
    run.notes["submissions_meanwhile"] = run.submissions() - 1
    run.scheduler_is_away.unlink()
    return run.finish()
