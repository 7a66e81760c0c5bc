"""A script whose last save failed does not end with 0; many arrays need no many files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("limited_saves.py")


def run(what: str, store: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), what, str(store)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_hundreds_of_arrays_with_64_open_files(tmp_path: Path) -> None:
    done = run("arrays", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [2, 500]


def test_a_last_save_that_failed_is_the_status_of_the_script(tmp_path: Path) -> None:
    done = run("full", tmp_path)
    assert done.returncode == 1
    assert "TierFull" in done.stderr.splitlines()[-1]
