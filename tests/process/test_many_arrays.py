"""States of very many small arrays, in a process that may open few files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("many_arrays.py")


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_arrays_take_few_file_descriptors(tmp_path: Path, count: int) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, str(tmp_path / "run"), str(count)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    told = done.stdout.splitlines()
    assert told == ["anew True", "in place True", "kept True"], done.stderr
