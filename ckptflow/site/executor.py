"""How tasks run: what executes them, and how the nodes for it are got.

``tests/unit/test_site.py``.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from pydantic import Field, model_validator

from ckptflow.site.strict import Bytes, Seconds, Strict

StopSignal = Literal["USR1", "USR2", "TERM"]
RankLauncher = Literal["processes", "srun", "mpiexec"]


class Blocks(Strict):
    """What every way to get nodes has: how many at once, in how many allocations."""

    nodes: Annotated[int, Field(ge=1)] = 1
    init_blocks: Annotated[int, Field(ge=0)] = 1
    min_blocks: Annotated[int, Field(ge=0)] = 0
    max_blocks: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _blocks_fit(self) -> Blocks:
        if not self.min_blocks <= self.init_blocks <= self.max_blocks:
            raise ValueError(
                f"min_blocks <= init_blocks <= max_blocks must hold, not "
                f"{self.min_blocks}, {self.init_blocks}, {self.max_blocks}"
            )
        return self


class LocalAllocation(Blocks):
    """The computer on which the workflow was started."""

    provider: Literal["local"] = "local"
    nodes: Annotated[int, Field(ge=1, le=1)] = 1
    min_blocks: Annotated[int, Field(ge=0)] = 1


class SlurmAllocation(Blocks):
    """Allocations of Slurm, asked for with ``sbatch``."""

    provider: Literal["slurm"]
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    clusters: str | None = None
    cores_per_node: Annotated[int | None, Field(ge=1)] = None
    memory_per_node_bytes: Annotated[Bytes | None, Field(alias="memory_per_node", ge=1)] = None
    gpus_per_node: Annotated[int | None, Field(ge=1)] = None
    exclusive: bool = True
    options: tuple[str, ...] = ()
    launcher: Literal["srun", "simple", "single_node"] = "srun"
    stop_signal: StopSignal = "USR2"
    stop_warning_s: Annotated[Seconds, Field(alias="stop_warning", ge=1)] = 120.0
    poll_s: Annotated[Seconds, Field(alias="poll", ge=1)] = 30.0
    command_timeout_s: Annotated[Seconds, Field(alias="command_timeout", ge=1)] = 20.0


class EndpointAllocation(Strict):
    """An endpoint of Globus Compute, which gets nodes as its own template says."""

    provider: Literal["globus_compute"]
    endpoint: UUID | None = None
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    resources: dict[str, str | int | float | bool] = Field(default_factory=dict)


Allocation: TypeAlias = Annotated[
    LocalAllocation | SlurmAllocation | EndpointAllocation, Field(discriminator="provider")
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
    address: str | None = None
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
        if self.kind == "threads" and self.allocation.provider != "local":
            raise ValueError(
                f"threads run in the script itself; workers on nodes of "
                f"{self.allocation.provider} are of kind htex"
            )
        if (self.kind == "globus_compute") != (self.allocation.provider == "globus_compute"):
            raise ValueError(
                f"kind globus_compute and provider globus_compute belong together; they are "
                f"{self.kind} and {self.allocation.provider}"
            )
        if self.kind == "mpi":
            self._refuse_no_mpi()
        if self.allocation.provider == "slurm" and self.walltime_s is None:
            raise ValueError(
                f"an allocation of {self.allocation.provider} needs a walltime in [executor]"
            )
        return self

    def _refuse_no_mpi(self) -> None:
        """Raise where Parsl's MPIExecutor cannot be: it needs nodes that a scheduler lists."""
        allocation = self.allocation
        if isinstance(allocation, LocalAllocation | EndpointAllocation):
            raise ValueError(  # noqa: TRY004  As all that is wrong in a site file.
                "kind mpi shares out the nodes of a batch system's allocations; on this "
                "computer tasks with ranks run with kind htex"
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
