"""``status``, ``why``, ``logs``, ``events``, ``report``, ``metrics``: what a run does and did.

They read the run's folder and the store, and write to neither.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ckptflow.cli import naming, output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.output import JsonOption
from ckptflow.cli.runs import SiteOption, StoreOption
from ckptflow.errors import ConfigError, NotFoundError
from ckptflow.units import brief, format_bytes, format_seconds, parse_seconds

if TYPE_CHECKING:
    from ckptflow.workflow.seeing.logs import Excerpt, Source
    from ckptflow.workflow.seeing.model import RunStory, Task
    from ckptflow.workflow.seeing.place import RunPlace
    from ckptflow.workflow.seeing.status import Row
    from ckptflow.workflow.seeing.why import Moment

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")]
EveryOption = Annotated[
    str, typer.Option("--every", help="With --watch or --follow: how often to look.")
]
MonitoringOption = Annotated[
    Path | None,
    typer.Option("--monitoring", help="Parsl's monitoring database, if not the run's own."),
]

_REST = 4.0  # How much longer a watcher rests than it looks.
_STYLES = {
    "running": "cyan", "launched": "blue", "waiting": "yellow", "finished": "green",
    "reused": "green", "stopped": "yellow", "failed": "red", "interrupted": "magenta",
}  # fmt: skip


@output.reports_errors
def status(
    name: RunArgument,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on until the run ends; exit as it does.")
    ] = False,
    every: EveryOption = "2s",
    everything: Annotated[
        bool, typer.Option("--all", help="All tasks, also where there are very many.")
    ] = False,
    site: SiteOption = None,
    store: StoreOption = None,
    json_output: JsonOption = False,
) -> int:
    """Show the tasks of a run: where they are, how far, what is saved, what was lost."""
    from ckptflow.workflow.seeing.status import document

    pause_s = parse_seconds(every)
    place = _find(name, site, store)
    options = _options(site, store)
    story = place.story(manifests=False)
    if watch and story.state == "unknown":
        raise ConfigError(
            f"Run {name!r} has no main process that could end: it was not started by "
            f"ckptflow.run(). Look at it without --watch."
        )
    if watch and not json_output:
        story = _watch(place, story, pause_s, options, everything=everything)
    elif watch:
        *_, story = _stories(place, story, pause_s)
    if json_output or not watch:
        output.show(
            document(story),
            lambda console: console.print(_screen(story, options, everything=everything)),
            as_json=json_output,
        )
    return _exit_code(story) if watch else ExitCode.OK


def _exit_code(story: RunStory) -> int:
    """Return what a run ended with; of one that died, that it has to be started again."""
    if story.state == "dead":
        return ExitCode.UNFINISHED
    return ExitCode.OK if story.exit_code is None else story.exit_code


def _watch(
    place: RunPlace,
    story: RunStory,
    pause_s: float,
    options: list[str],
    *,
    everything: bool,
) -> RunStory:
    """Show a run until it ends; return its last story. Into a pipe go changes only."""
    stories = _stories(place, story, pause_s)
    if not sys.stdout.isatty():
        return _watch_changes(stories, options)
    with Live(console=Console(highlight=False, markup=False), auto_refresh=False) as live:
        for now in stories:
            story = now
            live.update(_screen(story, options, everything=everything), refresh=True)
    return story


def _stories(place: RunPlace, story: RunStory, pause_s: float) -> Iterator[RunStory]:
    """Yield a run as it is, again and again until it ends.

    Of a run with very many tasks a look takes its time, but no more than a fifth of all time.
    """
    yield story
    took_s = 0.0
    while story.state == "running":
        time.sleep(max(pause_s, _REST * took_s))
        began_s = time.monotonic()
        story = place.story(manifests=False)
        took_s = time.monotonic() - began_s
        yield story


def _watch_changes(stories: Iterator[RunStory], options: list[str]) -> RunStory:
    """Write a line for each task that has changed, and at the end how it ended."""
    from ckptflow.workflow.seeing.status import advice, headline, row

    seen: dict[str, tuple[object, ...]] = {}
    said: set[str] = set()
    for story in stories:
        lines = [text for text in story.notes if text not in said]
        said.update(lines)
        for task in story.tasks:
            one = row(task, story)
            sign = (one.state, one.attempts, one.where, one.step, _saved_text(one))
            if seen.get(one.task) != sign:
                seen[one.task] = sign
                lines.append(_change(one))
        clock = time.strftime("%H:%M:%S", time.localtime(story.now_s))
        sys.stdout.writelines(f"{clock} {line}\n" for line in lines)
        sys.stdout.flush()
    sys.stdout.writelines(f"{line}\n" for line in (headline(story), *advice(story, options)))
    return story


def _change(one: Row) -> str:
    total = "" if one.total_steps is None else f" of {one.total_steps}"
    parts = [f"{one.task} {one.state}"]
    parts += [f"attempt {one.attempts}"] if one.attempts > 1 else []
    parts += [f"on {one.where}"] if one.where else []
    parts += [f"step {one.step}{total}"] if one.step is not None else []
    saved = _saved_text(one)
    parts += [f"saved {saved}"] if saved else []
    parts += [f"lost {format_seconds(one.lost_s)}"] if one.lost_s else []
    return ", ".join(parts)


def _saved_text(one: Row) -> str:
    return " ".join(f"{tier}:{found.step}" for tier, found in one.saved.items())


def _screen(story: RunStory, options: list[str], *, everything: bool) -> RenderableType:
    from ckptflow.workflow.seeing.status import advice, blocks_line, headline, rows

    shown, left_out = rows(story, everything=everything)
    parts: list[RenderableType] = [Text(headline(story), style="bold")]
    if shown:
        parts.append(_table(story, shown))
    if blocks := blocks_line(story):
        parts.append(Text(blocks))
    if left_out:
        parts.append(Text(f"and {left_out} other tasks; --all shows them"))
    parts += [Text(f"note: {text}", style="yellow") for text in story.notes]
    parts += [Text(line) for line in advice(story, options)]
    return Group(*parts)


def _table(story: RunStory, shown: list[Row]) -> Table:
    tiers = [name for name, _ in story.tiers]
    columns = ["TASK", "STATE", "ATT", "WHERE", "STEP", *tiers, "LOST", "ETA"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column in ("ATT", "STEP", "LOST", "ETA")
        wraps = column in ("TASK", "WHERE")  # Of what is too wide these are given up last.
        table.add_column(
            column, justify="right" if right else "left", no_wrap=not wraps, overflow="fold"
        )
    for one in shown:
        step = "" if one.step is None else str(one.step)
        if one.step is not None and one.total_steps:
            step += f"/{one.total_steps} {100 * one.step / one.total_steps:.0f}%"
        saved = [_saved(one, tier, story.now_s) for tier in tiers]
        eta = "unknown" if one.state == "running" else ""
        eta = eta if one.eta_s is None else brief(one.eta_s)
        lost = brief(one.lost_s) if one.lost_s else ""
        state = Text(one.state, style=_STYLES.get(one.state, ""))
        cells: list[str | Text] = [one.task, state, str(one.attempts), one.where, step]
        cells += [*saved, lost, eta]
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def _saved(one: Row, tier: str, now_s: float) -> str:
    found = one.saved.get(tier)
    if found is None:
        return ""
    ago = "" if found.taken_s is None else f" {brief(max(0, now_s - found.taken_s))}"
    return f"{found.step}{ago}"


@output.reports_errors
def why(
    name: Annotated[str, typer.Argument(metavar="RUN/TASK", help="The task.")],
    *,
    monitoring: MonitoringOption = None,
    site: SiteOption = None,
    store: StoreOption = None,
    json_output: JsonOption = False,
) -> None:
    """Tell the story of a task: its attempts, why each ended, and what comes next."""
    from ckptflow.workflow.seeing.monitoring import find_database, monitored
    from ckptflow.workflow.seeing.why import conclusion, moments

    lineage = naming.lineage_of(name)
    place = _find(lineage.run, site, store)
    story = place.story()
    task = _task(story, lineage.task)
    told, ending = moments(story, task), conclusion(story, task)
    database = find_database(place.folder, monitoring)
    seen = monitored(database, story, [task]) if database else []

    def text(console: Console) -> None:
        console.print(Text(name, style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for moment, clock in zip(told, _clocks(told), strict=True):
            table.add_row(Text(clock), Text(moment.text))
        console.print(table)
        for one in seen:
            used = f", {format_bytes(one.memory_bytes)}" if one.memory_bytes else ""
            console.print(Text(f"Parsl's monitoring: try {one.try_id + 1} on {one.host}{used}"))
        for line in [*ending, *(f"note: {text}" for text in story.notes)]:
            console.print(Text(line))

    output.show(
        {"run": story.run, "task": task, "story": told, "conclusion": ending,
         "monitoring": seen, "notes": story.notes},
        text,
        as_json=json_output,
    )  # fmt: skip


def _clocks(told: list[Moment]) -> list[str]:
    """Return times of day, with the date where that is another one than before."""
    clocks, day = [], ""
    for one in told:
        if one.at_s is None:
            clocks.append("")
            continue
        moment = time.localtime(one.at_s)
        date = time.strftime("%Y-%m-%d", moment)
        clock = time.strftime("%H:%M:%S", moment) + f".{int(one.at_s % 1 * 10)}"
        clocks.append(clock if date == day else f"{date} {clock}")
        day = date
    return clocks


@output.reports_errors
def logs(
    name: Annotated[str, typer.Argument(metavar="RUN[/TASK]", help="The run, or one task.")],
    *,
    lines: Annotated[
        int, typer.Option("--lines", min=0, help="Lines of each file; 0: the paths only.")
    ] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show new lines, too, until the run ends.")
    ] = False,
    every: EveryOption = "1s",
    site: SiteOption = None,
    store: StoreOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show the logs of a run, or the lines in them that are about one task."""
    from ckptflow.workflow.seeing.logs import excerpt

    if follow and json_output:
        raise ConfigError("--follow goes on, and --json is one document: give one of them.")
    run, _, task = name.partition("/")
    pause_s = parse_seconds(every)
    place = _find(run, site, store)
    story = place.story(manifests=False)
    found = [excerpt(one, lines=lines) for one in _sources(place, story, task)]
    if not found:
        raise NotFoundError(f"{name} has left no logs in {place.folder}.")
    output.show(
        {"files": found}, lambda console: _print_logs(console, found), as_json=json_output
    )
    if follow:
        _follow(place, story, task, pause_s)


def _sources(place: RunPlace, story: RunStory, task: str) -> list[Source]:
    from ckptflow.workflow.seeing.logs import sources_of_run, sources_of_task

    if not task:
        return sources_of_run(story, place.folder)
    return sources_of_task(story, _task(story, task), place.folder)


def _print_logs(console: Console, found: list[Excerpt]) -> None:
    for one in found:
        console.print(Text(f"{one.what} ({format_bytes(one.size_bytes)})", style="bold"))
        console.print(Text(f"  {one.path}", style="dim"))
        if one.more and one.lines:
            console.print(Text(f"  … {one.more} lines before", style="dim"))
        for line in one.lines:
            console.print(Text(f"  {line}"))


def _follow(place: RunPlace, story: RunStory, task: str, pause_s: float) -> None:
    from ckptflow.workflow.seeing.logs import Follower

    follower = Follower()
    follower.skip(_sources(place, story, task))
    while True:
        was_running = story.state == "running"
        for source, line in follower.new(_sources(place, story, task)):
            sys.stdout.write(f"{source.what}: {line}\n")
        sys.stdout.flush()
        if not was_running:
            return  # What was written up to its end has just been shown.
        time.sleep(pause_s)
        story = place.story(manifests=False)


@output.reports_errors
def events(
    name: RunArgument,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show new ones, too, until the run ends.")
    ] = False,
    every: EveryOption = "1s",
    otel: Annotated[
        bool,
        typer.Option("--otel", help="Send them as OpenTelemetry spans, to where OTEL_* says."),
    ] = False,
    site: SiteOption = None,
    store: StoreOption = None,
    json_output: JsonOption = False,
) -> None:
    """Print what has happened in a run, a JSON object a line; or send it as spans."""
    pause_s = parse_seconds(every)
    place = _find(name, site, store)
    if otel:
        from ckptflow.workflow.seeing.spans import send

        sent = send(place.story())
        output.show(
            {"spans": sent.spans, "endpoint": sent.endpoint},
            lambda console: console.print(f"{sent.spans} spans sent to {sent.endpoint}"),
            as_json=json_output,
        )
        return
    if json_output and follow:
        raise ConfigError("--follow goes on, and --json is one document: give one of them.")
    if json_output:
        output.show({"events": place.events()}, lambda _console: None, as_json=True)
        return
    shown = 0
    while True:
        is_alive = place.is_alive()
        found = place.events()
        for event in found[shown:]:
            sys.stdout.write(json.dumps(event, separators=(",", ":")) + "\n")
        sys.stdout.flush()
        shown = len(found)
        if not follow or not is_alive:
            return
        time.sleep(pause_s)


@output.reports_errors
def report(
    name: RunArgument,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; RUN.html if not given.")
    ] = None,
    monitoring: MonitoringOption = None,
    site: SiteOption = None,
    store: StoreOption = None,
    json_output: JsonOption = False,
) -> None:
    """Write one page, with all that is known of a run: HTML that needs nothing else."""
    from ckptflow.tiers.durable import Folders, write_atomic
    from ckptflow.workflow.seeing.monitoring import find_database, monitored
    from ckptflow.workflow.seeing.report.page import page

    place = _find(name, site, store)
    story = place.story()
    database = find_database(place.folder, monitoring)
    seen = monitored(database, story, story.tasks) if database else []
    target = (out or Path(f"{name}.html")).absolute()
    if not target.parent.is_dir():
        raise ConfigError(f"There is no folder {target.parent} for the page.")
    write_atomic(target, [page(story, seen).encode()], Folders())
    size = target.stat().st_size
    output.show(
        {"path": target, "bytes": size, "state": story.state, "notes": story.notes},
        lambda console: console.print(Text(f"{target} ({format_bytes(size)})")),
        as_json=json_output,
    )


@output.reports_errors
def metrics(
    name: RunArgument,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file, replaced in one step.")
    ] = None,
    site: SiteOption = None,
    store: StoreOption = None,
    json_output: JsonOption = False,
) -> None:
    """Print a run as numbers, in the text format of Prometheus."""
    from ckptflow.tiers.durable import Folders, write_atomic
    from ckptflow.workflow.seeing import metrics as made

    story = _find(name, site, store).story()
    if json_output:
        output.show({"metrics": made.metrics(story)}, lambda _console: None, as_json=True)
    elif out is not None:
        write_atomic(out.absolute(), [made.text(story).encode()], Folders())
    else:
        sys.stdout.write(made.text(story))


def _find(name: str, site: str | None, store: str | None) -> RunPlace:
    from ckptflow.workflow.seeing.place import find_run

    return find_run(name, site=site, store=store)


def _task(story: RunStory, name: str) -> Task:
    for one in story.tasks:
        if one.name == name:
            return one
    known = [one.name for one in story.tasks]
    listed = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    raise NotFoundError(f"Run {story.run!r} has no task {name!r}; it has {listed or 'none'}.")


def _options(site: str | None, store: str | None) -> list[str]:
    """Return the options that the next command needs to find the same run."""
    named = [("--site", site), ("--store", store)]
    return [word for option, value in named if value for word in (option, str(value))]
