"""Efficiency by a learned function: thousands of patterns in the time of few exact evaluations.

What is learned is by how much the first-order waste is wrong: the logarithm of
``-log(efficiency) / waste``, which is near 0 for small wastes, so that a small error of it is a
small error of the efficiency everywhere. Inputs have no units: which part of the waste each
cost of each level is, ratios of counts, products of rates and times. So one function serves
seconds and days. Two learners are shipped as plain numbers and evaluated here by NumPy, a small
neural network and boosted trees; their mean is the answer. ``ckptflow policy train`` makes the
file anew.

``tests/unit/test_multilevel_surrogate.py``; `bench/policy.py` has the regret.
"""

from __future__ import annotations

import itertools
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.closed_form import SEARCHED_MAX, first_order_pattern, spread
from ckptflow.policy.multilevel.exact import level_rows
from ckptflow.policy.multilevel.search import Score, by_efficiency, level_sets
from ckptflow.policy.multilevel.system import LEVELS_MAX, Pattern, System, lags

F64s = NDArray[np.float64]
I64s = NDArray[np.int64]

SHIPPED = Path(__file__).with_name("surrogate.npz")
FORMAT = 1

# What reading a damaged file, or one that is none, comes to.
_DAMAGED = (
    OSError, LookupError, ValueError, TypeError, EOFError, OverflowError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_BYTES_MAX, _DEPTH_MAX = 64 << 20, 64

_KINDS = (
    "work lost", "recovery", "blocked time", "interference", "copies on their way",
    "ratio of counts", "failing recoveries",
)  # fmt: skip
_OVERALL = (
    "waste", "failures per segment", "share of recoveries", "longest recovery",
    "failures per pattern", "number of levels",
)  # fmt: skip
FEATURES = len(_KINDS) * LEVELS_MAX + len(_OVERALL)

_WASTE_MIN, _STRETCH_MAX = 1e-9, 20.0
_COUNT_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_INTERVAL_FACTORS = 2.0 ** np.arange(-2, 2.01, 0.25)


def features(rows: F64s, interval_s: F64s, every: I64s) -> tuple[F64s, F64s]:
    """Return what the learners see of patterns, and the first-order waste of each.

    Args:
        rows: levels, all used, float64 of shape (n, levels, 8) or (levels, 8); see
            `exact.level_rows`.
        interval_s: shape (n,).
        every: shape (n, levels).

    Returns:
        float64 of shape (n, features), and the wastes, shape (n,).
    """
    count = len(interval_s)
    wide = np.broadcast_to(rows, (count, *rows.shape[-2:]))
    rate, blocked, latency, interference, recovery, escalation, second, _ = np.moveaxis(
        wide, 2, 0
    )
    nominal = interval_s[:, None] + blocked[:, :1]
    counts = every.astype(np.float64)
    lag = lags(latency, nominal)
    costs = np.stack(
        [
            rate * (lag + counts / 2) * nominal,
            rate * recovery,
            blocked / (counts * nominal),
            latency * interference / (counts * nominal),
        ],
        axis=2,
    )
    waste = np.maximum(costs.sum(axis=(1, 2)), _WASTE_MIN)
    total = rate.sum(axis=1)
    levels = rows.shape[-2]
    ratio = np.log2(np.concatenate([counts[:, :1], counts[:, 1:] / counts[:, :-1]], axis=1))
    parts = [
        _padded(costs[:, :, kind] / waste[:, None], levels) for kind in range(costs.shape[2])
    ]
    parts += [_padded(lag / counts, levels), _padded(ratio / 4, levels)]
    parts += [_padded(escalation + second, levels)]
    overall = np.stack(
        [
            np.log(waste),
            np.log(total * nominal[:, 0] + 1e-9),
            np.log((rate * recovery).sum(axis=1) + 1e-9),
            np.log((total[:, None] * recovery).max(axis=1) + 1e-9),
            np.log((total[:, None] * counts * nominal).max(axis=1) + 1e-9),
            np.full(count, levels / LEVELS_MAX),
        ],
        axis=1,
    )
    return np.concatenate([*parts, overall], axis=1), waste


def _padded(values: F64s, levels: int) -> F64s:
    return np.pad(values, ((0, 0), (0, LEVELS_MAX - levels)))


def target(efficiency: F64s, waste: F64s) -> F64s:
    """Return what is learned, of efficiencies above 0."""
    found: F64s = np.log(-np.log(np.minimum(efficiency, 1 - 1e-12)) / waste)
    return found


@dataclass(frozen=True)
class Network:
    """A feed-forward network with tanh between its layers."""

    weights: tuple[F64s, ...]
    biases: tuple[F64s, ...]

    def predict(self, inputs: F64s) -> F64s:
        """Return one number for each row."""
        values = inputs
        for at, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = values @ weight + bias
            if at + 1 < len(self.weights):
                values = np.tanh(values)
        return values[:, 0]


@dataclass(frozen=True)
class Trees:
    """Boosted trees as arrays over all nodes; a leaf leads to itself."""

    root: I64s
    feature: I64s
    threshold: F64s
    left: I64s
    right: I64s
    value: F64s
    base: float
    depth: int

    def predict(self, inputs: F64s) -> F64s:
        """Return one number for each row."""
        node = np.broadcast_to(self.root, (len(inputs), len(self.root))).copy()
        row = np.arange(len(inputs))[:, None]
        for _ in range(self.depth):
            goes_left = inputs[row, self.feature[node]] <= self.threshold[node]
            node = np.where(goes_left, self.left[node], self.right[node])
        summed: F64s = self.base + self.value[node].sum(axis=1)
        return summed


@dataclass(frozen=True)
class Surrogate:
    """The learned function.

    Attributes:
        mean: of each feature in training, with `scale` its standard deviation.
        low: least value of each feature in training; with `high` the greatest.
        network: one learner.
        trees: the other.
        about: how it was trained, and how well it does on what it was not trained with.
    """

    mean: F64s
    scale: F64s
    low: F64s
    high: F64s
    network: Network
    trees: Trees
    about: Mapping[str, Any]

    def efficiencies(
        self, rows: F64s, interval_s: F64s, every: I64s, *, with_trees: bool = True
    ) -> F64s:
        """Return the efficiencies of patterns; see `features` for the arguments."""
        inputs, waste = features(rows, interval_s, every)
        scaled = (np.clip(inputs, self.low, self.high) - self.mean) / self.scale
        learned = self.network.predict(scaled)
        if with_trees:
            learned = (learned + self.trees.predict(scaled)) / 2
        return np.exp(-np.minimum(waste * np.exp(learned), _STRETCH_MAX))

    def outside(self, rows: F64s, interval_s: F64s, every: I64s) -> list[str]:
        """Return what of a pattern lies beyond all that was trained with, in words."""
        inputs, _ = features(rows, interval_s, every)
        width = np.maximum(self.high - self.low, 1e-9)
        beyond = (inputs < self.low - 0.02 * width) | (inputs > self.high + 0.02 * width)
        return [feature_name(int(at)) for at in np.flatnonzero(beyond.any(axis=0))]


def feature_name(at: int) -> str:
    """Return what a feature is, in words."""
    if at < len(_KINDS) * LEVELS_MAX:
        return f"{_KINDS[at // LEVELS_MAX]} of level {at % LEVELS_MAX + 1} of those used"
    return _OVERALL[at - len(_KINDS) * LEVELS_MAX]


def propose(
    system: System, surrogate: Surrogate, *, count: int = 8, score: Score = by_efficiency
) -> list[Pattern]:
    """Return the patterns that the surrogate takes for the best, on different levels.

    It looks at intervals and counts around the first-order optimum of each set of levels: the
    network at all of them, and the trees at the best of these.

    Returns:
        The best first, at most two for each set of levels; none if of what it looked at nothing
        may be.
    """
    best: list[tuple[float, Pattern]] = []
    for used in level_sets(system):
        part = system.using(used)
        rows = level_rows(part)
        patterns = _feasible(part, *_around(first_order_pattern(system, used)))
        if not len(patterns[0]):
            continue
        first = score(
            used,
            *patterns,
            _lost(part, surrogate.efficiencies(rows, *patterns, with_trees=False)),
        )
        few = np.argsort(-first)[:64]
        chosen = patterns[0][few], patterns[1][few]
        values = score(used, *chosen, _lost(part, surrogate.efficiencies(rows, *chosen)))
        for at in np.argsort(-values)[:2]:
            found = Pattern(float(chosen[0][at]), spread(used, chosen[1][at].tolist()))
            best.append((float(values[at]), found))
    best.sort(key=lambda one: -one[0])
    return [pattern for _, pattern in best[:count]]


def _lost(part: System, found: F64s) -> F64s:
    """Return efficiencies of tasks that failures of levels left out begin again, if any are."""
    if not part.lost_rate_per_s or part.work_s is None:
        return found
    stretch = np.minimum(part.lost_rate_per_s * part.work_s / np.maximum(found, 1e-9), 700.0)
    again: F64s = part.lost_rate_per_s * part.work_s / np.expm1(stretch)
    return again


def _around(middle: Pattern) -> tuple[F64s, I64s]:
    counts = [count for count in middle.every if count]
    ratios = [outer / inner for inner, outer in itertools.pairwise(counts)]
    near = [
        sorted({max(1, round(ratio * factor)) for factor in _COUNT_FACTORS}) for ratio in ratios
    ]
    every = [
        one
        for ways in itertools.product(*near)
        if (one := tuple(itertools.accumulate(ways, lambda a, b: a * b, initial=1)))[-1]
        <= SEARCHED_MAX
    ] or [(1,) * len(counts)]
    intervals = np.tile(middle.interval_s * _INTERVAL_FACTORS, len(every))
    return intervals, np.repeat(np.array(every, dtype=np.int64), len(_INTERVAL_FACTORS), axis=0)


def _feasible(part: System, interval_s: F64s, every: I64s) -> tuple[F64s, I64s]:
    """Return the patterns that have no more copies on their way than may be."""
    rows = level_rows(part)
    lag = lags(rows[:, 2], (interval_s + rows[0, 1])[:, None])
    fits = (lag <= every * rows[:, 7]).all(axis=1)
    return interval_s[fits], every[fits]


@cache
def shipped() -> Surrogate:
    """Return the surrogate that comes with the package."""
    return load(SHIPPED)


def load(path: Path) -> Surrogate:
    """Read a surrogate from a file of plain arrays; nothing in it is executed.

    Raises:
        ConfigError: it is no such file, or of another format.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            if sum(member.file_size for member in packed.infolist()) > _BYTES_MAX:
                raise ConfigError(f"{path} is no surrogate: it unpacks to too many bytes.")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays["about"]))
        if about["format"] != FORMAT:
            raise ConfigError(
                f"{path} is a surrogate of format {about['format']}, this version reads "
                f"{FORMAT}: make it again with `ckptflow policy train`."
            )
        return _unpacked(arrays, about)
    except _DAMAGED as error:
        raise ConfigError(f"{path} is no surrogate: {error}") from error


def save(surrogate: Surrogate, path: Path) -> None:
    """Write a surrogate: float32, compressed."""
    network, trees = surrogate.network, surrogate.trees
    arrays: dict[str, Any] = {
        "about": np.array(json.dumps({**surrogate.about, "format": FORMAT})),
        **{f"weight{at}": one.astype(np.float32) for at, one in enumerate(network.weights)},
        **{f"bias{at}": one.astype(np.float32) for at, one in enumerate(network.biases)},
        "trees_root": trees.root.astype(np.int32),
        "trees_feature": trees.feature.astype(np.uint8),
        "trees_threshold": trees.threshold.astype(np.float32),
        "trees_left": trees.left.astype(np.int32),
        "trees_right": trees.right.astype(np.int32),
        "trees_value": trees.value.astype(np.float32),
        "trees_base": np.array([trees.base]),
        "trees_depth": np.array([trees.depth]),
        **{name: getattr(surrogate, name) for name in ("mean", "scale", "low", "high")},
    }
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _unpacked(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> Surrogate:
    """Return what the arrays of a file are, all of which is checked."""

    def numbers(name: str, *shape: int) -> F64s:
        found = arrays[name]
        if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
            raise ValueError(f"{name} has what is no number")
        if len(found.shape) != len(shape) or any(
            0 <= wanted != size for wanted, size in zip(shape, found.shape, strict=True)
        ):
            raise ValueError(f"{name} has the shape {found.shape}")
        return found.astype(np.float64)

    mean, scale, low, high = (
        numbers(name, FEATURES) for name in ("mean", "scale", "low", "high")
    )
    if not (scale > 0).all() or not (low <= high).all():
        raise ValueError("features have no extent")
    weights: list[F64s] = []
    for at in range(sum(name.startswith("weight") for name in arrays)):
        weights.append(
            numbers(f"weight{at}", weights[-1].shape[1] if weights else FEATURES, -1)
        )
    if not weights or weights[-1].shape[1] != 1:
        raise ValueError("its network does not end in one number")
    biases = [numbers(f"bias{at}", weight.shape[1]) for at, weight in enumerate(weights)]
    return Surrogate(
        mean, scale, low, high, Network(tuple(weights), tuple(biases)), _trees(numbers), about
    )


def _trees(numbers: Callable[..., F64s]) -> Trees:
    value = numbers("trees_value", -1)
    nodes = len(value)
    feature = numbers("trees_feature", nodes).astype(np.int64)
    left, right = (
        numbers(f"trees_{side}", nodes).astype(np.int64) for side in ("left", "right")
    )
    root = numbers("trees_root", -1).astype(np.int64)
    if not all(((one >= 0) & (one < nodes)).all() for one in (root, left, right)):
        raise ValueError("a tree leads out of the file")
    if not ((feature >= 0) & (feature < FEATURES)).all():
        raise ValueError("a tree asks for a feature that there is not")
    depth = float(numbers("trees_depth", 1)[0])
    if not 0 <= depth <= _DEPTH_MAX:
        raise ValueError(f"a tree is {depth:g} deep")
    threshold, base = numbers("trees_threshold", nodes), float(numbers("trees_base", 1)[0])
    return Trees(root, feature, threshold, left, right, value, base, int(depth))


def used_rows(system: System, used: Sequence[bool]) -> F64s:
    """Return the rows of the levels that are used; see `exact.level_rows`."""
    return level_rows(system.using(used))
