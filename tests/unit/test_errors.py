"""The tree in the docstring is the tree of classes, and every error survives the way back."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

from ckptflow import errors
from ckptflow.errors import (
    CheckpointError,
    ConfigError,
    NotFoundError,
    Preempted,
    RemoteTaskError,
    StateError,
)

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, CheckpointError)
]


def tree_in_docstring() -> dict[str, str | None]:
    """Read {class: its parent} from the box drawing."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in inspect.getdoc(errors).splitlines():
        found = re.match(r"([│ ]*(?:[├└]── )?)([A-Z][A-Za-z]+)(?:\s{2,}|$)", line)
        if not found:
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        parents[found[2]] = path[depth - 1] if depth else None
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    real = {
        cls.__name__: None if cls is CheckpointError else cls.__mro__[1].__name__
        for cls in CLASSES
    }
    assert tree_in_docstring() == real


def test_kinds_are_unique_and_read_like_exit_text() -> None:
    kinds = [cls.__dict__["kind"] for cls in CLASSES]
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind) for kind in kinds)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_comes_back_from_another_process_whole(cls: type[CheckpointError]) -> None:
    error = cls("it broke at step 7")
    error.add_note("tier 'nvme' was tried first")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == "it broke at step 7"
    assert again.__notes__ == ["tier 'nvme' was tried first"]
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("cls", "attributes"),
    [
        (StateError, {"mismatches": ("a is missing", "b is float64")}),
        (Preempted, {"task": "train", "step": 9, "resumed_step": 4}),
        (RemoteTaskError, {"type_name": "a.B", "remote_traceback": "line 1"}),
    ],
)
def test_attributes_come_back_too(
    cls: type[CheckpointError], attributes: dict[str, object]
) -> None:
    again = pickle.loads(pickle.dumps(cls("it broke", **attributes)))
    assert {name: getattr(again, name) for name in attributes} == attributes


def test_old_handlers_catch_them() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(NotFoundError, KeyError)
    assert str(NotFoundError("no run 'x'")) == "no run 'x'"


def test_the_page_on_errors_is_complete(repository: Path) -> None:
    page = (repository / "docs" / "reference" / "errors.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `([a-z-]+)` \|", page, re.MULTILINE))
    assert rows == {cls.__name__: cls.kind for cls in CLASSES}
