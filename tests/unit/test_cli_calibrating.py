"""What ``ckptflow calibrate`` says and writes, and when it does not. Measuring: elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ckptflow.cli import app, calibrating
from ckptflow.plan.calibration import (
    Calibration,
    MeasuredTier,
    SaveCosts,
    Totals,
    UnmeasuredTier,
    read_calibration,
)
from ckptflow.plan.measure import Measured
from ckptflow.plan.request import Request, Wanted
from ckptflow.units import MIB


def totals(writers: int) -> Totals:
    return Totals(
        writers=writers,
        size_bytes=8 * MIB,
        repetitions=3,
        write_bytes_per_s=100.0 * MIB,
        write_spread=0.02,
        read_bytes_per_s=100.0 * MIB * writers,
        read_spread=0.0,
    )


def measured(one: Wanted) -> MeasuredTier:
    return MeasuredTier(
        tier=one.identity,
        host="node1",
        how=one.how,
        totals=(totals(1), totals(2)),
        write_latency_s=0.01,
        read_latency_s=0.02,
    )


SAVES = SaveCosts(
    host="node1",
    size_bytes=MIB,
    capture_bytes_per_s=1e9,
    digest_bytes_per_s=1e10,
    unchanged_bytes_per_s=1e9,
    encode_bytes_per_s=1e7,
    encode_ratio=0.5,
    interference=0.25,
)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, fails: bool = False) -> Any:
    """Call it with a measuring that takes no time, and which fails if that is asked for."""

    def measure(request: Request, tell: Any) -> Measured:
        tell(0.5, "half")
        seen = [one for one in request.tiers if not one.unseen]
        made = Calibration(
            site=request.site,
            host="node1",
            date=datetime(2026, 3, 1, tzinfo=UTC),
            ckptflow_version="0.1.0",
            tiers=() if fails else tuple(map(measured, seen)),
            unmeasured=tuple(
                UnmeasuredTier(tier=one.identity, reason=one.unseen or "broke", failed=fails)
                for one in request.tiers
                if one.unseen or fails
            ),
            saves=SAVES,
        )
        return Measured(made, ("something was left",))

    monkeypatch.setattr(calibrating, "measure", measure)
    return CliRunner().invoke(app, ["calibrate", *arguments])


def test_what_was_measured_is_shown_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, "--site", "local", "--output", "here.json")
    assert result.exit_code == 0
    for text in (
        "disk  posix      3  save        1  8.00 MiB  100 MiB  2%  100 MiB  0%  10 ms, 20 ms",
        "disk: more writers do not get more together",
        "a loop beside one is 25% slower",
        "Measured on node1.",
        "something was left",
        "written to here.json",
    ):
        assert text in result.stdout
    assert "more readers" not in result.stdout
    assert read_calibration(Path("here.json")).site == "local"


def test_what_is_measured_from_elsewhere_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = f"""
name = "far"
[executor]
walltime = "1h"
[executor.allocation]
provider = "slurm"
[[tiers]]
kind = "posix"
name = "node"
level = 1
path = "$NOT_SET_HERE/x"
[[tiers]]
kind = "posix"
name = "pfs"
level = 3
path = "{tmp_path}"
"""
    Path("far.toml").write_text(tiers)
    result = run(monkeypatch, "--site", "far.toml")
    assert result.exit_code == 0, result.output
    assert "node: not measured: Each node has its own" in result.stdout
    assert "which is none of the nodes that tasks run on" in result.stdout


def test_a_calibration_that_is_there_stays_if_all_tiers_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(monkeypatch, "--output", "here.json").exit_code == 0
    before = Path("here.json").read_text()
    result = run(monkeypatch, "--output", "here.json", fails=True)
    assert result.exit_code == 5
    assert "disk: FAILED: broke" in result.stdout
    assert "written to" not in result.stdout
    assert Path("here.json").read_text() == before


@pytest.mark.parametrize(
    "arguments",
    [["--seconds", "0"], ["--seconds", "often"], ["--writers", "0"], ["--site", "nowhere"]],
)
def test_usage(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    assert run(monkeypatch, *arguments).exit_code == 2
