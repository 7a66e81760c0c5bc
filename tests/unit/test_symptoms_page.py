"""What the page of symptoms quotes is what the program says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "what-to-do-when.md").read_text()
SYMPTOMS_MIN = 20


@cache
def said() -> str:
    """All texts in the sources, a placeholder as ``…``."""
    texts = []
    for path in sorted((ROOT / "ckptflow").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    str(one.value) if isinstance(one, ast.Constant) else "…"
                    for one in node.values
                ]
                texts.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(re.sub(r"%[sd]", "…", node.value))  # As logging has it.
    return "\n".join(texts)


def quotes() -> list[str]:
    """The lines of the page's blocks of ``text``."""
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_there_are_as_many_as_it_says() -> None:
    assert len(re.findall(r"^### ", PAGE, re.MULTILINE)) >= SYMPTOMS_MIN
    assert len(quotes()) >= SYMPTOMS_MIN // 2


def test_what_is_quoted_is_what_is_said() -> None:
    assert [quote for quote in quotes() if quote not in said()] == []
