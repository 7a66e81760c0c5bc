"""Benchmarks of capture run from end to end on tiny states, and check their own results.

What they measure there means nothing; a wrong result would stop them.
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


def run(script, folder, *arguments):
    """Return what a benchmark says as JSON."""
    command = [sys.executable, ROOT / "bench" / script, "--tiny", "--folder", folder]
    command += ["--json", folder / "found.json", "--markdown", folder / "found.md", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, timeout=240, capture_output=True)
    assert "| --- |" in (folder / "found.md").read_text(encoding="utf-8")
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


def test_peers(tmp_path):
    pytest.importorskip("torch")
    ways = ["ckptflow diff-first", "deepcopy and thread"]
    only = [word for way in ways for word in ("--only", way)]
    found = run("peers.py", tmp_path, "--minutes", "0.1", *only)
    assert {row["way"]: row["bits"] for row in found["rows"]} == dict.fromkeys(ways, "right")
    assert "ours_restored_bits_of_the_call" in {claim["name"] for claim in found["claims"]}


def test_a_peer_that_is_not_there_is_named(tmp_path):
    command = [sys.executable, ROOT / "bench" / "peers.py", "--tiny", "--only", "icechunk"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert "large arrays, icechunk: No module named 'icechunk'" in done.stdout


def test_capture(tmp_path):
    found = run("capture.py", tmp_path)
    assert {row["capture"] for row in found["rows"]} == {"copy", "diff-first", "lazy"}


def test_overhead(tmp_path):
    pytest.importorskip("torch")
    found = run("overhead.py", tmp_path)
    assert {row["every"] for row in found["rows"]} >= {"none", "1", "10", "50"}
