"""What ``tune`` prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ckptflow.cli import output
from ckptflow.plan.met import Comparison
from ckptflow.plan.tune import Answer
from ckptflow.policy.failures.rates import CLASS_NAMES
from ckptflow.policy.multilevel.system import Pattern, System
from ckptflow.units import format_bytes, format_seconds


def show(
    console: Console,
    answer: Answer,
    comparison: Comparison | None,
    lines: str,
    drawn: Sequence[Path],
) -> None:
    """Print an answer: the pattern, what to expect, what if, why, and what to write."""

    def say(text: str) -> None:
        console.print(Text(text))

    tuning = answer.tuning
    say(_about(answer))
    for note in answer.notes:
        console.print(Text(note, style="yellow"))
    _print_levels(console, answer)
    say(f"redundancy between nodes: {tuning.redundancy}")
    say(
        f"efficiency: {tuning.efficiency:.4f} expected, {tuning.low:.4f} to {tuning.high:.4f} "
        f"if failures and storage are as bad, or good, as they may well be"
    )
    say("time: " + ", ".join(f"{kind} {part:.2%}" for kind, part in tuning.parts.items()))
    say(f"found by: {tuning.method}")
    if comparison is not None:
        _print_comparison(console, comparison, tuning.system)
    _print_tables(console, answer)
    for reason in answer.reasons:
        say(reason)
    say(f"failures: {_failures(answer)}")
    for path in drawn:
        console.print(Text(f"drawn: {path}"), soft_wrap=True)
    say("")
    say("for the site file:")
    say("")
    console.print(Text(lines.rstrip("\n")), soft_wrap=True)


def _about(answer: Answer) -> str:
    workload = answer.request.workload
    nodes = "1 node" if workload.nodes == 1 else f"{workload.nodes} nodes"
    writers = workload.writers_per_node
    each = "1 writer" if writers == 1 else f"{writers} writers"
    return (
        f"{answer.site}: {format_bytes(workload.state_bytes)} of state on {nodes} with {each} "
        f"each, {workload.changed:.3g} of it changes from save to save; "
        f"preset {answer.request.aim}"
    )


def _print_levels(console: Console, answer: Answer) -> None:
    table = output.table(
        "TIER", "LEVEL", "GETS", "PERIOD", "COPY AFTER", "RECOVERY", "COSTS",
        numbers=("LEVEL", "PERIOD", "COPY AFTER", "RECOVERY"),
    )  # fmt: skip
    origins = {one.costs.name: one.detail for one in answer.way.tiers}
    pattern = answer.pattern
    for at, level in enumerate(answer.tuning.system.levels):
        count = pattern.every[at]
        output.add_row(
            table,
            [
                level.name,
                level.number,
                _gets(count),
                format_seconds(pattern.period_s(at)) if count else "",
                format_seconds(level.latency_s),
                format_seconds(level.recovery_s),
                origins.get(level.name, ""),
            ],
            style=None if count else "dim",
        )
    console.print(table)


def _gets(count: int) -> str:
    if count == 0:
        return "nothing"
    return "every save" if count == 1 else f"one save in {count}"


def _print_comparison(console: Console, found: Comparison, system: System) -> None:
    did = "what it did cannot be told"
    if found.pattern is not None and found.expected is not None:
        did = f"it did {_pattern(found.pattern, system)}, {found.expected:.4f} expected"
    console.print(Text(f"task {found.task}: {did}; best {found.best:.4f}"))
    console.print(
        Text(f"of the time that it took {found.useful:.2%} was computing that was not lost")
    )


def _pattern(pattern: Pattern, system: System) -> str:
    counts = ", ".join(
        f"{level.name} {count}"
        for level, count in zip(system.levels, pattern.every, strict=True)
        if count
    )
    return f"{format_seconds(pattern.interval_s)} ({counts})"


def _print_tables(console: Console, answer: Answer) -> None:
    tuning = answer.tuning
    if tuning.sensitivity:
        table = output.table(
            "WHAT IF",
            "TIMES",
            "AS IT IS",
            "TUNED FOR IT",
            numbers=("TIMES", "AS IT IS", "TUNED FOR IT"),
        )
        for one in tuning.sensitivity:
            cells = [one.what, f"{one.factor:g}", f"{one.kept:.4f}", f"{one.tuned:.4f}"]
            output.add_row(table, cells)
        console.print(table)
    if tuning.alternatives:
        table = output.table("INSTEAD", "REDUNDANCY", "EFFICIENCY", numbers=("EFFICIENCY",))
        for other in tuning.alternatives:
            # Of another scheme the levels may be others; their counts say enough.
            same = other.redundancy == tuning.redundancy
            text = _pattern(other.pattern, tuning.system) if same else _counts(other.pattern)
            output.add_row(table, [text, other.redundancy, f"{other.efficiency:.4f}"])
        console.print(table)


def _counts(pattern: Pattern) -> str:
    return f"{format_seconds(pattern.interval_s)} ({', '.join(map(str, pattern.every))})"


def _failures(answer: Answer) -> str:
    known = [
        f"{name} every {format_seconds(1 / rate)}"
        for name, rate in zip(CLASS_NAMES, answer.way.rates.per_s, strict=True)
        if rate
    ]
    return f"{', '.join(known)}. From: {answer.failures}"
