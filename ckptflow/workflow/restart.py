"""What a restart will do with each task, and why. Pure: a journal and a catalog go in.

The plan is for people. Nothing has to follow it: each task asks the catalog itself when it
starts, and takes the same road. ``tests/unit/test_restart_plan.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Action = Literal["reuse", "resume", "begin"]


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task in a restart plan.

    Attributes:
        task: name of the task.
        action: ``reuse`` its result, ``resume`` at a step, or ``begin`` at the beginning.
        resume_step: step of the checkpoint from which it goes on; ``None`` unless it resumes.
        reason: one sentence for people.
    """

    task: str
    action: Action
    resume_step: int | None
    reason: str


def plan(
    events: Iterable[Mapping[str, Any]], newest_steps: Mapping[str, int | None]
) -> list[PlannedTask]:
    """Return what happens to each task when the run is started again.

    Args:
        events: the run's journal, the oldest first.
        newest_steps: for each task that has a lineage, the step of its newest restorable
            checkpoint, or ``None`` if it has none.

    Returns:
        One entry a task, in the order in which they were first launched; tasks that only the
        catalog knows come last, by name.
    """
    last: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event["event"].startswith("task-") and isinstance(event.get("task"), str):
            last[event["task"]] = event
    found = [_one(task, event, newest_steps.get(task)) for task, event in last.items()]
    strays = sorted(set(newest_steps) - set(last))
    return found + [_stray(task, newest_steps[task]) for task in strays]


def _one(task: str, event: Mapping[str, Any], step: int | None) -> PlannedTask:
    if event["event"] in ("task-finished", "task-reused"):
        if event.get("remembered", True):
            reason = "finished; its result comes from the Parsl memo"
            return PlannedTask(task, "reuse", None, reason)
        why = "finished, but its result was not remembered"
    elif event["event"] == "task-failed":
        why = f"failed with {event.get('error', 'an error')}"
    else:
        why = "was not finished"
    return _from_checkpoint(task, why, step)


def _stray(task: str, step: int | None) -> PlannedTask:
    return _from_checkpoint(task, "not in the journal", step)


def _from_checkpoint(task: str, why: str, step: int | None) -> PlannedTask:
    if step is None:
        return PlannedTask(task, "begin", None, f"{why}; it has no checkpoint to go on from")
    return PlannedTask(task, "resume", step, f"{why}; its newest checkpoint is of step {step}")
