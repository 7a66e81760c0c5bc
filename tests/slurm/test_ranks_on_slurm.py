"""One task of several ranks on a real Slurm: it is warned, a node dies, it shrinks.

The nodes are virtual, with names and processes of their own; ranks are started by srun, and by
Open MPI's mpiexec, which starts its daemons by srun. Plain ``srun`` of MPI programs would need
a PMIx that Slurm's plugin and the MPI share, which the wheel and Debian's Slurm do not have.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster, running, why_not
from slurm_conf import Settings
from spread import undisturbed

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LIMIT_S = 420.0
STEPS, PAUSE_S = 80, 0.3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("slurm-ranks"),
]

SITE = """
name = "ranks"

[[tiers]]
kind = "posix"
name = "shared"
path = "{store}"
level = 3

[executor]
kind = "mpi"
workers = 1
address = "127.0.0.1"
walltime = "10min"
margin = "20s"
heartbeat_period = "1s"
heartbeat_threshold = "5s"
strategy_period = "1s"
rank_launcher = "{launcher}"
rank_options = {options}

[executor.allocation]
provider = "slurm"
nodes = 2
init_blocks = 1
max_blocks = 2
cores_per_node = 2
exclusive = false
poll = "1s"
stop_warning = "10s"
"""


class Workflow:
    """The workflow in one folder, as often as it is started."""

    def __init__(self, folder: Path, cluster: SlurmCluster, **site: str) -> None:
        self.folder, self.cluster = folder, cluster
        fields = {"launcher": "srun", "options": "[]", **site}
        folder.mkdir(exist_ok=True)
        self.site = folder / "site.toml"
        self.site.write_text(SITE.format(store=folder / "store", **fields))
        self.process: subprocess.Popen[str] | None = None

    def start(self, ranks: int, nodes: int, steps: int, pause_s: float) -> None:
        beside = Path(sys.executable).parent
        words = [sys.executable, "-m", "ckptflow.cli", "run", str(HERE / "spread.py")]
        words += ["--site", str(self.site), "--", str(ranks), str(nodes), str(steps)]
        environment = {
            **os.environ,
            **self.cluster.env,
            "PYTHONPATH": str(REPOSITORY),
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMP_NUM_THREADS": "1",
        }
        with (self.folder / "err").open("a") as err:
            self.process = subprocess.Popen(
                [*words, str(pause_s), str(self.folder)],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )

    def finish(self) -> str:
        """Wait for it; return the digest that it prints."""
        assert self.process is not None
        said, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, self.story()
        return said.split()[0]

    def story(self) -> str:
        parsl = sorted(self.folder.rglob("submit_scripts/*.stderr"))
        tails = [path.read_text(errors="replace")[-2000:] for path in parsl[-2:]]
        return "\n".join([(self.folder / "err").read_text()[-3000:], *tails])

    def lines(self, event: str) -> list[dict[str, Any]]:
        path = self.folder / "lines.jsonl"
        text = path.read_text() if path.exists() else ""
        found = [json.loads(line) for line in text.splitlines(keepends=True) if "\n" in line]
        return [line for line in found if line["event"] == event]

    def wait(self, condition: Callable[[], Any]) -> Any:
        ends_s = time.monotonic() + LIMIT_S
        while not (found := condition()):
            assert self.process is not None
            assert self.process.poll() is None, self.story()
            assert time.monotonic() < ends_s, self.story()
            time.sleep(0.1)
        return found

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if reason := why_not():
        pytest.skip(reason)
    with running(tmp_path_factory.mktemp("slurm") / "cluster", Settings(nodes=5)) as found:
        yield found


@pytest.fixture(scope="module")
def lives(
    cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Workflow, str, str]]:
    """Four ranks on two nodes: they are warned, then a node dies; then one rank alone."""
    workflow = Workflow(tmp_path_factory.mktemp("lives"), cluster)
    try:
        workflow.start(4, 2, STEPS, PAUSE_S)
        far = workflow.wait(lambda: [one for one in workflow.lines("done") if one["step"] == 6])
        # As Slurm does itself some time before the walltime ends.
        cluster.command("scancel", "--batch", "--signal=USR2", far[0]["job"])
        workflow.wait(lambda: len(workflow.lines("stop")) == 4)
        begun = workflow.wait(
            lambda: [one for one in workflow.lines("done") if one["attempt"] == 2]
        )
        first = begun[0]["step"]
        last = workflow.wait(
            lambda: [
                one
                for one in workflow.lines("done")
                if one["attempt"] == 2 and one["rank"] == 3 and one["step"] >= first + 12
            ]
        )
        cluster.node(last[0]["host"]).fail()
        four = workflow.finish()
        workflow.start(1, 1, STEPS + 3, 0.0)
        yield workflow, four, workflow.finish()
    finally:
        workflow.close()
        for node in cluster.nodes:
            node.start()


def test_all_ranks_stop_at_one_step_when_slurm_warns_of_the_end(
    lives: tuple[Workflow, str, str],
) -> None:
    stops = [one for one in lives[0].lines("stop") if one["attempt"] == 1]
    assert sorted(one["rank"] for one in stops) == [0, 1, 2, 3]
    assert len({one["step"] for one in stops}) == 1
    assert len({one["host"] for one in stops}) == 2


def test_the_next_allocation_goes_on_from_that_step(
    lives: tuple[Workflow, str, str],
) -> None:
    (stopped,) = {one["step"] for one in lives[0].lines("stop") if one["attempt"] == 1}
    starts = [one for one in lives[0].lines("start") if one["attempt"] == 2]
    assert [one["step"] for one in starts] == [stopped] * 4
    jobs = {one["job"] for one in lives[0].lines("start") if one["attempt"] <= 2}
    assert len(jobs) == 2


def test_a_node_that_dies_costs_less_than_two_intervals(
    lives: tuple[Workflow, str, str],
) -> None:
    """The others of its ranks end with it, and all go on from the newest complete set."""
    done = max(one["step"] for one in lives[0].lines("done") if one["attempt"] == 2)
    starts = [one for one in lives[0].lines("start") if one["attempt"] == 3]
    (resumed,) = {one["step"] for one in starts}
    assert len(starts) == 4
    assert done - 10 <= resumed <= done


def test_one_rank_goes_on_where_four_were_to_the_same_bits(
    lives: tuple[Workflow, str, str],
) -> None:
    workflow, _, one = lives
    (begun,) = [line["step"] for line in workflow.lines("start") if line["world"] == 1]
    assert STEPS - 5 < begun <= STEPS
    assert one == undisturbed(STEPS + 3)


def test_ranks_of_mpi_on_two_nodes(cluster: SlurmCluster, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    beside = str(Path(sys.executable).parent)
    if shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip("there is no mpiexec")
    workflow = Workflow(tmp_path / "mpi", cluster, launcher="mpiexec")
    try:
        workflow.start(4, 2, 12, 0.0)
        workflow.finish()
        hosts = {one["rank"]: one["host"] for one in workflow.lines("start")}
        assert sorted(hosts) == [0, 1, 2, 3]
        assert len(set(hosts.values())) == 2
        workflow.start(1, 1, 15, 0.0)
        assert workflow.finish() == undisturbed(15)
    finally:
        workflow.close()
