"""Machines, states and failures that `bench/replay.py` plays, and where they are from.

Marks: [V] was read at the source, [M] is from memory of it, [A] is an assumption of ours. All
policies meet the same ones. Nodes have NVMe of 3.7 GB/s for writing and 8 GB/s for reading
(Frontier, 75 and 35 TB/s over 9408 nodes, insidehpc 2021 [V]); a partner copy stores two. A
save of ours blocks for a copy to host memory, and copies slow computing down, as `Workload` has
it when nobody measured: 5 GB/s of each writer, 2 % [A].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ckptflow.policy.failures.known import LLAMA_3_STOPS, known
from ckptflow.policy.failures.laws import Trace
from ckptflow.policy.failures.rates import Rates, rates_of
from ckptflow.policy.multilevel.costs import Reaction, Workload
from ckptflow.policy.multilevel.tier_costs import TierCosts

HOUR, DAY = 3600.0, 86_400.0
GB, TB = 1e9, 1e12
BYTES_A_PARAMETER = 782 / 70  # 782 GB for 70B, weights and Adam (NVIDIA nvCOMP note, 2026 [V]).


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One machine with one task.

    Attributes:
        name: of it.
        about: sources, in words.
        tiers: where checkpoints may go.
        workload: what is saved.
        failures: how many of each class there are while it is recorded.
        recorded_s: for how long.
        reaction: the same for all classes, since policies without a level for a class would
            else wait for what they do not need.
        second_loss: probability that a second node, lost meanwhile, is the partner.
    """

    name: str
    about: str
    tiers: tuple[TierCosts, ...]
    workload: Workload
    failures: Mapping[int, int]
    recorded_s: float
    reaction: Reaction
    second_loss: float

    @property
    def rates(self) -> Rates:
        """Those of the record: all policies know them."""
        found = [
            self.failures.get(failure_class, 0) / self.recorded_s for failure_class in range(5)
        ]
        return Rates(tuple(found))  # type: ignore[arg-type]

    def traces(self, seed: int) -> dict[int, Trace]:
        """Return when failures of each class happen: so many, at any time alike."""
        rng = np.random.default_rng(seed)
        return {
            failure_class: Trace(
                tuple(np.sort(rng.uniform(0, self.recorded_s, count)).tolist()), self.recorded_s
            )
            for failure_class, count in self.failures.items()
            if count
        }


def _reaction(seconds: float) -> Reaction:
    return Reaction(detection_s=15.0, restart_s=seconds - 15.0, reallocation_s=0.0, queue_s=0.0)


def _counts(rates: Rates, recorded_s: float) -> dict[int, int]:
    return {at: round(rate * recorded_s) for at, rate in enumerate(rates.per_s)}


_MEMORY = TierCosts(  # PCIe Gen5, 50 usable of 64 GB/s in each direction [M].
    name="memory", level=0, write_bytes_per_s=50 * GB, read_bytes_per_s=50 * GB
)
_NVME = TierCosts(
    name="nvme", level=1, write_latency_s=0.1, read_latency_s=0.1,
    write_bytes_per_s=3.7 * GB, read_bytes_per_s=8 * GB,
    write_shared_bytes_per_s=3.7 * GB, read_shared_bytes_per_s=8 * GB,
)  # fmt: skip
_PARTNER = TierCosts(
    name="partner", level=2, write_latency_s=0.5, read_latency_s=0.5, storage_factor=2.0,
    write_bytes_per_s=3.7 * GB, read_bytes_per_s=8 * GB,
    write_shared_bytes_per_s=3.7 * GB, read_shared_bytes_per_s=8 * GB,
)  # fmt: skip


def _shared(
    name: str, level: int, together: float, alone: float, latency_s: float, **prices: float
) -> TierCosts:
    return TierCosts(
        name=name, level=level, write_latency_s=latency_s, read_latency_s=latency_s,
        write_bytes_per_s=alone, read_bytes_per_s=alone,
        write_shared_bytes_per_s=together, read_shared_bytes_per_s=together, **prices,
    )  # fmt: skip


_BLUE_WATERS = known("blue-waters").times
_ALL_STOP_S = _BLUE_WATERS.system_mtbf_s or DAY
_OF_PROCESSES = sum(
    LLAMA_3_STOPS[cause] for cause in ("software bug", "NCCL watchdog timeout", "dependency")
)


def _llama_3() -> Scene:
    return Scene(
        name="training, 16384 GPUs",
        about=(
            "405B parameters on 2048 nodes of 8 H100, 54 days, 419 unexpected stops by cause "
            "as `ai-h100` has them [V]; and 2 outages of everything, one in 26 days as on "
            "Blue Waters [V], of which that source tells nothing. Store: 2 TB/s sustained "
            "(Tectonic [V]), 1 GB/s a writer, 5 s a commit [A]. 10 min from a failure to a "
            "restore [A]."
        ),
        tiers=(_MEMORY, _NVME, _PARTNER, _shared("store", 3, 2 * TB, GB, 5.0)),
        workload=Workload(
            state_bytes=405e9 * BYTES_A_PARAMETER, nodes=2048, writers_per_node=8
        ),
        failures={
            0: _OF_PROCESSES,
            2: sum(LLAMA_3_STOPS.values()) - _OF_PROCESSES,
            3: round(54 * DAY / _ALL_STOP_S),
        },
        recorded_s=54 * DAY,
        reaction=_reaction(600.0),
        second_loss=1 / 2047,
    )


def _meta() -> Scene:
    recorded_s = 30 * DAY
    return Scene(
        name="training, 1024 GPUs",
        about=(
            "70B parameters on 128 nodes of 8 GPUs, 30 days at the 7.9 h between failures of "
            "such jobs on RSC-1 [M], all of them losses of nodes; and 1 outage of everything, "
            "as above. Store: 200 GB/s, 1 GB/s a writer, 2 s a commit [A]. 5 min to a restore "
            "[A]."
        ),
        tiers=(_MEMORY, _NVME, _PARTNER, _shared("store", 3, 200 * GB, GB, 2.0)),
        workload=Workload(state_bytes=70e9 * BYTES_A_PARAMETER, nodes=128, writers_per_node=8),
        failures={2: round(recorded_s / (7.9 * HOUR)), 3: round(recorded_s / _ALL_STOP_S)},
        recorded_s=recorded_s,
        reaction=_reaction(300.0),
        second_loss=1 / 127,
    )


def _spot() -> Scene:
    recorded_s = 30 * DAY
    rates = rates_of(known("cloud-spot").times, nodes=8, processes=64)
    return Scene(
        name="spot cloud, 64 GPUs",
        about=(
            "7B parameters on 8 instances of 8 GPUs, 30 days of the rates `cloud-spot`, which "
            "are a proposal [A]. S3: 0.3 GB/s a writer, 10 GB/s in all, 1 s a commit [A]; a "
            "request to put costs $0.005 per 1000, of 100 MB each, and what is read elsewhere "
            "$0.09 a GB [M]. 3 min to a restore [A]."
        ),
        tiers=(
            _MEMORY,
            _NVME,
            _PARTNER,
            _shared(
                "s3",
                3,
                10 * GB,
                0.3 * GB,
                1.0,
                price_per_gb=10 * 0.005 / 1000,
                price_per_gb_month=0.023,
                egress_price_per_gb=0.09,
            ),
        ),
        workload=Workload(state_bytes=7e9 * BYTES_A_PARAMETER, nodes=8, writers_per_node=8),
        failures=_counts(rates, recorded_s),
        recorded_s=recorded_s,
        reaction=_reaction(180.0),
        second_loss=1 / 7,
    )


def _petascale() -> Scene:
    recorded_s, nodes = 90 * DAY, 4096
    lost = 2 * nodes / 26_864 * recorded_s / DAY  # Of all 26864 nodes 2 a day [V].
    return Scene(
        name="simulation, 4096 nodes",
        about=(
            "16 GB a node [A] on 4096 nodes as Blue Waters': of its 26864, 2 are lost a day "
            "[V]; processes die half as often, as software beside hardware there (20 and 42 % "
            "[V]); outages of everything and of Lustre as `blue-waters` [V], for 90 days. No "
            "disks: partner copies in memory at 2 GB/s a node [A]. Lustre 1 TB/s [M], 0.5 "
            "GB/s a writer, archive 50 GB/s, 10 s a commit [A]. 5 min to a restore, however "
            "long an outage [A]."
        ),
        tiers=(
            TierCosts(
                name="memory", level=0, write_bytes_per_s=5 * GB, read_bytes_per_s=5 * GB
            ),
            TierCosts(
                name="partner",
                level=2,
                write_bytes_per_s=2 * GB,
                read_bytes_per_s=2 * GB,
                write_latency_s=0.5,
                read_latency_s=0.5,
                storage_factor=1.0,
            ),
            _shared("lustre", 3, TB, 0.5 * GB, 10.0),
            _shared("archive", 4, 50 * GB, 0.5 * GB, 10.0),
        ),
        workload=Workload(state_bytes=16 * GB * nodes, nodes=nodes),
        failures={
            0: round(lost * 20 / 42),
            2: round(lost),
            3: round(recorded_s / _ALL_STOP_S),
            4: round(recorded_s / (_BLUE_WATERS.filesystem_mtbf_s or DAY)),
        },
        recorded_s=recorded_s,
        reaction=_reaction(300.0),
        second_loss=1 / (nodes - 1),
    )


SCENES = (_llama_3(), _meta(), _spot(), _petascale())
QUICK = SCENES[2:3]
