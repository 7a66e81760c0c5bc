"""What is known of a run: its lives, tasks, attempts and checkpoints. Plain values.

Times are seconds since 1970, by the clock of whoever noted them; durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ckptflow.workflow.blocks.story import BlockStory

RunState = Literal["running", "dead", "ended", "unknown"]
"""Of a run: it runs; its main process is gone and did not say goodbye; it ended; or nobody can
tell, since it runs without a main process (a plain `Checkpointer`)."""

TaskState = Literal[
    "running", "launched", "waiting", "finished", "reused", "stopped", "failed", "interrupted"
]
"""Of a task: ``launched`` is with Parsl and not heard of yet; ``waiting`` is between two tries,
or not launched yet in this life; ``interrupted`` is left unfinished by a life that is over."""

Ending = Literal[
    "running", "finished", "stopped", "failed", "lost", "fenced", "died", "went back", "open"
]
"""Of an attempt: ``lost`` with its worker or node, ``died`` with the run, ``fenced`` by a newer
one; ``went back`` restored an older step, and goes on as the next; of an ``open`` one nobody
can tell whether it runs."""

LOST_ENDINGS = frozenset({"failed", "lost", "died", "fenced"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One start of the script.

    Attributes:
        session: random name of it.
        began_s: when it started.
        ended_s: when it ended; of one that died the last that was heard of it; ``None`` if it
            is running.
        died: whether it is gone and did not say goodbye.
        exit_code: how it ended, if it said so.
        error: what the script raised.
        host: where its main process runs.
        pid: which process that is.
        parsl_folder: where Parsl's logs of it are.
        parsl_run_id: Parsl's own name of it.
        script: how it was started: script, then arguments.
        folder: the current folder of the script.
        site: name of the site.
    """

    session: str
    began_s: float
    ended_s: float | None = None
    died: bool = False
    exit_code: int | None = None
    error: str | None = None
    host: str = ""
    pid: int | None = None
    parsl_folder: str | None = None
    parsl_run_id: str | None = None
    script: tuple[str, ...] = ()
    folder: str = ""
    site: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One launch of a task by Parsl.

    Attributes:
        number: from 1, in its life.
        life: number of the life, from 0.
        launched_s: when.
        ended_s: when it failed or finished; ``None`` if neither is known.
        error: why it failed, in one line.
        reason: why another try costs what it does.
        cost: what that is.
        task_id: Parsl's number of the task in this life.
        hash: Parsl's hash of the task; the same in all lives.
        streams: where its output goes, by ``stdout`` and ``stderr``.
    """

    number: int
    life: int
    launched_s: float
    ended_s: float | None = None
    error: str | None = None
    reason: str | None = None
    cost: float | None = None
    task_id: int | None = None
    hash: str | None = None
    streams: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution of a task.

    Attributes:
        number: the attempt's number in the store; ``None`` if the task never used its
            checkpointer.
        life: number of the life, from 0; ``None`` if no life is known that it belongs to.
        began_s: when it began on its worker, or else when it was launched.
        ended_s: when it ended; of one that was lost, when that was noticed or, if it told more
            often what it did, soon after the last it told; ``None`` while it runs.
        ending: how.
        reason: why, in a sentence.
        resumed_step: where it went on from; ``None`` is the beginning.
        resumed: whether it is known where it went on from.
        skipped: newer checkpoints that it passed over: step, attempt, reason.
        reached_step: the last step that is known of it.
        saved_step: its newest checkpoint.
        lost_s: about how much of the work up to its end was done again, or will be.
        lost_steps: the same in steps, at the least.
        blocked_s: how long its saves held it up.
        where: host, pid, block, manager, worker, allocation, as far as known.
        launch: the try that it belongs to.
        failures: saves that failed.
        tiers: tiers that were in trouble (`ckptflow.checkpointer.health.Trouble`).
    """

    number: int | None
    life: int | None
    began_s: float | None
    ended_s: float | None
    ending: Ending
    reason: str | None = None
    resumed_step: int | None = None
    resumed: bool = False
    skipped: tuple[Mapping[str, Any], ...] = ()
    reached_step: int | None = None
    saved_step: int | None = None
    lost_s: float | None = None
    lost_steps: int | None = None
    blocked_s: float = 0.0
    where: Mapping[str, Any] = field(default_factory=dict)
    launch: Try | None = None
    failures: tuple[str, ...] = ()
    tiers: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A checkpoint on one tier.

    Attributes:
        tier: name of the tier.
        level: its level; ``None`` if it is not among those that were looked at.
        stored_s: since when it is there, if that is known.
        present: whether it is there now; ``None`` if nobody looked.
    """

    tier: str
    level: int | None
    stored_s: float | None
    present: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint, whether it is still there or not.

    Attributes:
        step: its step.
        attempt: who saved it.
        taken_s: when the state was captured, or else when it was committed.
        blocked_s: for how long that held the task up.
        state_bytes: what a full copy takes.
        stored_bytes: what was written for it.
        copies: where it is or was, inner tiers first.
        status: ``ok``, ``void``, ``quarantined``, ``unreadable`` or ``incomplete``; ``pruned``
            if it is nowhere any more; ``told`` if nobody looked.
        problem: why it is unreadable, or what was recorded of failed restores.
    """

    step: int
    attempt: int
    taken_s: float | None
    blocked_s: float | None
    state_bytes: int | None
    stored_bytes: int | None
    copies: tuple[Copy, ...]
    status: str
    problem: str | None = None

    @property
    def is_present(self) -> bool:
        """Whether some tier holds it now."""
        return any(copy.present for copy in self.copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task, over all lives.

    Attributes:
        name: its name.
        state: what it is doing.
        tries: all launches, the oldest first.
        attempts: all executions, the oldest first.
        checkpoints: the oldest first.
        step: the last that is known to be reached by the newest attempt that counts.
        total_steps: where it will be done, if it says so.
        steps_per_s: how fast it goes.
        eta_s: seconds until it is done, if both are known and it runs.
        error: why it failed.
        next: what a restart does with it, and why.
    """

    name: str
    state: TaskState
    tries: tuple[Try, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    step: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    eta_s: float | None = None
    error: str | None = None
    next: str = ""

    @property
    def executions(self) -> int:
        """How many attempts are known to have begun to work."""
        queued = ("running", "died", "went back")
        return sum(one.number is not None or one.ending not in queued for one in self.attempts)

    @property
    def lost_s(self) -> float:
        """Work that was lost, in seconds, as far as known."""
        return sum(one.lost_s or 0.0 for one in self.attempts)

    @property
    def blocked_s(self) -> float:
        """Time for which saves held it up."""
        return sum(one.blocked_s for one in self.attempts)

    @property
    def worked_s(self) -> float:
        """Time that its attempts took."""
        spans = ((one.began_s, one.ended_s) for one in self.attempts)
        return sum(max(0.0, b - a) for a, b in spans if a is not None and b is not None)

    @property
    def newest(self) -> Checkpoint | None:
        """Its newest checkpoint that is there and counts."""
        there = (one for one in self.checkpoints if one.status == "ok" and one.is_present)
        return max(there, key=lambda one: (one.step, one.attempt), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStory:
    """What is known of a run.

    Attributes:
        run: its name.
        state: what it is doing.
        now_s: when this was found out.
        lives: starts of its script, the oldest first.
        tasks: in the order of their first launch.
        blocks: what its tasks ran in, in the order in which they were asked for.
        news: what happened beside the tasks: when, what.
        notes: what could not be read, and why.
        tiers: names and levels of the tiers that were looked at, inner ones first.
    """

    run: str
    state: RunState
    now_s: float
    lives: tuple[Life, ...] = ()
    tasks: tuple[Task, ...] = ()
    blocks: tuple[BlockStory, ...] = ()
    news: tuple[tuple[float, str], ...] = ()
    notes: tuple[str, ...] = ()
    tiers: tuple[tuple[str, int], ...] = ()

    @property
    def exit_code(self) -> int | None:
        """How its last life ended, if it said so."""
        return self.lives[-1].exit_code if self.lives and self.state == "ended" else None

    @property
    def began_s(self) -> float | None:
        """When it was started for the first time."""
        return self.lives[0].began_s if self.lives else None

    def count(self, *states: str) -> int:
        """Return how many tasks are in one of these states."""
        return sum(one.state in states for one in self.tasks)

    @property
    def eta_s(self) -> float | None:
        """Seconds until all tasks that run now are done; ``None`` if some do not say.

        Tasks that do not run yet are not counted: nobody knows how long they take.
        """
        running = [one for one in self.tasks if one.state == "running"]
        if not running or any(one.eta_s is None for one in running):
            return None
        return max(one.eta_s or 0.0 for one in running)
