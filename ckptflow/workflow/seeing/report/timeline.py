"""The timeline: a row for each task, with its attempts, checkpoints and misfortunes. Pure.

``tests/process/test_report_page.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ckptflow.units import format_bytes, format_seconds
from ckptflow.workflow.blocks.story import BlockStory
from ckptflow.workflow.seeing.model import LOST_ENDINGS, Attempt, Checkpoint, RunStory, Task
from ckptflow.workflow.seeing.report.markup import Markup, tag, tip, titled, words
from ckptflow.workflow.seeing.report.scales import TimeScale, clock
from ckptflow.workflow.seeing.status import where

WIDTH_PX, LEFT_PX, RIGHT_PX, TOP_PX, FOOT_PX = 1120.0, 190.0, 14.0, 26.0, 8.0
ROWS_MAX = 80
TIER_COLOURS = 5  # The style sheet has so many; more tiers begin anew.

BLOCKS_MAX = 24

_BAR_PX, _LANE_PX, _PAD_PX, _BLOCK_PX = 13.0, 5.0, 7.0, 13.0
_NAME_MAX = 26
_MERGE_PX = 2.5  # Checkpoints nearer to each other are one mark.


def time_scale(story: RunStory, begin_px: float, end_px: float) -> TimeScale:
    """Return a scale for all that happened in a run."""
    spans = [(one.began_s, one.ended_s or story.now_s) for one in story.lives]
    spans += [
        (one.began_s, one.ended_s or story.now_s)
        for task in story.tasks
        for one in task.attempts
        if one.began_s is not None
    ]
    return TimeScale(spans, begin_px, end_px)


def drawn(story: RunStory) -> list[Task]:
    """Return the tasks that are drawn: all, or of very many those that met something."""
    began = [one for one in story.tasks if one.attempts]
    if len(began) <= ROWS_MAX:
        return began
    chosen = sorted(began, key=lambda one: (-one.lost_s, -len(one.attempts), -one.worked_s))
    names = {one.name for one in chosen[:ROWS_MAX]}
    return [one for one in began if one.name in names]


def timeline(story: RunStory) -> Markup:
    """Return the timeline as SVG."""
    tasks, blocks = drawn(story), story.blocks[:BLOCKS_MAX]
    scale = time_scale(story, LEFT_PX, WIDTH_PX - RIGHT_PX)
    row_px = _BAR_PX + _LANE_PX * max(1, len(story.tiers)) + _PAD_PX
    tasks_px = TOP_PX + _BLOCK_PX * len(blocks) + (_PAD_PX if blocks else 0)
    height_px = tasks_px + row_px * len(tasks) + FOOT_PX
    parts = [
        tag("title", words(f"Timeline of run {story.run}"), id="timeline-title"),
        *_lives(story, scale, height_px),
        *axis(scale, TOP_PX, height_px - FOOT_PX),
    ]
    for number, block in enumerate(blocks):
        parts.append(_block(story, block, scale, TOP_PX + number * _BLOCK_PX))
    for number, task in enumerate(tasks):
        parts.append(_row(story, task, scale, tasks_px + number * row_px))
    return tag(
        "svg", _hatch(), *parts, viewBox=f"0 0 {WIDTH_PX:.0f} {height_px:.0f}", role="img",
        aria_labelledby="timeline-title", class_="plot",
    )  # fmt: skip


def _hatch() -> Markup:
    line = tag("path", d="M0,6 L6,0", class_="hatch-line")
    pattern = tag("pattern", line, id="hatch", width=6, height=6, patternUnits="userSpaceOnUse")
    return tag("defs", pattern)


def axis(scale: TimeScale, top_px: float, bottom_px: float) -> Iterator[Markup]:
    """Yield grid lines with times of day above them, and a sign where a pause was cut out."""
    for x, text in scale.ticks():
        yield tag("line", x1=x, x2=x, y1=top_px, y2=bottom_px, class_="grid")
        yield tag("text", words(text), x=x, y=top_px - 9, class_="tick middle")
    for x, pause_s in scale.gaps():
        text = f"{format_seconds(pause_s)} in which nothing ran"
        yield tag(
            "g",
            titled(text),
            tag("rect", x=x - 11, y=top_px, width=22, height=bottom_px - top_px, class_="gap"),
            tag("text", words(format_seconds(pause_s)), x=x, y=top_px - 9,
                class_="tick middle strong"),
            **tip(text),
        )  # fmt: skip


def _lives(story: RunStory, scale: TimeScale, height_px: float) -> Iterator[Markup]:
    """Yield a band for each start of the script, and a line where one died."""
    if len(story.lives) < 2 and not any(one.died for one in story.lives):
        return
    for number, one in enumerate(story.lives):
        begin, end = scale(one.began_s), scale(one.ended_s or story.now_s)
        text = f"start {number + 1}: process {one.pid} on {one.host}, from {clock(one.began_s)}"
        yield tag(
            "rect", titled(text), x=begin, y=TOP_PX - 3, width=max(1.0, end - begin),
            height=height_px - TOP_PX, class_="life", **tip(text),
        )  # fmt: skip
        if one.died and one.ended_s is not None:
            text = f"process {one.pid} on {one.host} died about {clock(one.ended_s)}"
            yield tag(
                "g",
                titled(text),
                tag("line", x1=end, x2=end, y1=TOP_PX - 3, y2=height_px - 3, class_="death"),
                **tip(text),
            )


def _block(story: RunStory, one: BlockStory, scale: TimeScale, top_px: float) -> Markup:
    """Return a thin bar for a block: from when it was asked for until it was over."""
    life = story.lives[one.life] if one.life < len(story.lives) else None
    begin_s = one.submitted_s or (life.began_s if life else None)
    if begin_s is None:
        return ""
    end_s = one.ended_s or (life.ended_s if life else None) or story.now_s
    name = f"block {one.number} {one.allocation}".strip()
    lines = [f"{name} of {one.executor}", f"asked for {clock(begin_s)}"]
    lines += [f"{one.state}, {clock(end_s)}"] if one.state else []
    lines += [text for text in (one.message, one.held) if text]
    text, begin, end = "\n".join(lines), scale(begin_s), scale(end_s)
    shown = name if len(name) <= _NAME_MAX else name[: _NAME_MAX - 1] + "…"
    return tag(
        "g",
        titled(text),
        tag("text", words(shown), x=LEFT_PX - 10, y=top_px + 8, class_="tick end"),
        tag("rect", x=begin, y=top_px + 1, width=max(1.5, end - begin), height=_BLOCK_PX - 6,
            rx=2, class_="block"),
        **tip(text),
    )  # fmt: skip


def _row(story: RunStory, task: Task, scale: TimeScale, top_px: float) -> Markup:
    shown = task.name if len(task.name) <= _NAME_MAX else task.name[: _NAME_MAX - 1] + "…"
    label = tag("text", titled(task.name), words(shown), x=LEFT_PX - 10, y=top_px + 11,
                class_="label end")  # fmt: skip
    bars = [_attempt(story, task, one, scale, top_px) for one in task.attempts]
    marks = [
        mark
        for lane, tier in enumerate(story.tiers)
        for mark in _marks(task.checkpoints, tier, lane, scale, top_px)
    ]
    return tag("g", label, *bars, *marks, class_="row")


def _attempt(
    story: RunStory, task: Task, one: Attempt, scale: TimeScale, top_px: float
) -> Markup:
    if one.began_s is None:
        return ""
    ended_s = one.ended_s or story.now_s
    begin, end = scale(one.began_s), scale(ended_s)
    text = describe(task, one, story.now_s)
    ending = one.ending.replace(" ", "-")
    # Of a try that never used its checkpointer it is known when it was launched, no more.
    faint = " faint" if one.number is None and one.ending in ("running", "died") else ""
    faint = faint or (" vague" if one.number is None else "")
    parts = [
        titled(text),
        tag("rect", x=begin, y=top_px, width=max(1.5, end - begin), height=_BAR_PX, rx=2.5,
            class_=f"bar {ending}{faint}"),
    ]  # fmt: skip
    if one.lost_s and one.ending in LOST_ENDINGS:
        lost = max(begin, scale(ended_s - one.lost_s))
        parts.append(tag("rect", x=lost, y=top_px, width=max(1.0, end - lost), height=_BAR_PX,
                         class_="lost-part"))  # fmt: skip
    if one.ending in LOST_ENDINGS and one.number is not None:
        parts.append(_cross(end, top_px + _BAR_PX / 2))
    return tag("g", *parts, tabindex=0, class_="attempt", **tip(text))


def _cross(x: float, y: float) -> Markup:
    size = 4.2
    path = (
        f"M{x - size:.1f},{y - size:.1f} L{x + size:.1f},{y + size:.1f} "
        f"M{x - size:.1f},{y + size:.1f} L{x + size:.1f},{y - size:.1f}"
    )
    return tag("path", d=path, class_="cross-back") + tag("path", d=path, class_="cross")


def describe(task: Task, one: Attempt, now_s: float) -> str:
    """Return an attempt as lines of text."""
    name = "a try" if one.number is None else f"attempt {one.number}"
    lines = [f"{task.name}, {name}: {one.ending}"]
    if one.began_s is not None:
        took = format_seconds(max(0.0, (one.ended_s or now_s) - one.began_s))
        lines.append(f"from {clock(one.began_s)}, for {took}")
    place = where(one)
    lines += [f"on {place}"] if place else []
    if one.resumed:
        begun = (
            "at the beginning" if one.resumed_step is None else f"at step {one.resumed_step}"
        )
        until = "" if one.reached_step is None else f", got to step {one.reached_step}"
        lines.append(f"began {begun}{until}")
    lines += [f"about {format_seconds(one.lost_s)} of work lost"] if one.lost_s else []
    lines += [one.reason] if one.reason else []
    return "\n".join(lines)


def _marks(
    checkpoints: Iterable[Checkpoint],
    tier: tuple[str, int],
    lane: int,
    scale: TimeScale,
    top_px: float,
) -> Iterator[Markup]:
    """Yield the checkpoints on one tier: when each arrived there; those too near are one."""
    name, level = tier
    arrived = []
    for one in checkpoints:
        for copy in one.copies:
            at_s = copy.stored_s or one.taken_s
            if copy.tier == name and at_s is not None:
                arrived.append((scale(at_s), at_s, one))
    arrived.sort(key=lambda item: item[:2])
    y = top_px + _BAR_PX + 1.5 + lane * _LANE_PX
    for group in _near(arrived):
        first, last = group[0], group[-1]
        text = _mark_text([one for _, _, one in group], name, level, first[1])
        yield tag(
            "rect", titled(text), x=first[0] - 1, y=y, width=last[0] - first[0] + 2.2,
            height=_LANE_PX - 1.2, class_=f"mark tier-{lane % TIER_COLOURS}", **tip(text),
        )  # fmt: skip


def _near(
    arrived: Sequence[tuple[float, float, Checkpoint]],
) -> Iterator[list[tuple[float, float, Checkpoint]]]:
    group: list[tuple[float, float, Checkpoint]] = []
    for one in arrived:
        if group and one[0] - group[-1][0] >= _MERGE_PX:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _mark_text(group: Sequence[Checkpoint], tier: str, level: int, at_s: float) -> str:
    steps = sorted(one.step for one in group)
    what = (
        f"step {steps[0]}"
        if len(group) == 1
        else f"{len(group)} checkpoints, steps {steps[0]} to {steps[-1]}"
    )
    stored = sum(one.stored_bytes or 0 for one in group)
    size = f", {format_bytes(stored)} written" if stored else ""
    return f"{what} on {tier} (level {level})\nfrom {clock(at_s)}{size}"
