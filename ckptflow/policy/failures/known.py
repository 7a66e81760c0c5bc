"""Rates of failures that somebody has published, by name, and some that nobody has.

They are a place to begin: what a machine meets itself soon counts for more. Each says where it
is from, whether the numbers were read there, and how causes were mapped to classes. Where a
source tells nothing of a class, nothing is made up; name it beside the preset.
``tests/unit/test_failure_known.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ckptflow.errors import ConfigError
from ckptflow.policy.failures.rates import MeanTimes

_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Mean times between failures of a machine, or of a kind of machines.

    Attributes:
        name: by which a site file asks for them.
        times: of one process, one node, and what they share.
        source: where the numbers are from.
        mapping: how what was published became a class and a mean time, and what is lacking.
        checked: whether the numbers were read at a source that is named, not remembered or
            proposed.
    """

    name: str
    times: MeanTimes
    source: str
    mapping: str
    checked: bool

    def __str__(self) -> str:
        doubt = "" if self.checked else " Not checked."
        return f"{self.name}: {self.source}{doubt}"


# Table 5 of the Llama 3 paper: what stopped a training on 2048 nodes of 8 GPUs in 54 days.
LLAMA_3_STOPS: Final[Mapping[str, int]] = MappingProxyType({
    "faulty GPU": 148, "GPU HBM3 memory": 72, "software bug": 54, "network switch or cable": 35,
    "host maintenance": 32, "GPU SRAM memory": 19, "GPU system processor": 17, "NIC": 7,
    "NCCL watchdog timeout": 7, "silent data corruption": 6,
    "GPU thermal interface and sensor": 6, "SSD": 3, "power supply": 3, "server chassis": 2,
    "IO expansion board": 2, "dependency": 2, "CPU": 2, "system memory": 2,
})  # fmt: skip
_LLAMA_3_OF_PROCESSES = ("software bug", "NCCL watchdog timeout", "dependency")
_LLAMA_3_NODES, _LLAMA_3_PROCESSES, _LLAMA_3_S = 2048, 16_384, 54 * _DAY_S


def _llama_3() -> Known:
    of_processes = sum(LLAMA_3_STOPS[cause] for cause in _LLAMA_3_OF_PROCESSES)
    of_nodes = sum(LLAMA_3_STOPS.values()) - of_processes
    return Known(
        name="ai-h100",
        times=MeanTimes(
            process_mtbf_s=_LLAMA_3_PROCESSES * _LLAMA_3_S / of_processes,
            node_mtbf_s=_LLAMA_3_NODES * _LLAMA_3_S / of_nodes,
        ),
        source=(
            "Llama Team, The Llama 3 Herd of Models, arXiv 2407.21783, table 5, as it is given "
            "at https://glennklockwood.com/garden/component-reliability: 419 unexpected stops "
            "of a training on 16384 H100 GPUs in 54 days, 3.79 per 1000 node-days."
        ),
        mapping=(
            "Software bugs, dependencies and watchdog timeouts (63) end processes: class 0, "
            "one process for each GPU. All else (356) is class 2: faults of GPUs (268), of "
            "hosts (21), of switches and cables (35), and maintenance of hosts (32). Many of "
            "these nodes will have come back after a reset, but the source does not say "
            "which, so class 1 is not known and class 2 errs to the safe side. It tells "
            "nothing of classes 3 and 4; planned stops (47) are none."
        ),
        checked=True,
    )


def _meta_rsc(number: int, per_1000_node_days: float) -> Known:
    return Known(
        name=f"meta-rsc{number}",
        times=MeanTimes(node_mtbf_s=1000 * _DAY_S / per_1000_node_days),
        source=(
            f"Kokolis et al., Revisiting Reliability in Large-Scale Machine Learning Research "
            f"Clusters, HPCA 2025, arXiv 2410.21680: RSC-{number}, {per_1000_node_days:.2f} "
            f"failures per 1000 node-days of 8 A100 GPUs, from memory of the paper."
        ),
        mapping="All are class 2: the paper counts what takes a node. The others are not told.",
        checked=False,
    )


_ALL = (
    _llama_3(),
    _meta_rsc(1, 6.50),
    _meta_rsc(2, 2.34),
    Known(
        name="hpc-cpu",
        times=MeanTimes(
            node_mtbf_s=1024 / 2.13e-6,
            system_mtbf_s=1 / 4.28e-7,
        ),
        source=(
            "Clusters that SCR ran on, as models of multi-level checkpoints take them: "
            "2.13e-6 failures per s of level 1 and 4.28e-7 of level 2 (Moody et al., SC10; "
            "Sato et al., SC12), one in 130 and in 649 hours, from memory of the papers."
        ),
        mapping=(
            "Level 1, which copies on other nodes survive, is class 2, and level 2, which only "
            "the file system survives, class 3. The rates are those of a whole run; that it "
            "had 1024 nodes is an assumption."
        ),
        checked=False,
    ),
    Known(
        name="blue-waters",
        times=MeanTimes(
            system_mtbf_s=261 * _DAY_S / 10,
            filesystem_mtbf_s=261 * _DAY_S / 29,
        ),
        source=(
            "Di Martino et al., Lessons Learned from the Analysis of System Failures at "
            "Petascale: The Case of Blue Waters, DSN 2014, abstract: 39 outages of the whole "
            "system in 261 days, 29 of them involving Lustre."
        ),
        mapping=(
            "Outages that involve Lustre are class 4, one in 9 days, as if one did not wait "
            "for it to come back: what it held mostly was not lost, so where one does wait "
            "this is much too often. The other 10 are class 3. It tells no rate of nodes."
        ),
        checked=True,
    ),
    Known(
        name="cloud-spot",
        times=MeanTimes(
            process_mtbf_s=30 * _DAY_S,
            node_mtbf_s=2 * _DAY_S,
            system_mtbf_s=7 * _DAY_S,
        ),
        source="A proposal without a source, for instances that may be taken away.",
        mapping=(
            "Losing an instance is class 2, since its disk goes with it; losing all of a pool "
            "at once is class 3. The object store is taken not to fail."
        ),
        checked=False,
    ),
    Known(
        name="workstation",
        times=MeanTimes(
            process_mtbf_s=2 * _DAY_S,
            reboot_mtbf_s=30 * _DAY_S,
            node_mtbf_s=3 * 365 * _DAY_S,
        ),
        source="A proposal without a source, for one computer with somebody at its keyboard.",
        mapping="Processes end most often (class 0), then it is restarted (1); disks last (2).",
        checked=False,
    ),
)
KNOWN: Final[Mapping[str, Known]] = MappingProxyType({one.name: one for one in _ALL})


def known(name: str) -> Known:
    """Return the rates of that name.

    Raises:
        ConfigError: there are none; it names those that there are.
    """
    if name not in KNOWN:
        raise ConfigError(
            f"No failure rates are known as {name!r}; there are {', '.join(KNOWN)}."
        )
    return KNOWN[name]
