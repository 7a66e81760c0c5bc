"""What a save blocks, by the way to capture and how much changed, from the first save on.

All ways save the same state in turn, each to a store of its own; before each save the state is
copied once, by one thread, to memory that is there, and *× memcpy* is against that. A state
that is captured lazily may be changed after the next step, which multiplies matrices by one
thread for 0.2 s; what the program waits for then counts, the step does not. Restores read from
the page cache, as the plain file beside them does.

In processes of their own, 200 saves are made of a state of which 1 % changes each time, with
64 file descriptors at most: *growth* is what the process has gained since the 20th.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from argparse import SUPPRESS, Namespace
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import updates
from process_memory import memory_bytes, reset_peak
from report import Claim, Row, filesystem, finish, parser, require, show, write_section
from updates import Compute, Kind, Scale, Timed, Updater, timed

from ckptflow.checkpointer import Checkpointer

MODES = ("auto", "copy", "diff-first", "lazy")
KINDS: tuple[Kind, ...] = ("large", "small")
SHARES = (0, 0.01, 0.05, 0.2, 1)  # Of rows of 4 KiB.
FEW = SHARES[:3]
STEP_S: dict[Scale, float] = {"full": 0.2, "quick": 0.05, "tiny": 0.01}
ROUNDS: dict[Scale, int] = {"full": 3, "quick": 2, "tiny": 1}
SETTLING = 2  # Saves of each share that are not counted.
RESTORES = 3
SOAKS: dict[Scale, int] = {"full": 200, "quick": 200, "tiny": 24}
FIRST_SOAKS, DESCRIPTORS = 20, 64
FIRST, LAZY = "first", "lazy"

Blocked = dict[str, dict[str, list[float]]]  # By mode and column, in copies of the state.


def main() -> None:
    args, scale = command_line()
    if args.soak:
        soak(args, *args.soak, scale)
        return
    tables: dict[str, list[Row]] = {}
    claims: list[Claim] = []
    restored: dict[Kind, dict[str, float]] = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="ckptflow-bench-", dir=args.folder) as folder:
            blocked, pct_of_step, restored[kind] = measure(Path(folder), kind, scale)
        tables[f"{kind} arrays: blocked, × memcpy"] = [
            {"capture": mode, **{column: median(found) for column, found in columns.items()}}
            for mode, columns in blocked.items()
        ]
        claims += claims_of(kind, blocked, pct_of_step)
    tables["restores"] = [{"arrays": kind, **found} for kind, found in restored.items()]
    soaks = [run_soak(args, mode, kind) for kind in KINDS for mode in MODES[1:]]
    title = f"{SOAKS[scale]} saves, {DESCRIPTORS} descriptors"
    for name, rows in tables.items():
        show(name, rows)
    claims += claims_of_restores(restored)
    growth = max(float(row["growth, × state"]) for row in soaks)
    claims.append(Claim("memory_growth_over_state_after_20_saves", growth, "<=", 0.02))
    details = [{"table": name} | dict(row) for name, rows in tables.items() for row in rows]
    finish(title, soaks, claims, args.json, details=details)
    if args.markdown is not None:
        folder = args.folder or Path(tempfile.gettempdir())
        notes = [f"Files are on {filesystem(folder)}."]
        shown = tables | {title: soaks}
        write_section(args.markdown, "Capture", __doc__, shown, claims, notes=notes)


def command_line() -> tuple[Namespace, Scale]:
    """Return the arguments, and how large everything is."""
    given = parser(__doc__)
    given.add_argument("--tiny", action="store_true", help="only look whether everything works")
    given.add_argument("--folder", type=Path, help="where files go; TMPDIR if not given")
    given.add_argument("--markdown", type=Path, metavar="PATH", help="write the tables there")
    given.add_argument("--soak", nargs=2, metavar=("CAPTURE", "ARRAYS"), help=SUPPRESS)
    args = given.parse_args()
    return args, "tiny" if args.tiny else "quick" if args.quick else "full"


class Bench:
    """One state, and a checkpointer for each way to capture it."""

    def __init__(self, folder: Path, kind: Kind, scale: Scale, stack: ExitStack) -> None:
        self.state = updates.make_state(kind, scale)
        self.expected = {name: array.copy() for name, array in self.state.items()}
        self.updater, self.compute = Updater(self.state, 0), Compute(STEP_S[scale])
        self.step_s = median(timed(self.compute.step) for _ in range(5))
        self.number = 0
        self.blocked: Blocked = {mode: {} for mode in MODES}
        self.lazy_s: list[float] = []
        self.open = {
            mode: stack.enter_context(checkpointer_of(folder / mode, mode)) for mode in MODES
        }
        for checkpointer in self.open.values():
            checkpointer.restore(self.state)  # As every program begins; nothing is there yet.

    def save_all(self, column: str, *, counts: bool) -> None:
        """Save the state in every way, one after the other, each until it is durable."""
        self.number += 1
        for mode, checkpointer in self.open.items():
            with Timed() as copied:
                updates.copy(self.state, self.expected)
            with Timed() as call:
                ticket = checkpointer.save(self.number, self.state)
            if mode == LAZY:
                self.compute.step()
            with Timed() as waited:
                ticket.wait_captured()
            ticket.wait()
            if counts:
                blocked_s = call.seconds + waited.seconds
                self.blocked[mode].setdefault(column, []).append(blocked_s / copied.seconds)
                if mode == LAZY:
                    self.lazy_s.append(blocked_s)

    def change(self, share: float) -> None:
        """Change a share of the rows, or every word."""
        if share == 1:
            self.updater.apply("all words")
        else:
            self.updater.change_rows(share)


def checkpointer_of(folder: Path, mode: str) -> Any:
    return Checkpointer(folder, capture=mode, rng=False, keep=2)


def measure(
    folder: Path, kind: Kind, scale: Scale
) -> tuple[Blocked, dict[str, float], dict[str, float]]:
    """Return blocked times, those of ``lazy`` in percent of a step, and restores."""
    with ExitStack() as stack:
        bench = Bench(folder, kind, scale, stack)
        bench.save_all(FIRST, counts=True)
        first_s = bench.lazy_s.pop()
        for share in SHARES:
            for number in range(SETTLING + ROUNDS[scale]):
                bench.change(share)
                bench.save_all(column_of(share), counts=number >= SETTLING)
            print(f"{kind}: {column_of(share)} changed", file=sys.stderr, flush=True)
    percent = 100 / bench.step_s
    lazy = {FIRST: percent * first_s, "later": percent * median(bench.lazy_s)}
    return bench.blocked, lazy, restores(folder, bench)


def column_of(share: float) -> str:
    return f"{100 * share:g} %"


def restores(folder: Path, bench: Bench) -> dict[str, float]:
    """Return the time of a restore in copies of the state, and in reads of a plain file."""
    updates.write_synced(folder / "plain", bench.expected)
    over_copy, over_read = [], []
    for _ in range(RESTORES):
        updates.negate(bench.state)
        with Timed() as restored, checkpointer_of(folder / "auto", "auto") as checkpointer:
            checkpointer.restore(bench.state)
        same = all(
            np.array_equal(bench.state[name], right) for name, right in bench.expected.items()
        )
        require(same, "the restored state is the saved one")
        with Timed() as read:
            updates.read_raw(folder / "plain", bench.state)
        with Timed() as copied:
            updates.copy(bench.state, bench.expected)
        over_copy.append(restored.seconds / copied.seconds)
        over_read.append(restored.seconds / read.seconds)
    return {
        "× memcpy": median(over_copy),
        "× read": median(over_read),
        "ns a byte": 1e9 * restored.seconds / updates.size_bytes(bench.state),
    }


# --- many saves -------------------------------------------------------------------------


def run_soak(args: Namespace, mode: str, kind: Kind) -> Row:
    """Save many times in a process of its own."""
    command = [sys.executable, __file__, "--soak", mode, kind]
    command += ["--tiny"] if args.tiny else []
    command += ["--folder", str(args.folder)] if args.folder else []
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    print(f"{kind}: {mode}, many saves", file=sys.stderr, flush=True)
    return {"arrays": kind, "capture": mode, **found}


def soak(args: Namespace, mode: str, kind: Kind, scale: Scale) -> None:
    """Save many times with few file descriptors; print what memory that took, as JSON."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    state = updates.make_state(kind, "tiny" if scale == "tiny" else "quick")
    updater, state_bytes = Updater(state, 0), updates.size_bytes(state)
    reset_peak()
    resting_bytes, early_bytes, peak_bytes = memory_bytes("VmRSS"), 0, 0
    with tempfile.TemporaryDirectory(prefix="ckptflow-bench-", dir=args.folder) as folder:
        with checkpointer_of(Path(folder), mode) as checkpointer:
            checkpointer.restore(state)
            for number in range(1, SOAKS[scale] + 1):
                updater.apply("1 % contiguous")
                ticket = checkpointer.save(number, state)
                ticket.wait_captured()
                ticket.wait()
                if number == FIRST_SOAKS:
                    early_bytes, peak_bytes = memory_bytes("VmRSS"), memory_bytes("VmHWM")
                    reset_peak()
            last_bytes, last_peak_bytes = memory_bytes("VmRSS"), memory_bytes("VmHWM")
        saved = {name: array.copy() for name, array in state.items()}
        updates.negate(state)
        with checkpointer_of(Path(folder), mode) as checkpointer:
            checkpointer.restore(state)
    same = all(np.array_equal(state[name], right) for name, right in saved.items())
    require(same, "the restored state is the last one saved")
    found = {
        "peak of the first 20, × state": (peak_bytes - resting_bytes) / state_bytes,
        "peak of the others, × state": (last_peak_bytes - resting_bytes) / state_bytes,
        "growth, × state": (last_bytes - early_bytes) / state_bytes,
    }
    print(json.dumps(found))


# --- promises ---------------------------------------------------------------------------


def claims_of(kind: Kind, blocked: Blocked, pct_of_step: dict[str, float]) -> list[Claim]:
    worst = {mode: max(map(median, columns.values())) for mode, columns in blocked.items()}
    if kind == "small":
        return [
            Claim(f"{mode.replace('-', '_')}_blocked_over_memcpy_small", value, "<=", 1.5)
            for mode, value in worst.items()
        ]
    diff_first = {column: median(found) for column, found in blocked["diff-first"].items()}
    few = max(diff_first[column_of(share)] for share in FEW)
    return [
        Claim("copy_blocked_over_memcpy", worst["copy"], "<=", 1.1),
        Claim("diff_first_blocked_over_memcpy_le_5pct", few, "<=", 1.2),
        Claim("diff_first_blocked_over_memcpy_unchanged", diff_first["0 %"], "<=", 0.8),
        Claim("lazy_first_save_blocked_pct_of_step", pct_of_step[FIRST], "<=", 1),
        Claim("lazy_blocked_pct_of_step", pct_of_step["later"], "<=", 1),
    ]


def claims_of_restores(restored: dict[Kind, dict[str, float]]) -> list[Claim]:
    apart = restored["small"]["ns a byte"] / restored["large"]["ns a byte"]
    return [
        Claim("restore_over_raw_read", restored["large"]["× read"], "<=", 1.3),
        Claim("restore_small_over_large", apart, "<=", 2),
    ]


if __name__ == "__main__":
    main()
