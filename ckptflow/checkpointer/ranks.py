"""Which rank of how many this process is, and which launch it belongs to, from its environment.

Launchers tell by variables. They may be nested, and then the innermost counts that starts one
process a rank: torchrun under Slurm or under mpirun, mpirun under Slurm. Slurm's own count only
inside of a step, since a batch script has them, too. ``tests/unit/test_ranks.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckptflow.errors import ConfigError
from ckptflow.model import WORLD_MAX

# Name, variables of rank and world, that of the ranks on this node; the first that is set.
_LAUNCHERS = (
    ("torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_WORLD_SIZE",)),
    (
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    ("MPI", "PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALNRANKS",)),
)
_SLURM = ("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ())

# What is the same for all ranks of a launch, and is another one, if possible, for the next.
_TOKENS = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process is among those that save together.

    Attributes:
        rank: its number, from 0.
        world: how many there are.
        launch: the token of its launch; may be empty.
        one_node: whether all of them are known to be on one node.
    """

    rank: int
    world: int
    launch: str
    one_node: bool


def place_of(
    rank: int | None, world: int | None, launch: str | None, environ: Mapping[str, str]
) -> Place:
    """Return the place of this process; what is not given is what the launcher says.

    Raises:
        ConfigError: launchers contradict each other, say half of it, or say nothing.
    """
    for name, value in (("rank", rank), ("world", world)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ConfigError(f"{name} is a number, not {value!r}.")
    if (rank is None) != (world is None):
        raise ConfigError(f"rank and world go together: got rank={rank}, world={world}.")
    told = _told(environ)
    if rank is None or world is None:
        if told is None:
            raise ConfigError(
                "Nothing says which rank this process is: none of RANK and WORLD_SIZE, "
                "OMPI_COMM_WORLD_RANK, PMI_RANK, or SLURM_PROCID in a step, is set. Give rank= "
                "and world=."
            )
        rank, world, local = told
    else:
        local = told[2] if told is not None and told[:2] == (rank, world) else None
    if not 0 <= rank < world <= WORLD_MAX:
        raise ConfigError(f"There is no rank {rank} of {world}.")
    token = launch if launch is not None else "|".join(_tokens(environ))
    return Place(rank, world, token, one_node=world in {1, local})


def _told(environ: Mapping[str, str]) -> tuple[int, int, int | None] | None:
    """Return rank, world, and the ranks on this node, as the launcher has them."""
    found: dict[str, tuple[int, int, int | None]] = {}
    for name, rank, worlds, locals_ in _LAUNCHERS:
        if (one := _read(environ, name, rank, worlds, locals_)) is not None:
            found[name] = one
            if name == "torchrun" and "TORCHELASTIC_RUN_ID" in environ:
                return one  # It starts the ranks; whatever started it tells of its agents.
    if not found and "SLURM_STEP_ID" in environ:
        one = _read(environ, *_SLURM)
        if one is not None:
            nodes = environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES"))
            return (*one[:2], one[1] if nodes == "1" else None)
    if len({one[:2] for one in found.values()}) > 1:
        listed = "; ".join(f"{name}: rank {r} of {w}" for name, (r, w, _) in found.items())
        raise ConfigError(
            f"The environment does not say clearly which rank this process is ({listed}). Give "
            f"rank= and world=."
        )
    return next(iter(found.values()), None)


def _read(
    environ: Mapping[str, str],
    name: str,
    rank: str,
    worlds: tuple[str, ...],
    locals_: tuple[str, ...],
) -> tuple[int, int, int | None] | None:
    world = next((one for one in worlds if one in environ), None)
    if rank not in environ and world is None:
        return None
    if rank not in environ or world is None:
        there, lacks = (rank, worlds[0]) if rank in environ else (world, rank)
        raise ConfigError(
            f"{there} of {name} is set, but {lacks} is not. Give rank= and world=."
        )
    numbers = [
        environ[rank],
        environ[world],
        *(environ[one] for one in locals_ if one in environ),
    ]
    if not all(number.isdecimal() for number in numbers):
        raise ConfigError(
            f"{rank}={environ[rank]!r} and {world}={environ[world]!r} are no numbers."
        )
    values = [int(number) for number in numbers]
    return values[0], values[1], values[2] if len(values) > 2 else None


def _tokens(environ: Mapping[str, str]) -> list[str]:
    return [f"{name}={environ[name]}" for name in _TOKENS if environ.get(name)]
