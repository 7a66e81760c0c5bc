"""How many ranks an app has, on how many nodes, and whether a site can start them.

Everything that cannot be is said when the app is made or called, before anything is started.
``tests/unit/test_ranks_options.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ckptflow.errors import ConfigError
from ckptflow.model import WORLD_MAX
from ckptflow.site.executor import EndpointAllocation, ExecutorModel, RankLauncher

LAUNCHERS: tuple[RankLauncher, ...] = ("processes", "srun", "mpiexec")


@dataclass(frozen=True, slots=True)
class Ranks:
    """What an app says of its ranks.

    Attributes:
        ranks: how many, in all.
        nodes: on how many nodes; each has as many.
        launcher: what starts them; ``None``: what the site says.
        options: of the launcher, words of its command line.
        replicated: see `ShardedCheckpointer`.
        per_rank: see `ShardedCheckpointer`.
    """

    ranks: int
    nodes: int = 1
    launcher: RankLauncher | None = None
    options: tuple[str, ...] = ()
    replicated: str | Sequence[str] | Callable[[str], bool] | None = None
    per_rank: Any = "same"

    @property
    def on_each(self) -> int:
        """How many ranks a node has."""
        return self.ranks // self.nodes


def parse_ranks(app: str, options: Mapping[str, Any], *, is_command: bool) -> Ranks | None:
    """Return what an app says of its ranks; ``None`` if it runs in one process.

    Args:
        app: its name.
        options: what it says.
        is_command: whether it is a bash app.

    Raises:
        ConfigError: that makes no sense.
    """
    ranks, nodes = options.get("ranks"), options.get("nodes", 1)
    for name, number in (("ranks", ranks), ("nodes", nodes)):
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and (not is_number or not 1 <= number <= WORLD_MAX):
            raise ConfigError(f"{app}(): {name} is a number from 1 on, not {number!r}.")
    others = [name for name in ("launcher", "replicated", "per_rank") if name in options]
    if ranks is None:
        if nodes not in {None, 1} or others:
            told = f"nodes={nodes}" if nodes not in {None, 1} else f"{others[0]}="
            raise ConfigError(f"{app}(): {told} is said of ranks; say ranks= as well.")
        return None
    nodes = nodes or 1
    if ranks % nodes:
        raise ConfigError(
            f"{app}(): ranks={ranks} on nodes={nodes}: each node has as many, so ranks must be "
            f"a multiple of nodes."
        )
    launcher = options.get("launcher")
    if launcher is not None and launcher not in LAUNCHERS:
        raise ConfigError(f"{app}(): launcher is one of {LAUNCHERS}, not {launcher!r}.")
    if is_command and (wrong := [one for one in others if one != "launcher"]):
        raise ConfigError(
            f"{app}(): {wrong[0]}= is said where ranks attach: ckptflow.attach({wrong[0]}=…)."
        )
    return Ranks(
        ranks,
        nodes,
        launcher,
        replicated=options.get("replicated"),
        per_rank=options.get("per_rank", "same"),
    )


_LAUNCHERS: dict[str, RankLauncher] = {"slurm": "srun", "pbs": "mpiexec"}


def on_site(app: str, ranks: Ranks, model: ExecutorModel) -> Ranks:
    """Return the ranks of an app with what a site says; see `Ranks`.

    Raises:
        ConfigError: the site cannot start them.
    """
    allocation = model.allocation
    launcher = ranks.launcher or model.rank_launcher
    if launcher is None:
        launcher = _LAUNCHERS.get(allocation.provider, "processes")
    options = (*model.rank_options, *ranks.options)
    known = replace(ranks, launcher=launcher, options=options)
    if ranks.nodes > 1:
        _check_nodes(f"{app}() asks for nodes={ranks.nodes}", known, model)
    return known


def _check_nodes(said: str, ranks: Ranks, model: ExecutorModel) -> None:
    allocation = model.allocation
    if isinstance(allocation, EndpointAllocation):
        raise ConfigError(
            f"{said}; an endpoint of Globus Compute gives each task one worker on one node."
        )
    if model.kind == "threads":
        raise ConfigError(f"{said}; tasks of this site are threads, all on this computer.")
    if ranks.nodes > allocation.nodes:
        raise ConfigError(
            f"{said}; an allocation of this site has {allocation.nodes}. Ask for more in "
            f"[executor.allocation]: nodes = {ranks.nodes}."
        )
    if ranks.launcher == "processes":
        raise ConfigError(
            f"{said}, but launcher 'processes' starts ranks on one node. Use 'srun' or "
            f"'mpiexec': rank_launcher in [executor], or launcher= of the app."
        )
    everywhere = getattr(allocation, "launcher", None) in {"srun", "mpiexec"}
    if model.kind == "htex" and everywhere:
        raise ConfigError(
            f"{said}, but each node of an allocation of this site has workers of its own, "
            f'which take other tasks. Use kind = "mpi" in [executor], or launcher = '
            f'"simple" in [executor.allocation] and workers = 1.'
        )


def resources(ranks: Ranks | None) -> dict[str, int]:
    """Return what Parsl's MPIExecutor is told: all three numbers, as whole ones."""
    known = ranks or Ranks(1)
    return {
        "num_nodes": known.nodes,
        "ranks_per_node": known.on_each,
        "num_ranks": known.ranks,
    }
