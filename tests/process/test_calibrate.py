"""``ckptflow calibrate`` with writers in processes, and what is left when it is killed.

Method: the tiers are folders; whatever is in them afterwards was left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ckptflow.cli import app
from ckptflow.errors import TierError
from ckptflow.plan.crew import Processes

SITE = """
name = "two"
run_dir = "runs"
[executor]
kind = "threads"
workers = 2
[[tiers]]
kind = "posix"
name = "node"
level = 1
path = "tiers/node"
[[tiers]]
kind = "posix"
name = "shared"
level = 3
path = "tiers/shared"
"""
BROKEN = """
[[tiers]]
kind = "posix"
name = "broken"
level = 4
path = "tiers/file/below"
"""


@pytest.fixture
def tiers() -> Path:
    """A site of two tiers in the current folder; the folder that holds them."""
    Path("two.toml").write_text(SITE)
    folder = Path("tiers").absolute()
    folder.mkdir()
    return folder


def ckptflow(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, [*arguments, "--site", "two.toml"])
    assert result.exit_code == status, result.output
    return result.stdout


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_site_is_measured_and_the_doctor_knows(tiers: Path) -> None:
    assert "none; to measure: ckptflow calibrate --site two.toml" in ckptflow("doctor")

    (tiers / "file").touch()
    Path("two.toml").write_text(SITE + BROKEN)
    said = ckptflow("calibrate", "--there", "--seconds", "0.2", "--json", status=5)
    document = json.loads(said)
    found = document["calibration"]
    assert [one["tier"]["name"] for one in found["tiers"]] == ["node", "shared"]
    assert [one["how"] for one in found["tiers"]] == ["save", "flush"]
    counts = [1, 2][: len(os.sched_getaffinity(0))]
    for tier in found["tiers"]:
        assert [one["writers"] for one in tier["totals"]] == counts
    (broken,) = found["unmeasured"]
    assert (broken["tier"]["name"], broken["failed"]) == ("broken", True)
    assert found["saves"]["capture_bytes_per_s"] > 0
    assert json.loads(Path(document["path"]).read_text()) == found
    assert files(tiers) == [tiers / "file"], "nothing is left"
    assert list(tiers.rglob("ckptflow-calibrate-*")) == []

    Path("two.toml").write_text(SITE + BROKEN.replace("below", "elsewhere"))
    stale = ckptflow("doctor", status=5)
    assert "Tier 'broken' is another one than was measured." in stale
    assert "Measure again: ckptflow calibrate --site two.toml" in stale

    Path(document["path"]).write_text("{")
    assert "is no JSON" in ckptflow("doctor", status=5)


@pytest.mark.parametrize(
    ("how", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow)],
)
def test_nothing_is_left_when_it_is_cut_off(
    tiers: Path, how: signal.Signals, status: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ckptflow.cli", "calibrate",
         "--site", "two.toml", "--seconds", "100"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        wait_until(lambda: files(tiers) or process.poll() is not None)
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status, said
    # Killed at once, it leaves that to its writers, who end when they notice.
    wait_until(lambda: not files(tiers))
    assert not list(Path("home").rglob("*.json"))


def test_a_writer_that_dies_is_told_of_and_replaced() -> None:
    with Processes() as crew:
        with pytest.raises(TierError, match="A writer ended with status 1: KeyError: 'tier'"):
            crew.order(1, {"do": "prepare"}, limit_s=60)
        assert crew.order(1, {"do": "leave"}, limit_s=60) == [{}]


def wait_until(holds: Callable[[], object], limit_s: float = 60.0) -> None:
    ends_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < ends_s, "it never came"
        time.sleep(0.01)
