"""Systems that `bench/policy.py` compares on: none of them was used to train what is shipped.

`swept` are those of the reference: two levels, drawn from the grid of `run/run_fugaku.sh` of
CRSim, whose times are minutes. `realistic` are built from bytes, bandwidths and rates within
what is published of machines of 2021 to 2026, by `ckptflow.policy.multilevel.costs`, with two
to five levels. What makes next to no progress even with the best pattern is drawn again, in
both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from ckptflow.policy.failures.rates import MeanTimes, rates_of
from ckptflow.policy.multilevel.costs import Reaction, Workload, system_of
from ckptflow.policy.multilevel.system import Level, System
from ckptflow.policy.multilevel.tier_costs import TierCosts

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
LEAST = 0.1  # Efficiency of the best pattern of a system that is kept.

Draw = Callable[[np.random.Generator], System]


# --- the reference's sweep -------------------------------------------------------------

_OVERHEADS, _LATENCIES = (1, 2, 4, 8, 16, 32), (2, 4, 8, 16, 32, 64)
_MTBF_1, _MTBF_2 = (10, 20, 40, 60, 120, 360, 900, 1440), (60, 120, 360, 720, 1440)
_NODES = tuple(1024 * 2**power for power in range(8))
_GROUPS, _TOLERANCES = (1, 2, 4, 8), (1, 2, 4)
SWEEP = [
    one
    for one in itertools.product(_OVERHEADS, _LATENCIES, _MTBF_1, _MTBF_2)
    if one[1] >= one[0] and one[3] >= one[2]
]
# The grid is small: who trained on all of it would have seen each system that is asked about.
_MIXED = np.random.default_rng(3).permutation(len(SWEEP))
_ASKED, _TAUGHT = _MIXED[: len(SWEEP) // 4], _MIXED[len(SWEEP) // 4 :]


def swept(rng: np.random.Generator) -> System:
    """Return a system of a quarter of the reference's sweep, which nothing is trained with.

    A flush costs the application nothing there.
    """
    return _swept(rng, SWEEP[rng.choice(_ASKED)])


def swept_elsewhere(rng: np.random.Generator) -> System:
    """Return a system of the other three quarters, to train with."""
    return _swept(rng, SWEEP[rng.choice(_TAUGHT)])


def _swept(rng: np.random.Generator, point: tuple[int, int, int, int]) -> System:
    overhead, latency, mtbf_1, mtbf_2 = point
    nodes, group = int(rng.choice(_NODES)), int(rng.choice(_GROUPS))
    breaks = int(rng.choice(_TOLERANCES)) == 1  # Others take more failures than ever coincide.
    return System(
        (
            Level(
                name="l1",
                number=2,
                rate_per_s=1 / (mtbf_1 * MINUTE),
                recovery_s=overhead * MINUTE,
                second_loss=(group - 1) / (nodes - 1) if breaks else 0.0,
            ),
            Level(
                name="l2",
                number=3,
                rate_per_s=1 / (mtbf_2 * MINUTE),
                latency_s=latency * MINUTE,
                recovery_s=latency * MINUTE,
            ),
        ),
        blocked_s=overhead * MINUTE,
    )


# --- machines --------------------------------------------------------------------------


def realistic(rng: np.random.Generator) -> System:
    """Return a workload on a machine within published ranges.

    Losses of nodes: 2.3 to 6.5 per 1000 node-days (Meta's RSC-1 and 2, the Llama 3 training
    between them). Outages of all: one in 26 days (Blue Waters, without Lustre) to a year; of
    the file system: one in 9 days (Blue Waters) to a year. Node NVMe: 3.7 GB/s (Frontier) to 14
    (Gen5). File systems: 0.1 to 10 TB/s. Object stores and WAN: 0.8 GB/s (Globus, 8 streams) to
    200 GB/s. The other ranges are assumptions.
    """
    nodes = int(2 ** rng.uniform(5, 14.2))
    tiers = _tiers(rng)
    beyond = any(tier.level == 4 for tier in tiers)
    node_mtbf_s = DAY * 1000 / _between(rng, 2.3, 6.5)
    rates = rates_of(
        MeanTimes(
            process_mtbf_s=node_mtbf_s / _between(rng, 0.2, 3),
            reboot_mtbf_s=node_mtbf_s / _between(rng, 0.1, 2),
            node_mtbf_s=node_mtbf_s,
            system_mtbf_s=_between(rng, 26 * DAY, 365 * DAY),
            filesystem_mtbf_s=_between(rng, 9 * DAY, 365 * DAY) if beyond else None,
        ),
        nodes=nodes,
    )
    workload = Workload(
        state_bytes=nodes * _between(rng, 2e9, 400e9),
        nodes=nodes,
        writers_per_node=int(rng.choice([1, 4, 8])),
        changed=float(rng.choice([1.0, 1.0, _between(rng, 0.05, 1)])),
        stored=float(rng.choice([1.0, _between(rng, 0.3, 1)])),
        capture_bytes_per_s=_between(rng, 1e9, 10e9),
        encode_bytes_per_s=_between(rng, 1e9, 10e9),
        interference=float(rng.choice([0.0, _between(rng, 0.002, 0.2)])),
    )
    reaction = Reaction(
        detection_s=_between(rng, 5, 600),
        restart_s=_between(rng, 10, 300),
        reallocation_s=_between(rng, 10, 600),
        queue_s=_between(rng, 60, 4 * HOUR),
    )
    losses = float(rng.choice([0.0, _between(rng, 1e-4, 0.1)]))
    return system_of(tiers, rates, workload, reaction=reaction, second_loss=losses)


def _tiers(rng: np.random.Generator) -> list[TierCosts]:
    """Return two to five tiers, with one beyond the allocation among them."""
    disk = _between(rng, 3.7e9, 14e9)
    shared, far = _between(rng, 1e11, 1e13), _between(rng, 0.8e9, 2e11)
    all_of_them = [
        _tier("memory", 0, _between(rng, 20e9, 100e9), 1e-3),
        _tier("nvme", 1, disk, 0.01),
        _tier("partner", 2, disk, 0.05, storage_factor=float(rng.choice([1.125, 1.25, 2.0]))),
        _tier("pfs", 3, shared, _between(rng, 0.5, 10), alone=_between(rng, 1e9, 5e9)),
        _tier("object", 4, far, _between(rng, 0.5, 30), alone=_between(rng, 1e8, 2e9)),
    ]
    count = int(rng.integers(2, 6))
    while True:
        chosen = sorted(rng.choice(5, size=count, replace=False))
        if chosen[-1] >= 3:
            return [all_of_them[at] for at in chosen]


def _tier(
    name: str,
    level: int,
    together: float,
    latency_s: float,
    *,
    alone: float | None = None,
    storage_factor: float = 1.0,
) -> TierCosts:
    return TierCosts(
        name=name,
        level=level,
        write_bytes_per_s=alone or together,
        read_bytes_per_s=alone or together,
        write_shared_bytes_per_s=together,
        read_shared_bytes_per_s=together * 1.5,
        write_latency_s=latency_s,
        read_latency_s=latency_s,
        storage_factor=storage_factor,
    )


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a number whose logarithm is anywhere between those of two."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
