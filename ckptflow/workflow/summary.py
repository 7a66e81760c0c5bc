"""What became of a run: counted while it goes on, completed from the store at its end.

``tests/unit/test_summary.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ckptflow.checkpointer.health import sentence
from ckptflow.store.catalog import AttemptRecord
from ckptflow.units import format_bytes

OK, TASK_FAILED, SAVE_FAILED, UNFINISHED = 0, 1, 5, 7
"""Exit codes of a run; the command line has the same numbers for the same things."""

FINISHED, REUSED, STOPPED, FAILED, OPEN = "finished", "reused", "stopped", "failed", "open"


@dataclass(slots=True)
class TaskReport:
    """What became of one task.

    Attributes:
        task: its name.
        status: finished, reused (its result was remembered), stopped (in time, with its state
            saved), failed, or open.
        tries: how often it was launched, in this life of the run.
        lost: tries that ended with their worker or node.
        preempted: tries that stopped in time.
        resumed_steps: where its attempts went on from; ``None`` is the beginning.
        step: last step saved.
        state_bytes: bytes of state in its checkpoints.
        stored_bytes: bytes written for them.
        failures: saves that failed, and the first error of each tier that did.
        tiers: tiers that were in trouble: which, how, since when, whether they are back, and
            how many checkpoints missed them (`ckptflow.checkpointer.health.Trouble`).
        error: why it failed.
        changed: what has changed of it since an earlier start, and what was done about it.
    """

    task: str
    status: str = OPEN
    tries: int = 0
    lost: int = 0
    preempted: int = 0
    resumed_steps: list[int | None] = field(default_factory=list)
    step: int | None = None
    state_bytes: int = 0
    stored_bytes: int = 0
    failures: list[str] = field(default_factory=list)
    tiers: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    changed: str | None = None

    def add_attempts(self, attempts: Sequence[AttemptRecord], session: str) -> None:
        """Add what the attempts of this session left in the store.

        An attempt that was killed left no end, and so no session. But a try claims one attempt
        at most, so the newest ones are this session's, as many as there were tries.
        """
        ours: list[AttemptRecord] = []
        for one in reversed(attempts[-self.tries :] if self.tries else []):
            if one.end and one.end.get("session") != session:
                break
            ours.insert(0, one)
        for one in ours:
            # One that went on and stopped before it saved anything says so at its end only.
            if one.resume:
                self.resumed_steps.append(one.resume.get("step"))
            elif one.end:
                self.resumed_steps.append(one.end.get("resumed_step"))
            self._add_end(one.end or {})
        if self.status == FINISHED and attempts and attempts[-1].claim and not attempts[-1].end:
            self.failures.append(
                f"attempt {attempts[-1].attempt} finished, but could not write to the store"
            )

    def _add_end(self, end: Mapping[str, Any]) -> None:
        step = end.get("step")
        if isinstance(step, int):
            self.step = step if self.step is None else max(step, self.step)
        self.state_bytes += int(end.get("state_bytes", 0))
        self.stored_bytes += int(end.get("stored_bytes", 0))
        self.failures += [str(text) for text in end.get("failures", ())]
        self.tiers += [dict(one) for one in end.get("tiers", ()) if isinstance(one, Mapping)]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What became of a run.

    Attributes:
        run: its name.
        tasks: one report a task, in the order of their first launch.
        problems: what went wrong beside the tasks: a memo that could not be written, ...
    """

    run: str
    tasks: tuple[TaskReport, ...]
    problems: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that went wrong without failing a task."""
        saves = (f"{one.task}: {text}" for one in self.tasks for text in one.failures)
        return (*saves, *self.problems)

    @property
    def exit_code(self) -> int:
        """Return the exit code.

        0: all well. 1: a task failed. 7: none failed, but some stopped in time; start again.
        5: all tasks finished, but a save failed, or something beside the tasks did.
        """
        statuses = {one.status for one in self.tasks}
        if statuses & {FAILED, OPEN}:
            return TASK_FAILED
        if STOPPED in statuses:
            return UNFINISHED
        return SAVE_FAILED if self.failures else OK

    def count(self, status: str) -> int:
        """Return how many tasks have a status."""
        return sum(one.status == status for one in self.tasks)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON-like values."""
        return {
            "run": self.run,
            "exit_code": self.exit_code,
            "tasks": [asdict(one) for one in self.tasks],
            "problems": list(self.problems),
        }

    def __str__(self) -> str:
        counts = [
            f"{number} {status}"
            for status in (FINISHED, REUSED, STOPPED, FAILED, OPEN)
            if (number := self.count(status))
        ]
        lines = [f"run {self.run}: {', '.join(counts) or 'no tasks'}"]
        lines += [f"  {_line(one)}" for one in self.tasks if _is_news(one)]
        lines += [f"  problem: {text}" for text in self.problems]
        return "\n".join(lines)


def _is_news(report: TaskReport) -> bool:
    bad = report.status in (STOPPED, FAILED, OPEN) or bool(report.failures)
    return report.tries > 1 or bad or report.changed is not None


def _line(report: TaskReport) -> str:
    parts = [f"{report.task}: {report.status}"]
    parts += [f"{report.tries} tries"] if report.tries > 1 else []
    parts += [f"lost {report.lost}"] if report.lost else []
    parts += [f"stopped in time {report.preempted}"] if report.preempted else []
    resumed = [str(step) for step in report.resumed_steps if step is not None]
    parts += [f"resumed at {', '.join(resumed)}"] if resumed else []
    if report.stored_bytes:
        parts.append(
            f"stored {format_bytes(report.stored_bytes)} for {format_bytes(report.state_bytes)}"
        )
    parts += [report.error] if report.error else []
    parts += [report.changed] if report.changed else []
    return "; ".join([*parts, *report.failures, *map(sentence, report.tiers)])


def summarise(
    run: str,
    reports: Iterable[TaskReport],
    attempts: Mapping[str, Sequence[AttemptRecord]],
    session: str,
    problems: Sequence[str] = (),
) -> RunSummary:
    """Return the summary of a run.

    Args:
        run: its name.
        reports: what was counted while it went on; left as they are.
        attempts: per task, what its attempts left in the store.
        session: which of them belong to this life of the run.
        problems: what went wrong beside the tasks.
    """
    complete = []
    for report in reports:
        lists = {
            "resumed_steps": [*report.resumed_steps],
            "failures": [*report.failures],
            "tiers": [*report.tiers],
        }
        copy = TaskReport(**(asdict(report) | lists))
        if report.status != REUSED:
            copy.add_attempts(attempts.get(report.task, ()), session)
        complete.append(copy)
    return RunSummary(run, tuple(complete), tuple(problems))
