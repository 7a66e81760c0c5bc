"""How much room tiers have, and that nobody waits for the answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckptflow.checkpointer import room
from ckptflow.checkpointer.room import AGAIN_S, Room
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier


class Later:
    """Does what it is asked to when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def go(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            work()


@pytest.fixture
def now() -> list[float]:
    return [0.0]


def test_it_is_known_of_folders_also_of_those_to_come(tmp_path: Path) -> None:
    tiers = [MemoryTier("m"), PosixTier(tmp_path / "not" / "yet", name="p", level=3)]
    later = Later()
    asked = Room(tiers, apart=later)
    assert asked.free_bytes() == {}
    later.go()
    free = asked.free_bytes()
    assert list(free) == ["p"]
    assert free["p"] > 0


def test_what_hangs_is_asked_once_and_holds_up_nobody(tmp_path: Path, now: list[float]) -> None:
    later = Later()
    asked = Room([PosixTier(tmp_path, name="p", level=3)], clock=lambda: now[0], apart=later)
    asked.free_bytes()
    now[0] = 10 * AGAIN_S
    assert asked.free_bytes() == {}
    assert len(later.waiting) == 1


def test_it_is_asked_again_after_a_while(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([100, 50])
    monkeypatch.setattr(room, "free_in", lambda _folder: next(answers))
    later = Later()
    asked = Room([PosixTier(tmp_path, name="p", level=3)], clock=lambda: now[0], apart=later)
    for at_s, expected in ((0.0, {}), (1.0, {"p": 100}), (AGAIN_S + 1, {"p": 100})):
        now[0] = at_s
        assert asked.free_bytes() == expected
        later.go()
    assert asked.free_bytes() == {"p": 50}


def test_a_folder_that_cannot_be_asked_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_folder: Path) -> int:
        raise OSError

    monkeypatch.setattr(room, "free_in", fail)
    asked = Room([PosixTier(tmp_path, name="p", level=3)], apart=lambda work: work())
    assert asked.free_bytes() == {}
    assert asked.free_bytes() == {}
