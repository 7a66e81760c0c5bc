"""What would be submitted on each named machine: as reviewed, and as its documentation has it.

The texts in ``tests/golden/batch_scripts`` are what a reviewer reads. After a change that is
meant, write them anew and read the difference: ``python tests/unit/test_batch_scripts.py``.
`FACTS` says the same again from the pages named there, so that a text and a site file that are
wrong together are found. No script was ever submitted on these machines.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.site import Site, load_site
from ckptflow.units import parse_seconds
from ckptflow.workflow.blocks.config import worker_init
from ckptflow.workflow.blocks.scripts import batch_script

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "batch_scripts"
WORKERS = "WORKERS"  # The command that starts them is the same everywhere.


@dataclass(frozen=True)
class Fact:
    """What the documentation of a machine says.

    Attributes:
        page: where it says so.
        directives: options of the scheduler with their values.
        longest: the longest walltime of such a job.
        gpus: that a task can have on a node.
        launched: a part of the line that starts the workers.
        extra: more lines that have to be there.
    """

    page: str
    directives: dict[str, str]
    longest: str
    gpus: int
    launched: str
    extra: tuple[str, ...] = field(default=())


FACTS = {
    "perlmutter": Fact(
        "https://docs.nersc.gov/jobs/policy/",
        {"--qos": "regular", "--constraint": "gpu", "--gpus-per-node": "4"},
        "48h",
        4,
        "srun --ntasks 1 -l --cpus-per-task=128",
    ),
    "frontier": Fact(
        "https://docs.olcf.ornl.gov/systems/frontier_user_guide.html",
        {"--partition": "batch", "--constraint": "nvme", "--gpus-per-node": "8"},
        "2h",
        8,
        "srun --ntasks 1 -l --cpus-per-task=56",
    ),
    "lumi": Fact(
        "https://docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/partitions/",
        {"--partition": "standard-g", "--gpus-per-node": "8"},
        "48h",
        8,
        "srun --ntasks 1 -l --cpus-per-task=56",
    ),
    "delta": Fact(
        "https://docs.ncsa.illinois.edu/systems/delta/en/latest/user_guide/running_jobs.html",
        {"--partition": "gpuA100x4", "--gpus-per-node": "4", "--mem": "208G"},
        "48h",
        4,
        "srun --ntasks 1 -l --cpus-per-task=64",
        ("#SBATCH --exclusive",),
    ),
    "expanse": Fact(
        "https://www.sdsc.edu/systems/expanse/user_guide.html",
        {"--partition": "gpu", "--gpus": "4", "--mem": "374G", "--cpus-per-task": "40"},
        "48h",
        4,
        "srun --ntasks 1",
    ),
    "anvil": Fact(
        "https://docs.rcac.purdue.edu/userguides/anvil/",
        {"--partition": "gpu", "--gpus-per-node": "4", "--cpus-per-task": "128"},
        "48h",
        4,
        "srun --ntasks 1",
    ),
    "frontera": Fact(
        "https://docs.tacc.utexas.edu/hpc/frontera/",
        {"--partition": "small", "--nodes": "1"},
        "48h",
        0,
        "srun --ntasks 1",
    ),
    "vista": Fact(
        "https://docs.tacc.utexas.edu/hpc/vista/",
        {"--partition": "gh", "--nodes": "1"},
        "48h",
        1,
        "srun --ntasks 1",
    ),
    "kestrel": Fact(
        "https://nrel.github.io/HPC/Documentation/Systems/Kestrel/Running/",
        {"--gpus": "4", "--mem": "0"},
        "48h",
        4,
        "srun --ntasks 1 -l --cpus-per-task=128",
        ("#SBATCH --exclusive",),
    ),
    "polaris": Fact(
        "https://docs.alcf.anl.gov/polaris/running-jobs/",
        {"-q": "preemptable", "-l filesystems": "home:eagle"},
        "72h",
        4,
        "mpiexec --cpu-bind none --depth=64 --ppn 1 -n $WORKERCOUNT --hostfile",
        ("#PBS -l select=1:ncpus=64:ngpus=4",),
    ),
    "aurora": Fact(
        "https://docs.alcf.anl.gov/aurora/running-jobs-aurora/",
        {"-q": "prod", "-l filesystems": "home:flare", "-l place": "scatter"},
        "6h",
        12,
        "mpiexec --cpu-bind none --ppn 1 -n $WORKERCOUNT --hostfile",
        ("#PBS -l select=1:ncpus=208",),
    ),
}
OTHERS = ("local", "slurm", "kubernetes")


def made(name: str, **overrides: object) -> Site:
    required = tomllib.loads((ROOT / "site_configs" / f"{name}.toml").read_text()).get(
        "required"
    )
    given = {
        key: "/SCRATCH/ckptflow" if key.endswith("path") else "abc123" for key in required or ()
    }
    python = {"executor.python": "python3"}
    return load_site(name, overrides={**given, **python, **overrides})


def script(name: str, **overrides: object) -> str:
    return batch_script(made(name, **overrides), command=WORKERS)


def directives(text: str) -> dict[str, str]:
    """Return the options in the head of a script: ``--name`` or ``-l name`` and its value."""
    found = {}
    for line in re.findall(r"^#(?:SBATCH|PBS) (.+)$", text, re.MULTILINE):
        option = re.fullmatch(r"(-l [a-z]+|--[a-z-]+|-[A-Za-z])(?:[= ](.*))?", line)
        assert option, line
        found[option[1]] = option[2] or ""
    return found


@pytest.mark.parametrize("name", [*FACTS, *OTHERS])
def test_it_is_what_was_reviewed(name: str) -> None:
    assert script(name) == (GOLDEN / f"{name}.sh").read_text(), (
        "after a change that is meant: python tests/unit/test_batch_scripts.py"
    )


@pytest.mark.parametrize("name", FACTS)
def test_it_is_what_the_documentation_says(name: str) -> None:
    fact, text = FACTS[name], script(name)
    site, found = made(name), directives(text)
    assert {option: found.get(option) for option in fact.directives} == fact.directives
    assert found.get("--account", found.get("-A")) == "abc123"
    assert fact.launched in text
    assert [line for line in fact.extra if line not in text.splitlines()] == []
    walltime_s = site.executor.walltime_s or 0.0
    assert 0 < walltime_s <= parse_seconds(fact.longest)
    assert len(site.executor.gpus) == (fact.gpus if site.executor.gpus_per_worker else 0)
    assert fact.page.split("/")[2] in (ROOT / "site_configs" / f"{name}.toml").read_text()


@pytest.mark.parametrize("name", FACTS)
def test_walltime_in_the_script_is_that_of_the_site(name: str) -> None:
    found = directives(script(name))
    said = found.get("--time") or found["-l walltime"]
    seconds = parse_seconds(said) if ":" in said else 60 * int(said)
    assert seconds == made(name).executor.walltime_s


@pytest.mark.parametrize("name", [*FACTS, *OTHERS])
def test_a_shell_can_read_it(name: str) -> None:
    for text in (script(name), batch_script(made(name))):
        done = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", FACTS)
def test_directives_stand_before_the_first_command(name: str) -> None:
    """Slurm and PBS read none that stand behind it."""
    lines = script(name).splitlines()
    head = [number for number, line in enumerate(lines) if re.match(r"#(SBATCH|PBS) ", line)]
    first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(head) < first


@pytest.mark.parametrize("name", FACTS)
def test_what_every_batch_system_is_told(name: str) -> None:
    text, allocation = script(name), made(name).executor.allocation
    if allocation.provider == "slurm":
        found = directives(text)
        assert "--no-requeue" in found
        assert found["--signal"] == "USR2@120", "steps hear it, not the batch script"
    else:
        assert "#PBS -r n" in text.splitlines()
        assert 'cd "$PBS_O_WORKDIR"' in text
    assert worker_init(made(name).executor, {}) in text


def test_what_the_user_adds_is_in_it() -> None:
    text = script(
        "slurm",
        **{
            "executor.allocation.reservation": "friday",
            "executor.allocation.gres": "nvme:1",
            "executor.allocation.options": ["--mail-type=END"],
            "executor.allocation.nodes": 4,
            "executor.worker_init": "module load python",
        },
    )
    found = directives(text)
    wanted = {
        "--reservation": "friday",
        "--gres": "nvme:1",
        "--mail-type": "END",
        "--nodes": "4",
    }
    assert {key: found[key] for key in wanted} == wanted
    assert "\nmodule load python\n" in text
    assert "srun --ntasks 4 " in text


def test_the_first_step_hears_the_warning_where_there_is_no_step() -> None:
    text = script("slurm", **{"executor.allocation.launcher": "simple"})
    assert directives(text)["--signal"] == "B:USR2@120"


def test_nothing_is_submitted_for_threads() -> None:
    with pytest.raises(ConfigError, match="nothing is submitted"):
        batch_script(load_site("local_threads"))


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for each in (*FACTS, *OTHERS):
        (GOLDEN / f"{each}.sh").write_text(script(each))
