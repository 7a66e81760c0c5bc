"""A run at a glance: a line about it, a row for each task, and what to do. Pure.

``tests/unit/test_seeing_shown.py``.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ckptflow.units import format_seconds
from ckptflow.workflow.seeing.model import (
    LOST_ENDINGS,
    Attempt,
    Checkpoint,
    RunStory,
    Task,
)

ROWS_MAX = 60  # Tasks shown without being asked for all: a screen or two.

_DONE = ("finished", "reused")


@dataclass(frozen=True, slots=True)
class Row:
    """One task at a glance.

    Attributes:
        task: its name.
        state: what it is doing.
        attempts: how many there were, over all lives.
        where: where the newest of them runs, or ran.
        step: how far it is.
        total_steps: where it will be done, if it says so.
        saved: newest checkpoint on each tier, by the tier's name.
        lost_s: work that was lost.
        eta_s: seconds until it is done, if known.
    """

    task: str
    state: str
    attempts: int
    where: str
    step: int | None
    total_steps: int | None
    saved: Mapping[str, Checkpoint]
    lost_s: float
    eta_s: float | None


def rows(story: RunStory, *, everything: bool = False) -> tuple[list[Row], int]:
    """Return a row for each task that is worth one, and how many were left out.

    Of many tasks, those that are done and met no misfortune are left out.
    """
    shown = list(story.tasks)
    if not everything and len(shown) > ROWS_MAX:
        shown = [one for one in shown if one.state not in _DONE or _was_hit(one)]
        shown = shown[:ROWS_MAX]
    return [row(one, story) for one in shown], len(story.tasks) - len(shown)


def _was_hit(task: Task) -> bool:
    return any(one.ending in LOST_ENDINGS for one in task.attempts)


def row(task: Task, story: RunStory) -> Row:
    """Return one task at a glance."""
    newest = task.attempts[-1] if task.attempts else None
    return Row(
        task=task.name,
        state=task.state,
        attempts=task.executions,
        where=where(newest) if newest else "",
        step=task.step,
        total_steps=task.total_steps,
        saved={
            name: found
            for name, _ in story.tiers
            if (found := newest_on(task.checkpoints, name)) is not None
        },
        lost_s=task.lost_s,
        eta_s=task.eta_s,
    )


def newest_on(checkpoints: Sequence[Checkpoint], tier: str) -> Checkpoint | None:
    """Return the newest checkpoint that counts and that a tier holds now."""
    there = [
        one
        for one in checkpoints
        if one.status in ("ok", "incomplete")
        and any(copy.tier == tier and copy.present for copy in one.copies)
    ]
    return max(there, key=lambda one: (one.step, one.attempt), default=None)


def where(attempt: Attempt) -> str:
    """Return in short where an attempt runs: host, block, allocation."""
    found = attempt.where
    parts = [str(found["host"])] if "host" in found else []
    parts += [f"block {found['block']}"] if "block" in found else []
    parts += [str(found["allocation"])] if "allocation" in found else []
    return " ".join(parts)


def headline(story: RunStory) -> str:
    """Return a sentence on the run."""
    done, failed = story.count(*_DONE), story.count("failed")
    parts = [_state_of_run(story), f"{done} of {_number(len(story.tasks), 'task')} done"]
    parts += [f"{failed} failed"] if failed else []
    for state in ("running", "launched", "waiting", "stopped", "interrupted"):
        count = story.count(state)
        parts += [f"{count} {state}"] if count else []
    lost_s = sum(one.lost_s for one in story.tasks)
    parts += [f"about {format_seconds(lost_s)} of work lost"] if lost_s else []
    if story.state == "running" and story.count("running"):
        eta_s = story.eta_s
        known = "unknown" if eta_s is None else f"in {format_seconds(eta_s)}"
        parts.append(f"done with what runs now: {known}")
    return "; ".join(parts)


def blocks_line(story: RunStory) -> str:
    """Return a sentence on the blocks of the last start; nothing if none is known."""
    ours = [one for one in story.blocks if one.life == len(story.lives) - 1]
    if not ours or story.state != "running":
        return ""
    going = [one for one in ours if one.ended_s is None]
    names = ", ".join(f"{one.number} ({one.allocation or one.executor})" for one in going[:8])
    over = Counter(one.state or "over" for one in ours if one.ended_s is not None)
    parts = [f"blocks asked for and not over: {names or 'none'}"]
    parts += [f"{count} {state}" for state, count in sorted(over.items())]
    held = [f"block {one.number} gets no more tasks: {one.held}" for one in going if one.held]
    return "; ".join([*parts, *held])


def _state_of_run(story: RunStory) -> str:
    if not story.lives:
        return f"run {story.run}: it has no journal, so it was not started by ckptflow.run()"
    life = story.lives[-1]
    starts = f", start {len(story.lives)}" if len(story.lives) > 1 else ""
    if story.state == "running":
        since = format_seconds(story.now_s - life.began_s)
        return (
            f"run {story.run}: running for {since} on {life.host} (process {life.pid}{starts})"
        )
    if story.state == "dead":
        ago = format_seconds(max(0.0, story.now_s - (life.ended_s or story.now_s)))
        return (
            f"run {story.run}: dead; process {life.pid} on {life.host} is gone{starts}, and "
            f"was last heard of {ago} ago"
        )
    took = format_seconds((life.ended_s or story.now_s) - life.began_s)
    return f"run {story.run}: ended with exit code {life.exit_code} after {took}{starts}"


def advice(story: RunStory, options: Sequence[str] = ()) -> list[str]:
    """Return what to do now, as lines; ``options`` are those that name the store or site."""
    program = " ".join(["ckptflow restart", shlex.quote(story.run), *map(shlex.quote, options)])
    why = " ".join(["ckptflow why", f"{story.run}/TASK", *map(shlex.quote, options)])
    if story.state == "dead":
        return [f"It goes on where it was with: {program}"]
    if story.state != "ended":
        return []
    lines = []
    if story.count("failed"):
        names = [one.name for one in story.tasks if one.state == "failed"]
        lines.append(f"What failed tells its story with: {why.replace('TASK', names[0])}")
    if story.count("failed", "stopped", "interrupted", "launched", "waiting", "running"):
        lines.append(f"It goes on where it was with: {program}")
    return lines


def document(story: RunStory, *, everything: bool = True) -> dict[str, Any]:
    """Return a run at a glance as JSON-like values."""
    shown, left_out = rows(story, everything=everything)
    return {
        "run": story.run,
        "state": story.state,
        "exit_code": story.exit_code,
        "lives": [
            {
                "session": one.session,
                "host": one.host,
                "pid": one.pid,
                "began_s": one.began_s,
                "ended_s": one.ended_s,
                "died": one.died,
                "exit_code": one.exit_code,
                "error": one.error,
            }
            for one in story.lives
        ],
        "blocks": [asdict(one) for one in story.blocks],
        "counts": {
            state: count
            for state in dict.fromkeys(one.state for one in story.tasks)
            if (count := story.count(state))
        },
        "lost_s": sum(one.lost_s for one in story.tasks),
        "blocked_s": sum(one.blocked_s for one in story.tasks),
        "eta_s": story.eta_s,
        "tasks": [_document(one) for one in shown],
        "tasks_left_out": left_out,
        "notes": list(story.notes),
    }


def _document(one: Row) -> dict[str, Any]:
    return {
        "task": one.task,
        "state": one.state,
        "attempts": one.attempts,
        "where": one.where,
        "step": one.step,
        "total_steps": one.total_steps,
        "saved": {
            tier: {"step": found.step, "attempt": found.attempt, "taken_s": found.taken_s}
            for tier, found in one.saved.items()
        },
        "lost_s": one.lost_s,
        "eta_s": one.eta_s,
    }


def _number(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"
