"""How tasks run: what executes them, and how the nodes for it are got.

``tests/unit/test_site.py``, ``tests/unit/test_allocations.py``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ckptflow.site.allocations import (
    Allocation,
    EndpointAllocation,
    KubernetesAllocation,
    LocalAllocation,
    PbsAllocation,
    SlurmAllocation,
    StopSignal,
)
from ckptflow.site.strict import Seconds, Strict

RankLauncher = Literal["processes", "srun", "mpiexec"]
__all__ = [
    "Allocation",
    "EndpointAllocation",
    "ExecutorModel",
    "KubernetesAllocation",
    "LocalAllocation",
    "PbsAllocation",
    "RankLauncher",
    "SlurmAllocation",
    "StopSignal",
]

CpuAffinity = Annotated[
    str, Field(pattern=r"^(none|block|alternating|block-reverse|list:[0-9,:-]+)$")
]


class ExecutorModel(Strict):
    """How tasks run.

    ``htex`` is worker processes on each node, ``mpi`` one set of them for all nodes of an
    allocation, where each task gets nodes of its own, ``threads`` threads of the script itself.
    With ``globus_compute`` an endpoint runs them, wherever it is.
    """

    kind: Literal["htex", "mpi", "threads", "globus_compute"] = "htex"
    allocation: Allocation = LocalAllocation()
    workers: Annotated[int, Field(ge=1)] = 2
    gpus_per_worker: Annotated[int, Field(ge=0)] = 0
    gpu_names: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9.:_/-]+$")], ...] = ()
    cpu_affinity: CpuAffinity = "none"
    address: str | None = None
    interface: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9._@-]{1,15}$")] = None
    python: str | None = None
    walltime_s: Annotated[Seconds | None, Field(alias="walltime")] = None
    margin_s: Annotated[Seconds, Field(alias="margin")] = 30.0
    heartbeat_period_s: Annotated[Seconds, Field(alias="heartbeat_period", ge=1)] = 15.0
    heartbeat_threshold_s: Annotated[Seconds, Field(alias="heartbeat_threshold", ge=2)] = 60.0
    strategy_period_s: Annotated[Seconds, Field(alias="strategy_period", gt=0)] = 5.0
    failed_blocks_max: Annotated[int, Field(ge=1)] = 3
    worker_init: str = ""
    encrypted: bool = True
    monitoring: bool = False
    rank_launcher: RankLauncher | None = None
    rank_options: tuple[str, ...] = ()

    @property
    def tasks_are_alone(self) -> bool:
        """Whether each task has a process to itself while it runs."""
        return self.kind != "threads" or self.workers == 1

    @property
    def on_other_nodes(self) -> bool:
        """Whether tasks run on other computers than the workflow itself."""
        return self.kind != "threads" and self.allocation.provider != "local"

    @property
    def gpus(self) -> tuple[str, ...]:
        """Which GPUs of its node each worker sees: ``("0,1", "2,3")``."""
        each = self.gpus_per_worker
        if not each:
            return ()
        names = self.gpu_names or tuple(map(str, range(self.workers * each)))
        return tuple(
            ",".join(names[worker * each : (worker + 1) * each])
            for worker in range(self.workers)
        )

    @model_validator(mode="after")
    def _times_fit(self) -> ExecutorModel:
        if self.heartbeat_threshold_s <= self.heartbeat_period_s:
            raise ValueError(
                f"heartbeat_threshold ({self.heartbeat_threshold_s:g} s) must be longer than "
                f"heartbeat_period ({self.heartbeat_period_s:g} s)"
            )
        if self.walltime_s is not None and self.walltime_s <= 2 * self.margin_s:
            raise ValueError(
                f"walltime ({self.walltime_s:g} s) leaves no time to work: it must be longer "
                f"than twice the margin ({self.margin_s:g} s)"
            )
        return self

    @model_validator(mode="after")
    def _allocation_fits(self) -> ExecutorModel:
        allocation = self.allocation
        if self.kind == "threads" and allocation.provider != "local":
            raise ValueError(
                f"threads run in the script itself; workers on nodes of "
                f"{allocation.provider} are of kind htex"
            )
        if (self.kind == "globus_compute") != (allocation.provider == "globus_compute"):
            raise ValueError(
                f"kind globus_compute and provider globus_compute belong together; they are "
                f"{self.kind} and {allocation.provider}"
            )
        if self.kind == "mpi":
            self._refuse_no_mpi()
        if allocation.ends_by_itself and self.walltime_s is None:
            raise ValueError(
                f"an allocation of {allocation.provider} needs a walltime in [executor]"
            )
        if self.kind == "threads" and self.gpus_per_worker:
            raise ValueError("threads share all GPUs: gpus_per_worker is for kind htex")
        self._check_gpus(getattr(allocation, "gpus_per_node", None), "gpus_per_node")
        self._check_gpus(len(self.gpu_names) or None, "gpu_names")
        if self.address is not None and self.interface is not None:
            raise ValueError("give address or interface, not both")
        self._check_launcher()
        return self

    def _check_launcher(self) -> None:
        """Raise if workers would leave nodes without any work.

        One worker for a whole allocation is for tasks that start ranks on all of its nodes.
        """
        allocation = self.allocation
        if not isinstance(allocation, SlurmAllocation | PbsAllocation) or self.kind == "mpi":
            return
        everywhere = "srun" if isinstance(allocation, SlurmAllocation) else "mpiexec"
        if allocation.launcher != everywhere and allocation.nodes > 1 and self.workers > 1:
            raise ValueError(
                f"launcher {allocation.launcher!r} starts {self.workers} workers on the first "
                f"of {allocation.nodes} nodes only; {everywhere} starts them on all, and with "
                f"workers = 1 a task has all nodes to itself"
            )

    def _refuse_no_mpi(self) -> None:
        """Raise where Parsl's MPIExecutor cannot be: it needs nodes that a scheduler lists."""
        allocation = self.allocation
        if not isinstance(allocation, SlurmAllocation | PbsAllocation):
            raise ValueError(  # noqa: TRY004  pydantic wants this one.
                "kind mpi shares out the nodes of a batch system's allocations; elsewhere "
                "tasks with ranks run with kind htex"
            )
        given = "launcher" in allocation.model_fields_set
        if given and allocation.launcher != "simple":
            raise ValueError(
                f"with kind mpi workers are on the first node of an allocation only: launcher "
                f"is simple, not {allocation.launcher}"
            )
        if "workers" in self.model_fields_set and self.workers > allocation.nodes:
            raise ValueError(
                f"with kind mpi each task has nodes of its own, so {self.workers} workers "
                f"cannot be busy on {allocation.nodes} nodes"
            )

    def _check_gpus(self, there: int | None, key: str) -> None:
        wanted = self.workers * self.gpus_per_worker
        if there is not None and wanted > there:
            raise ValueError(
                f"{self.workers} workers with {self.gpus_per_worker} GPUs each need {wanted}, "
                f"and a node has {there} ({key})"
            )
