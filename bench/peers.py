"""ckptflow beside every other way to save arrays from Python, all with fsync, in one run.

Two states of normal fp32 numbers, 8 arrays of 64 MiB and 20 000 of 4 to 64 KiB, are changed in
place in five ways and saved. Each way to save gets a process of its own, in turn, pass by pass,
and as many saves in it as the time allows; what is not installed, or fails, is named with its
reason.

A time is a multiple of copying the state, by one thread to memory that is there, just before
it. *blocked* is how long the program cannot go on; where the call returns before the copy is
made, that includes what it waits for after its next step. *durable* is the time until files and
folders are synced. Bytes are those of files that are new or have changed. *memory* is the peak
beyond what the process had before, all processes together, in sizes of the state: where few
words change, and where many do. A *step* multiplies matrices by one thread for 0.2 s; here it
has a save on its way, and a *loop* begins every other step with one: both as multiples of steps
alone. A restore ends when all bytes are in the arrays of the program, and reads from the page
cache. Before it, the program has changed every word of its state as soon as it might: *restored
bits* are those of the call, or not.

Other ways than those of the development environment need ``--python``, see ``peers.txt``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from peer_claims import claims
from peer_process import Visited, visit
from peer_registry import WAYS
from peer_results import Results
from peer_visit import Order
from report import Row, filesystem, finish, parser, show, write_section
from updates import Kind, Scale

HEADING = "Capture beside other ways to save"
KINDS: tuple[Kind, ...] = ("large", "small")
STEP_S: dict[Scale, float] = {"full": 0.2, "quick": 0.1, "tiny": 0.01}
MINUTES: dict[Scale, float] = {"full": 7, "quick": 3, "tiny": 1}
SHORTEST_TIMEOUT_S, PATIENCE = 30, 3


def main() -> None:
    args, scale = command_line()
    results = Results(list(visits(args, scale)))
    tables = tables_of(results)
    *others, (title, rows) = tables.items()
    for name, shown in others:
        show(name, shown)
    found = claims(results, scale)
    details = [{"table": name} | dict(row) for name, shown in others for row in shown]
    finish(title, rows, found, args.json, details=details)
    notes = notes_of(results, args.folder or Path(tempfile.gettempdir()))
    print("\n".join(notes))
    if args.markdown is not None:
        write_section(args.markdown, HEADING, __doc__, tables, found, notes=notes)


def notes_of(results: Results, folder: Path) -> list[str]:
    """Say what was measured where, and what was not."""
    missing = [
        f"{kind} arrays, {way}: {reason}"
        for kind in KINDS
        for way in results.ways
        if (reason := results.reason(kind, way))
    ]
    skipped: dict[str, list[str]] = {}
    for visited in results.visits:
        name = f"{visited.order.kind} arrays, {visited.order.way}"
        skipped.setdefault(name, []).extend(
            one["what"] for one in visited.events if one["event"] == "skipped"
        )
    return [
        f"Files are on {filesystem(folder)}.",
        f"Versions: {', '.join(sorted(versions(results)))}.",
        *(f"Not measured, or not to the end: {one}." for one in missing),
        *(f"No time for {name}: {'; '.join(one)}." for name, one in skipped.items() if one),
    ]


def command_line() -> tuple[Namespace, Scale]:
    """Return the arguments, and how large everything is."""
    given = parser(__doc__, quick="smaller states, a few minutes")
    given.add_argument("--tiny", action="store_true", help="only look whether everything works")
    given.add_argument(
        "--python", default=sys.executable, help="where the others are installed"
    )
    given.add_argument("--only", action="append", metavar="WAY", help=", ".join(WAYS))
    given.add_argument("--minutes", type=float, help="about how long all of it takes")
    given.add_argument("--passes", type=int, default=1, help="how often each way has its turn")
    given.add_argument("--folder", type=Path, help="where files go; TMPDIR if not given")
    given.add_argument("--markdown", type=Path, metavar="PATH", help="write the tables there")
    args = given.parse_args()
    args.only = args.only or list(WAYS)
    if unknown := [way for way in args.only if way not in WAYS]:
        given.error(f"{unknown[0]!r} is none of: {', '.join(WAYS)}")
    return args, "tiny" if args.tiny else "quick" if args.quick else "full"


def visits(args: Namespace, scale: Scale) -> Iterator[Visited]:
    """Visit every way in turn, in every pass; every other pass goes backward."""
    plan = [(kind, way) for kind in KINDS for way in args.only]
    minutes = MINUTES[scale] if args.minutes is None else args.minutes
    seconds = 60 * minutes / (args.passes * len(plan))
    hopeless: set[tuple[Kind, str]] = set()
    for number in range(args.passes):
        for kind, way in plan if number % 2 == 0 else reversed(plan):
            if (kind, way) in hopeless:
                continue
            with tempfile.TemporaryDirectory(
                prefix="ckptflow-bench-", dir=args.folder
            ) as folder:
                order = Order(way, kind, scale, folder, number, seconds, STEP_S[scale])
                timeout_s = max(SHORTEST_TIMEOUT_S, PATIENCE * seconds)
                visited = visit(order, python=args.python, timeout_s=timeout_s)
            tell(visited)
            yield visited
            if visited.reason:
                hopeless.add((kind, way))


def tell(visited: Visited) -> None:
    """Say on the error output how far it is."""
    saves = [one for one in visited.events if one["event"] == "save"]
    blocked = [one["blocked_s"] / one["memcpy_s"] for one in saves if one["counts"]]
    text = f"blocked {statistics.median(blocked):.3g} x memcpy" if blocked else "no save"
    order = visited.order
    line = f"{order.kind:5}  {order.way:28}  {text:24}  {visited.seconds:5.1f} s"
    print(f"{line}  {visited.reason}".rstrip(), file=sys.stderr, flush=True)


def tables_of(results: Results) -> dict[str, list[Row]]:
    """Return all tables by their titles."""
    return {
        f"{kind} arrays: {name}": rows
        for kind in KINDS
        for name, table in (
            ("blocked, × memcpy", results.blocked_table),
            ("durable, × memcpy", results.durable_table),
            ("written, MiB", results.stored_table),
            ("memory, steps and restores", results.other_table),
        )
        if (rows := table(kind))
    }


def versions(results: Results) -> set[str]:
    """Return the versions of all that was measured."""
    return {
        version
        for visited in results.visits
        for one in visited.events
        for version in one.get("versions", ())
    }


if __name__ == "__main__":
    main()
