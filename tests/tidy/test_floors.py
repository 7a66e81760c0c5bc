"""Imports only go down, and the rule that says so catches what it should.

Method: the real package is checked as it is; then a copy of it is checked after one wrong
import, or one stray module, has been added.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """A copy of the package that a test may spoil."""
    folder = tmp_path / "copy"
    shutil.copytree(
        repository / "ckptflow",
        folder / "ckptflow",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    shutil.copy(repository / "pyproject.toml", folder)
    return folder


def test_the_package_keeps_the_floors(copy: Path) -> None:
    result = lint_imports(copy)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "message"),
    [
        ("utils", '"""A stray module."""', "ckptflow.utils"),
        ("tiers/posix", "import ckptflow.manifest", "ckptflow.tiers is not allowed to import"),
        ("policy/interval", "import ckptflow.data", "ckptflow.policy is not allowed to import"),
        ("policy/cells", "import ckptflow.tiers", "ckptflow.policy is not allowed to import"),
        ("store/__init__", "import ckptflow.testing", "imports of protected package"),
        ("errors", "import ckptflow.units", "ckptflow.errors is not allowed to import"),
    ],
)
def test_a_wrong_import_is_caught(copy: Path, module: str, line: str, message: str) -> None:
    with (copy / "ckptflow" / f"{module}.py").open("a") as file:
        file.write(f"\n{line}\n")
    result = lint_imports(copy)
    assert result.returncode == 1
    assert message in result.stdout
