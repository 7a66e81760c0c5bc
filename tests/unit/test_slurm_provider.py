"""Blocks from Slurm: what becomes of them, whatever Slurm says or does not say.

Method: the commands are scripts on PATH that print what a file says, so that the provider, the
shell and Parsl's part are real. On a real Slurm: ``tests/slurm/test_sites.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parsl.jobs.states import JobState, JobStatus

from ckptflow.errors import WorkflowError
from ckptflow.site import load_site
from ckptflow.workflow.blocks.providers import provider_of
from ckptflow.workflow.blocks.slurm import STATES, SlurmBlocks

COMMAND = """#!/bin/bash
echo "$(basename "$0") $*" >> "{folder}/asked"
. "{folder}/$(basename "$0").answer"
"""


class Slurm:
    """The commands of Slurm, answering as they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sbatch", "squeue", "scancel", "sacct"):
            (folder / name).write_text(COMMAND.format(folder=folder))
            (folder / name).chmod(0o755)
        self.answers(
            sbatch="echo Submitted batch job 1", squeue="", scancel="",
            sacct="echo Slurm accounting storage is disabled >&2; exit 1",
        )  # fmt: skip

    def answers(self, **lines: str) -> None:
        for name, text in lines.items():
            (self.folder / f"{name}.answer").write_text(text + "\n")

    def asked(self, name: str) -> list[str]:
        lines = (self.folder / "asked").read_text().splitlines()
        return [line for line in lines if line.split()[0] == name]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Slurm(folder)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def make(slurm: Slurm, tmp_path: Path, told: list[str]) -> Callable[..., SlurmBlocks]:
    def make_provider(**allocation: Any) -> SlurmBlocks:
        overrides = {f"executor.allocation.{key}": value for key, value in allocation.items()}
        site = load_site("slurm", overrides=overrides)
        made = provider_of(site.executor, "", told.append)
        assert isinstance(made, SlurmBlocks)
        made.script_dir = str(tmp_path)
        return made

    return make_provider


def with_jobs(provider: SlurmBlocks, *jobs: str) -> SlurmBlocks:
    for job in jobs:
        provider.resources[job] = {
            "status": JobStatus(JobState.PENDING),
            "job_stdout_path": "out",
            "job_stderr_path": "err",
        }
    return provider


def states(provider: SlurmBlocks) -> dict[str, str]:
    provider.status(list(provider.resources))
    return {job: one["status"].state.name for job, one in provider.resources.items()}


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", "PENDING"), ("CONFIGURING", "PENDING"), ("SUSPENDED", "PENDING"),
        ("REQUEUED", "PENDING"), ("RUNNING", "RUNNING"), ("COMPLETING", "RUNNING"),
        ("COMPLETED", "COMPLETED"), ("CANCELLED", "CANCELLED"), ("TIMEOUT", "TIMEOUT"),
        ("DEADLINE", "TIMEOUT"), ("PREEMPTED", "TIMEOUT"), ("NODE_FAIL", "FAILED"),
        ("OUT_OF_MEMORY", "FAILED"), ("FAILED", "FAILED"),
    ],
)  # fmt: skip
def test_what_slurm_says_is_understood(
    slurm: Slurm, make: Callable[..., SlurmBlocks], word: str, state: str
) -> None:
    slurm.answers(squeue=f"echo '7 {word}'")
    provider = with_jobs(make(), "7")
    assert states(provider) == {"7": state}
    assert provider.resources["7"]["status"].lost == (word == "NODE_FAIL")


def test_each_state_of_the_manual_is_known() -> None:
    """The states that squeue(1) and sacct(1) list, base states and flags."""
    manual = """BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL
        OUT_OF_MEMORY PENDING PREEMPTED RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED
        RESIZING REVOKED SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED TIMEOUT"""
    assert set(manual.split()) <= set(STATES)


def test_how_a_job_ended_is_not_forgotten_while_another_runs(
    slurm: Slurm, make: Callable[..., SlurmBlocks]
) -> None:
    provider = with_jobs(make(), "7", "8")
    slurm.answers(squeue="echo '7 TIMEOUT'; echo '8 RUNNING'")
    assert states(provider) == {"7": "TIMEOUT", "8": "RUNNING"}
    slurm.answers(squeue="echo '8 RUNNING'")
    for _ in range(3):
        assert states(provider) == {"7": "TIMEOUT", "8": "RUNNING"}
    assert "--job=8" in slurm.asked("squeue")[-1], "ended ones are not asked for again"


def test_a_state_that_nobody_knows_changes_nothing(
    slurm: Slurm, make: Callable[..., SlurmBlocks], caplog: pytest.LogCaptureFixture
) -> None:
    provider = with_jobs(make(), "7")
    slurm.answers(squeue="echo '7 RUNNING'")
    states(provider)
    slurm.answers(squeue="echo '7 BRAND_NEW'")
    assert states(provider) == states(provider) == {"7": "RUNNING"}
    assert caplog.text.count("BRAND_NEW") == 1


@pytest.mark.parametrize(
    "trouble",
    [
        "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
        "sleep 60",
    ],
)
def test_no_answer_changes_nothing_and_is_told_once(
    slurm: Slurm, make: Callable[..., SlurmBlocks], told: list[str], trouble: str
) -> None:
    provider = with_jobs(make(command_timeout="1s"), "7", "8")
    slurm.answers(squeue="echo '7 RUNNING'; echo '8 PENDING'")
    before = states(provider)
    slurm.answers(squeue=trouble)
    assert states(provider) == states(provider) == before
    assert len(told) == 1
    slurm.answers(squeue="echo '7 RUNNING'; echo '8 RUNNING'")
    assert states(provider) == {"7": "RUNNING", "8": "RUNNING"}
    assert told[1:] == ["Slurm answers again"]


@pytest.mark.parametrize(
    "answer", ["true", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"]
)
def test_a_job_that_slurm_forgot_is_over_but_not_at_the_first_look(
    slurm: Slurm, make: Callable[..., SlurmBlocks], answer: str
) -> None:
    provider = with_jobs(make(), "7")
    slurm.answers(squeue=answer)
    assert states(provider) == {"7": "PENDING"}
    assert states(provider) == {"7": "COMPLETED"}


def test_accounting_tells_how_a_forgotten_job_ended(
    slurm: Slurm, make: Callable[..., SlurmBlocks]
) -> None:
    slurm.answers(sacct="echo '7 CANCELLED by 1000'; echo '7.batch FAILED'", squeue="true")
    provider = with_jobs(make(), "7")
    assert states(provider) == {"7": "CANCELLED"}


def test_many_jobs_are_asked_for_in_parts(
    slurm: Slurm, make: Callable[..., SlurmBlocks]
) -> None:
    ids = [str(number) for number in range(120)]
    slurm.answers(squeue='for job in $(seq 0 119); do echo "$job RUNNING"; done')
    assert set(states(with_jobs(make(), *ids)).values()) == {"RUNNING"}
    assert len(slurm.asked("squeue")) == 3


def test_the_header_of_a_federation_is_no_job(
    slurm: Slurm, make: Callable[..., SlurmBlocks]
) -> None:
    slurm.answers(squeue="echo 'CLUSTER: one'; echo '7 RUNNING'")
    provider = with_jobs(make(clusters="one"), "7")
    assert states(provider) == {"7": "RUNNING"}
    assert "--clusters=one" in slurm.asked("squeue")[0]


def test_for_how_long_a_block_ran_is_known(
    slurm: Slurm, make: Callable[..., SlurmBlocks]
) -> None:
    provider = with_jobs(make(), "7", "8")
    now_s = 100.0
    provider.clock = lambda: now_s
    slurm.answers(squeue="echo '7 RUNNING'; echo '8 PENDING'")
    states(provider)
    now_s = 450.0
    slurm.answers(squeue="echo '7 FAILED'; echo '8 FAILED'")
    states(provider)
    lasted = {job: one["status"].lasted_s for job, one in provider.resources.items()}
    assert lasted == {"7": 350.0, "8": None}
    assert provider.resources["7"]["status"].message == "Slurm says FAILED of job 7"


def test_a_refusal_says_what_slurm_said(slurm: Slurm, make: Callable[..., SlurmBlocks]) -> None:
    slurm.answers(sbatch="echo 'sbatch: error: Invalid qos specification' >&2; exit 1")
    with pytest.raises(WorkflowError, match=r"^sbatch: error: Invalid qos specification$"):
        make().submit("work", 1, "block")


def test_a_submission_without_an_answer_is_ended_before_the_next(
    slurm: Slurm, make: Callable[..., SlurmBlocks]
) -> None:
    provider = make(command_timeout="1s")
    slurm.answers(sbatch="sleep 60")
    with pytest.raises(WorkflowError, match="sbatch did not answer within 1 s"):
        provider.submit("work", 1, "block")
    slurm.answers(scancel="echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(WorkflowError, match="Unable to contact"):
        provider.submit("work", 1, "block")
    assert len(slurm.asked("sbatch")) == 1, "nothing is sent while it is unknown what is there"
    slurm.answers(scancel="true", sbatch="echo Submitted batch job 9")
    assert provider.submit("work", 1, "block") == "9"
    name = re.search(r"--name=(block\.[0-9.]+)", slurm.asked("scancel")[-1])
    assert name
    assert f"/{name[1]}" in slurm.asked("sbatch")[0]
    provider.submit("work", 1, "block")
    assert len(slurm.asked("scancel")) == 2, "it is ended once"


def test_cancelling_tells_of_each_block(slurm: Slurm, make: Callable[..., SlurmBlocks]) -> None:
    provider = with_jobs(make(), "6", "7", "8")
    provider.resources["6"]["status"] = JobStatus(JobState.COMPLETED)
    slurm.answers(
        scancel="[ $1 = 7 ] && { echo 'scancel: error: Invalid job id 7' >&2; exit 1; }; true"
    )
    assert provider.cancel(["6", "7", "8"]) == [True, True, True]
    assert [line.split()[-1] for line in slurm.asked("scancel")] == ["7", "8"]
    stuck = with_jobs(make(), "1", "2", "3")
    slurm.answers(scancel="[ $1 != 2 ] || { echo 'Unable to contact' >&2; exit 1; }")
    assert stuck.cancel(["1", "2", "3"]) == [True, False, False]
    assert states_now(stuck) == {"1": "CANCELLED", "2": "PENDING", "3": "PENDING"}


def states_now(provider: SlurmBlocks) -> dict[str, str]:
    return {job: one["status"].state.name for job, one in provider.resources.items()}
