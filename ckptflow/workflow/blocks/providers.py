"""Who gives nodes: one Parsl provider for each kind of allocation of a site file.

``tests/unit/test_parsl_config.py``.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from parsl.launchers import SimpleLauncher, SingleNodeLauncher, SrunLauncher
from parsl.launchers.base import Launcher
from parsl.providers import LocalProvider, SlurmProvider

from ckptflow.site.executor import (
    EndpointAllocation,
    ExecutorModel,
    LocalAllocation,
    SlurmAllocation,
)
from ckptflow.units import GIB


def provider_of(model: ExecutorModel, worker_init: str) -> Any:
    """Return the Parsl provider that gets the nodes of a site.

    Args:
        model: how tasks run.
        worker_init: shell lines that run in an allocation before its workers start.
    """
    allocation = model.allocation
    assert not isinstance(allocation, EndpointAllocation), "an endpoint gets its own nodes"
    if isinstance(allocation, LocalAllocation):
        return LocalProvider(
            launcher=SingleNodeLauncher(),
            init_blocks=allocation.init_blocks,
            min_blocks=allocation.min_blocks,
            max_blocks=allocation.max_blocks,
            worker_init=worker_init,
        )
    launcher = "simple" if model.kind == "mpi" else allocation.launcher
    allocation = allocation.model_copy(update={"launcher": launcher})
    return _slurm(allocation, model.walltime_s or 0.0, worker_init)


class PolledSlurmProvider(SlurmProvider):  # type: ignore[misc]
    """Parsl's provider, asking the scheduler as often as the site says."""

    def __init__(self, *, poll_s: float, **options: Any) -> None:
        self.poll_s = poll_s
        super().__init__(**options)

    @property
    def status_polling_interval(self) -> float:
        """Seconds between two questions to the scheduler."""
        return self.poll_s


def _slurm(model: SlurmAllocation, walltime_s: float, worker_init: str) -> PolledSlurmProvider:
    return PolledSlurmProvider(
        poll_s=model.poll_s,
        partition=model.partition,
        account=model.account,
        qos=model.qos,
        constraint=model.constraint,
        clusters=model.clusters,
        nodes_per_block=model.nodes,
        cores_per_node=model.cores_per_node,
        mem_per_node=_gib(model.memory_per_node_bytes),
        gpus_per_node=model.gpus_per_node,
        init_blocks=model.init_blocks,
        min_blocks=model.min_blocks,
        max_blocks=model.max_blocks,
        walltime=_clock(walltime_s),
        scheduler_options="\n".join(f"#SBATCH {option}" for option in _options(model)),
        worker_init=worker_init,
        cmd_timeout=round(model.command_timeout_s),
        exclusive=model.exclusive,
        launcher=_launcher(model),
    )


def _options(model: SlurmAllocation) -> list[str]:
    """Return what Slurm is told beside what Parsl tells it.

    Parsl sends a new block for one that is gone, at once and under a new number; a requeued
    one would wait, and have the number of the one before.
    """
    whom = "" if model.launcher == "srun" else "B:"  # Steps hear it, or the batch script.
    warning = f"--signal={whom}{model.stop_signal}@{round(model.stop_warning_s)}"
    return ["--no-requeue", warning, *model.options]


def _launcher(model: SlurmAllocation) -> Launcher:
    kinds = {
        "srun": SrunLauncher,
        "simple": SimpleLauncher,
        "single_node": SingleNodeLauncher,
    }
    return kinds[model.launcher]()


def _gib(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else math.ceil(size_bytes / GIB)


def _clock(seconds: float) -> str:
    """Return a walltime as ``hours:minutes:seconds``."""
    minutes, second = divmod(math.ceil(timedelta(seconds=seconds).total_seconds()), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02d}:{minute:02d}:{second:02d}"
