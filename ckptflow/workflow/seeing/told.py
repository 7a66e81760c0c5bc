"""What attempts told of themselves, put together: one `Told` for each attempt of each task.

Pure. Of a task whose trail was not written, or not seen, there is nothing here, and the store
alone says what is known. ``tests/unit/test_seeing_story.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptflow.workflow.seeing.events import Event, at, number, whole
from ckptflow.workflow.seeing.facts import total_steps

_WHERE = (
    "host",
    "pid",
    "block",
    "manager",
    "worker",
    "allocation",
    "allocation_restarts",
)


@dataclass(slots=True)
class Saved:
    """A save as its attempt told it.

    Attributes:
        taken_s: when the state was captured.
        blocked_s: how long that took.
        stored: when each tier had it, and that tier's level, by its name.
        state_bytes: what a full copy takes.
        stored_bytes: what was written.
        duration_s: from the capture until it was durable.
    """

    taken_s: float | None = None
    blocked_s: float | None = None
    stored: dict[str, tuple[float, int]] = field(default_factory=dict)
    state_bytes: int | None = None
    stored_bytes: int | None = None
    duration_s: float | None = None


@dataclass(slots=True)
class Told:
    """What one attempt told.

    Attributes:
        began_s: when it first told something.
        try_began_s: when its try began on the worker.
        last_s: when it last told something.
        silence_s: the longest it told nothing in between; ``None`` before the second word.
        where: where it runs.
        resumed: what it said of where it went on from.
        steps: when it was at which step, rising.
        saves: its saves, by step.
        total_steps: where the task will be done.
        end: what it said at its end.
    """

    began_s: float | None = None
    try_began_s: float | None = None
    last_s: float = 0.0
    silence_s: float | None = None
    where: dict[str, Any] = field(default_factory=dict)
    resumed: Event | None = None
    steps: list[tuple[float, int]] = field(default_factory=list)
    saves: dict[int, Saved] = field(default_factory=dict)
    total_steps: int | None = None
    end: Event | None = None

    @property
    def reached_step(self) -> int | None:
        """The last step that is known of it."""
        return max((step for _, step in self.steps), default=None)


def told_by(events: Iterable[Event]) -> dict[str, dict[int, Told]]:
    """Return what attempts told, by task and number; events come the oldest first."""
    found: dict[str, dict[int, Told]] = {}
    for event in events:
        task, attempt = event.get("task"), whole(event.get("attempt"))
        if not isinstance(task, str) or attempt is None:
            continue
        told = found.setdefault(task, {}).setdefault(attempt, Told())
        told.began_s = at(event) if told.began_s is None else told.began_s
        if told.last_s:
            told.silence_s = max(told.silence_s or 0.0, at(event) - told.last_s)
        told.last_s = max(told.last_s, at(event))
        _add(told, event)
    return found


def _add(told: Told, event: Event) -> None:
    step = whole(event.get("step"))
    told.total_steps = total_steps(event.get("total_steps")) or told.total_steps
    if event["event"] == "attempt-began":
        told.where = where(event)
        told.try_began_s = number(event.get("try_began_s"))
    elif event["event"] == "attempt-resumed":
        told.resumed = event
        if step is not None:
            told.steps.append((at(event), step))
    elif event["event"] == "attempt-ended":
        told.end = event
        if step is not None:
            told.steps.append((at(event), step))
    elif step is not None:
        if event["event"] == "step-reached":
            told.steps.append((at(event), step))
        else:
            _add_save(told, event, step)


def _add_save(told: Told, event: Event, step: int) -> None:
    save = told.saves.setdefault(step, Saved())
    if event["event"] == "checkpoint-taken":
        save.taken_s, save.blocked_s = at(event), number(event.get("blocked_s"))
        told.steps.append((at(event), step))
        return
    tier, level = event.get("tier"), whole(event.get("level"))
    if isinstance(tier, str) and level is not None:
        save.stored.setdefault(tier, (at(event), level))
    save.state_bytes = _either(whole(event.get("state_bytes")), save.state_bytes)
    save.stored_bytes = _either(whole(event.get("stored_bytes")), save.stored_bytes)
    save.duration_s = number(event.get("duration_s")) or save.duration_s


def where(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a claim or an event says of where an attempt runs."""
    return {name: record[name] for name in _WHERE if record.get(name) is not None}


def _either(value: int | None, otherwise: int | None) -> int | None:
    return otherwise if value is None else value
