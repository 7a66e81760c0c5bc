"""A changed task goes on, begins anew or fails, as the policy says; others just go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ckptflow.errors import ConfigError, TaskChanged, TierUnavailable
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier
from ckptflow.workflow.changes import Changes, Verdict, earlier, parse_on_change
from ckptflow.workflow.definition import Definition
from ckptflow.workflow.memo_file import Remembered

SaveState = Callable[..., Lineage]

JOURNAL = [
    {"event": "app-defined", "app": "work", "code": "old", "parts": {"f:work": "1"}},
    {
        "event": "file-digested",
        "path": "/in",
        "stamp": [1, 2, 3, 4],
        "digest": "d1",
    },
    {"event": "task-launched", "task": "t", "arguments": {"steps": "3"}, "code": "old"},
    {"event": "task-launched", "task": "t", "tries": 2},
    {"event": "task-launched", "task": 7, "arguments": 8},
    {"event": "file-digested", "path": "/odd", "stamp": [1, 2], "digest": "d2"},
]
SAME = Definition({"steps": "3"}, "old", {"f:work": "1"})
MORE = Definition({"steps": "4"}, "old", {"f:work": "1"})
EDITED = Definition({"steps": "3"}, "new", {"f:work": "2"})
BUMPED = Definition({"steps": "3"}, "old", {"f:work": "1"}, version="2")


class World:
    """A store with a task at step 20, and what was said about it."""

    def __init__(self, save_state: SaveState, policy: str, *, saved: bool = True) -> None:
        self.tier: Tier = MemoryTier()
        self.lineage = Lineage([self.tier], LineageId("r", "t"))
        for step in (10, 20) if saved else ():
            save_state(self.tier, "r/t", step, {"w": np.arange(step)})
        self.said: list[Verdict] = []
        self.changes = Changes(
            "r",
            on_change=parse_on_change(policy),
            before=earlier(JOURNAL),
            lineage=lambda _: self.lineage,
            say=lambda _task, verdict: self.said.append(verdict),
        )

    def settle(
        self, now: Definition, remembered: Remembered | None = None, **more: Any
    ) -> bool:
        return self.changes.settle("t", now, remembered, **({"checkpoints": True} | more))

    @property
    def newest(self) -> int | None:
        found = self.lineage.newest()
        return found.id.step if found else None


def test_what_a_journal_tells() -> None:
    before = earlier(JOURNAL)
    assert before.tasks == {"t": SAME}
    assert before.files == {("/in", (1, 2, 3, 4)): "d1"}


@pytest.mark.parametrize("policy", ["resume", "redo", "fail"])
def test_an_unchanged_task_goes_on_whatever_the_policy(
    save_state: SaveState, policy: str
) -> None:
    world = World(save_state, policy)
    assert world.settle(SAME) is False
    assert world.settle(SAME, Remembered(b"", "t", "old")) is True
    assert (world.newest, world.said) == (20, [])


@pytest.mark.parametrize("now", [MORE, EDITED])
def test_a_changed_task_goes_on_and_says_so(save_state: SaveState, now: Definition) -> None:
    world = World(save_state, "resume")
    assert world.settle(now) is False
    assert world.newest == 20
    (verdict,) = world.said
    assert verdict.text.startswith("t has changed since its checkpoint of step 20 was made (")
    assert verdict.text.endswith("); it goes on from it all the same")


@pytest.mark.parametrize("now", [MORE, EDITED])
def test_a_changed_task_begins_anew_and_nothing_is_deleted(
    save_state: SaveState, now: Definition
) -> None:
    world = World(save_state, "redo")
    assert world.settle(now) is False
    assert world.newest is None
    found = world.lineage.checkpoints()
    assert [(one.id, one.void) for one in found] == [
        (CheckpointId(20, 1), True),
        (CheckpointId(10, 1), True),
    ]
    assert world.said[0].action == "redo"
    assert world.lineage.attempts()[-1].end["outcome"] == "set-back"  # type: ignore[index]


@pytest.mark.parametrize("remembered", [None, Remembered(b"", "t", "old")])
def test_a_changed_task_fails(save_state: SaveState, remembered: Remembered | None) -> None:
    world = World(save_state, "fail")
    with pytest.raises(TaskChanged, match=r"f:work has changed.*--on-change resume") as caught:
        world.settle(EDITED, remembered)
    assert caught.value.changes == ("f:work has changed",)
    assert world.newest == 20
    assert world.lineage.attempts() == []


def test_of_a_remembered_result_only_the_code_is_compared(save_state: SaveState) -> None:
    """Its arguments are those of the call: they belong to the key of the memo."""
    result = Remembered(b"", "t", "old")
    assert World(save_state, "fail").settle(MORE, result) is True
    assert World(save_state, "resume").settle(EDITED, result) is True
    redo = World(save_state, "redo")
    assert redo.settle(EDITED, result) is False
    assert redo.newest is None
    assert redo.settle(EDITED, Remembered(b"", "t", None)) is True


def test_another_version_begins_anew_without_being_asked(save_state: SaveState) -> None:
    world = World(save_state, "resume")
    assert world.settle(BUMPED) is False
    assert world.newest is None
    assert world.said[0].text.endswith(
        "(version: none -> 2); it begins anew, as its version says"
    )


def test_where_nothing_would_be_used_a_change_does_not_matter(save_state: SaveState) -> None:
    world = World(save_state, "fail", saved=False)
    assert world.settle(EDITED) is False
    assert World(save_state, "fail").settle(EDITED, checkpoints=False) is False
    assert world.said == []


def test_a_store_that_does_not_answer_is_in_the_way_of_redoing_only(
    save_state: SaveState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TierUnavailable("no answer")

    for policy, raises in (("resume", False), ("fail", False), ("redo", True)):
        world = World(save_state, policy)
        with monkeypatch.context() as broken:
            broken.setattr(MemoryTier, "iter_keys", fail)
            if raises:
                with pytest.raises(TierUnavailable, match="no answer"):
                    world.settle(EDITED)
            else:
                assert world.settle(EDITED) is False


def test_a_policy_is_one_of_three() -> None:
    with pytest.raises(ConfigError, match="one of resume, redo, fail, not 'ask'"):
        parse_on_change("ask")
