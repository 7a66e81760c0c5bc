"""``doctor``: what this installation and this machine can do, and why not more.

Everything is looked at, nothing is believed: the core's digests are compared with NumPy's, and
each tier is written to and read back. Programs of the machine are asked with a time limit, so
that a hanging driver does not hang the doctor.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from rich.console import Console
from rich.text import Text

from ckptflow.cli import naming, output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.naming import SiteOption, StoreOption
from ckptflow.cli.output import JsonOption
from ckptflow.data import backend, digest
from ckptflow.errors import CheckpointError
from ckptflow.plan.calibration import find_calibration
from ckptflow.site import load_site
from ckptflow.tiers.probe import Probe, probe
from ckptflow.units import format_bytes, format_seconds

PACKAGES = (
    "numpy", "zstandard", "pydantic", "typer", "rich", "parsl", "psutil",
    "numba", "torch", "cupy-cuda12x", "cupy-cuda13x", "jax", "ml_dtypes", "safetensors",
    "obstore", "globus-compute-sdk", "scikit-learn", "matplotlib",
)  # fmt: skip

_ASK_S = 10.0
_SAMPLE_BYTES = 100_003  # No multiple of anything, so that every edge of the kernels is met.

Ask = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class Core:
    """Who computes digests and diffs here.

    Attributes:
        active: name and instruction set of the backend in use.
        reason: why no faster one is; empty for the fastest.
        available: all that work here, fastest first.
        agrees: whether its digests are those of NumPy.
    """

    active: str
    reason: str
    available: tuple[str, ...]
    agrees: bool


@dataclass(frozen=True, slots=True)
class Slurm:
    """Slurm as seen from here; ``version`` is ``None`` where it is not installed."""

    version: str | None
    allocation: str | None


@dataclass(frozen=True, slots=True)
class Gpus:
    """One text per GPU: name, memory, driver; ``reason`` says why there is none."""

    found: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that the doctor found.

    ``no_tiers`` says why no tier was tried; ``calibration`` what was measured of the site that
    was named, and ``stale`` why that is not to be trusted any more.
    """

    python: str
    platform: str
    executable: str
    core: Core
    gpus: Gpus
    slurm: Slurm
    packages: dict[str, str | None]
    tiers: tuple[Probe, ...]
    no_tiers: str
    calibration: str
    stale: tuple[str, ...]


@output.reports_errors
def doctor(
    *,
    store: StoreOption = None,
    site: SiteOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Say what works on this machine, and try the tiers out.

    The tiers are those of --store, of --site, or of the default store if there is one.
    One MiB is written to each, read back and deleted. Of a site that is named it also says
    whether it was calibrated, and whether that still holds.
    """
    tiers, reason = naming.tiers_to_probe(store, site)
    calibration, stale = find_stored(site) if site else ("", ())
    findings = Findings(
        python=platform.python_version(),
        platform=platform.platform(),
        executable=sys.executable,
        core=check_core(),
        gpus=find_gpus(ask),
        slurm=find_slurm(ask, os.environ),
        packages=versions(),
        tiers=tuple(probe(tier) for tier in tiers),
        no_tiers=reason,
        calibration=calibration,
        stale=stale,
    )
    output.show(findings, lambda console: _print(console, findings), as_json=json_output)
    if any(one.problem for one in findings.tiers):
        return ExitCode.STORAGE
    return ExitCode.OK if findings.core.agrees else ExitCode.FAILED


def find_stored(site: str) -> tuple[str, tuple[str, ...]]:
    """Return what is to be said of a site's calibration, and why it is not to be trusted.

    What cannot be read is no failure of this machine: it can be measured again.
    """
    chosen = load_site(site, purpose="tiers")
    again = f"ckptflow calibrate --site {site}"
    try:
        found = find_calibration(chosen)
    except CheckpointError as error:
        return "cannot be used", (str(error), f"Measure again: {again}")
    if found is None:
        return f"none; to measure: {again}", ()
    names = ", ".join(one.tier.name for one in found.tiers)
    text = f"{found.date:%Y-%m-%d %H:%M} UTC on {found.host}: {names}"
    reasons = found.stale(chosen)
    return text, (*reasons, f"Measure again: {again}") if reasons else ()


def check_core() -> Core:
    """Return which backend is active, and whether its digests are right."""
    active = backend.active()
    sample = os.urandom(_SAMPLE_BYTES)
    here = digest.chunk_digests(sample, 4096)
    with backend.use("numpy"):
        agrees = bool((digest.chunk_digests(sample, 4096) == here).all())
    return Core(
        active=f"{active.name} ({active.detail})",
        reason=active.reason,
        available=tuple(f"{one.name} ({one.detail})" for one in backend.available()),
        agrees=agrees,
    )


def find_gpus(ask: Ask) -> Gpus:
    """Return the NVIDIA GPUs that the driver lists."""
    query = "--query-gpu=name,memory.total,driver_version"
    text = ask(["nvidia-smi", query, "--format=csv,noheader"])
    if text is None:
        return Gpus((), "nvidia-smi is not here, or did not answer")
    found = tuple(line.strip() for line in text.splitlines() if line.strip())
    return Gpus(found, "" if found else "nvidia-smi lists none")


def find_slurm(ask: Ask, environment: Mapping[str, str]) -> Slurm:
    """Return Slurm's version, and the allocation that this process runs in."""
    text = ask(["sbatch", "--version"])
    return Slurm(text.strip() if text is not None else None, environment.get("SLURM_JOB_ID"))


def versions() -> dict[str, str | None]:
    """Return the version of each package of interest; ``None`` where it is not installed."""
    found: dict[str, str | None] = {}
    for name in ("ckptflow", *PACKAGES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def ask(command: Sequence[str]) -> str | None:
    """Run a program of the machine; ``None`` if it is not there, fails, or does not answer."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, timeout=_ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _print(console: Console, found: Findings) -> None:
    table = output.table("", "")
    table.show_header = False
    core, packages = found.core, found.packages
    agrees = "same digests as NumPy" if core.agrees else "WRONG DIGESTS: do not use it"
    rows = [
        ("ckptflow", packages["ckptflow"]),
        ("python", f"{found.python}, {found.platform}"),
        ("core", f"{core.active}, {agrees}"),
        ("", f"not a faster one: {core.reason}" if core.reason else ""),
        ("works, too", ", ".join(core.available[1:])),
        *[("gpu", gpu) for gpu in found.gpus.found or (f"none: {found.gpus.reason}",)],
        ("slurm", found.slurm.version or "none: sbatch is not here, or did not answer"),
        ("allocation", found.slurm.allocation),
        ("packages", ", ".join(f"{name} {text}" for name, text in packages.items() if text)),
        ("not installed", ", ".join(name for name, text in packages.items() if not text)),
        *[row for one in found.tiers for row in _tier_rows(one)],
        ("tier", found.no_tiers),
        ("calibration", found.calibration),
    ]
    for name, text in rows:
        if text:
            output.add_row(table, [name, text])
    console.print(table)
    for one in found.tiers:
        if one.problem:
            console.print(Text(f"tier {one.tier!r}: {one.problem}", style="red"))
    if found.stale:
        text = f"calibration is stale: {' '.join(found.stale)}"
        console.print(Text(text, style="yellow"))


def _tier_rows(one: Probe) -> list[tuple[str, str]]:
    return [("tier", _tier(one)), ("", one.placement), *(("", note) for note in one.notes)]


def _tier(one: Probe) -> str:
    if one.problem:
        return f"{one.tier} (level {one.level}): FAILED"
    size, done = format_bytes(one.size_bytes), "durable" if one.level else "written"
    return (
        f"{one.tier} (level {one.level}): {size} {done} in {format_seconds(one.write_s)}, "
        f"read in {format_seconds(one.read_s)}"
    )
