"""What the journal of a run says: its lives, the tries of its tasks, and what else happened.

Pure: events go in. An event that lacks what it should have is passed over: a journal may come
from a newer version. ``tests/unit/test_seeing_story.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ckptflow.workflow.seeing.events import Event, at, number, whole
from ckptflow.workflow.seeing.model import Life, Try

# Events of tasks that say no more than these do are counted as news of the run.
_TASK_EVENTS = frozenset(
    {"task-launched", "task-reused", "task-try-failed", "task-failed", "task-finished"}
)
_ATTEMPT_EVENTS = frozenset(
    {
        "attempt-began",
        "attempt-resumed",
        "attempt-ended",
        "step-reached",
        "checkpoint-taken",
        "checkpoint-stored",
    }
)
# These make up the blocks of the story.
_BLOCK_EVENTS = frozenset({"block-submitted", "block-held", "block-ended", "blocks-come-from"})
_RUN_EVENTS = frozenset({"run-started", "run-ended", "parsl-started"})


@dataclass(slots=True)
class TaskHistory:
    """What the journal says of one task.

    Attributes:
        tries: its launches, the oldest first.
        last: the last event that says how it stands.
        last_life: number of the life of that.
    """

    tries: list[Try] = field(default_factory=list)
    last: Event | None = None
    last_life: int = 0


@dataclass(slots=True)
class History:
    """What the journal says of a run."""

    lives: list[Life] = field(default_factory=list)
    tasks: dict[str, TaskHistory] = field(default_factory=dict)
    news: list[tuple[float, str]] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)  # By attempts.
    last_s: float = 0.0  # When the main process was last heard of.


def history_of(events: Iterable[Event]) -> History:
    """Return what events say, the oldest first."""
    found = History()
    for event in events:
        kind = event["event"]
        if kind in _TASK_EVENTS and isinstance(event.get("task"), str):
            _add_task_event(found, event)
        elif kind in _ATTEMPT_EVENTS:
            found.told.append(event)
        elif kind in _RUN_EVENTS:
            _add_run_event(found, event)
        elif kind not in _BLOCK_EVENTS:
            found.news.append((at(event), _sentence(event)))
        if kind not in _ATTEMPT_EVENTS:
            found.last_s = max(found.last_s, at(event))
    return found


def _add_run_event(found: History, event: Event) -> None:
    if event["event"] == "run-started":
        _close_last_life(found)
        found.lives.append(
            Life(
                session=str(event.get("session", "")),
                began_s=at(event),
                host=str(event.get("host", "")),
                pid=whole(event.get("pid")),
                script=_texts(event.get("argv")),
                folder=str(event.get("folder", "")),
                site=str(event.get("site", "")),
            )
        )
    elif found.lives:
        if event["event"] == "run-ended":
            change: dict[str, Any] = {
                "ended_s": at(event),
                "exit_code": whole(event.get("exit_code")),
                "error": _text(event.get("error")) or _by_signal(event),
            }
        else:
            change = {
                "parsl_folder": _text(event.get("folder")),
                "parsl_run_id": _text(event.get("run_id")),
            }
        found.lives[-1] = replace(found.lives[-1], **change)


def _by_signal(event: Event) -> str | None:
    signal = event.get("signal")
    return None if signal is None else f"stopped by signal {signal}"


def _close_last_life(found: History) -> None:
    """A life that is followed by another one and never ended has died."""
    if found.lives and found.lives[-1].ended_s is None:
        found.lives[-1] = replace(found.lives[-1], ended_s=found.last_s, died=True)


def _add_task_event(found: History, event: Event) -> None:
    task = found.tasks.setdefault(event["task"], TaskHistory())
    kind, life = event["event"], max(len(found.lives) - 1, 0)
    if kind == "task-launched":
        streams = {name: str(event[name]) for name in ("stdout", "stderr") if event.get(name)}
        task.tries.append(
            Try(
                number=whole(event.get("tries")) or len(task.tries) + 1,
                life=life,
                launched_s=at(event),
                task_id=whole(event.get("id")),
                hash=_text(event.get("hash")),
                streams=streams,
            )
        )
    elif kind == "task-try-failed":
        _end_try(
            task,
            life,
            ended_s=at(event),
            error=_text(event.get("error")),
            reason=_text(event.get("reason")),
            cost=number(event.get("cost")),
        )
    elif kind == "task-failed":
        _end_try(task, life, ended_s=at(event), error=_text(event.get("error")))
    elif kind == "task-finished":
        _end_try(task, life, ended_s=at(event))
    task.last, task.last_life = event, life


def _end_try(task: TaskHistory, life: int, **change: Any) -> None:
    """Note how the newest try ended; what was noted before stays."""
    if not task.tries or task.tries[-1].life != life:
        return
    known = task.tries[-1]
    news = {name: value for name, value in change.items() if getattr(known, name) is None}
    task.tries[-1] = replace(known, **news)


def _sentence(event: Event) -> str:
    """Return an event beside the tasks as a sentence."""
    match event:
        case {"event": "holder-died", "host": host, "pid": pid}:
            return f"process {pid} on {host}, which held this run before, is gone"
        case {"event": "leftover-ended", "name": name, "pid": pid}:
            return f"ended {name} (process {pid}), left behind by an earlier start"
        case {"event": "interchange-lost", "text": text}:
            return str(text)
    others = {key: value for key, value in event.items() if key not in ("event", "time")}
    details = ", ".join(f"{key} {value}" for key, value in others.items())
    name = event["event"].replace("-", " ")
    return f"{name}: {details}" if details else name


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
