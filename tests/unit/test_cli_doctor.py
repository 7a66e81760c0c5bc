"""The doctor says what is there and why not more, and believes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ckptflow.cli import app, doctor
from ckptflow.data import backend


def test_core_agrees_and_names_the_slower_ones() -> None:
    core = doctor.check_core()
    assert core.agrees
    assert core.active == core.available[0]
    assert core.available[-1].startswith("numpy")


def test_a_slow_core_has_a_reason() -> None:
    with backend.use("numpy"):
        assert doctor.check_core().active.startswith("numpy")


def test_gpus() -> None:
    def ask(command: Sequence[str]) -> str | None:
        assert command[0] == "nvidia-smi"
        return "NVIDIA H200, 143771 MiB, 580.65\nNVIDIA H200, 143771 MiB, 580.65\n"

    assert doctor.find_gpus(ask).found == ("NVIDIA H200, 143771 MiB, 580.65",) * 2
    assert doctor.find_gpus(lambda _command: None).reason == (
        "nvidia-smi is not here, or did not answer"
    )
    assert doctor.find_gpus(lambda _command: "").reason == "nvidia-smi lists none"


def test_slurm() -> None:
    found = doctor.find_slurm(lambda _command: "slurm 24.05.2\n", {"SLURM_JOB_ID": "17"})
    assert (found.version, found.allocation) == ("slurm 24.05.2", "17")
    assert doctor.find_slurm(lambda _command: None, {}).version is None


def test_programs_that_fail_or_are_not_there() -> None:
    assert doctor.ask(["no-such-program-anywhere"]) is None
    assert doctor.ask(["false"]) is None
    assert doctor.ask(["echo", "here"]) == "here\n"


def test_versions() -> None:
    found = doctor.versions()
    assert found["numpy"]
    assert found["ckptflow"]


def test_doctor_without_a_store() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "same digests as NumPy" in result.stdout
    assert "none tried: name one with --store or --site" in result.stdout
    assert not Path("ckptflow-store").exists()


def test_doctor_tries_tiers_out(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path / "new"), "--json"])
    assert result.exit_code == 0
    (tier,) = json.loads(result.stdout)["tiers"]
    assert (tier["tier"], tier["size_bytes"], tier["problem"]) == ("store", 1 << 20, None)
    assert tier["write_s"] > 0
    assert [path for path in (tmp_path / "new").rglob("*") if path.is_file()] == []
    text = CliRunner().invoke(app, ["doctor", "--site", "local"]).stdout
    assert "disk (level 3): 1.00 MiB durable in" in text


def test_a_tier_that_does_not_work(tmp_path: Path) -> None:
    """A file stands where the folder of probes would be made."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "probes").write_text("in the way")
    result = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path / "store")])
    assert result.exit_code == 5
    assert "store (level 3): FAILED" in result.stdout
    assert "Cannot write 'probes/" in result.stdout


@pytest.mark.parametrize(
    "arguments", [["--site", "nowhere"], ["--store", "a", "--site", "local"]]
)
def test_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["doctor", *arguments]).exit_code == 2
