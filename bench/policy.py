"""How good an answer is: efficiency lost by ways to choose a multi-level pattern.

On systems that nothing here was trained with (`bench/policy_systems.py`): the two-level sweep
of the reference, and machines with two to five levels. Regret is the exact efficiency of the
best pattern known minus that of the answer; the best is what a search from very many starts
finds, the answers of all ways among them, so no regret is below zero. The ways are those of
`bench/policy_rivals.py`; learners are trained on systems of the same kind as they are asked
about, which is kind to them (other points of the sweep, machines of another seed): what is
shipped was trained on neither kind. An answer that makes no progress has a regret of the whole
efficiency.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from policy_rivals import (
    Annealing,
    Answer,
    first_order_all,
    first_order_best,
    full_tuner,
    labels_by,
    learn,
    learners,
    surrogate_alone,
)
from policy_systems import LEAST, Draw, realistic, swept, swept_elsewhere
from report import Claim, Row, arguments, finish, require

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.closed_form import SEARCHED_MAX
from ckptflow.policy.multilevel.exact import efficiency
from ckptflow.policy.multilevel.search import best_pattern, climb, thorough
from ckptflow.policy.multilevel.surrogate import shipped
from ckptflow.policy.multilevel.system import Pattern, System

TUNER = "our tuner"
SEED, TRAINING_SEED, ANNEALING_SEED = 2026, 11, 500
ROUNDING = 1e-9
MEAN_MAX, MAX_MAX, NEAR = 0.001, 0.01, 0.01


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done on systems of a kind."""

    held_out: int
    steps: int  # Of annealing, for an answer.
    exact_labels: int
    annealed_labels: int
    annealed_steps: int  # For a label.


FULL = {
    "sweep, 2 levels": Size(140, 2000, 2000, 150, 1000),
    "machines, 2-5 levels": Size(60, 1000, 300, 0, 0),
}
QUICK = {
    "sweep, 2 levels": Size(4, 50, 40, 8, 50),
    "machines, 2-5 levels": Size(2, 20, 8, 0, 0),
}
ASKED: Mapping[str, Draw] = {"sweep, 2 levels": swept, "machines, 2-5 levels": realistic}
TAUGHT = {**ASKED, "sweep, 2 levels": swept_elsewhere}


@dataclass
class Way:
    """One way to answer, and what became of it."""

    answer: Answer
    training_s: float = 0.0
    regrets: list[float] = field(default_factory=list)
    near: list[bool] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def main() -> None:
    """Train, ask, print."""
    given = arguments(__doc__)
    rows: list[Row] = []
    ours: list[Way] = []
    for kind, size in (QUICK if given.quick else FULL).items():
        trained = ways(TAUGHT[kind], size)
        compare(ASKED[kind], size.held_out, trained)
        print(f"{kind}: {time.process_time():.0f} s of processor time so far", file=sys.stderr)
        rows += [row(kind, name, way) for name, way in trained.items()]
        ours.append(trained[TUNER])
    regrets = [regret for way in ours for regret in way.regrets]
    near = [one for way in ours for one in way.near]
    claims = [
        Claim("tuner_regret_mean", float(np.mean(regrets)), "<=", MEAN_MAX),
        Claim("tuner_regret_max", max(regrets), "<=", MAX_MAX),
        Claim("tuner_within_1pct", float(np.mean(near)), ">=", 1.0),
    ]
    finish("regret of efficiency", rows, claims, given.json_path)
    for claim in claims:
        require(
            claim.met, f"{claim.name} is {claim.value:.4g}, not {claim.comparison}{claim.goal}"
        )


def ways(draw: Draw, size: Size) -> dict[str, Way]:
    """Return all ways, trained on systems of a kind."""
    systems = list(islice(_that_progress(draw, TRAINING_SEED), size.exact_labels))
    found = {
        "first order, levels chosen": Way(first_order_best),
        "first order, all levels": Way(first_order_all),
        f"annealing, {size.steps} steps": Way(Annealing(size.steps, ANNEALING_SEED)),
    }
    exact = labels_by(lambda system: best_pattern(system).pattern, systems)
    sources = {f"{size.exact_labels} exact": exact}
    if size.annealed_labels:
        annealed = Annealing(size.annealed_steps, 10 * ANNEALING_SEED)
        few = systems[: size.annealed_labels]
        sources[f"{size.annealed_labels} annealed"] = labels_by(annealed, few)
    for source, labels in sources.items():
        for name, model in learners().items():
            learned = learn(model, labels)
            found[f"{name}, {source}"] = Way(learned, labels.cpu_s + learned.cpu_s)
    trained_s = float(shipped().about["trained_s"])
    found["our surrogate alone"] = Way(surrogate_alone, trained_s)
    found[TUNER] = Way(full_tuner, trained_s)
    return found


def _that_progress(draw: Draw, seed: int) -> Iterator[System]:
    rng = np.random.default_rng(seed)
    while True:
        system = draw(rng)
        if efficiency(system, first_order_best(system)) >= LEAST:
            yield system


def compare(draw: Draw, count: int, trained: Mapping[str, Way]) -> None:
    """Ask all ways about systems that the best pattern makes progress on."""
    rng = np.random.default_rng(SEED)
    done = 0
    while done < count:
        system = draw(rng)
        try:
            if best_pattern(system).efficiency < LEAST:
                continue
        except ConfigError:  # No progress at all.
            continue
        done += 1
        answers: dict[str, Pattern] = {}
        for name, way in trained.items():
            began_s = time.process_time()
            answers[name] = way.answer(system)
            way.cpu_s.append(time.process_time() - began_s)
        truth = best_known(system, list(answers.values()))
        for name, way in trained.items():
            value = efficiency(system, answers[name])
            require(
                value <= truth + ROUNDING, f"{name} is better than the truth: {value} > {truth}"
            )
            way.regrets.append(max(0.0, truth - value))
            way.near.append(value >= (1 - NEAR) * truth)


def best_known(system: System, answers: list[Pattern]) -> float:
    """Return the best efficiency that is found from very many patterns, and longer ones.

    Searches go to patterns of 1024 saves; here they go on from the best beyond that.
    """
    best = thorough(system, answers)
    longer = [
        Pattern(best.pattern.interval_s / shorter, scaled)
        for factor in (2, 4, 8)
        for shorter in (1, factor)
        if (scaled := stretched(best.pattern.every, factor))
    ]
    return max([best.efficiency, *(climb(system, one).efficiency for one in longer)])


def stretched(every: tuple[int, ...], factor: int) -> tuple[int, ...]:
    """Return counts with that of the outermost level multiplied; none if that is no pattern."""
    outermost = max(every)
    last = max(at for at, count in enumerate(every) if count)
    if sum(map(bool, every)) < 2 or outermost * factor > 8 * SEARCHED_MAX:
        return ()
    return (*every[:last], outermost * factor, *every[last + 1 :])


def row(kind: str, name: str, way: Way) -> Row:
    """Return what became of a way."""
    return {
        "systems": kind,
        "way": name,
        "count": len(way.regrets),
        "mean": float(np.mean(way.regrets)),
        "median": float(np.median(way.regrets)),
        "max": max(way.regrets),
        "within_1pct": 100 * float(np.mean(way.near)),
        "ms_an_answer": 1e3 * float(np.mean(way.cpu_s)),
        "training_s": way.training_s,
    }


if __name__ == "__main__":
    main()
