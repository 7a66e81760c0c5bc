"""The page on events names every event that the code writes, with its fields, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "events.md").read_text()
WRITERS = {"_note", "note", "tell", "_tell"}
EVENT = re.compile(r"[a-z]+(-[a-z]+)+")
NO_FIELDS = {"sync"}


def on_the_page() -> dict[str, set[str]]:
    """Return the fields of each event, from the page's tables."""
    rows = re.findall(r"^\| `([a-z-]+)` \|([^|]*)\|", PAGE, re.MULTILINE)
    return {event: set(re.findall(r"`(\w+)`", fields)) for event, fields in rows}


def constants() -> dict[str, str]:
    """Return the names that modules give to texts that may be events."""
    found = {}
    for path in sorted((ROOT / "ckptflow" / "workflow").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))
                ):
                    found[name] = text
    return found


def written() -> Iterator[tuple[str, str, set[str]]]:
    """Yield where an event is written, its name, and the fields that are named there."""
    known = constants()
    for path in sorted((ROOT / "ckptflow" / "workflow").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            function, first = node.func, node.args[0]
            name = getattr(function, "attr", getattr(function, "id", ""))
            text = getattr(first, "value", known.get(getattr(first, "id", "")))
            if name in WRITERS and isinstance(text, str) and EVENT.fullmatch(text):
                fields = {one.arg for one in node.keywords if one.arg} - NO_FIELDS
                yield f"{path.name}:{node.lineno}", text, fields


def test_every_event_is_on_the_page_with_its_fields() -> None:
    page = on_the_page()
    lacking = [
        f"{where} writes {event!r} with {sorted(fields - page.get(event, set()))}"
        for where, event, fields in written()
        if event not in page or fields - page[event]
    ]
    assert lacking == []


def test_the_page_names_no_event_that_nobody_writes() -> None:
    assert set(on_the_page()) - {event for _, event, _ in written()} == set()


def test_enough_was_found_to_say_so() -> None:
    assert len(list(written())) >= 15
