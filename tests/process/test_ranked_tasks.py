"""Tasks of several processes, really started and really killed: one attempt, one lineage.

One script (`ranked_scenarios.py`) meets most misfortunes in one run. What hangs, hangs until a
test ends it; nothing here depends on how fast anything is.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ckptflow.model import LineageId
from ckptflow.store.sharding.sets import ShardSets
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow import journal

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "ranked_scenarios.py"
LIMIT_S = 240.0
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **AS_ROOT, "PYTHONPATH": str(HERE.parents[1]), **more}


@dataclass
class Result:
    folder: Path
    found: Mapping[str, Any]
    summary: Mapping[str, Any]

    def value(self, name: str) -> Any:
        return self.found[name].get("value", self.found[name])

    def task(self, name: str) -> Any:
        (one,) = [one for one in self.summary["tasks"] if one["task"] == name]
        return one

    def told(self, name: str) -> list[list[str]]:
        return [line.split() for line in (self.folder / name).read_text().splitlines()]

    def sets(self, task: str) -> ShardSets:
        return ShardSets([PosixTier(self.folder / "store", level=3)], LineageId("exp", task))


def start(scenario: str, folder: Path, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), scenario, str(folder)],
        env=environment(**more),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], folder: Path) -> Result:
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0
    return Result(folder, **json.loads(said.splitlines()[-1]))


def wait(condition: Callable[[], Any]) -> Any:
    ends_s = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < ends_s
        time.sleep(0.05)
    return found


def grown(steps: int) -> float:
    """The sum of the replicated array of `ranked_scenarios` after so many steps."""
    values = np.ones(200)
    for _ in range(steps):
        values *= 1.25
    return float(values.sum())


def mpiexec() -> str:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    beside = str(Path(sys.executable).parent)
    if shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip("there is no mpiexec")
    return f"{beside}{os.pathsep}{os.environ['PATH']}"


# --- misfortunes ---


@pytest.fixture(scope="module")
def misfortunes(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("misfortunes")
    return ended(start("misfortunes", folder), folder)


def test_a_rank_killed_within_a_save_costs_that_step(misfortunes: Result) -> None:
    """All ranks of the next attempt go on from the newest step that all had committed."""
    assert misfortunes.value("lost") == [2, 2, grown(6)]
    begun = misfortunes.told("lost")
    assert [one[4] for one in begun if one[0] == "1"] == ["None", "None"]
    assert [one[4] for one in begun if one[0] == "2"] == ["2", "2"]
    assert misfortunes.task("grow-name=lost")["lost"] == 1


def test_what_the_app_hears_names_the_rank_that_died(misfortunes: Result) -> None:
    path = misfortunes.folder / "store" / "runs" / "exp" / "journal.jsonl"
    failed = [one for one in journal.read(path) if one["event"] == "task-try-failed"]
    (error,) = [one["error"] for one in failed if one["task"] == "grow-name=lost"]
    pid = next(one[3] for one in misfortunes.told("lost") if one[:2] == ["1", "1"])
    assert error.startswith(f"RankLost: grow-name=lost: rank 1 of 2 (process {pid} on ")


def test_another_number_of_ranks_goes_on_to_the_same_bits(misfortunes: Result) -> None:
    attempt, resumed, *state = misfortunes.value("one")
    assert (attempt, resumed) == (3, 6)
    assert state == misfortunes.value("straight")[2:]


def test_a_signal_to_one_rank_stops_all_at_one_step(misfortunes: Result) -> None:
    """The other rank is ahead of it, and goes no further than the steward has let it."""
    stops = misfortunes.told("told-stops")
    assert [rank for rank, _ in sorted(stops)] == ["0", "1"]
    (step,) = {int(step) for _, step in stops}
    assert misfortunes.value("told") == [2, step, grown(150)]
    report = misfortunes.task("grow-name=told")
    assert (report["tries"], report["preempted"], report["resumed_steps"]) == (
        2, 1, [None, step],
    )  # fmt: skip


def test_an_exception_of_a_rank_is_that_of_the_task(misfortunes: Result) -> None:
    raised = misfortunes.found["raised"]
    assert (raised["error"], raised["mine"]) == ("Mine", True)
    assert raised["args"] == "('no more', [1, 2])"
    assert raised["notes"] == ["It was raised on rank 1 of 2."]
    assert misfortunes.task("grow-name=raised")["tries"] == 1


def test_ranks_without_checkpoints(misfortunes: Result) -> None:
    assert misfortunes.value("plain") == ["here", "0", "3", True]


def test_programs_of_a_command_attach_as_ranks_one_after_the_other(misfortunes: Result) -> None:
    """Each start of all ranks is an attempt of its own; the second goes on from the first."""
    assert misfortunes.value("bash") == 0
    lines = set((misfortunes.folder / "stderr").read_text().splitlines())
    for rank in (0, 1):
        assert f"{rank} 2 None 4 1 True" in lines
        assert f"{rank} 2 4 7 2 True" in lines
    assert misfortunes.task("command-name=a")["step"] == 7


def test_a_command_that_fails_says_with_which_code(misfortunes: Result) -> None:
    exits = misfortunes.found["exits"]
    assert exits["error"] == "BashExitFailure"
    assert exits["text"].endswith("exit code 3")


def test_the_secret_of_a_launch_is_in_nothing_that_is_printed(misfortunes: Result) -> None:
    assert "CKPTFLOW_STEWARD" not in (misfortunes.folder / "stderr").read_text()


def test_every_launch_left_how_it_ended(misfortunes: Result) -> None:
    """Once for all ranks, with the step that all have reached."""
    one, two, _three = misfortunes.sets("grow-name=lost").lineage.attempts()
    assert one.end is not None
    assert two.end is not None
    assert (one.end["outcome"], one.end["ranks"]) == ("failed", 2)
    assert "rank 1 of 2" in one.end["error"]
    assert (two.end["outcome"], two.end["step"], two.end["resumed_step"]) == ("finished", 6, 2)


# --- what is ended by others ---


def hanging(folder: Path) -> list[list[str]]:
    """Return rank, process and parent of two ranks that hang within step 4."""

    def both() -> list[list[str]] | None:
        path = folder / "a-hangs"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines] if len(lines) == 2 else None

    return sorted(wait(both))


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["processes", "mpiexec"])
def test_a_launcher_that_is_killed_leaves_no_rank(launcher: str, tmp_path: Path) -> None:
    """The ranks hang in what would never end, and the next attempt begins without them."""
    path = mpiexec() if launcher == "mpiexec" else os.environ["PATH"]
    process = start("hangs", tmp_path, SITE="local_threads", LAUNCHER=launcher, PATH=path)
    ranks = hanging(tmp_path)
    os.kill(int(ranks[0][2]), signal.SIGKILL)
    wait(lambda: all(gone(int(pid)) for _, pid, _ in ranks))
    result = ended(process, tmp_path)
    assert result.value("hangs") == [2, 3, grown(7)]
    (text,) = [
        one["error"]
        for one in journal.read(tmp_path / "store" / "runs" / "exp" / "journal.jsonl")
        if one["event"] == "task-try-failed"
    ]
    assert text.startswith("RankLost: grow-name=a: what started its 2 ranks was killed by")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank", "worker"])
def test_ranks_of_a_worker_process(victim: str, tmp_path: Path) -> None:
    """A rank dies, or the worker does: all ranks end, and others go on."""
    process = start("hangs", tmp_path, SITE="local", LAUNCHER="processes")
    ranks = hanging(tmp_path)
    worker = psutil.Process(int(ranks[1][2])).ppid()
    os.kill(int(ranks[1][1]) if victim == "rank" else worker, signal.SIGKILL)
    wait(lambda: all(gone(int(pid)) for _, pid, _ in ranks))
    result = ended(process, tmp_path)
    assert result.value("hangs") == [2, 3, grown(7)]
    assert result.task("grow-name=a")["lost"] == 1


@pytest.mark.slow
def test_torchrun_starts_ranks_again_within_the_task(tmp_path: Path) -> None:
    """Its second start is an attempt of its own, and goes on from the newest set."""
    pytest.importorskip("torch")
    result = ended(start("torchrun", tmp_path, OMP_NUM_THREADS="1"), tmp_path)
    assert result.value("torch") == 0, (tmp_path / "stderr").read_text()[-2000:]
    said = [line for line in result.told("stderr") if line[:1] == ["torch"]]
    total = float(sum(2 * i + 10 for i in range(6)))
    assert sorted(said) == [["torch", rank, "2", "3", str(total)] for rank in "01"]
    assert result.task("command-name=torch")["tries"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["processes", "mpiexec"])
def test_four_two_three_and_one_ranks(launcher: str, tmp_path: Path) -> None:
    path = mpiexec() if launcher == "mpiexec" else os.environ["PATH"]
    process = start("elastic", tmp_path, LAUNCHER=launcher, PATH=path)
    result = ended(process, tmp_path)
    assert [result.value(ranks)[:2] for ranks in ("4", "2", "3", "1")] == [
        [1, None], [2, 3], [3, 5], [4, 8],
    ]  # fmt: skip
    assert result.value("1")[2:] == result.value("straight")[2:]


# --- the example ---


def cooled(folder: Path, site: Path | str, **more: str) -> str:
    """Run the example; return what it says of the plate."""
    script = HERE.parents[1] / "workflows" / "ranks.py"
    words = ["-m", "ckptflow.cli", "run", str(script), "--site", str(site)]
    done = subprocess.run(
        [sys.executable, *words, "--store", str(folder)],
        env=environment(PLATES="1", EVERY="10", OMP_NUM_THREADS="1", **more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[0]


@pytest.mark.slow
def test_the_example_goes_on_with_other_ranks_and_another_launcher(tmp_path: Path) -> None:
    """Rows that two ranks had are three ranks' of MPI; the plate is that of one rank alone."""
    path = mpiexec()
    site = tmp_path / "mpi.toml"
    text = (HERE.parents[1] / "site_configs" / "local_threads.toml").read_text()
    executor = '[executor]\nrank_launcher = "mpiexec"'
    site.write_text(text.replace("[executor]", executor).replace("local_threads", "mpi"))
    cooled(tmp_path / "store", "local_threads", RANKS="2", STEPS="30")
    three = cooled(tmp_path / "store", site, RANKS="3", STEPS="60", PATH=path)
    assert three == cooled(tmp_path / "other", "local_threads", RANKS="1", STEPS="60")
    sets = ShardSets(
        [PosixTier(tmp_path / "store", level=3)], LineageId("plates", "cool-plate=0")
    )
    ends = [one.end or {} for one in sets.lineage.attempts()]
    assert [end["resumed_step"] for end in ends] == [None, 30]
    assert [end["ranks"] for end in ends] == [2, 3]
