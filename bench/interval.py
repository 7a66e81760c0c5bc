"""When to save: the tuned rule against fixed ones and CheckFreq's, in changing conditions.

First in virtual time, where what saves cost is known (`tests/simulate/simulated_loop.py`, with
steps that vary by 3 %, and a seed): the overhead in each phase, and the goodput with failures.
CheckFreq's rule is written again here from what is known of its code. Then a real loop of
NumPy, without saves, with fixed ones and tuned, in turn, alone and with a process that
competes for cores, memory and the disk.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "simulate"))
from interval_rivals import CheckFreq
from report import Claim, Row, arguments, finish, require, show
from simulated_loop import Conditions, Loop, Run

import ckptflow as cf
from ckptflow.policy.interval import EverySteps, OverheadAtMost, YoungDaly
from ckptflow.policy.progress import Interval
from ckptflow.policy.tuned import Tuned

COMPETITOR = Path(__file__).parent.parent / "tests" / "process" / "competitor.py"
BOUND, SEED = 0.035, 7
SLACK = 1.15  # What noise leaves, in virtual time.
HOUR = 3600.0

USUAL = Conditions(step_s=0.2, blocked_s=0.01, persist_s=1.0, slowdown=0.1)
MEANWHILE: Mapping[str, Conditions] = {
    "competition": Conditions(step_s=0.4, blocked_s=0.05, persist_s=4.0, slowdown=0.5),
    "slower steps": replace(USUAL, step_s=0.8),
    "slower storage": replace(USUAL, persist_s=10.0),
    "larger saves": replace(USUAL, blocked_s=0.2, persist_s=3.0),
}
BEGINS_S, ENDS_S, END_S, SETTLE_S = 600.0, 1200.0, 2400.0, 60.0


def rules() -> list[Interval]:
    """Return fresh rules: some of them remember."""
    return [
        Tuned(BOUND),
        OverheadAtMost(BOUND),
        EverySteps(15),  # What the tuned rule comes to in the first phase.
        EverySteps(100),
        CheckFreq(BOUND),
        CheckFreq(BOUND, dynamic=True),
    ]


def main() -> None:
    """Simulate, measure, print."""
    given = arguments(__doc__)
    phases = [phase_row(name, rule) for name in MEANWHILE for rule in rules()]
    show("overhead in virtual time, settled (% of the steps), and saves a minute", phases)
    failures = [goodput_row(*case) for case in failing(quick=given.quick)]
    show("goodput with failures in virtual time, over the best fixed interval", failures)
    real = real_rows(rounds=2 if given.quick else 5, block_s=4.0 if given.quick else 20.0)
    settled = [
        float(row[phase])
        for row in phases
        if row["rule"] == "auto"
        for phase in ("before", "meanwhile", "after")
    ]
    claims = [
        Claim(
            "simulated_overhead_max_pct",
            max(settled),
            "<=",
            100 * BOUND * SLACK,
        ),
        Claim(
            "simulated_goodput_x_best_fixed",
            min(float(row["auto_x_best"]) for row in failures),
            ">=",
            0.97,
        ),
        *(
            Claim(
                f"real_overhead_{row['condition'].replace(' ', '_')}_pct",
                float(row["within_pct"]),
                "<=",
                100 * BOUND,
            )
            for row in real
            if row["rule"] == "auto"
        ),
    ]
    finish("a real loop", real, claims, given.json_path, details=[*phases, *failures])


# --- in virtual time -------------------------------------------------------------------


def simulate(rule: Interval, at: Callable[[float], Conditions], end_s: float) -> Run:
    """Run one loop with a rule; one that measures is told of each step."""
    told = rule.step_took if isinstance(rule, CheckFreq) else lambda _duration_s: None
    return Loop(rule, at, seed=SEED, step_took=told).run(end_s)


def phase_row(name: str, rule: Interval) -> Row:
    """Return what a rule costs before, while and after things are different."""

    def at(now_s: float) -> Conditions:
        return MEANWHILE[name] if BEGINS_S < now_s < ENDS_S else USUAL

    result = simulate(rule, at, END_S)
    spans = {
        "before": (2 * SETTLE_S, BEGINS_S),
        "meanwhile": (BEGINS_S + SETTLE_S, ENDS_S),
        "after": (ENDS_S + 5 * SETTLE_S, END_S),
    }
    return {
        "meanwhile_there_is": name,
        "rule": str(rule),
        **{phase: 100 * result.overhead(*span) for phase, span in spans.items()},
        **{
            f"a_minute_{phase}": 60 * result.saves_per_s(*span) for phase, span in spans.items()
        },
        "waited": result.waited,
    }


def failing(*, quick: bool) -> Iterator[tuple[float, Conditions, float]]:
    """Yield mean times between failures, conditions, and for how long to run."""
    failures = 15 if quick else 60
    for mtbf_s, conditions in (
        (0.5 * HOUR, Conditions(step_s=2.0, blocked_s=0.2, persist_s=3.0, slowdown=0.1)),
        (HOUR, Conditions(step_s=10.0, blocked_s=1.0, persist_s=30.0, slowdown=0.05)),
        (6 * HOUR, Conditions(step_s=20.0, blocked_s=5.0, persist_s=60.0, slowdown=0.05)),
    ):
        yield mtbf_s, conditions, failures * mtbf_s


def goodput_row(mtbf_s: float, conditions: Conditions, end_s: float) -> Row:
    """Return useful work over time: ours, Young and Daly's, CheckFreq's, the best fixed one.

    CheckFreq's rule is profiled anew in each attempt's first hundred steps only if it has not
    been before; there it is kept in a file, so here the object lives on.
    """

    def goodput(rule: Interval) -> float:
        told = rule.step_took if isinstance(rule, CheckFreq) else lambda _duration_s: None
        loop = Loop(rule, lambda _s: conditions, seed=SEED, mtbf_s=mtbf_s, step_took=told)
        return loop.run(end_s).goodput

    fixed = {steps: goodput(EverySteps(steps)) for steps in (1, 2, 5, 10, 20, 50, 100, 200)}
    best = max(fixed, key=lambda steps: fixed[steps])
    return {
        "mtbf_h": mtbf_s / HOUR,
        "step_s": conditions.step_s,
        "save_s": conditions.blocked_s
        + conditions.persist_s * conditions.slowdown / (1 + conditions.slowdown),
        "best_every": best,
        "best": fixed[best],
        "auto_x_best": goodput(Tuned(BOUND)) / fixed[best],
        "auto_mtbf_x_best": goodput(Tuned(BOUND, mtbf_s)) / fixed[best],
        "young_daly_x_best": goodput(YoungDaly(mtbf_s)) / fixed[best],
        "cf_scheme_x_best": goodput(CheckFreq(BOUND)) / fixed[best],
    }


# --- a real loop -----------------------------------------------------------------------


@dataclass
class Block:
    """What a loop did in a while: times of its steps, and what saves blocked."""

    idle_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)  # With a save in flight.
    blocked_s: list[float] = field(default_factory=list)

    def overhead(self) -> float:
        """Return what saves cost over the steps without them, by the steps of this loop."""
        idle_s = statistics.fmean(self.idle_s)
        cost_s = sum(self.blocked_s) + sum(self.busy_s) - len(self.busy_s) * idle_s
        return cost_s / (idle_s * (len(self.idle_s) + len(self.busy_s)))


def real_rows(*, rounds: int, block_s: float) -> list[Row]:
    """Let a loop run for blocks of time, by rule, in turn.

    ``lost`` compares how many steps it did with those of the block without saves before it;
    ``within`` compares the steps in flight with the idle ones of the same blocks.
    """
    rules: dict[str, str | int] = {"never": "never", "auto": "auto", "every=10": 10}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        for condition in ("alone", "with another"):
            blocks: dict[str, list[Block]] = {rule: [] for rule in rules}
            for _ in range(rounds + 1):
                for rule, every in rules.items():
                    with competing(Path(name), on=condition != "alone"):
                        done = block(Path(name) / f"{condition} {rule}", every, block_s)
                    blocks[rule].append(done)
            rows += [real_row(condition, rule, blocks) for rule in rules]
    return rows


def real_row(condition: str, rule: str, blocks: Mapping[str, list[Block]]) -> Row:
    """Sum the blocks of a rule up, but for the first, which warms up."""

    def steps(one: Block) -> int:
        return len(one.idle_s) + len(one.busy_s)

    ours, without = blocks[rule][1:], blocks["never"][1:]
    lost = [1 - steps(one) / steps(none) for one, none in zip(ours, without, strict=True)]
    together = Block()
    for one in ours:
        together.idle_s += one.idle_s
        together.busy_s += one.busy_s
        together.blocked_s += one.blocked_s
    return {
        "condition": condition,
        "rule": rule,
        "steps": steps(together),
        "saves": len(together.blocked_s),
        "steps_in_flight": len(together.busy_s),
        "blocked_ms_p50": 1e3 * statistics.median(together.blocked_s or [0.0]),
        "within_pct": 100 * together.overhead(),
        "lost_pct": 100 * statistics.median(lost),
        "lost_min_pct": 100 * min(lost),
        "lost_max_pct": 100 * max(lost),
    }


def block(store: Path, every: str | int, block_s: float) -> Block:
    """Run a loop for a while; the next block of the same store goes on from there."""
    done, ticket, count = Block(), None, 1_000_000
    with cf.Checkpointer(store, every=every, keep=2) as ckpt:
        state = ckpt.restore({"i": 0, "w": np.zeros(count), "fixed": np.ones(count)})
        end_s = time.monotonic() + block_s
        while (began_s := time.monotonic()) < end_s:
            busy = ticket is not None and not ticket.durable
            state["i"] += 1
            part = state["w"][state["i"] % 4 * count // 4 :][: count // 4]
            part += np.sin(part + state["i"])  # A quarter of it, an eighth of the state.
            step_s = time.monotonic() - began_s
            (done.busy_s if busy else done.idle_s).append(step_s)
            began_s = time.monotonic()
            if (saved := ckpt.step(state["i"], state)) is not None:
                ticket = saved
                done.blocked_s.append(time.monotonic() - began_s)
        if state["i"] != ckpt.last_step:
            ckpt.save(state["i"], state)
    with cf.Checkpointer(store, every="never") as ckpt:
        restored = ckpt.restore()
    require(bool((restored["w"] == state["w"]).all()), "the state of the end comes back")
    return done


@contextmanager
def competing(folder: Path, *, on: bool) -> Iterator[None]:
    """Let another process take cores, memory bandwidth and the disk meanwhile."""
    if not on:
        yield
        return
    process = subprocess.Popen([sys.executable, str(COMPETITOR), str(folder)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
