"""A Parsl Config made from a site: what Parsl needs to notice losses, and to replace them.

Parsl's defaults fit short runs that somebody watches. Here a dead worker is noticed within the
site's heartbeat, a lost block does not put the executor into a state that fails everything, a
block takes no new tasks when its end is near, and a leader heads the processes of each node
(`ckptflow.workflow.blocks.leader`). ``tests/unit/test_parsl_config.py``.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from parsl.config import Config
from parsl.dataflow.memoization import Memoizer
from parsl.executors import HighThroughputExecutor, MPIExecutor, ThreadPoolExecutor
from parsl.executors.base import ParslExecutor
from parsl.executors.high_throughput.executor import (
    DEFAULT_INTERCHANGE_LAUNCH_CMD,
    DEFAULT_LAUNCH_CMD,
)

from ckptflow.errors import ConfigError
from ckptflow.site import Site
from ckptflow.site.executor import EndpointAllocation, ExecutorModel, SlurmAllocation
from ckptflow.workflow.blocks.ends import give_up_after
from ckptflow.workflow.blocks.monitoring import monitoring_of
from ckptflow.workflow.blocks.providers import Notice, provider_of
from ckptflow.workflow.blocks.rescue import rescue_environment
from ckptflow.workflow.blocks.submissions import Patient, Submissions
from ckptflow.workflow.blocks.time_left import ENDS_AT, RUN_FOLDER
from ckptflow.workflow.deadline import STOP_SIGNALS
from ckptflow.workflow.retry import RetryHandler, UserHandler

LOOPBACK = "127.0.0.1"
POOL, MPI_POOL, INTERCHANGE = (
    f"ckptflow.workflow.blocks.{name}" for name in ("pool", "mpi_pool", "interchange")
)

# Parsl divides the cores of a node by this; the site says how many workers there are.
_CORES_PER_WORKER = 0.001
_LOCAL_PATIENCE_S = 60.0


class Workers(Patient, HighThroughputExecutor):  # type: ignore[misc]
    """Parsl's executor, asking for blocks with patience."""


class MpiWorkers(Patient, MPIExecutor):  # type: ignore[misc]
    """The same for tasks that have nodes of their own."""


def build_config(
    site: Site,
    *,
    run_dir: str | Path,
    retries: int = 3,
    retry_handler: UserHandler | None = None,
    memoizer: Memoizer | None = None,
    environment: Mapping[str, str] | None = None,
    notice: Notice = lambda _text: None,
) -> Config:
    """Return a Parsl Config for a site.

    Args:
        site: the machine.
        run_dir: where Parsl writes its logs.
        retries: what failed tries of a task may cost in all.
        retry_handler: a complete handler; one of ckptflow's without a user's part if not given.
        memoizer: remembers results; Parsl's own in-memory one if not given.
        environment: variables for everything that is started.
        notice: told when the scheduler has trouble, and when it is over.
    """
    given = environment or {}
    run = Path(given[RUN_FOLDER]).name if RUN_FOLDER in given else Path(run_dir).name
    return Config(
        executors=[_executor(site.executor, given, rescue_environment(site, run), notice)],
        memoizer=memoizer,
        retries=retries,
        retry_handler=retry_handler or RetryHandler(),
        run_dir=str(run_dir),
        strategy="simple",
        strategy_period=site.executor.strategy_period_s,
        exit_mode="skip",  # The run ends it, in its own order.
        monitoring=monitoring_of(site.executor, environment or {}),
        usage_tracking=0,
        initialize_logging=True,
    )


def launch_command(model: ExecutorModel, *, rescue: bool = False) -> str:
    """Return the command that starts the workers of a node, as Parsl's template of it."""
    module = MPI_POOL if model.kind == "mpi" else POOL
    pool = _in_this_python("process_worker_pool", module, DEFAULT_LAUNCH_CMD, model.python)
    return leader_command(model, pool, rescue=rescue)


def worker_init(executor: ExecutorModel, environment: Mapping[str, str]) -> str:
    """Return the shell lines that run before the workers of a block start."""
    named = {**environment, STOP_SIGNALS: ",".join(_stop_signals(executor))}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in named.items()]
    if executor.walltime_s is not None:
        exports.append(f"export {ENDS_AT}=$(( $(date +%s) + {int(executor.walltime_s)} ))")
    # The shell has to outlive them; the leader, which it starts or becomes, handles them.
    return "\n".join([*exports, "trap '' USR1 USR2 TERM", executor.worker_init])


def leader_command(model: ExecutorModel, pool: str, *, rescue: bool) -> str:
    """Return the command that has a leader start the pool.

    With ``exec`` it takes the place of the shell in which it stands, which is the process that
    the batch system sends signals to.
    """
    words = [
        *(model.python or sys.executable, "-m", "ckptflow.workflow.blocks.leader"),
        f"--stop-signals={','.join(_stop_signals(model))}",
        f"--margin-s={model.margin_s:g}",
        # Parsl gives the tasks of a dead pool up after the threshold; be done before.
        f"--orphans-s={model.heartbeat_threshold_s / 2:g}",
        *(["--rescue"] if rescue else []),
        "--",
    ]
    return f"exec {shlex.join(words)} {pool}"


def _stop_signals(model: ExecutorModel) -> tuple[str, ...]:
    """Return the signals that tasks take for a reason to stop."""
    allocation = model.allocation
    if not isinstance(allocation, SlurmAllocation):
        return ("TERM", "USR1", "USR2")
    return tuple(dict.fromkeys(["TERM", allocation.stop_signal]))


def _executor(
    model: ExecutorModel,
    environment: Mapping[str, str],
    rescue: Mapping[str, str],
    notice: Notice,
) -> ParslExecutor:
    if model.kind == "threads":
        return ThreadPoolExecutor(label="threads", max_threads=model.workers)
    if isinstance(model.allocation, EndpointAllocation):
        return _on_endpoint(model.allocation)
    options: dict[str, Any] = {
        "provider": provider_of(model, worker_init(model, {**environment, **rescue}), notice),
        "address": _address(model),
        "launch_cmd": launch_command(model, rescue=bool(rescue)),
        "available_accelerators": list(model.gpus),
        "heartbeat_period": max(1, round(model.heartbeat_period_s)),
        "heartbeat_threshold": max(2, round(model.heartbeat_threshold_s)),
        "drain_period": _accepts_tasks_s(model),
        "block_error_handler": give_up_after(model.failed_blocks_max),
        "encrypted": model.encrypted,
    }
    workers: Workers | MpiWorkers
    if model.kind == "mpi":
        del options["available_accelerators"]  # A task has all of its nodes.
        workers = MpiWorkers(
            label="mpi",
            max_workers_per_block=min(model.workers, model.allocation.nodes),
            mpi_launcher="mpiexec" if model.rank_launcher == "mpiexec" else "srun",
            **options,
        )
        # It takes what its base does; only the annotation says otherwise.
        workers.interchange_launch_cmd = _interchange_command(environment)
    else:
        workers = Workers(
            label="htex",
            interchange_launch_cmd=_interchange_command(environment),
            cores_per_worker=_CORES_PER_WORKER,
            max_workers_per_node=model.workers,
            cpu_affinity=model.cpu_affinity,
            **options,
        )
    workers.submissions = Submissions(
        patience_s=getattr(model.allocation, "patience_s", _LOCAL_PATIENCE_S),
        refusals_max=model.failed_blocks_max,
        notice=notice,
    )
    return workers


def _on_endpoint(allocation: EndpointAllocation) -> ParslExecutor:
    """Return Parsl's executor for Globus Compute, around ours."""
    try:
        from ckptflow.workflow.globus_compute.executor import executor_for
    except ImportError as error:
        raise ConfigError(
            f"A site of kind globus_compute needs the SDK ({error}): pip install "
            f"'ckptflow[globus]'."
        ) from error
    from parsl.executors import GlobusComputeExecutor

    return GlobusComputeExecutor(executor_for(allocation), label="globus_compute")


def _address(model: ExecutorModel) -> str | None:
    """Return where workers find the workflow; on other nodes Parsl tries all addresses."""
    if model.interface is not None:
        return _address_of(model.interface)
    if model.address is None and model.allocation.provider == "local":
        return LOOPBACK
    return model.address


def _address_of(interface: str) -> str:
    known = psutil.net_if_addrs()
    for address in known.get(interface, ()):
        if address.family == socket.AF_INET:
            return str(address.address)
    raise ConfigError(
        f"executor.interface: this host has no address on {interface!r}; it has "
        f"{', '.join(sorted(known))}."
    )


def _accepts_tasks_s(model: ExecutorModel) -> int | None:
    """Return for how long a block takes new tasks.

    Tasks stop one margin before its end. They would come back at once, and to the same block,
    if that still took any; so it takes none for one margin before.
    """
    if model.walltime_s is None:
        return None
    return max(1, int(model.walltime_s - 2 * model.margin_s))


def _in_this_python(program: str, module: str, command: str, python: str | None = None) -> str:
    """Replace a program of Parsl by a module of ours, run by this Python or another.

    The program is found by PATH otherwise, which holds the wrong environment, or none, when a
    script is started as ``.venv/bin/python script.py``.
    """
    interpreter = shlex.quote(python or sys.executable)
    return command.replace(f"{program}.py", f"{interpreter} -m {module}", 1)


def _interchange_command(environment: Mapping[str, str]) -> list[str]:
    words = [
        word
        for part in DEFAULT_INTERCHANGE_LAUNCH_CMD
        for word in shlex.split(_in_this_python("interchange", INTERCHANGE, part))
    ]
    return ["env", *(f"{name}={value}" for name, value in environment.items()), *words]
