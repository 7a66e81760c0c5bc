"""Draw an answer: how flat the optimum is, and where the time goes. Needs matplotlib.

``pip install 'ckptflow[plan]'``. ``tests/unit/test_plan_plots.py`` compares what is drawn with
the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptflow.errors import ConfigError
from ckptflow.model import SHARED_LEVEL
from ckptflow.plan.tune import Answer
from ckptflow.policy.multilevel.closed_form import best_levels, first_order_pattern
from ckptflow.policy.multilevel.exact import efficiencies, efficiency
from ckptflow.policy.multilevel.search import climb
from ckptflow.policy.multilevel.simulation import simulate
from ckptflow.policy.multilevel.system import Pattern, System
from ckptflow.policy.multilevel.tuning import parts
from ckptflow.units import format_seconds

F64s = NDArray[np.float64]
I64s = NDArray[np.int64]

_INTERVALS, _COUNTS = 41, 17
_COUNT_MAX = 4096
_SIMULATED_EVENTS = 2_000_000
_SIMULATED_ERROR = 2e-3
_OF_FAILURES = ("again", "recovery", "waiting")
_COLOURS = {
    "useful": "#4c9f70", "blocked": "#e0a030", "interference": "#e8d070", "failures": "#b04050",
    "again": "#b04050", "recovery": "#7050a0", "waiting": "#909090",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Surface:
    """Efficiencies around a pattern, over the interval and the count of its outermost level.

    Attributes:
        interval_s: shape (intervals,).
        count: of the outermost level that is used, shape (counts,).
        efficiency: shape (counts, intervals); 0 where copies would not be there in time.
        level: name of that level.
    """

    interval_s: F64s
    count: I64s
    efficiency: F64s
    level: str


def surface(system: System, pattern: Pattern) -> Surface:
    """Return the efficiencies around a pattern, at a tenth to ten times its interval."""
    used = [count for count in pattern.every if count]
    before = used[-2] if len(used) > 1 else 1
    counts = _counts(used[-1], before) if len(used) > 1 else np.array([1], dtype=np.int64)
    intervals = pattern.interval_s * 10 ** np.linspace(-1, 1, _INTERVALS)
    every = np.array([[*used[:-1], count] for count in counts], dtype=np.int64)
    found = efficiencies(
        system,
        pattern.used,
        np.tile(intervals, len(counts)),
        np.repeat(every, len(intervals), axis=0),
    )
    last = max(at for at, is_used in enumerate(pattern.used) if is_used)
    shape = len(counts), len(intervals)
    return Surface(intervals, counts, found.reshape(shape), system.levels[last].name)


def _counts(best: int, before: int) -> I64s:
    """Return multiples of a count around another one, which is among them."""
    near = best / before * 8 ** np.linspace(-1, 1, _COUNTS)
    ratios = {max(1, round(ratio)) for ratio in near} | {best // before}
    most = max(best, _COUNT_MAX)
    return np.array(
        sorted(one * before for one in ratios if one * before <= most), dtype=np.int64
    )


def patterns(answer: Answer) -> dict[str, Pattern]:
    """Return what to compare: ours, the first-order optimum, and a single outer level."""
    system = answer.tuning.system
    found = {"ours": answer.tuning.pattern}
    found["first order"] = first_order_pattern(system, best_levels(system).used)
    for at, level in enumerate(system.levels):
        if level.number < SHARED_LEVEL:
            continue
        used = [place == at for place in range(len(system.levels))]
        best = climb(system, first_order_pattern(system, used))
        if best.efficiency > 0:
            found[f"{level.name} only"] = best.pattern
            break
    return found


def where_time_goes(system: System, pattern: Pattern) -> dict[str, float]:
    """Return the parts of the elapsed time, which add up to 1.

    All are exact, but for how what failures cost divides into work done again, recovery and
    waiting, which is simulated. Where that cannot be it is one part.
    """
    found = parts(system, pattern, efficiency(system, pattern))
    try:
        simulated = simulate(
            system, pattern, error_max=_SIMULATED_ERROR, events_max=_SIMULATED_EVENTS
        ).parts
    except ConfigError:  # There is no core, or some failures begin the task again.
        return found
    split = {name: simulated[name] for name in _OF_FAILURES}
    total = sum(split.values())
    if total <= 0:  # None happened.
        return found
    failures = found.pop("failures")
    return found | {name: failures * part / total for name, part in split.items()}


def plot(answer: Answer, folder: Path) -> tuple[Path, ...]:
    """Draw an answer into PNG files of a folder, which is made.

    Raises:
        ConfigError: matplotlib is not installed, or the folder cannot be written to.
    """
    figures = {"efficiency.png": efficiency_figure(answer), "time.png": time_figure(answer)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(folder / name, dpi=150)
    except OSError as error:
        raise ConfigError(f"Cannot draw into {folder}: {error}.") from error
    return tuple(folder / name for name in figures)


def efficiency_figure(answer: Answer) -> Any:
    """Return the figure of the efficiency, by interval and count of the outermost level.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    system, pattern = answer.tuning.system, answer.tuning.pattern
    found = surface(system, pattern)
    figure = _figure()
    axes = figure.add_subplot()
    title = f"{answer.site}: {answer.tuning.efficiency:.4f} expected"
    axes.set(xscale="log", xlabel="computing time between two saves, s", title=title)
    best = f"best: {format_seconds(pattern.interval_s)}"
    if len(found.count) == 1:
        axes.plot(found.interval_s, found.efficiency[0])
        axes.plot(pattern.interval_s, answer.tuning.efficiency, "r*", markersize=14, label=best)
        axes.set(ylabel="efficiency")
    else:
        shown = np.ma.masked_less_equal(found.efficiency, 0.0)
        drawn = axes.pcolormesh(found.interval_s, found.count, shown, shading="nearest")
        figure.colorbar(drawn, ax=axes, label="efficiency")
        count = max(pattern.every)
        label = f"{best}, one in {count} to {found.level}"
        axes.plot(pattern.interval_s, count, "r*", markersize=14, label=label)
        axes.set(yscale="log", ylabel=f"one save in so many goes to {found.level}")
    figure.legend(loc="outside lower center")
    return figure


def time_figure(answer: Answer) -> Any:
    """Return the figure of where the time goes, of several patterns.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    system, compared = answer.tuning.system, patterns(answer)
    found = {name: where_time_goes(system, one) for name, one in compared.items()}
    figure = _figure()
    axes = figure.add_subplot()
    for kind, bottoms, heights in _stacks(found):
        colour = _COLOURS[kind]
        axes.bar(list(found), heights, bottom=bottoms, label=kind, color=colour, width=0.6)
    least = min(one["useful"] for one in found.values())
    axes.set(
        ylabel="part of the elapsed time",
        ylim=(max(0.0, 1 - 2 * (1 - least)), 1.0),
        title=f"{answer.site}: where the time goes",
    )
    figure.legend(loc="outside right upper")
    return figure


def _stacks(
    found: Mapping[str, Mapping[str, float]],
) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield each kind of time with where its bars begin and how high they are."""
    bottoms = [0.0] * len(found)
    for kind in dict.fromkeys(kind for one in found.values() for kind in one):
        heights = [one.get(kind, 0.0) for one in found.values()]
        yield kind, list(bottoms), heights
        bottoms = [low + more for low, more in zip(bottoms, heights, strict=True)]


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("Plots need matplotlib: pip install 'ckptflow[plan]'.") from error
    return Figure(figsize=(7, 4.5), layout="constrained")
