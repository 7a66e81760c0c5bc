"""How nodes are got, as a site file says it: what cannot be is refused with a reason."""

from __future__ import annotations

import pytest

from ckptflow.errors import ConfigError
from ckptflow.site import load_site
from ckptflow.site.executor import ExecutorModel

SLURM = {"provider": "slurm"}
PBS = {"provider": "pbs"}


def executor(allocation: dict[str, object], **more: object) -> ExecutorModel:
    return ExecutorModel.model_validate({"walltime": "1h", "allocation": allocation, **more})


@pytest.mark.parametrize(
    ("allocation", "text"),
    [
        ({**SLURM, "min_blocks": 2}, "min_blocks <= init_blocks <= max_blocks must hold"),
        ({**SLURM, "options": ["mail-type=END"]}, "is no option of sbatch"),
        ({**SLURM, "options": ["--a\n#SBATCH --b"]}, "one line"),
        ({**SLURM, "partition": "a b"}, "partition"),
        ({**SLURM, "account": "x; rm -rf ~"}, "account"),
        ({**SLURM, "launch_options": "--a\nrm"}, "one line"),
        ({**PBS, "options": ["place=scatter"]}, "is no option of qsub"),
        ({**PBS, "select": ["ngpus=4:system=x"]}, "select"),
        ({"provider": "kubernetes"}, "image"),
        ({"provider": "kubernetes", "image": "i", "user_id": 5}, "given together"),
        ({"provider": "kubernetes", "image": "i", "nodes": 2}, "less than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused(allocation: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        executor(allocation)


@pytest.mark.parametrize("allocation", [SLURM, PBS])
def test_no_node_is_left_without_work(allocation: dict[str, object]) -> None:
    first = {**allocation, "nodes": 2, "launcher": "simple"}
    with pytest.raises(ValueError, match="workers on the first of 2 nodes only"):
        executor(first, workers=2)
    assert executor(first, workers=1).workers == 1  # Its tasks start ranks on both.


def test_who_takes_nodes_back_has_to_say_when() -> None:
    for allocation in (SLURM, PBS):
        with pytest.raises(ValueError, match="needs a walltime"):
            ExecutorModel.model_validate({"allocation": allocation})
    pod = {"allocation": {"provider": "kubernetes", "image": "i"}}
    assert ExecutorModel.model_validate(pod).walltime_s is None


def test_each_worker_has_gpus_of_its_own() -> None:
    assert executor({**SLURM, "gpus_per_node": 4}, workers=2, gpus_per_worker=2).gpus == (
        "0,1",
        "2,3",
    )
    named = executor(PBS, workers=2, gpus_per_worker=1, gpu_names=["0.0", "0.1", "1.0"])
    assert named.gpus == ("0.0", "0.1")
    assert executor(SLURM, workers=3).gpus == ()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"workers": 3, "gpus_per_worker": 2}, r"need 6, and a node has 4 \(gpus_per_node\)"),
        ({"workers": 2, "gpus_per_worker": 1, "gpu_names": ["a"]}, r"has 1 \(gpu_names\)"),
        ({"cpu_affinity": "close"}, "cpu_affinity"),
        ({"address": "10.0.0.1", "interface": "ib0"}, "not both"),
    ],
)
def test_workers_that_do_not_fit_their_nodes(more: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        executor({**SLURM, "gpus_per_node": 4}, **more)


def test_threads_get_nothing_from_elsewhere() -> None:
    with pytest.raises(ConfigError, match="threads run in the script itself"):
        load_site("slurm", overrides={"executor.kind": "threads"})
    with pytest.raises(ConfigError, match="threads share all GPUs"):
        load_site("local_threads", overrides={"executor.gpus_per_worker": 1})


def test_which_programs_are_needed() -> None:
    assert executor(SLURM).allocation.commands == ("sbatch", "squeue", "scancel")
    assert executor(PBS).allocation.commands == ("qsub", "qstat", "qdel")
    assert ExecutorModel().allocation.commands == ()
