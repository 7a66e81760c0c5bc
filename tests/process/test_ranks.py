"""Real ranks: torch with gloo, FSDP2, MPI, and one that is killed in the middle of a save.

Each rank is a process of its own, with the variables that a launcher gives it. None of what is
asserted depends on how fast they are; all of them have to end within `PATIENCE_S`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from ckptflow.model import LineageId
from ckptflow.store.sharding.sets import ShardSets
from ckptflow.tiers.posix import PosixTier

PROGRAM = Path(__file__).with_name("rank_task.py")
PATIENCE_S = 240.0

Said = dict[tuple[int, int], dict[str, list[str]]]  # By launch and rank.


def words(text: str) -> Said:
    said: Said = defaultdict(lambda: defaultdict(list))
    for line in text.splitlines():
        launch, rank, name, rest = [*line.split(" ", 3), ""][:4]
        said[int(launch), int(rank)][name].append(rest)
    return said


def start(*arguments: object, first: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "FIRST": str(first)},
        stdout=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> Said:
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0
    return words(said)


def alike(said: Said, launch: int, what: str) -> str:
    """Return what all ranks of a launch have said alike."""
    all_ = {tuple(one[what]) for (number, _), one in said.items() if number == launch}
    ((text,),) = all_
    return text


def test_one_two_three_one_ranks_of_data_parallel_training(tmp_path: Path) -> None:
    """The last save of each comes when its process group is gone already."""
    pytest.importorskip("torch")
    said = ended(start("train", tmp_path, "4,8,12,16", "1,2,3,1"))
    for launch in range(4):
        assert alike(said, launch, "resumed") == str(4 * launch)
        alike(said, launch, "state")
        if launch:
            assert alike(said, launch, "restored") == alike(said, launch - 1, "parameters")


@pytest.mark.slow
def test_two_ranks_go_on_in_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    straight = ended(start("train", tmp_path / "straight", "12", "2"))
    broken = ended(start("train", tmp_path / "broken", "5,12", "2,2"))
    for rank in range(2):
        for what in ("state", "random"):
            assert broken[1, rank][what] == straight[0, rank][what]


@pytest.mark.slow
def test_shards_of_parameters_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.fsdp", reason="torch is not installed")
    said = ended(start("shard", tmp_path, "2,4,6", "2,3,1"))
    for launch in range(3):
        assert alike(said, launch, "resumed") == str(2 * launch)
        if launch:
            assert alike(said, launch, "restored") == alike(said, launch - 1, "state")


@pytest.mark.slow
def test_four_ranks_of_mpi_and_then_three(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    beside = str(Path(sys.executable).parent)
    mpirun = shutil.which("mpirun", path=beside) or shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("there is no mpirun")

    def run(world: int, store: str, steps: int) -> Said:
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(
            [mpirun, "--oversubscribe", "-n", str(world), sys.executable, str(PROGRAM),
             "simulate", str(tmp_path / store), str(steps)],
            env={**os.environ, **as_root},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        return words(done.stdout)

    assert alike(run(4, "store", 3), 0, "resumed") == "0"
    three = run(3, "store", 5)
    assert alike(three, 0, "resumed") == "3"
    assert three[0, 0]["state"] == run(1, "alone", 5)[0, 0]["state"]


def test_a_rank_killed_in_the_middle_of_a_save(tmp_path: Path) -> None:
    store, pid = tmp_path / "store", 0
    first = start("lose", store, 6, 2)
    assert first.stdout is not None
    head = ""
    for line in first.stdout:
        head += line
        if line.startswith("0 1 pid"):
            pid = int(line.split()[3])
        if line == "0 1 saving 3\n":  # Its packs of step 3 are there, its manifest is not.
            break
    os.kill(pid, signal.SIGKILL)
    said = ended(first)  # The other rank goes on, and ends by itself.
    assert "state" in said[0, 0] or "0 0 state" in head
    sets = ShardSets([PosixTier(store)], LineageId("default", "main"))
    assert next(sets.newest_first()).id.step == 2
    both = ended(start("lose", store, 6, 2, first=1))
    assert alike(both, 1, "resumed") == "2"
    undisturbed = ended(start("lose", tmp_path / "other", 6, 2, first=1))
    for rank in range(2):
        assert both[1, rank]["state"] == undisturbed[1, rank]["state"]
    assert next(sets.newest_first()).id.step == 6
    assert all(one.id.attempt == 2 for one in sets.every() if one.id.step > 2)
    keys = [*PosixTier(store).iter_keys("lineages")]
    assert not [key for key in keys if "/packs/000000000003.00000001" in key]
