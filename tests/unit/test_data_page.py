"""What the page on data shows of torch runs; `test_pages.py` runs the rest of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_what_the_page_shows_of_torch_runs(repository: Path) -> None:
    pytest.importorskip("torch")
    page = (repository / "docs" / "guides" / "data.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    checks = "assert loader.epoch == 0\nassert len([*loader]) == 13\nassert loader.epoch == 1\n"
    program = "\n\n".join([*blocks, checks])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
