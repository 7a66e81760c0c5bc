"""Check a site: what can be seen from here, and what only there, on a node of an allocation.

``tests/unit/test_site_check.py``, ``tests/slurm/test_sites.py``.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from ckptflow.errors import CheckpointError, ConfigError, WorkflowError
from ckptflow.site import Site
from ckptflow.site.executor import SlurmAllocation
from ckptflow.site.tiers import TierModel, open_tiers
from ckptflow.tiers.probe import probe
from ckptflow.units import format_seconds
from ckptflow.workflow.blocks.commands import run_command
from ckptflow.workflow.blocks.config import build_config
from ckptflow.workflow.blocks.scripts import batch_script
from ckptflow.workflow.blocks.there import on_a_node

Verdict = Literal["ok", "failed", "only there"]

_ASK_S = 20.0
_LOOK_S = 120.0  # How long a look takes at most.
PACKAGES = ("ckptflow", "parsl")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one thing.

    Attributes:
        what: the thing.
        host: on which it was looked at; empty if it was not.
        verdict: whether it is as it should be, or can be told only on a node.
        detail: what was seen.
    """

    what: str
    host: str
    verdict: Verdict
    detail: str


def check_here(site: Site) -> list[Finding]:
    """Look at everything that can be seen without an allocation."""
    return [
        _found("versions", "ok", _versions_text(_versions())),
        *_programs(site),
        _options(site),
        *_scheduler(site),
        _run_folder(site),
        *_tiers_here(site),
        *_only_there(site),
    ]


def _programs(site: Site) -> Iterator[Finding]:
    for name in site.executor.allocation.commands:
        path = shutil.which(name)
        yield _found(
            f"command {name}", "ok" if path else "failed", path or "not on PATH of this host"
        )


def _options(site: Site) -> Finding:
    try:
        build_config(site, run_dir=site.runs_folder)
    except CheckpointError as error:
        return _found("options of Parsl", "failed", str(error))
    return _found("options of Parsl", "ok", f"{site.executor.kind}: accepted")


def _scheduler(site: Site) -> Iterator[Finding]:
    """Have Slurm say whether it would take such a job; it tells without taking it."""
    if not isinstance(site.executor.allocation, SlurmAllocation) or not shutil.which("sbatch"):
        return
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write(batch_script(site))
        script.flush()
        status, out, said = run_command(f"sbatch --test-only {script.name}", _ASK_S)
    text = " ".join((said or out).split()).removeprefix("sbatch: ")
    yield _found("Slurm takes such a job", "failed" if status else "ok", text)


def _run_folder(site: Site) -> Finding:
    try:
        folder = site.at(Path.cwd()).runs_folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except (CheckpointError, OSError) as error:
        return _found("folder of runs", "failed", str(error))
    return _found("folder of runs", "ok", f"{folder} can be written")


def _tiers_here(site: Site) -> Iterator[Finding]:
    try:
        tiers = site.at(Path.cwd()).open_tiers()
    except CheckpointError as error:
        yield _found("tiers", "failed", str(error))
        return
    for tier in tiers:
        yield _probed(tier)


def _only_there(site: Site) -> Iterator[Finding]:
    if not site.executor.on_other_nodes:
        return
    for tier in site.tiers:
        if tier.on_node:
            where = getattr(tier, "path", "")
            yield _unseen(f"tier {tier.name!r}", f"each node has its own: {where}")
    yield _unseen("workers", "they start, reach this host, and have the same versions")
    for tier in site.tiers:
        if not tier.on_node:
            yield _unseen(f"tier {tier.name!r} from a node", "the node sees the same")


def check_there(site: Site, *, timeout_s: float) -> list[Finding]:
    """Get an allocation as a workflow would, and look at everything on its nodes.

    Args:
        site: the site; one block of it is asked for.
        timeout_s: how long to wait for the allocation and the answer.
    """
    site = site.at(Path.cwd())
    try:
        seen, took_s = on_a_node(
            site,
            look_around,
            [list(site.sealed_tiers)],
            name="site-check",
            takes_s=_LOOK_S,
            timeout_s=timeout_s,
        )
    except WorkflowError as error:
        return [_found("workers", "failed", str(error))]
    return [*_compare(seen, took_s), *seen["tiers"]]


def look_around(models: list[TierModel]) -> dict[str, Any]:
    """Return what a worker sees: its versions, its tiers. Called on a node."""
    tiers: list[Finding] = []
    for model in models:
        try:
            tiers += [_probed(tier) for tier in open_tiers([model])]
        except ConfigError as error:
            tiers.append(_found(f"tier {model.name!r}", "failed", str(error)))
    gpus = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
    return {
        "host": socket.gethostname(),
        "executable": sys.executable,
        "versions": _versions(),
        "folder": str(Path.cwd()),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": {name: os.environ[name] for name in gpus if name in os.environ},
        "tiers": tiers,
    }


def _compare(seen: dict[str, Any], took_s: float) -> Iterator[Finding]:
    host, here, there = seen["host"], _versions(), seen["versions"]
    gpus = ", ".join(f"{name}={value}" for name, value in seen["gpus"].items())
    yield Finding(
        "workers",
        host,
        "ok",
        f"one answered after {format_seconds(took_s)}; {seen['cores']} cores, "
        f"{gpus or 'no GPU assigned'}, in {seen['folder']}",
    )
    differing = [name for name in here if here[name] != there[name]]
    text = _versions_text(there)
    if differing:
        text += f"; here {', '.join(f'{name} {here[name]}' for name in differing)}"
    yield Finding("versions", host, "failed" if differing else "ok", text)


def _probed(tier: Any) -> Finding:
    result = probe(tier)
    if result.problem:
        return _found(f"tier {tier.name!r}", "failed", result.problem)
    times = (
        f"written in {format_seconds(result.write_s)}, read in {format_seconds(result.read_s)}"
    )
    return _found(f"tier {tier.name!r}", "ok", f"1 MiB {times}")


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        import ckptflow

        return ckptflow.__version__ if package == "ckptflow" else "absent"


def _versions_text(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _found(what: str, verdict: Verdict, detail: str) -> Finding:
    return Finding(what, socket.gethostname(), verdict, detail)


def _unseen(what: str, detail: str) -> Finding:
    return Finding(what, "", "only there", detail)
