"""What a check of a site finds from here. On a cluster: ``tests/slurm/test_sites.py``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ckptflow.site import Site, load_site
from ckptflow.workflow.blocks import checking
from ckptflow.workflow.blocks.checking import Finding, check_here, check_there, look_around


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cluster(tmp_path: Path, **overrides: Any) -> Site:
    tiers = [
        {"kind": "posix", "name": "node", "level": 1, "path": "$NODE_DISK/x"},
        {"kind": "posix", "name": "shared", "level": 3, "path": str(tmp_path / "shared")},
    ]
    # An address: Parsl would ask all interfaces of this host.
    changes = {"tiers": tiers, "executor.address": "127.0.0.1", **overrides}
    return load_site("slurm", overrides=changes)


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {one.what: one.verdict for one in findings}


def command(folder: Path, name: str, lines: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{lines}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for name in ("squeue", "scancel"):
        command(folder, name, "true")
    command(folder, "sacct", "exit 1")
    command(folder, "sbatch", "echo 'sbatch: Job 7 to start at noon' >&2")
    return folder


def test_what_is_sound_here_and_what_only_nodes_can_tell(
    tmp_path: Path, programs: Path
) -> None:
    found = check_here(cluster(tmp_path))
    assert verdicts(found) == {
        "versions": "ok",
        "command sbatch": "ok",
        "command squeue": "ok",
        "command scancel": "ok",
        "options of Parsl": "ok",
        "Slurm takes such a job": "ok",
        "folder of runs": "ok",
        "tier 'shared'": "ok",
        "tier 'node'": "only there",
        "workers": "only there",
        "tier 'shared' from a node": "only there",
    }
    details = {one.what: one.detail for one in found}
    assert details["Slurm takes such a job"] == "Job 7 to start at noon"
    assert details["command sbatch"] == str(programs / "sbatch")
    assert not list((tmp_path / "shared" / "runs").iterdir()), "a check leaves nothing behind"


def test_slurm_s_own_words_when_it_would_not_take_the_job(
    tmp_path: Path, programs: Path
) -> None:
    command(programs, "sbatch", "echo 'allocation failure: Invalid qos' >&2; exit 1")
    (found,) = [one for one in check_here(cluster(tmp_path)) if one.what.startswith("Slurm")]
    assert (found.verdict, found.detail) == ("failed", "allocation failure: Invalid qos")


def test_programs_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = load_site(
        "polaris",
        overrides={
            "executor.allocation.account": "a",
            "tiers.eagle.path": str(tmp_path / "eagle"),
        },
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {one.what: one for one in check_here(site)}
    assert {found[f"command {name}"].verdict for name in ("qsub", "qstat", "qdel")} == {
        "failed"
    }
    assert "no address on 'bond0'" in found["options of Parsl"].detail
    assert found["tier 'eagle'"].verdict == "ok"
    assert found["tier 'ssd'"].verdict == "only there"


def test_folders_that_cannot_be_used(tmp_path: Path, programs: Path) -> None:
    (tmp_path / "file").write_text("")
    wrong = {"tiers.shared.path": str(tmp_path / "file" / "below")}
    found = {one.what: one for one in check_here(cluster(tmp_path, **wrong))}
    assert found["folder of runs"].verdict == "failed"
    assert found["tier 'shared'"].verdict == "failed"
    unset = {"tiers.shared.path": "$NOWHERE_SET/x"}
    found = {one.what: one for one in check_here(cluster(tmp_path, **unset))}
    assert "NOWHERE_SET" in found["tiers"].detail
    assert "NOWHERE_SET" in found["folder of runs"].detail


def test_a_worker_looks_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = cluster(tmp_path)
    seen = look_around(list(site.sealed_tiers))
    node, shared = seen["tiers"]
    assert (node.verdict, shared.verdict) == ("failed", "ok")
    assert "NODE_DISK" in node.detail
    monkeypatch.setenv("NODE_DISK", str(tmp_path))
    assert [one.verdict for one in look_around(list(site.sealed_tiers))["tiers"]] == [
        "ok",
        "ok",
    ]


def test_a_whole_check_there_in_threads(tmp_path: Path) -> None:
    found = check_there(load_site("local_threads"), timeout_s=60)
    assert verdicts(found) == {"workers": "ok", "versions": "ok", "tier 'disk'": "ok"}
    assert not (tmp_path / "ckptflow-store" / "runs" / "site-check").exists()


def test_other_versions_there_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = checking.look_around

    def older(models: Any) -> dict[str, Any]:
        seen = real(models)
        seen["versions"] = {**seen["versions"], "parsl": "2020.1.1"}
        return seen

    monkeypatch.setattr(checking, "look_around", older)
    found = {one.what: one for one in check_there(load_site("local_threads"), timeout_s=60)}
    assert found["versions"].verdict == "failed"
    assert "parsl 2020.1.1" in found["versions"].detail
    assert "; here parsl 20" in found["versions"].detail


def test_what_a_node_raises_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_models: Any) -> dict[str, Any]:
        raise ModuleNotFoundError("No module named 'ckptflow'")

    monkeypatch.setattr(checking, "look_around", failing)
    (found,) = check_there(load_site("local_threads"), timeout_s=60)
    assert (found.what, found.verdict) == ("workers", "failed")
    assert "No module named" in found.detail
