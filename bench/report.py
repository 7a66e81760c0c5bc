"""What every benchmark here shares: arguments, fair timing, a table, JSON and claims.

A benchmark measures what it compares in one run and in turn, checks that its results are
right, and ends with one line for each goal::

    claim <name> value=<x> goal=<=1.5 met=yes|no
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

Value = str | int | float | bool
Row = Mapping[str, Value]


class WrongResult(Exception):
    """What was measured did not compute what it should; its speed means nothing."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the command line of every benchmark says."""

    quick: bool
    json_path: Path | None


@dataclass(frozen=True, slots=True)
class Claim:
    """One number that the project promises, and what it promises about it."""

    name: str
    value: float
    comparison: Literal["<=", ">="]
    goal: float

    @property
    def met(self) -> bool:
        """Whether the value keeps the promise."""
        value = float(self.value)  # NumPy's own comparisons give what JSON does not know.
        return value <= self.goal if self.comparison == "<=" else value >= self.goal

    def __str__(self) -> str:
        met = "yes" if self.met else "no"
        return (
            f"claim {self.name} value={self.value:.4g} "
            f"goal={self.comparison}{self.goal:g} met={met}"
        )


def parser(description: str | None, *, quick: str = "at most a minute") -> ArgumentParser:
    """Return a parser with the arguments that all benchmarks have: ``quick``, ``json``.

    The first line of a module's docstring describes it.
    """
    first_line = (description or "").strip().partition("\n")[0]
    made = ArgumentParser(description=first_line)
    made.add_argument("--quick", action="store_true", help=f"smaller and fewer, {quick}")
    made.add_argument(
        "--json", type=Path, metavar="PATH", help="write results and claims there, too"
    )
    return made


def arguments(description: str | None) -> Arguments:
    """Read the command line of a benchmark that has no further arguments."""
    given = parser(description).parse_args()
    return Arguments(given.quick, given.json)


def require(right: bool, what: str) -> None:  # noqa: FBT001 - reads as an assertion.
    """Stop the benchmark unless its result is right; `assert` would vanish under -O.

    Raises:
        WrongResult: it is not.
    """
    if not right:
        raise WrongResult(what)


def time_in_turn(
    actions: Mapping[str, Callable[[], object]], *, rounds: int
) -> dict[str, list[float]]:
    """Run all actions once in each round; return the seconds of each, by round.

    In turn, so that whatever else the machine does meets all of them alike. One round
    before the first warms caches and pages and is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for count in range(rounds + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if count:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """Return the median of the ratios, round by round."""
    return statistics.median(a / b for a, b in zip(these, those, strict=True))


def show(title: str, rows: Sequence[Row]) -> None:
    """Print one table."""
    table = Table(title=title, title_justify="left")
    for name, value in rows[0].items():
        text = isinstance(value, str)
        table.add_column(
            name.replace("_", " "), justify="left" if text else "right", no_wrap=text
        )
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console(width=None if os.isatty(1) else 160).print(table)


def finish(
    title: str,
    rows: Sequence[Row],
    claims: Sequence[Claim],
    json_path: Path | None,
    *,
    details: Sequence[Row] = (),
) -> None:
    """Print the table and the claims, and write both as JSON if that was asked for.

    ``details`` are rows of tables that were shown before; they go into the JSON only.
    """
    show(title, rows)
    if json_path is not None:
        report = {
            "title": title,
            "machine": _machine(),
            "rows": [dict(row) for row in rows],
            **({"details": [dict(row) for row in details]} if details else {}),
            "claims": [
                {
                    "name": claim.name,
                    "value": claim.value,
                    "goal": f"{claim.comparison}{claim.goal:g}",
                    "met": claim.met,
                }
                for claim in claims
            ],
        }
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for claim in claims:
        print(claim)


def write_section(
    path: Path,
    heading: str,
    description: str | None,
    tables: Mapping[str, Sequence[Row]],
    claims: Sequence[Claim],
    *,
    notes: Sequence[str] = (),
) -> None:
    """Write a section for the page of measurements.

    Args:
        path: of the file, which is written anew.
        heading: of the section.
        description: the docstring of the benchmark; its first line tells what the rest is of.
        tables: by their titles.
        claims: what is promised, and what became of it.
        notes: what else a reader has to know, a paragraph each.
    """
    paragraphs = [" ".join(one.split()) for one in (description or "").strip().split("\n\n")]
    command = " ".join(["python", f"bench/{Path(sys.argv[0]).name}"])
    lines = [
        f"## {heading}",
        "",
        *_apart(paragraphs),
        "```",
        command,
        "```",
        "",
        *_apart(notes),
    ]
    for title, rows in tables.items():
        names = [name.replace("_", " ") for name in rows[0]]
        lines += [f"{title[0].upper()}{title[1:]}:", "", _line(names)]
        lines += [_line(["---"] * len(names))]
        lines += [_line([_cell(value) for value in row.values()]) for row in rows]
        lines += [""]
    for claim in claims:
        met = "met" if claim.met else "**not met**"
        lines.append(
            f"* `{claim.name}` {claim.value:.3g}, goal {claim.comparison}{claim.goal:g}: {met}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _apart(paragraphs: Sequence[str]) -> list[str]:
    return [line for one in paragraphs for line in (one, "")]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def filesystem(folder: Path) -> str:
    """Return the kind of the filesystem that a folder is on."""
    best, kind = Path("/"), "unknown"
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    except OSError:  # Not Linux.
        return kind
    for line in mounts.splitlines():
        where, named = line.split()[1:3]
        if folder.resolve().is_relative_to(where) and len(where) >= len(str(best)):
            best, kind = Path(where), named
    return kind


def _cell(value: Value) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _machine() -> dict[str, Value]:
    processor = platform.processor() or platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # Not Linux.
        text = ""
    for line in text.splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    return {
        "processor": processor,
        "cores": os.cpu_count() or 1,
        "system": platform.platform(),
        "python": platform.python_version(),
    }
