"""Where a process runs, as its claim says it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.origin import origin
from ckptflow.tiers.posix import PosixTier

HERE = {"host": socket.gethostname(), "pid": os.getpid()}


def test_outside_of_everything_it_is_host_and_process() -> None:
    assert origin({}) == HERE


def test_within_a_worker_in_an_allocation_all_is_told() -> None:
    found = origin(
        {
            "PARSL_WORKER_BLOCK_ID": "3",
            "PARSL_WORKER_POOL_ID": "abc",
            "PARSL_WORKER_RANK": "0",
            "SLURM_JOB_ID": "4711",
            "SLURM_RESTART_COUNT": "2",
        }
    )
    assert found == {
        **HERE,
        "block": "3",
        "manager": "abc",
        "worker": "0",
        "allocation": "slurm:4711",
        "allocation_restarts": 2,
    }


@pytest.mark.parametrize(
    ("name", "value", "allocation"),
    [("PBS_JOBID", "12.server", "pbs:12.server"), ("FLUX_JOB_ID", "f8", "flux:f8")],
)
def test_other_schedulers_are_known(name: str, value: str, allocation: str) -> None:
    assert origin({name: value})["allocation"] == allocation


def test_nonsense_in_the_environment_is_passed_over_or_cut() -> None:
    found = origin({"SLURM_RESTART_COUNT": "many", "SLURM_JOB_ID": "9" * 10_000})
    assert "allocation_restarts" not in found
    assert len(found["allocation"]) < 300


def test_a_claim_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    lineage = Lineage([PosixTier(tmp_path, level=3)], LineageId("run", "task"))
    assert lineage.claim() == 1
    (record,) = lineage.attempts()
    assert record.claim is not None
    assert record.claim["allocation"] == "slurm:4711"
    assert record.claim["attempt"] == 1
