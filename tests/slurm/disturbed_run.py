"""One workflow on the private Slurm cluster, what is done to it, and what is read off it.

The workflow (`counting.py`) runs on a login machine of its own, in allocations of a partition
of its own. Its tasks write down what they do; faults follow what is written, never a clock.
`Result` is what remains of it: whether the bits are those of an undisturbed run, which work
was lost at each failure, and how long it took until the work went on.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from counting import undisturbed
from machines import Machine, Program, command_of
from slurm_cluster import Node, SlurmCluster

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LIMIT_S = 600.0
HEARTBEAT_THRESHOLD_S = 6.0

_INTERCHANGE = "parsl: HTEX interchange"  # As it calls itself.
SCHEDULER_COMMANDS = ("sbatch", "squeue", "scancel", "sacct", "scontrol", "sinfo")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a scenario starts with.

    Attributes:
        nodes: how many nodes its partition has.
        nodes_per_block: how many of them an allocation has.
        blocks: allocations at the beginning, and at most.
        steps: what each task counts to.
        pause_s: how long it sleeps in each step.
        tasks: how many tasks.
        walltime: of an allocation.
        margin: how long before its end tasks have to be safe.
        partition: another partition than its own.
        requeue: whether Slurm may start an allocation again by itself.
        local_tier: whether checkpoints go to the node's own ``/local`` first.
    """

    nodes: int = 1
    nodes_per_block: int = 1
    blocks: int = 1
    steps: int = 30
    pause_s: float = 0.1
    tasks: int = 2
    walltime: str = "10min"
    margin: str = "30s"
    partition: str | None = None
    requeue: bool = False
    local_tier: bool = False


@dataclass(frozen=True)
class Line:
    """What a task wrote down."""

    task: str
    time: float
    event: str
    step: int
    attempt: int
    host: str
    pid: int
    parent: int
    job: int
    text: str = ""


@dataclass
class Failure:
    """A task that was interrupted, and went on.

    Attributes:
        task: which.
        durable_step: the newest step that it knew to be durable before.
        computed_step: the last step that it had computed before.
        resumed_step: from where it went on.
        lost_s: between when the step from which it went on was first complete, and the last.
        interval_s: the longest time between two steps, and so between two saves, before.
        save_s: the longest time from a step to knowing, at the end of a later one, that it is
            durable.
        resume_s: from what was done to it until it went on.
    """

    task: str
    durable_step: int
    computed_step: int
    resumed_step: int
    lost_s: float
    interval_s: float
    save_s: float
    resume_s: float

    @property
    def lost_steps(self) -> int:
        """Steps that had to be computed again."""
        return max(0, self.computed_step - self.resumed_step)


@dataclass
class Result:
    """What remains of a scenario."""

    scenario: str
    proctrack: str
    digests: Mapping[str, str]
    expected: Mapping[str, str]
    failures: list[Failure]
    allocations: int
    wall_s: float
    notes: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        failures = [
            {**asdict(failure), "lost_steps": failure.lost_steps} for failure in self.failures
        ]
        return {**asdict(self), "failures": failures}


class DisturbedRun:
    """One scenario while it runs.

    Args:
        name: of the scenario, and of its partition.
        plan: what it starts with.
        cluster: where.
        numbers: its nodes.
        folder: for everything that it writes, shared by all machines.
    """

    def __init__(
        self, name: str, plan: Plan, cluster: SlurmCluster, numbers: list[int], folder: Path
    ) -> None:
        self.name, self.plan, self.cluster, self.folder = name, plan, cluster, folder
        self.nodes: list[Node] = [cluster.node(number) for number in numbers]
        self.login: Machine = cluster.login(f"login-{name.replace('_', '-')}")
        self.scheduler_is_away = folder / "scheduler-is-away"
        self.notes: dict[str, Any] = {}
        self._events: list[tuple[float, set[str] | None]] = []
        self._program: Program | None = None
        self._lives = 0
        self._began_s = time.monotonic()
        folder.mkdir(parents=True)
        (folder / "site.toml").write_text(self.site())
        self._write_commands()

    # --- its life ---

    def start(self) -> None:
        """Start the workflow; again is the same command again."""
        if self._program is not None:
            self._program.wait(timeout=LIMIT_S)
        self.login.start()
        self._lives += 1
        out, err = (self.folder / f"{self._lives}.{what}" for what in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            self._program = self.login.popen(
                self.words, env=self.environment, cwd=self.folder, stdout=stdout, stderr=stderr
            )

    @property
    def words(self) -> list[str]:
        """What it is started by."""
        plan = self.plan
        return [
            *(sys.executable, "-m", "ckptflow.cli", "run", str(HERE / "counting.py")),
            *("--site", str(self.folder / "site.toml"), "--"),
            *(str(plan.steps), str(plan.pause_s), str(plan.tasks), str(self.folder / "tasks")),
        ]

    @property
    def environment(self) -> dict[str, str]:
        """What the workflow is started with."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        return {
            **kept,
            **self.cluster.env,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
        }

    def finish(self, *, status: int = 0) -> str:
        """Wait for the workflow, and return what it printed.

        Raises:
            AssertionError: it ended otherwise; with what it said.
        """
        try:
            found = self.end()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end. {self.story()}") from None
        assert found == status, f"{self.name} ended with {found}. {self.story()}"
        return self.printed()

    def end(self) -> int:
        """Wait for the workflow, and return its exit status."""
        assert self._program is not None
        return self._program.wait(timeout=LIMIT_S)

    def printed(self) -> str:
        """Return what the newest life printed."""
        return (self.folder / f"{self._lives}.out").read_text()

    @property
    def errors(self) -> str:
        """What the newest life wrote to stderr."""
        return (self.folder / f"{self._lives}.err").read_text(errors="replace")

    def story(self) -> str:
        """Return what is known, for whoever has to find out why it went wrong."""
        tails = [f"stderr: {self.errors[-3000:]}"]
        tails += [f"{line}" for line in self.lines()[-12:]]
        parsl = sorted(self.folder.rglob("submit_scripts/*.stderr"))
        tails += [f"{path.name}: {path.read_text()[-800:]}" for path in parsl[-3:]]
        return "\n".join([*tails, self.cluster.command("squeue", check=False)])

    def close(self) -> None:
        """End whatever is left of it, and put its nodes right."""
        self.scheduler_is_away.unlink(missing_ok=True)
        self.login.kill()
        if self._program is not None:
            self._program.wait()
        self.cluster.command("scancel", f"--partition={self.partition}", check=False)
        for node in self.nodes:
            node.thaw()

    # --- what its tasks have written ---

    def lines(self, task: str = "*") -> list[Line]:
        """Return what tasks have written, in the order of time."""
        found = []
        for path in sorted((self.folder / "tasks").glob(f"{task}.jsonl")):
            whole, _, _ = path.read_text().rpartition("\n")  # The last may be half written.
            found += [Line(task=path.stem, **json.loads(text)) for text in whole.splitlines()]
        return sorted(found, key=lambda line: line.time)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until something is so, and return what was answered.

        Raises:
            AssertionError: it does not become so, or the workflow has ended.
        """
        deadline_s = time.monotonic() + LIMIT_S
        while not (answer := condition()):
            assert self._program is not None
            ended = self._program.poll() is not None
            late = time.monotonic() > deadline_s
            if (ended or late) and not condition():
                how = f"ended with {self._program.returncode}" if ended else "is late"
                raise AssertionError(f"{self.name}: {what}; it {how}. {self.story()}")
            time.sleep(0.05)  # Waits for other processes; there is no event for it.
        return answer

    def wait_step(self, step: int, *, task: str = "task0", attempt: int = 1) -> Line:
        """Wait until an attempt has computed a step and knows that some step is durable."""

        def found() -> Line | None:
            mine = [line for line in self.lines(task) if line.attempt >= attempt]
            computed = [line for line in mine if line.event == "computed" and line.step >= step]
            durable = any(line.event == "durable" for line in mine)
            return computed[-1] if computed and durable else None

        line: Line = self.wait(found, f"waits for step {step} of {task}")
        return line

    def reaches_attempt(self, attempt: int, task: str = "task0") -> bool:
        """Wait until a task is in its n-th attempt, or the workflow has ended before that."""
        assert self._program is not None

        def begun() -> bool:
            found = [line.attempt for line in self.lines(task) if line.event == "start"]
            return max(found, default=0) >= attempt

        self.wait(lambda: begun() or self._program.poll() is not None, f"attempt {attempt}")
        return begun()

    @property
    def enough(self) -> Path:
        """A file at whose sight tasks end, before they have made all their steps."""
        return self.folder / "tasks" / "enough"

    def wait_all(self, step: int) -> Line:
        """Wait until all tasks have computed a step; return where the first one is."""
        lines = [self.wait_step(step, task=f"task{n}") for n in range(self.plan.tasks)]
        return lines[0]

    # --- what is done to it ---

    def strikes(self, *tasks: str) -> None:
        """Remember that something is done now, to some tasks or to all."""
        self._events.append((time.time(), set(tasks) or None))

    def node_of(self, line: Line) -> Node:
        """Return the node on which a task was."""
        return self.cluster.node(line.host)

    def kill_process(self, line: Line, pid: int) -> None:
        """SIGKILL a process of a task's node, by its number there."""
        found = self.find(self.node_of(line).machine, pid)
        assert found is not None, line
        os.kill(found, signal.SIGKILL)

    def find(self, machine: Machine, inside: int) -> int | None:
        """Return the number on the host of a process of a machine, if it is there."""
        for pid in machine.pids():
            try:
                text = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            if int(text.split("NSpid:")[1].split("\n")[0].split()[-1]) == inside:
                return pid
        return None

    def kill_main(self) -> None:
        """SIGKILL the process that runs the workflow; what it started lives on."""
        assert self._program is not None
        self._program.kill_inside()

    def interchange(self) -> int:
        """Return the process of Parsl's interchange, as the host numbers it."""
        found = [pid for pid in self.login.pids() if command_of(pid) == _INTERCHANGE]
        assert len(found) == 1, [command_of(pid) for pid in self.login.pids()]
        return found[0]

    @property
    def partition(self) -> str:
        """Where its allocations are."""
        return self.plan.partition or self.name

    def submissions(self) -> int:
        """Return how often it asked for an allocation, whether or not it got one."""
        path = self.folder / "sbatch.calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    # --- what remains ---

    def result(self, printed: str) -> Result:
        """Return what remains of it, given what its last life printed."""
        names = [f"task{number}" for number in range(self.plan.tasks)]
        return Result(
            scenario=self.name,
            proctrack=self.cluster.settings.proctrack,
            digests=json.loads(printed.strip().splitlines()[-1]),
            expected={name: undisturbed(name, self._last_step(name)) for name in names},
            failures=[failure for name in names for failure in self._failures(name)],
            allocations=len({line.job for line in self.lines()}),
            wall_s=time.monotonic() - self._began_s,
            notes={**self.notes, "submissions": self.submissions()},
        )

    def _last_step(self, task: str) -> int:
        if not self.enough.exists():
            return self.plan.steps
        return max(line.step for line in self.lines(task) if line.event == "end")

    def _failures(self, task: str) -> list[Failure]:
        lines = self.lines(task)
        starts = [line for line in lines if line.event == "start"]
        return [
            self._failure(task, before, after, lines)
            for before, after in itertools.pairwise(starts)
        ]

    def _failure(self, task: str, before: Line, after: Line, lines: list[Line]) -> Failure:
        # Nothing that came later counts: a frozen attempt may wake up.
        earlier = [
            line for line in lines if line.time < after.time and line.attempt <= before.attempt
        ]
        complete = {line.step: line.time for line in earlier if line.event == "computed"}
        durable = {line.step: line.time for line in earlier if line.event == "durable"}
        mine = [
            line.time
            for line in earlier
            if line.event in {"start", "computed"} and line.attempt == before.attempt
        ]
        computed = max(complete, default=0)
        lost = after.step < computed and after.step in complete
        hit = [
            when
            for when, whom in self._events
            if when < after.time and (whom is None or task in whom)
        ]
        return Failure(
            task=task,
            durable_step=max(durable, default=0),
            computed_step=computed,
            resumed_step=after.step,
            lost_s=complete[computed] - complete[after.step] if lost else 0.0,
            interval_s=max((b - a for a, b in itertools.pairwise(mine)), default=0.0),
            save_s=max((when - complete[step] for step, when in durable.items()), default=0.0),
            resume_s=after.time - max(hit, default=after.time),
        )

    # --- what it is given ---

    def site(self) -> str:
        """Return the text of its site file."""
        plan = self.plan
        options = ["--requeue"] if plan.requeue else []
        if plan.partition:
            names = ",".join(node.name for node in self.nodes)
            options.append(f"--nodelist={names}")
        local = [
            *("[[tiers]]", 'kind = "posix"', 'name = "node"', 'path = "/local/ckptflow"'),
            "level = 1",
        ]
        return "\n".join([
            *(local if plan.local_tier else []),
            *('[[tiers]]', 'kind = "posix"', 'name = "shared"', 'path = "store"', "level = 3"),
            "[executor]",
            'kind = "htex"',
            "workers = 2",
            'address = "127.0.0.1"',
            f'walltime = "{plan.walltime}"',
            f'margin = "{plan.margin}"',
            'heartbeat_period = "1s"',
            f'heartbeat_threshold = "{HEARTBEAT_THRESHOLD_S:g}s"',
            'strategy_period = "1s"',
            "[executor.allocation]",
            'provider = "slurm"',
            f'partition = "{self.partition}"',
            f"nodes = {plan.nodes_per_block}",
            f"init_blocks = {plan.blocks}",
            f"max_blocks = {plan.blocks}",
            f"options = {json.dumps(options)}",
            'stop_warning = "10s"',
            'poll = "1s"',
            "[policy]",
            'every = "1"',
            "keep = 3",
            "",
        ])  # fmt: skip

    def _write_commands(self) -> None:
        """Put commands of the scheduler on the PATH that fail while it is away."""
        folder = self.folder / "bin"
        folder.mkdir()
        for name in SCHEDULER_COMMANDS:
            path = folder / name
            path.write_text(
                f"#!/bin/sh\n"
                f"echo x >>{self.folder}/{name}.calls\n"
                f"if [ -e {self.scheduler_is_away} ]; then\n"
                f"    echo '{name}: error: Unable to contact slurm controller' >&2\n"
                f"    exit 1\n"
                f"fi\n"
                f'exec "$(PATH=${{PATH#*:}} command -v {name} || echo false)" "$@"\n'
            )
            path.chmod(0o755)
