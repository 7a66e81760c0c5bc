"""What a task is made of, in short texts, and how two launches differ."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parsl.data_provider.files import File

from ckptflow.model import Export
from ckptflow.workflow.definition import (
    Definition,
    argument_texts,
    changed_parts,
    differences,
)


@dataclasses.dataclass
class Deck:
    lr: float
    name: str = "x"


def texts(**arguments: Any) -> dict[str, str]:
    return argument_texts(arguments, key=("seed",), files={})


def test_numbers_are_shown_and_texts_are_not() -> None:
    """A text may be a password; its digest says that it has changed, and not to what."""
    found = texts(seed=3, steps=100, rate=np.float64(0.5), on=True, none=None, token="hunter2")
    assert found == {
        "steps": "100",
        "rate": "0.5",
        "on": "True",
        "none": "None",
        "token": found["token"],
    }
    assert found["token"].startswith("str #")
    assert "hunter2" not in str(found)


def test_small_containers_are_told_apart_by_their_parts() -> None:
    before = texts(config={"lr": 0.1, "layers": 3}, deck=Deck(0.5), w=np.arange(3))
    after = texts(config={"lr": 0.2, "layers": 3}, deck=Deck(0.25), w=np.arange(4))
    assert {name for name in before if before[name] != after[name]} == {
        "config['lr']",
        "deck.lr",
        "w",
    }
    assert before["config['lr']"] == "0.1"


def test_what_has_no_canonical_bytes_is_taken_to_be_the_same() -> None:
    assert texts(lock=threading.Lock()) == texts(lock=threading.Lock())


def test_where_tasks_run_does_not_count() -> None:
    assert texts(stdout="a.txt", walltime=3, outputs=[File("x")]) == {}


def test_a_reference_to_a_state_is_its_root_and_not_where_it_lies() -> None:
    def at(path: str) -> Export:
        fields: dict[str, Any] = {
            "run": "r",
            "task": "t",
            "step": 4,
            "root": "ab" * 16,
            "state_bytes": 8,
        }
        return Export(**fields, tiers=({"kind": "posix", "path": path},))

    assert texts(walk=at("/a")) == texts(walk=at("/b")) == {"walk": "r/t@4 #abababababab"}


def test_files_are_named_and_digested() -> None:
    files = {"deck": "d" * 32, "inputs[0]": "e" * 32, "seed": "f" * 32}
    arguments = {"seed": "s.in", "deck": File("/a/deck.in"), "inputs": [Path("/b/m.in"), 3]}
    found = argument_texts(arguments, key=("seed",), files=files)
    assert found == {
        "deck": f"deck.in #{'d' * 12}",
        "inputs[0]": f"m.in #{'e' * 12}",
        "inputs[1]": "3",
        "seed": f"#{'f' * 12}",
    }


def made_of(**fields: Any) -> Definition:
    return Definition(**({"arguments": {"steps": "3"}} | fields))


@pytest.mark.parametrize(
    ("before", "now", "found", "version"),
    [
        (made_of(), made_of(), (), False),
        (made_of(), made_of(arguments={"steps": "4"}), ("steps: 3 -> 4",), False),
        (
            made_of(),
            made_of(arguments={"rate": "1"}),
            ("steps: 3 -> not there", "rate: not there -> 1"),
            False,
        ),
        (
            made_of(code="a", parts={"f:x": "1", "f:y": "1"}),
            made_of(code="b", parts={"f:x": "2", "f:z": "1"}),
            ("f:x has changed", "f:y is not used any more", "f:z is new"),
            False,
        ),
        (made_of(code="a"), made_of(code="b"), ("its code: #a -> #b",), False),
        (made_of(code=None), made_of(code="b"), (), False),
        (made_of(code="a", version="1"), made_of(code="b", version="1"), (), False),
        (made_of(version="1"), made_of(version="2"), ("version: 1 -> 2",), True),
        (made_of(), made_of(version="2"), ("version: none -> 2",), True),
        (
            made_of(code="a", version="auto:a", parts={"f:x": "1"}),
            made_of(code="b", version="auto:b", parts={"f:x": "2"}),
            ("f:x has changed",),
            True,
        ),
    ],
)
def test_differences(
    before: Definition, now: Definition, found: tuple[str, ...], version: bool
) -> None:
    changed = differences(before, now)
    assert (changed.texts, changed.version) == (found, version)
    assert bool(changed) == bool(found)


def test_many_changes_are_counted() -> None:
    before, now = ({f"f:{i}": str(n * i) for i in range(1, 12)} for n in (1, 2))
    changed = differences(made_of(code="a", parts=before), made_of(code="b", parts=now))
    assert str(changed).endswith("f:8 has changed, and 3 more")


def test_code_that_is_not_known_has_not_changed() -> None:
    assert list(changed_parts({}, {"f": "1"})) == []
