"""How nodes are got: here, from Slurm, PBS, Kubernetes, or an endpoint. One strict model each.

What stands here is what the scheduler is told; `ckptflow.workflow.blocks` tells it.
``tests/unit/test_allocations.py``.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from ckptflow.site.strict import Bytes, Seconds, Strict

StopSignal = Literal["USR1", "USR2", "TERM"]


def _one_line(text: str) -> str:
    if "\n" in text or "\r" in text:
        raise ValueError("it must be one line")
    return text


# What ends up in a line of a batch script or of a command.
Word = Annotated[str, Field(pattern=r"^[^\s'\"`$;&|<>\\]+$")]
Line = Annotated[str, AfterValidator(_one_line)]


class Blocks(Strict):
    """What every way to get nodes has: how many at once, in how many allocations."""

    # An account may be a number, and is one where --set reads it.
    model_config = ConfigDict(coerce_numbers_to_str=True)

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

    @property
    def ends_by_itself(self) -> bool:
        """Whether whoever gives the nodes takes them back after a time agreed on before."""
        return True

    @property
    def commands(self) -> tuple[str, ...]:
        """The programs of the scheduler that the workflow's own host needs."""
        return ()


class LocalAllocation(Blocks):
    """The computer on which the workflow was started."""

    provider: Literal["local"] = "local"
    nodes: Annotated[int, Field(ge=1, le=1)] = 1
    min_blocks: Annotated[int, Field(ge=0)] = 1

    @property
    def ends_by_itself(self) -> bool:
        """See `Blocks.ends_by_itself`."""
        return False


class Scheduled(Blocks):
    """What asking a batch system has, whichever it is."""

    account: Word | None = None
    gpus_per_node: Annotated[int | None, Field(ge=1)] = None
    options: tuple[Line, ...] = ()
    launch_options: Line = ""
    poll_s: Annotated[Seconds, Field(alias="poll", ge=1)] = 30.0
    command_timeout_s: Annotated[Seconds, Field(alias="command_timeout", ge=1)] = 20.0
    patience_s: Annotated[Seconds, Field(alias="patience", ge=0)] = 900.0


class SlurmAllocation(Scheduled):
    """Allocations of Slurm, asked for with ``sbatch``."""

    provider: Literal["slurm"]
    partition: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str | None, Field(pattern=r"^[^\s'\"`$;<>\\]+$")] = None
    clusters: Word | None = None
    reservation: Word | None = None
    cores_per_node: Annotated[int | None, Field(ge=1)] = None
    memory_per_node_bytes: Annotated[Bytes | None, Field(alias="memory_per_node", ge=1)] = None
    gres: Word | None = None
    exclusive: bool = True
    launcher: Literal["srun", "simple", "single_node"] = "srun"
    launch_options: Line = "--cpu-bind=none"
    stop_signal: StopSignal = "USR2"
    stop_warning_s: Annotated[Seconds, Field(alias="stop_warning", ge=1)] = 120.0

    @field_validator("options")
    @classmethod
    def _options(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not option.startswith("-"):
                raise ValueError(
                    f"{option!r} is no option of sbatch; write it as there, such as "
                    f'"--mail-type=END"'
                )
        return options

    @property
    def commands(self) -> tuple[str, ...]:
        """See `Blocks.commands`."""
        return ("sbatch", "squeue", "scancel")


class PbsAllocation(Scheduled):
    """Allocations of PBS Professional or OpenPBS, asked for with ``qsub``."""

    provider: Literal["pbs"]
    queue: Word | None = None
    cpus_per_node: Annotated[int, Field(ge=1)] = 1
    select: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+=[^\s:'\"`$;]+$")], ...] = ()
    filesystems: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")], ...] = ()
    launcher: Literal["mpiexec", "simple"] = "mpiexec"
    bind_option: Annotated[str, Field(pattern=r"^--?[a-z-]+$")] = "--bind-to"

    @field_validator("options")
    @classmethod
    def _options(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not re.match(r"-[A-Za-z] ", option):
                raise ValueError(
                    f"{option!r} is no option of qsub; write it as there, such as "
                    f'"-l place=scatter"'
                )
        return options

    @property
    def commands(self) -> tuple[str, ...]:
        """See `Blocks.commands`."""
        return ("qsub", "qstat", "qdel")


_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
_DNS_NAME = r"^[a-z0-9]([-a-z0-9.]{0,200}[a-z0-9])?$"


class KubernetesAllocation(Blocks):
    """Pods of Kubernetes, one for each block."""

    provider: Literal["kubernetes"]
    nodes: Annotated[int, Field(ge=1, le=1)] = 1
    image: Annotated[str, Field(min_length=1)]
    namespace: Annotated[str, Field(pattern=_DNS_NAME)] = "default"
    cpus: Annotated[float, Field(gt=0)] = 1.0
    memory: Annotated[str, Field(pattern=_QUANTITY)] = "2Gi"
    gpus_per_node: Annotated[int | None, Field(ge=1)] = None
    gpu_resource: Word = "nvidia.com/gpu"
    volumes: dict[str, Annotated[str, Field(pattern="^/")]] = Field(default_factory=dict)
    pull_secret: Annotated[str | None, Field(pattern=_DNS_NAME)] = None
    service_account: Annotated[str | None, Field(pattern=_DNS_NAME)] = None
    user_id: Annotated[int | None, Field(ge=0)] = None
    group_id: Annotated[int | None, Field(ge=0)] = None
    annotations: dict[str, str] = Field(default_factory=dict)

    @property
    def ends_by_itself(self) -> bool:
        """See `Blocks.ends_by_itself`."""
        return False

    @model_validator(mode="after")
    def _ids_come_together(self) -> KubernetesAllocation:
        if (self.user_id is None) != (self.group_id is None):
            raise ValueError("user_id and group_id are given together, or neither")
        return self


class EndpointAllocation(Strict):
    """An endpoint of Globus Compute, which gets nodes as its own template says."""

    provider: Literal["globus_compute"]
    endpoint: UUID | None = None
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    resources: dict[str, str | int | float | bool] = Field(default_factory=dict)

    @property
    def ends_by_itself(self) -> bool:
        """See `Blocks.ends_by_itself`: the endpoint knows."""
        return False

    @property
    def commands(self) -> tuple[str, ...]:
        """See `Blocks.commands`."""
        return ()


Allocation: TypeAlias = Annotated[
    LocalAllocation
    | SlurmAllocation
    | PbsAllocation
    | KubernetesAllocation
    | EndpointAllocation,
    Field(discriminator="provider"),
]
