"""Plots of a run beside the timeline: progress, bytes, cost of saves, work lost. Pure.

``tests/process/test_report_page.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ckptflow.units import format_bytes, format_seconds
from ckptflow.workflow.seeing.model import LOST_ENDINGS, Attempt, Checkpoint, RunStory, Task
from ckptflow.workflow.seeing.report.markup import Markup, tag, tip, titled, words
from ckptflow.workflow.seeing.report.scales import Scale, TimeScale, byte_ticks, clock
from ckptflow.workflow.seeing.report.timeline import TIER_COLOURS, axis, drawn, time_scale

T = TypeVar("T")

LINE_COLOURS = 8
THIN_FROM = 12  # Tasks: more lines than that are drawn thin.

_WIDE_PX, _HALF_PX, _HEIGHT_PX = 1120.0, 550.0, 250.0
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 62.0, 14.0, 26.0, 12.0
_POINTS_MAX = 1500  # In one plot; of more, every n-th is drawn.


def progress(story: RunStory) -> Markup:
    """Return steps over time: a line for each task, that falls back where work was lost."""
    tasks = _with_steps(story)
    scale = time_scale(story, _LEFT_PX, _WIDE_PX - _RIGHT_PX)
    tops = [one.total_steps or 0 for one in tasks]
    tops += [one.reached_step or 0 for task in tasks for one in task.attempts]
    steps = Scale(0, max([*tops, 1]), _HEIGHT_PX - _BOTTOM_PX, _TOP_PX)
    lines = [
        line
        for number, task in enumerate(tasks)
        for line in _line(story, task, number, scale, steps)
    ]
    frame = [*axis(scale, _TOP_PX, _HEIGHT_PX - _BOTTOM_PX), *_left(steps, steps.ticks())]
    many = " thin" if len(tasks) > THIN_FROM else ""
    inside = tag("g", *lines, class_=f"lines{many}")
    return _svg("progress", f"Steps of the tasks of run {story.run}", _WIDE_PX, *frame, inside)


def line_items(story: RunStory) -> list[tuple[str, str]]:
    """Return which colour of `progress` is which task, if they are few."""
    tasks = _with_steps(story)
    names = [(f"l{number}", task.name) for number, task in enumerate(tasks)]
    return names if len(names) <= LINE_COLOURS else []


def _with_steps(story: RunStory) -> list[Task]:
    return [one for one in drawn(story) if any(a.number is not None for a in one.attempts)]


def _line(
    story: RunStory, task: Task, number: int, scale: TimeScale, steps: Scale
) -> Iterator[Markup]:
    colour = f"line-{number % LINE_COLOURS}"
    before: tuple[float, float] | None = None
    for one in task.attempts:
        points = _points(story, task, one)
        if not points:
            continue
        pixels = [(scale(at_s), steps(step)) for at_s, step in points]
        if before is not None:
            yield tag("polyline", points=_path([before, pixels[0]]), class_=f"fall {colour}")
        text = f"{task.name}, attempt {one.number}: step {points[0][1]} to {points[-1][1]}"
        yield tag(
            "g",
            titled(text),
            tag("polyline", points=_path(pixels), class_=f"line {colour}"),
            tag("polyline", points=_path(pixels), class_="wide"),
            **tip(text),
        )
        if one.ending in LOST_ENDINGS:
            x, y = pixels[-1]
            yield tag("circle", titled(text), cx=x, cy=y, r=3.4, class_=f"end-point {colour}")
        before = pixels[-1]


def _points(story: RunStory, task: Task, one: Attempt) -> list[tuple[float, int]]:
    """Return when an attempt was at which step: at its begin, its saves and its end."""
    if one.number is None or one.began_s is None:
        return []
    saves = [
        (save.taken_s, save.step)
        for save in task.checkpoints
        if save.attempt == one.number and save.taken_s is not None
    ]
    points = [(one.began_s, one.resumed_step or 0), *_thinned(sorted(saves))]
    if one.reached_step is not None:
        points.append((one.ended_s or story.now_s, max(one.reached_step, points[-1][1])))
    return points


def stored_bytes(story: RunStory) -> Markup:
    """Return what was written for each checkpoint, beside what full copies would have taken."""
    saved = _saved(story)
    scale = time_scale(story, _LEFT_PX, _HALF_PX - _RIGHT_PX)
    full, written = 0, 0
    state_line, stored_line = (
        [(story.began_s or saved[0][0], 0)],
        [(story.began_s or saved[0][0], 0)],
    )
    for at_s, _, one in saved:
        full += one.state_bytes or 0
        written += one.stored_bytes or 0
        state_line.append((at_s, full))
        stored_line.append((at_s, written))
    size = Scale(0, max(full, written, 1), _HEIGHT_PX - _BOTTOM_PX, _TOP_PX)
    ratio = f", {full / written:.1f} times less" if written else ""
    parts = []
    for line, name, text in (
        (state_line, "full", f"full copies would have taken {format_bytes(full)}"),
        (stored_line, "stored", f"{format_bytes(written)} were written{ratio}"),
    ):
        pixels = [(scale(at_s), size(total)) for at_s, total in _thinned(line)]
        area = [*pixels, (pixels[-1][0], size(0)), (pixels[0][0], size(0))]
        parts.append(
            tag(
                "g",
                titled(text),
                tag("polyline", points=_path(area), class_=f"area {name}"),
                tag("polyline", points=_path(pixels), class_=f"line {name}-line"),
                **tip(text),
            )
        )
    ticks = byte_ticks(size.high)
    frame = [
        *axis(scale, _TOP_PX, _HEIGHT_PX - _BOTTOM_PX),
        *_left(size, ticks, [format_bytes(one) for one in ticks]),
    ]
    return _svg("bytes", "Bytes of checkpoints, added up", _HALF_PX, *frame, *parts)


def cost_of_saves(story: RunStory) -> Markup:
    """Return for how long each save held its task up, and when each tier had it."""
    scale = time_scale(story, _LEFT_PX, _HALF_PX - _RIGHT_PX)
    dots: list[tuple[float, float, str, str]] = []
    tiers = {name: number for number, (name, _) in enumerate(story.tiers)}
    for at_s, task, one in _saved(story):
        if one.blocked_s is not None:
            text = (
                f"{task.name}, step {one.step}: held it up for {format_seconds(one.blocked_s)}"
            )
            dots.append((at_s, one.blocked_s, "held", text))
        for copy in one.copies:
            if copy.stored_s is None or one.blocked_s is None:
                continue
            delay_s = max(0.0, copy.stored_s - at_s)
            text = (
                f"{task.name}, step {one.step}: on {copy.tier} after {format_seconds(delay_s)}"
            )
            name = f"tier-{tiers.get(copy.tier, 0) % TIER_COLOURS}"
            dots.append((at_s, delay_s, name, text))
    seconds = _LogScale([value for _, value, _, _ in dots])
    drawn_dots = [
        tag("circle", titled(text), cx=scale(at_s), cy=seconds(value), r=2.6,
            class_=f"dot {name}", **tip(f"{text}\n{clock(at_s)}"))
        for at_s, value, name, text in _thinned(dots)
    ]  # fmt: skip
    frame = [*axis(scale, _TOP_PX, _HEIGHT_PX - _BOTTOM_PX), *seconds.left()]
    return _svg("cost", "What saves cost", _HALF_PX, *frame, *drawn_dots)


class _LogScale:
    """Seconds from the shortest to the longest, by powers of ten."""

    def __init__(self, values: Sequence[float]) -> None:
        positive = [value for value in values if value > 0] or [1e-3, 1.0]
        low = high = 1e-4
        while low * 10 <= min(positive) and low < 1e4:
            low *= 10
        while high < max(positive):
            high *= 10
        self._low, self._decades = low, max(1, round(_log10(high / low)))

    def __call__(self, value_s: float) -> float:
        part = _log10(max(value_s, self._low) / self._low) / self._decades
        return _HEIGHT_PX - _BOTTOM_PX - part * (_HEIGHT_PX - _BOTTOM_PX - _TOP_PX)

    def left(self) -> Iterator[Markup]:
        """Yield lines with their values at the left."""
        for number in range(self._decades + 1):
            value_s = self._low * 10**number
            yield from _tick(self(value_s), _short_seconds(value_s))


def _log10(value: float) -> float:
    return math.log10(value)


def _short_seconds(value_s: float) -> str:
    return f"{value_s * 1e3:g} ms" if value_s < 1 else f"{value_s:g} s"


def lost_work(story: RunStory) -> Markup:
    """Return what became of the time: a bar for all tasks, and one for each of the worst."""
    rows = [("all tasks", *_shares(story.tasks, story.now_s))]
    worst = sorted(story.tasks, key=lambda one: -one.lost_s)[:8]
    rows += [(one.name, *_shares([one], story.now_s)) for one in worst if one.lost_s > 0]
    top_px, row_px, left_px = 8.0, 26.0, 190.0
    height_px = top_px + row_px * len(rows) + 6
    parts = []
    for number, (name, useful_s, blocked_s, lost_s) in enumerate(rows):
        total_s = useful_s + blocked_s + lost_s or 1.0
        y, x = top_px + number * row_px, left_px
        shown = name if len(name) <= 26 else name[:25] + "…"
        parts.append(tag("text", titled(name), words(shown), x=left_px - 10, y=y + 13,
                         class_="label end"))  # fmt: skip
        for value_s, kind, what in (
            (useful_s, "useful", "work that counted"),
            (blocked_s, "held-part", "held up by saves"),
            (lost_s, "lost-bar", "work lost"),
        ):
            width = (_WIDE_PX - _RIGHT_PX - left_px) * value_s / total_s
            text = f"{name}: {what} {format_seconds(value_s)}, {100 * value_s / total_s:.1f} %"
            if width > 0:
                parts.append(tag("rect", titled(text), x=x, y=y, height=17,
                                 width=max(width, 0.8),
                                 class_=f"share {kind}", **tip(text)))  # fmt: skip
            x += width
    return _svg("lost", "What became of the time of the tasks", _WIDE_PX, *parts,
                height_px=height_px)  # fmt: skip


def _shares(tasks: Sequence[Task], now_s: float) -> tuple[float, float, float]:
    """Return seconds of work that counted, held up by saves, and lost."""
    worked_s = sum(
        max(0.0, (one.ended_s or now_s) - one.began_s)
        for task in tasks
        for one in task.attempts
        if one.began_s is not None and one.number is not None
    )
    lost_s = min(worked_s, sum(one.lost_s for one in tasks))
    blocked_s = min(worked_s - lost_s, sum(one.blocked_s for one in tasks))
    return worked_s - lost_s - blocked_s, blocked_s, lost_s


def shares(story: RunStory) -> tuple[float, float, float]:
    """Return seconds of work that counted, held up by saves, and lost, of all tasks."""
    return _shares(story.tasks, story.now_s)


def _saved(story: RunStory) -> list[tuple[float, Task, Checkpoint]]:
    found = [
        (one.taken_s, task, one)
        for task in story.tasks
        for one in task.checkpoints
        if one.taken_s is not None
    ]
    return sorted(found, key=lambda item: item[0])


def has_saves(story: RunStory) -> bool:
    """Tell whether there is a checkpoint to draw."""
    return bool(_saved(story))


def _thinned(points: Sequence[T]) -> list[T]:
    every = -(-len(points) // _POINTS_MAX) or 1
    kept = list(points[::every])
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]


def _path(pixels: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)


def _left(
    scale: Scale, ticks: Sequence[float], texts: Sequence[str] | None = None
) -> Iterator[Markup]:
    names = texts or [f"{one:g}" for one in ticks]
    for value, text in zip(ticks, names, strict=True):
        yield from _tick(scale(value), text)


def _tick(y: float, text: str) -> Iterator[Markup]:
    yield tag("line", x1=_LEFT_PX, x2="100%", y1=y, y2=y, class_="grid")
    yield tag("text", words(text), x=_LEFT_PX - 7, y=y + 4, class_="tick end")


def _svg(
    name: str, title: str, width_px: float, *parts: Markup, height_px: float = _HEIGHT_PX
) -> Markup:
    return tag(
        "svg", tag("title", words(title), id=f"{name}-title"), *parts,
        viewBox=f"0 0 {width_px:.0f} {height_px:.0f}", role="img",
        aria_labelledby=f"{name}-title", class_="plot",
    )  # fmt: skip
