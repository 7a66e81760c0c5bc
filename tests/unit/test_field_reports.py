"""The page on what went wrong elsewhere: a row for each report, and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "field-reports.md").read_text()


def table(title: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@cache
def defined_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_the_tests_named_on_the_page_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 100
    missing = [
        f"{path}::{test}"
        for path, test in named
        if not (ROOT / path).exists() or test not in defined_in(ROOT / path)
    ]
    assert missing == []


def test_each_report_has_a_row_with_a_link() -> None:
    rows = table("Reports")
    assert [int(row[0]) for row in rows] == list(range(1, 42))
    assert [row[0] for row in rows if "](https://github.com/" not in row[1]] == []


@pytest.mark.parametrize("title", ["Reports", "CheckFreq", "DataStates-LLM"])
def test_each_row_says_what_holds_and_names_a_test(title: str) -> None:
    rows = table(title)
    assert {len(row) for row in rows} == {{"Reports": 5, "CheckFreq": 4}.get(title, 3)}
    assert [row for row in rows if "::" not in row[-1] or not row[-2]] == []
