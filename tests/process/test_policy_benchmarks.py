"""Benchmarks of the multi-level policy run from end to end on a few systems and one machine.

They stop where a regret is below zero, a failure is not met, or another policy computes more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow
pytest.importorskip("ckptflow.native._core")


def run(script, folder):
    """Return what a benchmark says as JSON."""
    command = [
        sys.executable,
        ROOT / "bench" / script,
        "--quick",
        "--json",
        folder / "found.json",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, timeout=240, capture_output=True)
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


def test_regret(tmp_path):
    pytest.importorskip("sklearn")
    found = run("policy.py", tmp_path)
    assert all(row["mean"] >= 0 for row in found["rows"])
    assert all(claim["met"] for claim in found["claims"])


def test_speed(tmp_path):
    found = run("policy_speed.py", tmp_path)
    assert len(found["rows"]) == 4


def test_replay(tmp_path):
    found = run("replay.py", tmp_path)
    names = {row["policy"] for row in found["details"]}
    assert {f"ours, {preset}" for preset in ("fast", "safe", "cheap", "spot")} <= names
    assert all(row["useful_pct"] <= row["useful_max"] for row in found["details"])
    assert all(claim["met"] for claim in found["claims"])
