"""The soak, for a minute: see ``bench/soak.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import why_not


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_workflows_under_many_failures(repository: Path, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    found = tmp_path / "found.json"
    done = subprocess.run(
        [
            sys.executable,
            str(repository / "bench" / "soak.py"),
            "--quick",
            "--json",
            str(found),
        ],
        env={**os.environ, "PYTHONPATH": str(repository), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    claims = {claim["name"]: claim["met"] for claim in json.loads(found.read_text())["claims"]}
    assert claims["soak_wrong_results"]
    assert claims["soak_finished_workflows"]
