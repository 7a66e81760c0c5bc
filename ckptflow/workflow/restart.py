"""What a restart will do with each task, and why. Pure: a journal and a catalog go in.

The plan is for people. Nothing has to follow it: each task asks the catalog itself when it
starts, and takes the same road. ``tests/unit/test_restart_plan.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ckptflow.workflow.changes import DEFAULT, OnChange, judge
from ckptflow.workflow.definition import Differences

Action = Literal["reuse", "resume", "begin", "fail"]


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task in a restart plan.

    Attributes:
        task: name of the task.
        action: ``reuse`` its result, ``resume`` at a step, ``begin`` at the beginning, or
            ``fail``, since it has changed and the run is not to go on then.
        resume_step: step of the checkpoint from which it goes on; ``None`` unless it resumes.
        reason: one sentence for people.
        changes: what has changed of its code since it was launched.
    """

    task: str
    action: Action
    resume_step: int | None
    reason: str
    changes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Past:
    """What the journal says of the tasks."""

    last: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    first_life: dict[str, int] = field(default_factory=dict)
    last_life: dict[str, int] = field(default_factory=dict)
    lives: int = 0
    ended_by_itself: bool = False


def plan(
    events: Iterable[Mapping[str, Any]],
    newest_steps: Mapping[str, int | None],
    *,
    changed: Mapping[str, Differences] | None = None,
    on_change: OnChange = DEFAULT,
) -> list[PlannedTask]:
    """Return what happens to each task when the run is started again.

    Args:
        events: the run's journal, the oldest first.
        newest_steps: for each task that has a lineage, the step of its newest restorable
            checkpoint, or ``None`` if it has none.
        changed: for each task of which the code has changed, how.
        on_change: what is done with those.

    Returns:
        One entry a task, in the order in which they were first launched; tasks that only the
        catalog knows come last, by name.
    """
    past = _read(events)
    found = [
        _with_fate(
            _with_changes(
                _one(task, event, newest_steps.get(task)),
                (changed or {}).get(task, Differences()),
                on_change,
            ),
            past,
        )
        for task, event in past.last.items()
    ]
    strays = sorted(set(newest_steps) - set(past.last))
    return found + [_stray(task, newest_steps[task]) for task in strays]


def _read(events: Iterable[Mapping[str, Any]]) -> _Past:
    past = _Past()
    for event in events:
        kind, task = event["event"], event.get("task")
        if kind == "run-started":
            past.lives += 1
            past.ended_by_itself = False
        elif kind == "run-ended":
            past.ended_by_itself = event.get("error") is None
        elif kind.startswith("task-") and isinstance(task, str) and kind != "task-changed":
            past.last[task] = event
            if kind not in ("task-forgotten", "task-set-back"):
                past.first_life.setdefault(task, past.lives)
                past.last_life[task] = past.lives
    return past


def _with_changes(one: PlannedTask, changed: Differences, on_change: OnChange) -> PlannedTask:
    """Return what happens to a task of which the code has changed."""
    if not changed or one.action == "begin":
        return replace(one, changes=changed.texts)
    of, again = "its result", "the result is used"
    if one.action == "resume":
        of, again = f"its checkpoint of step {one.resume_step}", "it goes on from it"
    verdict = judge(one.task, changed, of=of, on_change=on_change, again=again)
    if verdict.action == "resume":
        return replace(one, reason=f"{one.reason}; {verdict.text}", changes=changed.texts)
    action: Action = "begin" if verdict.action == "redo" else "fail"
    return PlannedTask(one.task, action, None, verdict.text, changed.texts)


def _with_fate(one: PlannedTask, past: _Past) -> PlannedTask:
    """Add what becomes of a task that is not in every start of the script."""
    if past.lives < 2 or one.task not in past.last_life:
        return one
    if past.ended_by_itself and past.last_life[one.task] < past.lives:
        return replace(
            one,
            reason=f"{one.reason}; if it is submitted: the last start ended by itself and did "
            f"not, so another key, or another script, has taken its place",
        )
    if past.first_life[one.task] == past.lives:
        return replace(one, reason=f"{one.reason}; it came with the last start")
    return one


def _one(task: str, event: Mapping[str, Any], step: int | None) -> PlannedTask:
    if event["event"] in ("task-finished", "task-reused"):
        if event.get("remembered", True):
            reason = "finished; its result comes from the Parsl memo"
            return PlannedTask(task, "reuse", None, reason)
        why = "finished, but its result was not remembered"
    elif event["event"] == "task-failed":
        why = f"failed with {event.get('error', 'an error')}"
    elif event["event"] == "task-forgotten":
        why = "its result was forgotten on demand"
    elif event["event"] == "task-set-back":
        why = "was set back on demand"
    else:
        why = "was not finished"
    return _from_checkpoint(task, why, step)


def _stray(task: str, step: int | None) -> PlannedTask:
    return _from_checkpoint(task, "not in the journal", step)


def _from_checkpoint(task: str, why: str, step: int | None) -> PlannedTask:
    if step is None:
        return PlannedTask(task, "begin", None, f"{why}; it has no checkpoint to go on from")
    return PlannedTask(task, "resume", step, f"{why}; its newest checkpoint is of step {step}")
