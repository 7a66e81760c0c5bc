"""What counts as the code of a task: what it computes with, wherever in the workflow it is."""

from __future__ import annotations

import linecache
import textwrap
from pathlib import Path

import pytest

from ckptflow.workflow.sources import code_of, parts_in

FLOW = """
import numpy as np
import ckptflow as cf
import steps as st
from parts.mesh import refine
from parts import *

RATE = 0.5
SIZES = [RATE, 2]
UNUSED = 1

def advance(x):
    return st.half(x) * RATE

def unused(x):
    return x

class Model:
    def run(self, x):
        return advance(x)

@cf.python_app(key=("seed",), every=100)
def work(seed, ckpt):
    '''Do it.'''
    from late import polish
    local = Model()
    return polish(refine(local.run(seed)), SIZES, starred(seed))

def factory(scale):
    def inner(x):
        return x * 3
    @cf.python_app
    def made(x):
        return inner(x) * scale
    return made
"""
STEPS = """
FACTOR = 2

def half(x):
    return x / FACTOR

def other(x):
    return x
"""
MESH = "def refine(x):\n    return x + 1\n"
STARS = "def starred(x):\n    return x\n"
LATE = "def polish(*x):\n    return x\n"

USED = {
    "flow.py:work", "flow.py:Model", "flow.py:advance", "flow.py:RATE", "flow.py:SIZES",
    "steps.py:half", "steps.py:FACTOR", "parts/mesh.py:refine", "late.py:polish",
    "parts/__init__.py:starred",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    for name, text in (
        ("flow.py", FLOW), ("steps.py", STEPS), ("late.py", LATE),
        ("parts/__init__.py", STARS), ("parts/mesh.py", MESH),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    return tmp_path


def parts(folder: Path, name: str = "work") -> dict[str, str]:
    return parts_in(folder / "flow.py", name, folder)


def test_all_that_a_function_uses_of_the_workflow_is_found(folder: Path) -> None:
    assert set(parts(folder)) == USED


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("flow.py", "* RATE", "+ RATE", {"flow.py:advance"}),
        ("flow.py", "RATE = 0.5", "RATE = 0.25", {"flow.py:RATE"}),
        ("flow.py", "local = Model()", "local = Model(); 1", {"flow.py:work"}),
        ("steps.py", "FACTOR = 2", "FACTOR = 4", {"steps.py:FACTOR"}),
        ("parts/mesh.py", "x + 1", "x + 2", {"parts/mesh.py:refine"}),
        ("parts/__init__.py", "return x", "return -x", {"parts/__init__.py:starred"}),
        ("late.py", "return x", "return x[0]", {"late.py:polish"}),
        ("flow.py", "UNUSED = 1", "UNUSED = 2", set()),
        ("flow.py", "every=100", "every=200", set()),
        ("flow.py", "Do it.", "Do it well.", set()),
        ("flow.py", "def advance(x):", "def advance(x: float) -> float:\n    # why\n", set()),
        ("steps.py", "def other(x):\n    return x", "def other(x):\n    return 1", set()),
    ],
)
def test_a_change_is_found_where_it_is_and_only_if_it_counts(
    folder: Path, file: str, old: str, new: str, changed: set[str]
) -> None:
    before = parts(folder)
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    now = parts(folder)
    assert {name for name in before | now if before.get(name) != now.get(name)} == changed


def test_a_function_within_a_function(folder: Path) -> None:
    assert set(parts(folder, "factory.<locals>.made")) == {
        "flow.py:factory.<locals>.made",
        "flow.py:inner",
    }


def test_what_is_not_there_has_no_parts(folder: Path) -> None:
    assert parts(folder, "nil") == {}
    assert parts_in(folder / "nil.py", "work", folder) == {}
    (folder / "flow.py").write_text("def work(:\n")
    assert parts(folder) == {}


def helper(x: int) -> int:
    return x


def uses_helper(x: int) -> int:
    return helper(x)


def test_a_function_in_memory_gives_the_same_as_its_file() -> None:
    code = code_of(uses_helper)
    assert code.file == Path(__file__)
    names = {name.rpartition(":")[2] for name in code.parts}
    assert names == {"uses_helper", "helper"}
    assert code.folder is not None
    assert parts_in(code.file, code.name, code.folder) == code.parts


def cell(text: str, name: str) -> object:
    """Run text as a cell of a notebook: in no file, but its lines are kept."""
    source = textwrap.dedent(text)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), names)
    return names["work"]


def test_in_a_notebook_functions_are_found_in_memory() -> None:
    text = """
    RATE = {rate}
    def advance(x):
        return x * RATE
    def work(x):
        return advance(x)
    """
    before = code_of(cell(text.format(rate=2), "<cell 1>"))  # type: ignore[arg-type]
    after = code_of(cell(text.format(rate=3), "<cell 2>"))  # type: ignore[arg-type]
    assert before.file is None
    assert set(before.parts) == {"work", "advance", "RATE"}
    assert {name for name in before.parts if before.parts[name] != after.parts[name]} == {
        "RATE"
    }
    assert before.digest != after.digest


def test_without_source_nothing_is_known() -> None:
    names: dict[str, object] = {}
    exec("def work(x): return x", names)
    assert code_of(names["work"]).digest is None  # type: ignore[arg-type]
