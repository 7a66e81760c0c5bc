"""Train the surrogate of the multi-level policy: random systems, exact labels, scikit-learn.

Labels come from exact evaluation and not from simulation: the two agree, and the former has no
noise and takes a thousandth of the time. Needs ``pip install 'ckptflow[plan]'``.
``tests/unit/test_multilevel_surrogate.py`` trains a small one.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.closed_form import first_order_pattern
from ckptflow.policy.multilevel.exact import efficiencies, level_rows
from ckptflow.policy.multilevel.surrogate import Network, Surrogate, Trees, features, target
from ckptflow.policy.multilevel.system import LEVELS_MAX, Level, System

F64s = NDArray[np.float64]
I64s = NDArray[np.int64]

SYSTEMS = 60_000
_PATTERNS = 8  # Of each system.
_POSITIONS_MAX = 1024
_HELD_OUT = 10  # One system in so many.
_LEAST = 0.02  # Of an efficiency that is learned from.


@dataclass(frozen=True)
class Samples:
    """Features, first-order wastes and efficiencies of patterns, and the system of each."""

    inputs: F64s
    waste: F64s
    efficiency: F64s
    system: I64s


def random_system(rng: np.random.Generator) -> System:
    """Return a system of 1 to 5 levels, anywhere in the range that a surrogate serves."""
    count = int(rng.integers(1, LEVELS_MAX + 1))
    mtbf_s = 10 ** rng.uniform(1.0, 6.5)  # In units of a save to the innermost level.
    shares = rng.dirichlet(np.full(count, rng.choice([0.4, 1.0])))
    latency = np.cumsum(10 ** rng.uniform(-1.5, 1.7, count))
    if rng.random() < 0.5:
        latency -= latency[0]  # Durable on the innermost level when the save returns.
    if rng.random() < 0.15:
        latency[:] = 0.0  # All levels hold the application up.
    recovery = np.sort(10 ** rng.uniform(-0.5, 2.0, count))
    dear = rng.choice([0.0, 0.0, 0.3, 3.0])
    levels = [
        Level(
            name=f"l{at}",
            number=at,
            rate_per_s=float(shares[at] / mtbf_s),
            blocked_s=float(dear * 10 ** rng.uniform(-2, 1)) if at else 0.0,
            latency_s=float(latency[at]),
            interference=float(rng.choice([0.0, 10 ** rng.uniform(-3, -0.2)])),
            recovery_s=float(recovery[at]),
            escalation=float(rng.choice([0.0, 0.0, rng.uniform(0, 0.3)])),
            second_loss=float(rng.choice([0.0, 0.0, rng.uniform(0, 1)])),
            in_flight=int(rng.choice([1, 1, 2, 4])),
        )
        for at in range(count)
    ]
    return System(tuple(levels), blocked_s=1.0)


def sample(
    systems: int, *, seed: int, told: Callable[[int], None] = lambda _done: None
) -> Samples:
    """Return patterns of random systems, around their first-order optima, with exact labels.

    Args:
        systems: how many.
        seed: of the random numbers.
        told: called with the number of systems that are done.
    """
    rng = np.random.default_rng(seed)
    found: list[tuple[F64s, F64s, F64s, int]] = []
    for number in range(systems):
        system = random_system(rng)
        rows, patterns = level_rows(system), _patterns(system, rng)
        values = efficiencies(system, [True] * len(system.levels), *patterns)
        keep = (values > _LEAST) & (values < 1 - 1e-9)
        if keep.any():
            inputs, waste = features(rows, patterns[0][keep], patterns[1][keep])
            found.append((inputs, waste, values[keep], number))
        told(number + 1)
    if not found:
        raise ConfigError(f"{systems} systems are too few to learn from.")
    return Samples(
        np.concatenate([one[0] for one in found]),
        np.concatenate([one[1] for one in found]),
        np.concatenate([one[2] for one in found]),
        np.concatenate([np.full(len(one[1]), one[3]) for one in found]),
    )


def _patterns(system: System, rng: np.random.Generator) -> tuple[F64s, I64s]:
    """Return random patterns around the first-order optimum."""
    middle = first_order_pattern(system, [True] * len(system.levels))
    counts = np.array(middle.every, dtype=np.float64)
    ratios = counts[1:] / counts[:-1]
    intervals = middle.interval_s * 2 ** rng.uniform(-2.2, 2.2, _PATTERNS)
    every = np.ones((_PATTERNS, len(counts)), dtype=np.int64)
    for at, ratio in enumerate(ratios):
        factor = 4 ** rng.uniform(-1.2, 1.2, _PATTERNS)
        wanted = np.maximum(1, np.round(ratio * factor)).astype(np.int64)
        room = np.maximum(1, _POSITIONS_MAX // every[:, at])
        every[:, at + 1] = every[:, at] * np.minimum(wanted, room)
    return intervals, every


def train(
    samples: Samples, *, seed: int, told: Callable[[str], None] = lambda _text: None
) -> Surrogate:
    """Return a surrogate that has learned from samples.

    One system in ten is held out, and how well it does on these is in its ``about``.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor
        from threadpoolctl import threadpool_limits  # Of scikit-learn.
    except ImportError as error:
        raise ConfigError(
            "Training needs scikit-learn: pip install 'ckptflow[plan]'."
        ) from error
    held = samples.system % _HELD_OUT == 0
    inputs, wanted = samples.inputs, target(samples.efficiency, samples.waste)
    low, high = inputs.min(axis=0), inputs.max(axis=0)
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
    scaled = (inputs - mean) / scale
    # What a wrong answer costs: the efficiency is wrong by this times the logarithm's error.
    stretch = -np.log(samples.efficiency)
    matters = samples.efficiency * stretch + 0.02
    began = time.process_time()
    told("a neural network")
    network = MLPRegressor(
        hidden_layer_sizes=(64, 48), activation="tanh", alpha=1e-6, learning_rate_init=2e-3,
        batch_size=min(512, int(0.8 * (~held).sum())),  # Stopping early keeps some for itself.
        max_iter=60, early_stopping=True, n_iter_no_change=6, tol=1e-6, random_state=seed,
    )  # fmt: skip
    trees = HistGradientBoostingRegressor(
        max_iter=150, max_leaf_nodes=31, learning_rate=0.15, random_state=seed
    )
    # Several threads wait for each other for minutes where cores are shared.
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        # 60 rounds are enough, or the errors on what was held out show that they are not.
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(scaled[~held], wanted[~held], sample_weight=matters[~held])
        told("boosted trees")
        trees.fit(scaled[~held], wanted[~held], sample_weight=matters[~held])
    made = Surrogate(mean, scale, low, high, _network(network), _trees(trees), {})
    return Surrogate(
        mean, scale, low, high, made.network, made.trees,
        {
            "seed": seed,
            "systems": int(samples.system.max()) + 1,
            "patterns": len(samples.waste),
            "trained_s": round(time.process_time() - began, 1),
            **_errors(made, samples, scaled, held),
        },
    )  # fmt: skip


def _errors(
    made: Surrogate, samples: Samples, scaled: F64s, held: NDArray[np.bool_]
) -> dict[str, float]:
    """Return mean and 99 % quantile of the error of the efficiency on what was held out."""
    answers = {
        "network": made.network.predict(scaled[held]),
        "trees": made.trees.predict(scaled[held]),
    }
    answers["both"] = (answers["network"] + answers["trees"]) / 2
    errors: dict[str, float] = {}
    for name, learned in answers.items():
        found = np.exp(-samples.waste[held] * np.exp(learned))
        wrong = np.abs(found - samples.efficiency[held])
        errors[f"{name}_mean"] = float(f"{wrong.mean():.3g}")
        errors[f"{name}_q99"] = float(f"{np.quantile(wrong, 0.99):.3g}")
    return errors


def _network(model: Any) -> Network:
    return Network(
        tuple(one.astype(np.float32).astype(np.float64) for one in model.coefs_),
        tuple(one.astype(np.float32).astype(np.float64) for one in model.intercepts_),
    )


def _trees(model: Any) -> Trees:
    """Return the trees of a histogram gradient boosting as plain arrays."""
    nodes = [stage[0].nodes for stage in model._predictors]  # noqa: SLF001  (no other way out)
    starts = np.cumsum([0, *(len(one) for one in nodes)])
    together = np.concatenate(nodes)
    offset = np.repeat(starts[:-1], [len(one) for one in nodes])
    leaf, own = together["is_leaf"].astype(bool), np.arange(len(together))
    return Trees(
        root=starts[:-1].astype(np.int64),
        feature=np.where(leaf, 0, together["feature_idx"]).astype(np.int64),
        # Rounded up: a value that went left in training goes left here.
        threshold=np.nextafter(
            together["num_threshold"].astype(np.float32), np.float32(np.inf)
        ).astype(np.float64),
        left=np.where(leaf, own, together["left"] + offset).astype(np.int64),
        right=np.where(leaf, own, together["right"] + offset).astype(np.int64),
        value=np.where(leaf, together["value"], 0.0).astype(np.float32).astype(np.float64),
        base=float(np.ravel(model._baseline_prediction)[0]),  # noqa: SLF001
        depth=int(max(one["depth"].max() for one in nodes)),
    )
