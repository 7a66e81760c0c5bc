"""What the README and the documentation show as Python runs.

The blocks of a page, one after the other, are one program. A page that shows tests is
given to pytest instead.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def program(page: Path) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return "\n\n".join(blocks)


NEEDS = {
    "docs/guides/torch.md": ["torch"],
    "docs/guides/trainers.md": ["torch", "pytorch_lightning", "transformers"],
}
SLOW = {"docs/guides/trainers.md"}  # Importing these frameworks alone takes long.

PAGES = {
    page.relative_to(ROOT).as_posix(): page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if program(page)
}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in PAGES],
)
def test_the_code_on_the_page_runs(page: str) -> None:
    for package in NEEDS.get(page, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = Path("test_page.py")
    script.write_text(program(PAGES[page]))
    as_tests = "\nclass Test" in script.read_text()
    command = [sys.executable, *(["-m", "pytest", "-q", "-p", "no:cacheprovider"] * as_tests)]
    result = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_readme_shows_a_program() -> None:
    lines = program(ROOT / "README.md").splitlines()
    assert 10 <= len(lines) <= 30
