"""Who gives nodes: one Parsl provider for each kind of allocation of a site file.

``tests/unit/test_parsl_config.py``, ``tests/unit/test_batch_scripts.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parsl.launchers import SimpleLauncher, SingleNodeLauncher, SrunLauncher
from parsl.launchers.base import Launcher
from parsl.providers import LocalProvider

from ckptflow.errors import ConfigError
from ckptflow.site.executor import (
    ExecutorModel,
    KubernetesAllocation,
    LocalAllocation,
    PbsAllocation,
    SlurmAllocation,
)
from ckptflow.units import GIB
from ckptflow.workflow.blocks.pbs import PbsBlocks, PbsMpiExec
from ckptflow.workflow.blocks.slurm import SlurmBlocks

Notice = Callable[[str], None]

WARNED_PART = 0.25  # Of its walltime, at most, a block is warned before its end.
_POD_POLL_S = 15.0


def provider_of(
    model: ExecutorModel, worker_init: str, notice: Notice = lambda _text: None
) -> Any:
    """Return the Parsl provider that gets the nodes of a site.

    Args:
        model: how tasks run.
        worker_init: shell lines that run in an allocation before its workers start.
        notice: told when the scheduler has trouble, and when it is over.
    """
    allocation, walltime_s = model.allocation, model.walltime_s or 0.0
    if model.kind == "mpi":  # Workers are on the first node; their tasks take the others.
        allocation = allocation.model_copy(update={"launcher": "simple"})
    match allocation:
        case LocalAllocation():
            return LocalProvider(
                launcher=SingleNodeLauncher(), worker_init=worker_init, **_blocks(allocation)
            )
        case SlurmAllocation():
            return _slurm(allocation, walltime_s, worker_init, notice)
        case PbsAllocation():
            return _pbs(allocation, walltime_s, worker_init, notice)
        case KubernetesAllocation():
            return _pods(allocation, worker_init)
    raise ConfigError(f"Nodes of {allocation.provider} are not asked for by Parsl.")


def _blocks(model: Any) -> dict[str, int]:
    return {name: getattr(model, name) for name in ("init_blocks", "min_blocks", "max_blocks")}


def _slurm(
    model: SlurmAllocation, walltime_s: float, worker_init: str, notice: Notice
) -> SlurmBlocks:
    return SlurmBlocks(
        poll_s=model.poll_s,
        notice=notice,
        partition=model.partition,
        account=model.account,
        qos=model.qos,
        constraint=model.constraint,
        clusters=model.clusters,
        nodes_per_block=model.nodes,
        cores_per_node=model.cores_per_node,
        mem_per_node=_gib(model.memory_per_node_bytes),
        gpus_per_node=model.gpus_per_node,
        gres=model.gres,
        walltime=_clock(walltime_s),
        scheduler_options="\n".join(
            f"#SBATCH {option}" for option in _slurm_options(model, walltime_s)
        ),
        worker_init=worker_init,
        cmd_timeout=round(model.command_timeout_s),
        exclusive=model.exclusive,
        launcher=_slurm_launcher(model),
        **_blocks(model),
    )


def _slurm_options(model: SlurmAllocation, walltime_s: float) -> list[str]:
    """Return what Slurm is told beside what Parsl tells it.

    Parsl sends a new block for one that is gone, at once and under a new number; a requeued
    one would wait, and have the number of the one before. A short block is warned later, so
    that it has time to work.
    """
    whom = "" if model.launcher == "srun" else "B:"  # Steps hear it, or the batch script.
    warning_s = min(model.stop_warning_s, walltime_s * WARNED_PART)
    warning = f"--signal={whom}{model.stop_signal}@{round(warning_s)}"
    reservation = [f"--reservation={model.reservation}"] if model.reservation else []
    return ["--no-requeue", warning, *reservation, *model.options]


def _slurm_launcher(model: SlurmAllocation) -> Launcher:
    if model.launcher == "srun":
        return SrunLauncher(overrides=model.launch_options)
    return {"simple": SimpleLauncher, "single_node": SingleNodeLauncher}[model.launcher]()


def _pbs(
    model: PbsAllocation, walltime_s: float, worker_init: str, notice: Notice
) -> PbsBlocks:
    select = list(model.select)
    if model.gpus_per_node is not None:
        select.insert(0, f"ngpus={model.gpus_per_node}")
    options = ["-r n"]  # A block that is gone is replaced by a new one, as with Slurm.
    named = (("-A", model.account), ("-q", model.queue))
    options += [f"{option} {value}" for option, value in named if value]
    if model.filesystems:
        options.append(f"-l filesystems={':'.join(model.filesystems)}")
    launcher: Launcher = SimpleLauncher()
    if model.launcher == "mpiexec":
        launcher = PbsMpiExec(bind_cmd=model.bind_option, overrides=model.launch_options)
    return PbsBlocks(
        poll_s=model.poll_s,
        notice=notice,
        account=model.account,
        queue=model.queue,
        nodes_per_block=model.nodes,
        cpus_per_node=model.cpus_per_node,
        select_options=":".join(select),
        walltime=_clock(walltime_s),
        scheduler_options="\n".join(f"#PBS {option}" for option in [*options, *model.options]),
        # A job of PBS begins in the home of its user; with Slurm it is where it was sent from.
        worker_init=f'cd "$PBS_O_WORKDIR"\n{worker_init}',
        cmd_timeout=round(model.command_timeout_s),
        launcher=launcher,
        **_blocks(model),
    )


def _pods(model: KubernetesAllocation, worker_init: str) -> Any:
    try:
        from ckptflow.workflow.blocks.kubernetes import PodBlocks
    except ImportError as error:
        raise ConfigError(
            f"Blocks as pods need the client of Kubernetes ({error}): pip install "
            f"'ckptflow[kubernetes]'."
        ) from error
    from kubernetes.config import ConfigException

    gpus = {model.gpu_resource: str(model.gpus_per_node)} if model.gpus_per_node else {}
    ids = {"user_id": model.user_id, "group_id": model.group_id}
    try:
        return PodBlocks(
            poll_s=_POD_POLL_S,
            image=model.image,
            namespace=model.namespace,
            nodes_per_block=1,
            init_cpu=model.cpus,
            max_cpu=model.cpus,
            init_mem=model.memory,
            max_mem=model.memory,
            extra_requests=gpus,
            extra_limits=gpus,
            worker_init=worker_init,
            secret=model.pull_secret,
            persistent_volumes=list(model.volumes.items()),
            service_account_name=model.service_account,
            annotations=model.annotations,
            run_as_non_root=bool(model.user_id),
            **{name: None if number is None else str(number) for name, number in ids.items()},
            **_blocks(model),
        )
    except ConfigException as error:
        raise ConfigError(f"Kubernetes cannot be reached from here: {error}") from error


def _gib(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else math.ceil(size_bytes / GIB)


def _clock(seconds: float) -> str:
    """Return a walltime as ``hours:minutes:seconds``, in whole minutes.

    Parsl drops the seconds for PBS, and Slurm rounds up to minutes.
    """
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    return f"{hours:02d}:{minutes:02d}:00"
