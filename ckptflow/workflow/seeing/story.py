"""The story of a run: journal, trail and store put together into one model. Pure.

Nothing here reads a file or a clock. ``tests/unit/test_seeing_story.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ckptflow.workflow.blocks.story import blocks_in
from ckptflow.workflow.seeing.attempts import attempts_of, checkpoints_of
from ckptflow.workflow.seeing.events import Event
from ckptflow.workflow.seeing.facts import Facts, TaskFacts
from ckptflow.workflow.seeing.lives import History, TaskHistory, history_of
from ckptflow.workflow.seeing.losses import eta_s, steps_per_s, with_losses
from ckptflow.workflow.seeing.model import (
    Attempt,
    Checkpoint,
    Life,
    RunState,
    RunStory,
    Task,
    TaskState,
)
from ckptflow.workflow.seeing.told import Told, told_by

_NO_HISTORY = TaskHistory()


def tell(
    run: str,
    events: Iterable[Event],
    facts: Facts,
    *,
    now_s: float,
    is_alive: bool | None,
    heard_s: float | None = None,
    plans: Mapping[str, str] | None = None,
) -> RunStory:
    """Return what is known of a run.

    Args:
        run: its name.
        events: of its journal and its trail, the oldest first.
        facts: what the store has of it.
        now_s: the time, seconds since 1970.
        is_alive: whether its main process lives; ``None`` if there is none to ask for.
        heard_s: when the main process last said that it lives, otherwise than by events.
        plans: what a restart does with tasks, in words.
    """
    events = list(events)
    history = history_of(events)
    lives = _lives(history, is_alive=is_alive, heard_s=heard_s)
    is_going_on = bool(is_alive) and bool(lives) and lives[-1].ended_s is None
    told = told_by(history.told)
    tasks = [
        _task(
            name,
            history.tasks.get(name, _NO_HISTORY),
            lives,
            facts.tasks.get(name),
            told=told.get(name, {}),
            tiers=facts.tiers,
            is_alive=is_going_on if lives else is_alive,
            now_s=now_s,
            plan=(plans or {}).get(name, ""),
        )
        for name in _names(history, told, facts)
    ]
    return RunStory(
        run=run,
        state=_state(lives, is_going_on=is_going_on),
        now_s=now_s,
        lives=tuple(lives),
        tasks=tuple(tasks),
        blocks=tuple(blocks_in(events)),
        news=tuple(history.news),
        notes=facts.notes,
        tiers=facts.tiers,
    )


def _names(history: History, told: Mapping[str, object], facts: Facts) -> list[str]:
    """Return the names of all tasks: in the order of launch, then those without a launch."""
    strays = sorted({*told, *facts.tasks} - set(history.tasks))
    return [*history.tasks, *strays]


def _lives(history: History, *, is_alive: bool | None, heard_s: float | None) -> list[Life]:
    """Return the lives; the last one has died if it neither ended nor goes on."""
    lives = list(history.lives)
    if lives and lives[-1].ended_s is None and not is_alive:
        ended_s = max(history.last_s, heard_s or 0.0)
        lives[-1] = replace(lives[-1], ended_s=ended_s, died=True)
    return lives


def _state(lives: Sequence[Life], *, is_going_on: bool) -> RunState:
    if not lives:
        return "unknown"
    if is_going_on:
        return "running"
    return "dead" if lives[-1].died else "ended"


def _task(
    name: str,
    history: TaskHistory,
    lives: Sequence[Life],
    facts: TaskFacts | None,
    *,
    told: Mapping[int, Told],
    tiers: Sequence[tuple[str, int]],
    is_alive: bool | None,
    now_s: float,
    plan: str,
) -> Task:
    checkpoints = checkpoints_of(facts, told, tiers)
    attempts = with_losses(
        attempts_of(history.tries, lives, facts or TaskFacts(), told, is_alive=is_alive),
        checkpoints,
    )
    attempts = [_with_saved(one, checkpoints) for one in attempts]
    state = _task_state(history, attempts, lives, is_alive=bool(is_alive))
    newest = next((one for one in reversed(attempts) if one.number is not None), None)
    number = newest.number if newest else None
    rate = steps_per_s(told, checkpoints, number)
    total = _total_steps(told, facts)
    point = _point(newest, told, checkpoints)
    return Task(
        name=name,
        state=state,
        tries=tuple(history.tries),
        attempts=tuple(attempts),
        checkpoints=tuple(checkpoints),
        step=_step(newest, checkpoints),
        total_steps=total,
        steps_per_s=rate,
        eta_s=eta_s(total, point, rate, now_s=now_s) if state == "running" else None,
        error=_error(history, state),
        next=plan,
    )


def _with_saved(one: Attempt, checkpoints: Sequence[Checkpoint]) -> Attempt:
    """Add the newest checkpoint of an attempt, and that it got that far."""
    steps = [each.step for each in checkpoints if each.attempt == one.number]
    if not steps or one.number is None:
        return one
    saved = max(steps)
    reached = saved if one.reached_step is None else max(saved, one.reached_step)
    return replace(one, saved_step=saved, reached_step=reached)


def _task_state(
    history: TaskHistory,
    attempts: Sequence[Attempt],
    lives: Sequence[Life],
    *,
    is_alive: bool,
) -> TaskState:
    if history.last is None:
        return _stray_state(attempts, is_alive=is_alive)
    kind = history.last["event"]
    if kind == "task-finished":
        return "finished"
    if kind == "task-reused":
        return "reused"
    if is_alive and history.last_life < len(lives) - 1:
        return "waiting"  # The script has not come to it yet in this life.
    if kind == "task-failed":
        error = str(history.last.get("error", ""))
        return "stopped" if error.startswith("Preempted") else "failed"
    if not is_alive:
        return "interrupted"
    if kind == "task-try-failed":
        return "waiting"
    running = any(one.ending == "running" and one.number is not None for one in attempts)
    return "running" if running else "launched"


def _stray_state(attempts: Sequence[Attempt], *, is_alive: bool) -> TaskState:
    """Return the state of a task that the journal knows nothing of."""
    ending = attempts[-1].ending if attempts else "open"
    if ending in ("finished", "stopped", "failed"):
        return ending
    return "running" if is_alive or ending == "open" else "interrupted"


def _error(history: TaskHistory, state: TaskState) -> str | None:
    if state not in ("failed", "stopped") or history.last is None:
        return None
    error = history.last.get("error")
    return None if error is None else str(error)


def _total_steps(told: Mapping[int, Told], facts: TaskFacts | None) -> int | None:
    said = [told[number].total_steps for number in sorted(told, reverse=True)]
    said += [one.total_steps for one in facts.checkpoints] if facts else []
    return next((total for total in said if total is not None), None)


def _point(
    newest: Attempt | None, told: Mapping[int, Told], checkpoints: Sequence[Checkpoint]
) -> tuple[float, int] | None:
    """Return when the newest attempt was at its last known step."""
    if newest is None or newest.number is None:
        return None
    points = [
        (one.taken_s, one.step)
        for one in checkpoints
        if one.attempt == newest.number and one.taken_s is not None
    ]
    if newest.number in told:
        points += told[newest.number].steps
    return max(points, default=None)


def _step(newest: Attempt | None, checkpoints: Sequence[Checkpoint]) -> int | None:
    """Return how far a task is: its newest attempt, or what is left of one that was lost."""
    if newest is not None and newest.ending in ("running", "finished", "open"):
        return newest.reached_step
    kept = [one.step for one in checkpoints if one.status in ("ok", "told", "pruned")]
    return max(kept, default=newest.reached_step if newest else None)
