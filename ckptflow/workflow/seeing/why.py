"""The story of one task in sentences: what happened to it, when and why, and what comes next.

Pure. ``tests/unit/test_seeing_shown.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ckptflow.checkpointer.health import sentence
from ckptflow.units import format_bytes, format_seconds
from ckptflow.workflow.seeing.events import seconds_of
from ckptflow.workflow.seeing.model import Attempt, Checkpoint, Life, RunStory, Task, Try

_NEXT = {
    "reuse": "its result is used again",
    "resume": "it goes on",
    "begin": "it begins anew",
}
_GIVE_UP_COST = 1e8  # The journal has 1e9 for a price that is more than any budget.


@dataclass(frozen=True, slots=True)
class Moment:
    """One sentence of a story, and when it happened; ``None`` if that is not known."""

    at_s: float | None
    text: str


def moments(story: RunStory, task: Task) -> list[Moment]:
    """Return what happened to a task, the oldest first."""
    found: list[Moment] = []
    told: set[int] = set()
    for one in task.attempts:
        if one.life is not None:
            found += _starts(story.lives, one.life, told)
        found += _attempt(one, task)
    last_s, placed = 0.0, list[tuple[float, int, Moment]]()
    for number, moment in enumerate(found):  # What has no time stays behind what it follows.
        last_s = last_s if moment.at_s is None else moment.at_s
        placed.append((last_s, number, moment))
    return [moment for _, _, moment in sorted(placed, key=lambda item: item[:2])]


def _starts(lives: Sequence[Life], number: int, told: set[int]) -> Iterator[Moment]:
    """Yield the start of a life, once, if there was more than one."""
    if len(lives) < 2 or number in told or number >= len(lives):
        return
    told.add(number)
    life = lives[number]
    nth = "the script was started" if number == 0 else "the script was started again"
    yield Moment(life.began_s, f"{nth} on {life.host} (process {life.pid})")


def _attempt(one: Attempt, task: Task) -> Iterator[Moment]:
    name = f"attempt {one.number}" if one.number is not None else "this try"
    launch = one.launch
    if launch is not None and not _is_later_attempt(one, task):
        yield Moment(launch.launched_s, _launched(launch))
    if one.number is not None:
        yield Moment(one.began_s, f"{name} began{_where(one)}{_waited(one)}{_resumed(one)}")
        for skipped in one.skipped:
            yield Moment(
                one.began_s,
                f"it passed over step {skipped.get('step')} of attempt "
                f"{skipped.get('attempt')}: {skipped.get('reason')}",
            )
        yield from _saves(one, task)
    for trouble in one.tiers:
        yield Moment(seconds_of(trouble.get("since")), sentence(dict(trouble)))
    for text in one.failures:
        yield Moment(None, f"a save failed: {text}")
    yield from _ended(one, name)


def _is_later_attempt(one: Attempt, task: Task) -> bool:
    """Tell whether an attempt before this one belongs to the same try."""
    ours = [other for other in task.attempts if other.launch is one.launch]
    return bool(ours) and ours[0] is not one


def _launched(launch: Try) -> str:
    nth = "" if launch.number == 1 else f", for the {_ordinal(launch.number)} time"
    number = "" if launch.task_id is None else f" as its task {launch.task_id}"
    return f"handed to Parsl{number}{nth}"


def _where(one: Attempt) -> str:
    found = one.where
    details = [
        f"{word} {found[key]}"
        for key, word in (("pid", "process"), ("worker", "worker"), ("block", "block"))
        if key in found
    ]
    if "allocation" in found:
        again = found.get("allocation_restarts")
        details.append(
            str(found["allocation"]) + (f", requeued {again} times" if again else "")
        )
    host = f" on {found['host']}" if "host" in found else ""
    return host + (f" ({', '.join(details)})" if details else "")


def _waited(one: Attempt) -> str:
    if one.launch is None or one.began_s is None:
        return ""
    waited_s = one.began_s - one.launch.launched_s
    return f", {format_seconds(waited_s)} after that" if waited_s >= 1 else ""


def _resumed(one: Attempt) -> str:
    if not one.resumed:
        return ""
    if one.resumed_step is None:
        return "; there was no checkpoint to go on from"
    return f", and went on from step {one.resumed_step}"


def _saves(one: Attempt, task: Task) -> Iterator[Moment]:
    ours = [each for each in task.checkpoints if each.attempt == one.number]
    if not ours:
        return
    last = ours[-1]
    count = "1 checkpoint" if len(ours) == 1 else f"{len(ours)} checkpoints"
    steps = (
        f"of step {last.step}" if len(ours) == 1 else f"of steps {ours[0].step} to {last.step}"
    )
    stored = sum(each.stored_bytes or 0 for each in ours)
    state = sum(each.state_bytes or 0 for each in ours)
    size = f", {format_bytes(stored)} for {format_bytes(state)} of state" if state else ""
    held = f"; saves held it up for {format_seconds(one.blocked_s)}" if one.blocked_s else ""
    yield Moment(last.taken_s, f"it has saved {count} {steps}{size}{held}")
    for each in ours:
        if each.problem is not None:
            yield Moment(
                each.taken_s, f"step {each.step} (attempt {each.attempt}): {each.problem}"
            )


def _ended(one: Attempt, name: str) -> Iterator[Moment]:
    at = "" if one.reached_step is None else f" at step {one.reached_step}"
    reason = f": {one.reason}" if one.reason else ""
    match one.ending:
        case "running":
            yield Moment(None, f"{name} runs{at}")
            return
        case "open":
            yield Moment(None, f"{name} has not said how it ended{at}")
            return
        case "finished":
            text = f"{name} finished{at}"
        case "stopped":
            text = f"{name} stopped in time{at}{reason}"
        case "lost":
            text = f"{name} was lost with its worker{_at_least(one)}{reason}"
        case "died":
            text = f"{name} was left behind{_at_least(one)}{reason}"
        case "fenced":
            text = f"{name} was overtaken{reason}"
        case "went back":
            text = f"{name} went back{reason}"
        case _:
            text = f"{name} failed{at}{reason}"
    yield Moment(one.ended_s, text + _lost(one))
    if one.launch is not None and one.launch.reason is not None:
        yield Moment(one.launch.ended_s, _price(one.launch))


def _at_least(one: Attempt) -> str:
    return "" if one.reached_step is None else f", at step {one.reached_step} or later"


def _lost(one: Attempt) -> str:
    if one.lost_s is None or one.ending == "stopped":
        return ""
    steps = f" ({one.lost_steps} steps or more)" if one.lost_steps else ""
    return f". About {format_seconds(one.lost_s)} of work was lost{steps}"


def _price(launch: Try) -> str:
    cost = launch.cost
    if cost is not None and cost >= _GIVE_UP_COST:
        return f"no other try, {launch.reason}"
    price = "costs nothing" if not cost else f"costs {cost:g}"
    return f"another try {price}, {launch.reason}"


def conclusion(story: RunStory, task: Task) -> list[str]:
    """Return how a task stands, and what happens to it next."""
    lines = [_stands(story, task)]
    newest = task.newest
    if newest is not None:
        tiers = ", ".join(copy.tier for copy in newest.copies if copy.present)
        lines.append(f"Its newest checkpoint is of step {newest.step}, on {tiers}.")
        lines += _passed_over(task.checkpoints, newest)
    if task.state not in ("finished", "reused", "running") and task.next:
        action, _, reason = task.next.partition(": ")
        verb = {
            "reuse": "its result is used again",
            "resume": "it goes on",
            "begin": "it begins anew",
        }
        lines.append(f"When the run is started again, {verb.get(action, action)}: {reason}.")
    return lines


def _stands(story: RunStory, task: Task) -> str:
    match task.state:
        case "finished":
            return "It is finished."
        case "reused":
            return "It was finished in an earlier start; its result came from the Parsl memo."
        case "running":
            eta = (
                ""
                if task.eta_s is None
                else f", and is done in about {format_seconds(task.eta_s)}"
            )
            return f"It runs{eta}."
        case "launched":
            return "It was handed to Parsl, and has not used its checkpointer yet."
        case "waiting":
            return "It waits for its next try."
        case "stopped":
            return f"It stopped in time, with its state saved: {task.error}."
        case "failed":
            return f"It failed: {task.error}."
    gone = "the main process died" if story.state == "dead" else "the run ended"
    return f"It is not finished: {gone} before it was."


def _passed_over(checkpoints: Iterable[Checkpoint], newest: Checkpoint) -> list[str]:
    """Say why checkpoints with a greater step do not count."""
    why = {
        "void": "the task went on without it",
        "unreadable": "no copy of its manifest can be read",
        "quarantined": "several attempts could not restore it",
        "incomplete": "not all ranks have saved their part",
    }
    return [
        f"Step {one.step} of attempt {one.attempt} does not count: {why[one.status]}."
        for one in checkpoints
        if one.step > newest.step and one.status in why
    ]


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
