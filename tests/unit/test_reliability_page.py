"""The page on reliability names tests that exist, and numbers that they have."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "docs" / "reliability.md").read_text()


def names_in(path: Path) -> set[str]:
    """The functions, classes and names that a test module defines."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_the_tests_named_on_the_page_exist(repository: Path, page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) > 15
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (repository / path).exists() or name not in names_in(repository / path)
    ]
    assert missing == []


def test_every_row_of_faults_names_a_test(page: str) -> None:
    rows = page.split("## Faults tried")[1].split("\n## ", maxsplit=1)[0].splitlines()
    table = [row for row in rows if row.startswith("|")][2:]
    assert [row for row in table if "::" not in row] == []


def test_the_numbers_of_schedules_are_true(repository: Path, page: str) -> None:
    text = (repository / "tests" / "simulate" / "test_power_cuts.py").read_text()
    slow, usual = re.search(r"SCHEDULES = ([\d_]+) if SLOW else ([\d_]+)", text).groups()
    assert f"| {int(usual)}; {int(slow)} |" in page


def test_the_errors_on_the_page_are_tried(repository: Path, page: str) -> None:
    text = (repository / "tests" / "process" / "test_failing_disks.py").read_text()
    tried = set(re.findall(r'"(E[A-Z]+)"', text)) - {"EKEYEXPIRED"}
    row = next(line for line in page.splitlines() if "by strace in a real process" in line)
    assert set(re.findall(r"\bE[A-Z]+\b", row)) == tried


def test_the_mistakes_on_the_page_are_in_the_simulation(repository: Path, page: str) -> None:
    defined = names_in(repository / "tests" / "simulate" / "simulated_disk.py")
    assert set(re.findall(r"`(DiskThat\w+)`", page)) <= defined


def test_each_scenario_on_slurm_is_in_the_table(repository: Path, page: str) -> None:
    text = (repository / "tests" / "slurm" / "scenarios.py").read_text()
    names = re.findall(r"^def (\w+)\(run: DisturbedRun\) -> str:", text, re.MULTILINE)
    assert len(names) > 12
    table = page.split("## Failures of allocations")[1].split("\n## ", maxsplit=1)[0]
    assert [name for name in names if f"| {name.replace('_', ' ')} |" not in table] == []
