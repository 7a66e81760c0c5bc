"""A full disk under a run: results are right, checkpoints go further out, the exit tells."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("full_disk_parsl.py")


def test_a_run_on_a_full_disk(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    namespace = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    command = [*namespace, sys.executable, str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    if "skip" in report:
        pytest.skip(f"cannot mount here: {report['skip']}")
    assert report["exit_code"] == 5
    assert report["right"]
    assert report["steps"] == [[6, 5], [6, 5], [], []]  # All on the far tier.
    for task in report["tiers"]:
        (trouble,) = task
        assert (trouble["tier"], trouble["condition"], trouble["missed"]) == ("near", "full", 6)
        assert "No space left on device (errno 28)" in trouble["error"]
    assert report["summary"].count("No room to write") == 2  # Once a task, not once a save.
    assert report["summary"].count("missed 6 checkpoints, is not back yet") == 2
