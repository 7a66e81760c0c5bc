"""The page: what is known of a run as one HTML document. Pure.

It has no outside: styles, script and plots are in it, and its policy forbids the browser every
other script and every request. All text is escaped (`markup`). What a plot shows is in a table,
too. ``tests/process/test_report_page.py`` opens it in a browser.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources

import ckptflow
from ckptflow.units import format_bytes, format_seconds
from ckptflow.workflow.seeing.model import LOST_ENDINGS, Attempt, RunStory, Task
from ckptflow.workflow.seeing.monitoring import MonitoredTry
from ckptflow.workflow.seeing.report import plots
from ckptflow.workflow.seeing.report.markup import Cell, Markup, table, tag, words
from ckptflow.workflow.seeing.report.timeline import TIER_COLOURS, drawn, timeline
from ckptflow.workflow.seeing.status import advice, where

ROWS_MAX = 5000  # Of a table; a page with more is no page any more.

_ENDINGS = {
    "finished": "finished",
    "running": "running",
    "stopped": "stopped in time",
    "failed": "failed",
    "lost": "lost with its worker",
    "died": "left behind when the run died",
    "fenced": "overtaken by a newer attempt",
    "went back": "went back to an older step",
}


def page(story: RunStory, monitoring: Sequence[MonitoredTry] = ()) -> str:
    """Return the page of a run.

    Args:
        story: what is known of it.
        monitoring: what Parsl's monitoring knows of its tasks.
    """
    style, script = _file("page.css"), _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", words(f"Run {story.run}")),
        f"<style>{style}</style>",
    )
    body = tag(
        "body",
        tag("main", *_parts(story, monitoring)),
        tag("div", id="tip", role="status"),
        f"<script>{script}</script>",
    )
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'


@cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _parts(story: RunStory, monitoring: Sequence[MonitoredTry]) -> Iterator[Markup]:
    yield _header(story)
    yield _tiles(story)
    if drawn(story):
        yield _timeline(story)
    if any(one.number is not None for task in story.tasks for one in task.attempts):
        yield _progress(story)
    if plots.has_saves(story):
        yield tag("div", _bytes(story), _cost(story), class_="two")
    if sum(plots.shares(story)):
        yield _lost(story)
    yield from _failures(story)
    yield _tasks(story)
    yield from _blocks(story)
    yield from _starts(story)
    yield from _monitoring(monitoring)
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(story.now_s))
    text = f"Made by ckptflow {ckptflow.__version__} at {made}; times are of that machine."
    yield tag("footer", words(text))


def _header(story: RunStory) -> Markup:
    kind, text = _badge(story)
    parts = [
        tag("h1", words(story.run)),
        tag("span", words(text), class_=f"badge {kind}"),
    ]
    if story.lives:
        life = story.lives[-1]
        first = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(story.lives[0].began_s))
        took = format_seconds((life.ended_s or story.now_s) - story.lives[0].began_s)
        starts = "1 start" if len(story.lives) == 1 else f"{len(story.lives)} starts"
        parts.append(tag("p", words(f"began {first}, {took}, {starts}; site {life.site}, "
                                    f"process {life.pid} on {life.host}")))  # fmt: skip
        parts.append(tag("p", tag("code", words(" ".join(life.script))),
                         words(f" in {life.folder}")))  # fmt: skip
    parts += [tag("p", words(line), class_="advice") for line in advice(story)]
    parts += [tag("p", words(f"Not shown: {line}"), class_="advice") for line in story.notes]
    return tag("header", *parts)


def _badge(story: RunStory) -> tuple[str, str]:
    match story.state:
        case "running":
            return "live", "running"
        case "dead":
            return "bad", "dead"
        case "unknown":
            return "warn", "no main process"
    code = story.exit_code
    return ("good", "finished") if code == 0 else ("bad", f"ended with exit code {code}")


def _tiles(story: RunStory) -> Markup:
    attempts = [one for task in story.tasks for one in task.attempts]
    hit = sum(one.ending in LOST_ENDINGS and one.number is not None for one in attempts)
    saved = [one for task in story.tasks for one in task.checkpoints]
    full = sum(one.state_bytes or 0 for one in saved)
    written = sum(one.stored_bytes or 0 for one in saved)
    useful_s, blocked_s, lost_s = plots.shares(story)
    total_s = useful_s + blocked_s + lost_s
    done = story.count("finished", "reused")
    tried, lost = sum(one.executions for one in story.tasks), _percent(lost_s, total_s)
    return tag(
        "div",
        _tile(f"{done} / {len(story.tasks)}", "tasks done"),
        _tile(str(tried), f"attempts, {hit} of them cut short"),
        _tile(str(len(saved)), "checkpoints"),
        _tile(format_bytes(written), f"written for {format_bytes(full)} of state"),
        _tile(_percent(blocked_s, total_s), "of the time held up by saves"),
        _tile(format_seconds(lost_s) if lost_s else "none", f"of work lost, {lost}"),
        class_="tiles",
    )  # fmt: skip


def _percent(part: float, whole: float) -> str:
    return "0 %" if not part else f"{100 * part / (whole or 1):.2g} %"


def _tile(value: str, text: str) -> Markup:
    return tag("div", tag("b", words(value)), tag("span", words(text)), class_="tile")


def _section(title: str, text: str, *parts: Markup) -> Markup:
    return tag("section", tag("h2", words(title)), tag("p", words(text)), *parts)


def _legend(items: Sequence[tuple[str, str]]) -> Markup:
    """Return what colours mean; a colour is a variable of the style sheet."""
    entries = (
        tag("li", tag("i", style=f"background: var(--{colour})"), words(text))
        for colour, text in items
    )
    return tag("ul", *entries, class_="legend")


def _tier_items(story: RunStory) -> list[tuple[str, str]]:
    return [
        (f"tier{number % TIER_COLOURS}", f"checkpoint on {name} (level {level})")
        for number, (name, level) in enumerate(story.tiers)
    ]


def _timeline(story: RunStory) -> Markup:
    used = {one.ending for task in story.tasks for one in task.attempts}
    items = [
        (ending.replace("went back", "back-step"), text)
        for ending, text in _ENDINGS.items()
        if ending in used
    ]
    shown, count = len(drawn(story)), len(story.tasks)
    which = "" if shown == count else f" {shown} of {count} tasks are drawn."
    return _section(
        "Timeline",
        "One row a task, one bar an attempt, coloured by how it ended; hatched is work that "
        "was lost. Below the bar: when each tier had a checkpoint. Pale bars begin at the "
        "launch, of tasks that never used their checkpointer; dashed ones may not have "
        f"begun.{which}",
        timeline(story),
        _legend([*items, *_tier_items(story)]),
        _attempts_table(story),
    )


def _attempts_table(story: RunStory) -> Markup:
    head = (
        "task",
        "attempt",
        "ended",
        "began",
        "took",
        "where",
        "from step",
        "to step",
        "lost",
    )
    rows = [
        (
            task.name,
            "" if one.number is None else one.number,
            one.ending,
            _moment(one.began_s),
            _took(one.began_s, one.ended_s, story.now_s),
            where(one),
            "" if one.resumed_step is None else one.resumed_step,
            "" if one.reached_step is None else one.reached_step,
            format_seconds(one.lost_s) if one.lost_s else "",
        )
        for task in story.tasks
        for one in task.attempts
    ]
    return _folded(f"All {len(rows)} attempts", head, rows,
                   ("attempt", "took", "from step", "to step", "lost"))  # fmt: skip


def _folded(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    numbers: Sequence[str] = (),
) -> Markup:
    more = "" if len(rows) <= ROWS_MAX else f" (the first {ROWS_MAX})"
    summary = tag("summary", words(title + more))
    return tag("details", summary, table(head, rows[:ROWS_MAX], numbers=numbers))


def _progress(story: RunStory) -> Markup:
    return _section(
        "Progress",
        "Steps over time. A line that ends in a ring was cut off there; the dotted line leads "
        "to where the next attempt went on, and how far it falls is what was computed again.",
        plots.progress(story),
        _legend(plots.line_items(story)),
    )


def _bytes(story: RunStory) -> Markup:
    rows = [
        (
            task.name, one.step, one.attempt, _moment(one.taken_s),
            "" if one.state_bytes is None else format_bytes(one.state_bytes),
            "" if one.stored_bytes is None else format_bytes(one.stored_bytes),
            ", ".join(copy.tier for copy in one.copies if copy.present is not False),
            one.status,
        )
        for task in story.tasks
        for one in task.checkpoints
    ]  # fmt: skip
    head = ("task", "step", "attempt", "taken", "state", "written", "on", "status")
    return _section(
        "Bytes",
        "What checkpoints have written, added up, and what full copies would have taken.",
        plots.stored_bytes(story),
        _legend([("full", "full copies"), ("stored", "written")]),
        _folded(f"All {len(rows)} checkpoints", head, rows,
                ("step", "attempt", "state", "written")),
    )  # fmt: skip


def _cost(story: RunStory) -> Markup:
    rows = [
        (
            task.name,
            len(task.checkpoints),
            format_seconds(task.blocked_s) if task.blocked_s else "",
            _percent(task.blocked_s, task.worked_s),
        )
        for task in story.tasks
        if task.checkpoints
    ]
    tiers = [(colour, text.replace("checkpoint on", "until it was on"))
             for colour, text in _tier_items(story)]  # fmt: skip
    return _section(
        "Cost of saves",
        "For how long each save held its task up, and how long it took until each tier had it.",
        plots.cost_of_saves(story),
        _legend([("held", "held the task up"), *tiers]),
        _folded("By task", ("task", "checkpoints", "held up", "of its time"), rows,
                ("checkpoints", "held up", "of its time")),
    )  # fmt: skip


def _lost(story: RunStory) -> Markup:
    useful_s, blocked_s, lost_s = plots.shares(story)
    rows = [
        ("work that counted", format_seconds(useful_s)),
        ("held up by saves", format_seconds(blocked_s)),
        ("work lost", format_seconds(lost_s)),
    ]
    return _section(
        "Where the time went",
        "All attempts together, and the tasks that lost most. Work is lost from the checkpoint "
        "on from which the next attempt went on.",
        plots.lost_work(story),
        _legend([("finished", "work that counted"), ("held", "held up by saves"),
                 ("lost", "work lost")]),
        _folded("In numbers", ("what", "time"), rows, ("time",)),
    )  # fmt: skip


def _failures(story: RunStory) -> Iterator[Markup]:
    hit = [(task, one) for task in story.tasks for one in task.attempts if _went_wrong(one)]
    if not hit:
        return
    hit.sort(key=lambda item: item[1].ended_s or 0.0)
    rows = [
        (
            _moment(one.ended_s),
            task.name,
            "" if one.number is None else one.number,
            Cell(_state(one.ending)),
            "; ".join([*([one.reason] if one.reason else []), *one.failures]),
            where(one),
            format_seconds(one.lost_s) if one.lost_s else "",
        )
        for task, one in hit
    ]
    head = ("when", "task", "attempt", "ended", "why", "where", "lost")
    yield _section(
        "What went wrong",
        "Attempts that ended before their time, and saves that failed, in order of time.",
        table(head, rows[:ROWS_MAX], numbers=("attempt", "lost")),
    )


def _went_wrong(one: Attempt) -> bool:
    if one.failures:
        return True
    # Whether a try that died with its run had begun to work may not be known.
    return one.ending in LOST_ENDINGS and (one.number is not None or one.ending != "died")


def _tasks(story: RunStory) -> Markup:
    rows = [_task_row(task) for task in story.tasks]
    head = ("task", "state", "attempts", "step", "newest checkpoint", "held up", "lost", "next")
    return _section(
        "Tasks", f"All {len(rows)} tasks, in the order of their first launch.",
        table(head, rows[:ROWS_MAX], numbers=("attempts", "step", "held up", "lost")),
    )  # fmt: skip


def _task_row(task: Task) -> tuple[object, ...]:
    total = f" / {task.total_steps}" if task.total_steps is not None else ""
    newest = task.newest
    saved = ""
    if newest is not None:
        places = ", ".join(copy.tier for copy in newest.copies if copy.present)
        saved = f"step {newest.step} on {places}"
    what = task.next if task.state not in ("finished", "reused", "running") else ""
    return (
        task.name,
        Cell(_state(task.state)),
        task.executions,
        "" if task.step is None else f"{task.step}{total}",
        saved,
        format_seconds(task.blocked_s) if task.blocked_s else "",
        format_seconds(task.lost_s) if task.lost_s else "",
        task.error or what,
    )


def _state(state: str) -> Markup:
    return tag("span", words(state), class_=f"state {state.replace(' ', '-')}")


def _blocks(story: RunStory) -> Iterator[Markup]:
    if not story.blocks:
        return
    rows = [
        (
            one.number,
            one.executor,
            one.allocation,
            one.life + 1,
            _moment(one.submitted_s),
            _moment(one.ended_s),
            one.state or "",
            "; ".join(filter(None, (one.message, one.held))),
        )
        for one in story.blocks
    ]
    head = ("block", "executor", "allocation", "start", "asked for", "over", "how", "why")
    yield _section(
        "Blocks",
        "Workers come in blocks: what was asked for, and what became of it.",
        table(head, rows[:ROWS_MAX], numbers=("block", "start")),
    )


def _starts(story: RunStory) -> Iterator[Markup]:
    if not story.lives:
        return
    rows = [
        (
            number,
            _moment(one.began_s),
            _took(one.began_s, one.ended_s, story.now_s),
            f"process {one.pid} on {one.host}",
            "died"
            if one.died
            else ""
            if one.exit_code is None
            else f"exit code {one.exit_code}",
            one.error or "",
        )
        for number, one in enumerate(story.lives, start=1)
    ]
    news = [(_moment(at_s), text) for at_s, text in story.news]
    parts = [
        table(("start", "began", "took", "main process", "ended", "error"), rows,
              numbers=("start", "took"))
    ]  # fmt: skip
    if news:
        parts.append(_folded(f"{len(news)} other events", ("when", "what"), news))
    yield _section(
        "Starts", "Each start of the script; the same line again is the restart.", *parts
    )


def _monitoring(found: Sequence[MonitoredTry]) -> Iterator[Markup]:
    if not found:
        return
    rows = [
        (
            one.task, one.task_id, one.try_id + 1, one.host or "", one.block or "",
            one.running or one.launched or "", one.returned or "",
            format_bytes(one.memory_bytes) if one.memory_bytes else "",
            format_seconds(one.cpu_s) if one.cpu_s else "",
        )
        for one in found
    ]  # fmt: skip
    head = (
        "task",
        "Parsl's number",
        "try",
        "host",
        "block",
        "began",
        "returned",
        "memory",
        "CPU",
    )
    yield _section(
        "Parsl's monitoring",
        "What its database knows of these tasks; they were found by their hash.",
        table(head, rows[:ROWS_MAX], numbers=("Parsl's number", "try", "memory", "CPU")),
    )


def _moment(at_s: float | None) -> str:
    if at_s is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def _took(began_s: float | None, ended_s: float | None, now_s: float) -> str:
    return "" if began_s is None else format_seconds(max(0.0, (ended_s or now_s) - began_s))
