"""The commands that start ranks: processes of this node, srun, or mpiexec of several kinds.

Pure but for `flavour`, which asks the mpiexec that is there. ``tests/unit/test_launchers.py``.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from ckptflow.errors import ConfigError
from ckptflow.site.executor import RankLauncher
from ckptflow.workflow.ranks.wire import STEWARD

Flavour = Literal["openmpi", "hydra"]

# Variables that Open MPI has to be told to take along to other nodes.
_TAKEN_ALONG = (STEWARD, "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
_ASK_S = 30.0


def command(
    launcher: RankLauncher,
    *,
    ranks: int,
    nodes: int,
    hosts: Sequence[str] = (),
    options: Sequence[str] = (),
    environ: Mapping[str, str],
) -> list[str]:
    """Return the words that start ``ranks`` copies of the command that follows them.

    Args:
        launcher: which.
        ranks: how many, on all nodes.
        nodes: how many nodes.
        hosts: which; those of the allocation if empty.
        options: further words for the launcher.
        environ: the environment it will have.

    Raises:
        ConfigError: it is not there.
    """
    if launcher == "processes":
        spawn = [sys.executable, "-m", "ckptflow.workflow.ranks.spawn"]
        return [*spawn, f"--ranks={ranks}", *options, "--"]
    path = shutil.which(launcher, path=environ.get("PATH"))
    if path is None:
        raise ConfigError(
            f"{launcher} is not on the PATH of the worker, so it cannot start ranks. Say in "
            f"worker_init where it is, or use another rank_launcher."
        )
    if launcher == "srun":
        return _srun(ranks, nodes, hosts, options)
    if flavour(path) == "hydra":
        words = [path, "-n", str(ranks), "-ppn", str(ranks // nodes)]
        return [*words, *(["-hosts", ",".join(hosts)] if hosts else []), *options]
    return [path, *_openmpi(ranks, ranks // nodes, hosts, environ), *options]


def _srun(ranks: int, nodes: int, hosts: Sequence[str], options: Sequence[str]) -> list[str]:
    # Without --overlap the step would wait for ever beside another one on these nodes; without
    # --mem=0 it asks for memory of its own, which the other one has.
    words = ["srun", "--overlap", "--mem=0", "--kill-on-bad-exit=1", f"--nodes={nodes}"]
    words += [f"--ntasks={ranks}", f"--ntasks-per-node={ranks // nodes}"]
    words += [f"--nodelist={','.join(hosts)}"] if hosts else []
    return [*words, *options]


def _openmpi(
    ranks: int, each: int, hosts: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    # A batch system's count of slots is that of the workers that it started.
    words = ["-n", str(ranks), "--map-by", f"ppr:{each}:node:oversubscribe"]
    if hosts:
        words += ["--host", ",".join(f"{host}:{each}" for host in hosts)]
    for name in _TAKEN_ALONG:
        words += ["-x", name] if name in environ or name == STEWARD else []
    return words


@functools.cache
def flavour(path: str) -> Flavour:
    """Return what kind of mpiexec one is: options for nodes differ.

    Raises:
        ConfigError: it cannot be run.
    """
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{path} --version fails: {error}.") from error
    text = f"{done.stdout}{done.stderr}".lower()
    return "openmpi" if "open mpi" in text or "openrte" in text or "prte" in text else "hydra"


def hosts_in(environ: Mapping[str, str]) -> list[str]:
    """Return the nodes that Parsl's MPIExecutor has given to this task, if it has."""
    text = environ.get("PARSL_MPI_NODELIST", "")
    return [host for host in text.split(",") if host]
