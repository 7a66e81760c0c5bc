"""How fast patterns are evaluated: exactly, by the native core and by NumPy, and by simulation.

Patterns of two to five levels on machines of `bench/policy_systems.py`. The three have to
agree: the exact ones to rounding, the simulation within its confidence interval, nearly always.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from policy_systems import realistic
from report import Claim, Row, arguments, finish, require

from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel import renewal
from ckptflow.policy.multilevel.exact import efficiency, level_rows
from ckptflow.policy.multilevel.search import best_pattern
from ckptflow.policy.multilevel.simulation import simulate
from ckptflow.policy.multilevel.system import Pattern, System

SEED = 5
EVENTS_GOAL = 1e6  # A second, on one core.
LONG_S = 0.2  # Of a measurement.


def main() -> None:
    """Evaluate, compare, print."""
    given = arguments(__doc__)
    rng = np.random.default_rng(SEED)
    rows = [row(*one) for one in patterns(rng, 4 if given.quick else 12)]
    slowest = min(float(one["events_a_s"]) for one in rows)
    outside = sum(abs(float(one["deviations"])) > 3 for one in rows)
    require(outside <= 1, f"{outside} of {len(rows)} simulations lie beyond 3 deviations")
    claims = [Claim("simulated_events_a_s", slowest, ">=", EVENTS_GOAL)]
    finish("evaluation of patterns", rows, claims, given.json_path)


def patterns(rng: np.random.Generator, count: int) -> list[tuple[System, Pattern]]:
    """Return the best patterns of machines, of different numbers of levels."""
    found: list[tuple[System, Pattern]] = []
    while len(found) < count:
        system = realistic(rng)
        with contextlib.suppress(ConfigError):  # It makes no progress.
            found.append((system, best_pattern(system).pattern))
    return sorted(found, key=lambda one: (sum(one[1].used), max(one[1].every)))


def row(system: System, pattern: Pattern) -> Row:
    """Evaluate one pattern in three ways."""
    part = system.using(pattern.used)
    every = np.array([count for count in pattern.every if count], dtype=np.int64)
    exact = efficiency(system, pattern)
    by_numpy = renewal.efficiency(level_rows(part), pattern.interval_s, every)
    require(abs(exact - by_numpy) < 1e-9, f"{exact} by the core, {by_numpy} by NumPy")
    native_s = lasting(lambda: efficiency(system, pattern))
    numpy_s = lasting(lambda: renewal.efficiency(level_rows(part), pattern.interval_s, every))
    began_s = time.process_time()
    simulated = simulate(system, pattern, seed=SEED, error_max=1e-3)
    took_s = time.process_time() - began_s
    return {
        "levels": len(every),
        "saves": int(every[-1]),
        "efficiency": exact,
        "native_us": 1e6 * native_s,
        "numpy_ms": 1e3 * numpy_s,
        "numpy_over_native": numpy_s / native_s,
        "simulated_ms": 1e3 * took_s,
        "events_a_s": simulated.events / took_s,
        "deviations": (simulated.efficiency - exact) / (simulated.error / 2),
    }


def lasting(work: Callable[[], object]) -> float:
    """Return the processor time of a call, of as many as take a while."""
    count, began_s = 0, time.process_time()
    while (took_s := time.process_time() - began_s) < LONG_S or not count:
        work()
        count += 1
    return took_s / count


if __name__ == "__main__":
    main()
