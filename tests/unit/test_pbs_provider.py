"""Blocks from PBS. There is none here: the commands are scripts that print what PBS prints.

What ``qstat -x -f -F json`` prints is as in its manual and in Parsl's own provider. A real PBS
was never asked.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from parsl.jobs.states import JobState, JobStatus

from ckptflow.errors import WorkflowError
from ckptflow.site import load_site
from ckptflow.workflow.blocks.pbs import PbsBlocks
from ckptflow.workflow.blocks.providers import provider_of

COMMAND = """#!/bin/bash
echo "$(basename "$0") $*" >> "{folder}/asked"
. "{folder}/$(basename "$0").answer"
"""
ACCOUNT = {"executor.allocation.account": "acc", "tiers.eagle.path": "/eagle/x"}


class Pbs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("qsub", "qstat", "qdel", "qselect"):
            (folder / name).write_text(COMMAND.format(folder=folder))
            (folder / name).chmod(0o755)
        self.answers(qsub="echo 7.server", qstat="true", qdel="true", qselect="true")

    def answers(self, **lines: str) -> None:
        for name, text in lines.items():
            (self.folder / f"{name}.answer").write_text(text + "\n")

    def knows(self, **jobs: dict[str, Any]) -> None:
        text = json.dumps({"Jobs": {f"{job[1:]}.server": one for job, one in jobs.items()}})
        (self.folder / "jobs.json").write_text(text)
        self.answers(qstat=f"cat {self.folder}/jobs.json")

    def asked(self, name: str) -> list[str]:
        lines = (self.folder / "asked").read_text().splitlines()
        return [line for line in lines if line.split()[0] == name]


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pbs:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Pbs(folder)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def provider(pbs: Pbs, tmp_path: Path, told: list[str]) -> PbsBlocks:
    site = load_site(
        "polaris", overrides={**ACCOUNT, "executor.allocation.command_timeout": "2s"}
    )
    made = provider_of(site.executor, "", told.append)
    assert isinstance(made, PbsBlocks)
    made.script_dir = str(tmp_path)
    for job in ("7.server", "8.server"):
        made.resources[job] = {
            "status": JobStatus(JobState.PENDING),
            "job_stdout_path": "out",
            "job_stderr_path": "err",
        }
    return made


def states(provider: PbsBlocks) -> list[str]:
    return [one.state.name for one in provider.status(["7.server", "8.server"])]


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"job_state": "Q"}, "PENDING"),
        ({"job_state": "H"}, "PENDING"),
        ({"job_state": "S"}, "PENDING"),
        ({"job_state": "R"}, "RUNNING"),
        ({"job_state": "E"}, "RUNNING"),
        ({"job_state": "F", "Exit_status": 0}, "COMPLETED"),
        ({"job_state": "F", "Exit_status": 1}, "FAILED"),
        ({"job_state": "F", "Exit_status": -29}, "TIMEOUT"),
        ({"job_state": "F", "Exit_status": 271}, "TIMEOUT"),
        ({"job_state": "F"}, "FAILED"),
    ],
)
def test_what_pbs_says_is_understood(
    pbs: Pbs, provider: PbsBlocks, fields: dict[str, Any], state: str
) -> None:
    pbs.knows(j7=fields, j8={"job_state": "R"})
    assert states(provider) == [state, "RUNNING"]
    assert states(provider) == [state, "RUNNING"]


def test_a_forgotten_block_is_over_and_the_others_are_seen(
    pbs: Pbs, provider: PbsBlocks
) -> None:
    pbs.knows(j8={"job_state": "R"})
    with (pbs.folder / "qstat.answer").open("a") as file:
        file.write("echo 'qstat: Unknown Job Id 7.server' >&2; exit 153\n")
    assert states(provider) == ["PENDING", "RUNNING"]
    assert states(provider) == ["COMPLETED", "RUNNING"]


@pytest.mark.parametrize(
    "trouble",
    ["echo '{not json'", "echo 'cannot connect to server' >&2; exit 111", "sleep 60"],
)
def test_no_answer_changes_nothing_and_is_told_once(
    pbs: Pbs, provider: PbsBlocks, told: list[str], trouble: str
) -> None:
    pbs.knows(j7={"job_state": "R"}, j8={"job_state": "R"})
    assert states(provider) == ["RUNNING", "RUNNING"]
    pbs.answers(qstat=trouble)
    assert states(provider) == states(provider) == ["RUNNING", "RUNNING"]
    assert len(told) == 1
    pbs.knows(j7={"job_state": "R"}, j8={"job_state": "Q"})
    assert states(provider) == ["RUNNING", "PENDING"]
    assert told[1:] == ["PBS answers again"]


def test_submitting_and_deleting(pbs: Pbs, provider: PbsBlocks) -> None:
    pbs.answers(qsub="echo 9.server")
    assert provider.submit("work", 1, "block") == "9.server"
    assert "-q preemptable" in pbs.asked("qsub")[0]
    pbs.answers(
        qdel="[ $1 = 8.server ] && { echo 'qdel: Job has finished' >&2; exit 35; }; true"
    )
    assert provider.cancel(["7.server", "8.server"]) == [True, True]
    pbs.answers(qsub="echo 'qsub: Unknown queue' >&2; exit 170")
    with pytest.raises(WorkflowError, match=r"^qsub: Unknown queue$"):
        provider.submit("work", 1, "block")


def test_a_submission_without_an_answer_is_ended_before_the_next(
    pbs: Pbs, provider: PbsBlocks
) -> None:
    pbs.answers(qsub="sleep 60")
    with pytest.raises(WorkflowError, match="did not answer"):
        provider.submit("work", 1, "block")
    pbs.answers(qsub="echo 9.server", qselect="echo 5.server")
    assert provider.submit("work", 1, "block") == "9.server"
    assert pbs.asked("qdel") == ["qdel 5.server"]
    assert "-N block." in pbs.asked("qselect")[0]
