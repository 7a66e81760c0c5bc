"""Where an attempt goes on: never at something torn, never at zero by oversight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import ConfigError, RestoreError, StateError
from ckptflow.tiers.memory import MemoryTier
from ckptflow.workflow.external import Code, parse_code
from ckptflow.workflow.external import folder as folders
from ckptflow.workflow.external.folder import WorkFolder, take_over
from ckptflow.workflow.external.intake import Intake
from ckptflow.workflow.external.judge import Ending
from ckptflow.workflow.external.starting import Start, make_ready

END = b"END!"


def code(**options: Any) -> Code:
    made = parse_code({"watch": "r.*", "stable_s": 0.0, "ends_with": END, **options})
    assert made is not None
    return made


class Lives:
    """Attempts of one task, one after the other, over one store and one folder."""

    def __init__(self, place: Path) -> None:
        self.place, self.tier = place, MemoryTier("store", level=3)
        self.open: list[Checkpointer] = []

    def begin(self, made: Code | None = None) -> tuple[Start, WorkFolder, Intake]:
        made = made or code()
        checkpointer = Checkpointer(self.tier, rng=False, budget_bytes=0, keep="all")
        self.open.append(checkpointer)
        work = take_over(self.place, str(checkpointer.lineage.id), checkpointer.attempt)
        return make_ready(made, checkpointer, work), work, Intake(made, checkpointer, work)

    def attempt(self, *steps: int, made: Code | None = None, ended: bool = False) -> Start:
        """Let an attempt write files of these steps, all of which are taken in."""
        start, work, intake = self.begin(made)
        for step in steps:
            write(work.path, f"r.{step}")
            assert intake.look(Ending.RUNNING) is not None
        if ended:
            work.write(replace(work.record, ended=True))
        self.open[-1].shut()
        return start

    @property
    def checkpointer(self) -> Checkpointer:
        return self.open[-1]


def sound(name: str) -> bytes:
    """Return a whole restart file, too large to be kept within a manifest."""
    noise = np.random.default_rng(list(name.encode())).bytes(50_000)
    return name.encode() + noise + END


def write(folder: Path, name: str, data: bytes | None = None) -> None:
    (folder / name).write_bytes(sound(name) if data is None else data)


def packs(tier: MemoryTier) -> list[str]:
    return sorted(key for key in tier.iter_keys("") if "packs/" in key)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "work")
    yield made
    for one in made.open:
        one.shut()


def aside(folder: WorkFolder) -> list[str]:
    return sorted(path.name for path in (folder.own / "aside").rglob("*"))


def test_the_first_attempt_begins_at_the_beginning(lives: Lives) -> None:
    assert lives.begin()[0] == Start()


def test_the_newest_checkpoint_is_put_back(lives: Lives) -> None:
    lives.attempt(10, 20)
    for path in lives.place.glob("r.*"):
        path.unlink()
    start, work, _ = lives.begin()
    assert start == Start("r.20", 20)
    assert (work.path / "r.20").read_bytes() == sound("r.20")


@pytest.mark.parametrize("damage", [b"", b"r.2", b"r.20END", b"x.20" + END, None])
def test_a_restart_file_that_is_torn_or_gone_is_put_back_whole(
    lives: Lives, damage: bytes | None
) -> None:
    lives.attempt(10, 20)
    if damage is None:
        (lives.place / "r.20").unlink()
    else:
        write(lives.place, "r.20", damage)
    start, work, _ = lives.begin()
    assert start == Start("r.20", 20)
    assert (work.path / "r.20").read_bytes() == sound("r.20")
    assert aside(work) == ([] if damage is None else ["r.20"])


def test_a_file_that_nobody_took_in_is_taken_in_first(lives: Lives) -> None:
    lives.attempt(10)
    write(lives.place, "r.20")  # The worker died just then.
    start, work, _ = lives.begin()
    assert start == Start("r.20", 20)
    assert [found.id.step for found in lives.checkpointer.lineage.valid()] == [20, 10]
    assert aside(work) == []


def test_a_torn_newer_file_is_moved_aside(lives: Lives) -> None:
    lives.attempt(10)
    write(lives.place, "r.20", b"r.20EN")
    start, work, _ = lives.begin()
    assert start == Start("r.10", 10)
    assert aside(work) == ["r.20"]
    assert (work.own / "aside" / "r.20").read_bytes() == b"r.20EN"


def test_without_a_check_a_newer_file_is_moved_aside(lives: Lives) -> None:
    unchecked = code(ends_with=b"")
    lives.attempt(10, made=unchecked)
    write(lives.place, "r.20")
    start, work, _ = lives.begin(unchecked)
    assert start == Start("r.10", 10)
    assert aside(work) == ["r.20"]


def test_without_a_check_the_file_before_the_last_is_whole(lives: Lives) -> None:
    """One is written after the other."""
    unchecked = code(ends_with=b"")
    lives.attempt(10, made=unchecked)
    for step in (20, 30):
        write(lives.place, f"r.{step}")
    start, work, _ = lives.begin(unchecked)
    assert start == Start("r.20", 20)
    assert aside(work) == ["r.30"]


def test_before_any_checkpoint_a_sound_file_is_used_and_a_torn_one_is_not(lives: Lives) -> None:
    lives.attempt()
    write(lives.place, "r.10")
    write(lives.place, "r.20", b"r.20")
    start, work, _ = lives.begin()
    assert start == Start("r.10", 10)
    assert aside(work) == ["r.20"]


def test_files_of_a_past_that_was_given_up_do_not_come_back(lives: Lives) -> None:
    """Another attempt went back to step 10; what the folder has of later steps is void."""
    lives.attempt(10, 20, 30)
    write(lives.place, "r.40")
    with Checkpointer(lives.tier, rng=False) as other:
        state = other.restore(None, step=10)
        other.save(15, state).wait()
    start, work, _ = lives.begin()
    assert start.step == 15
    assert aside(work) == ["r.20", "r.30", "r.40"]


def test_a_lineage_that_was_begun_anew_begins_anew(lives: Lives) -> None:
    lives.attempt(10, 20)
    lives.tier = MemoryTier("store", level=3)  # The store was emptied.
    write(lives.place, "r.30")
    start, work, _ = lives.begin()
    assert start.name is None
    assert aside(work) == ["r.10", "r.20", "r.30"]
    assert "begins at zero again" in start.failures[0]  # Not silently.


def test_on_another_node_files_are_put_into_a_fresh_folder(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives.attempt(10)
    write(lives.place, "r.20")
    monkeypatch.setattr(folders, "this_node", lambda: "another one")
    start, work, intake = lives.begin()
    assert work.path != lives.place
    assert start == Start("r.20", 20)  # It was visible from there, and is sound.
    assert (work.path / "r.20").read_bytes() == sound("r.20")
    assert intake.look(Ending.RUNNING) is None  # What was put back is not new.


def test_what_is_put_back_of_a_counted_file_is_not_new(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = code(watch="state.cpt")
    _, work, intake = lives.begin(counted)
    for text in (b"1", b"2"):
        write(work.path, "state.cpt", text + END)
        assert intake.look(Ending.RUNNING) is not None
    monkeypatch.setattr(folders, "this_node", lambda: "another one")
    start, work, intake = lives.begin(counted)
    assert start == Start("state.cpt", 2)
    assert intake.look(Ending.RUNNING) is None
    write(work.path, "state.cpt", b"3" + END)
    found = intake.look(Ending.RUNNING)
    assert found is not None
    assert found.step == 3


def test_what_belongs_to_it_is_put_back_as_it_was(lives: Lives) -> None:
    made = code(with_files=("log", "dump.*", "p.{step}"))
    _, work, intake = lives.begin(made)
    for name, text in {"log": b"1\n", "dump.1": b"d1", "p.10": b"p"}.items():
        write(work.path, name, text)
    write(work.path, "r.10")
    assert intake.look(Ending.RUNNING) is not None
    write(work.path, "log", b"1\n2\n")
    write(work.path, "dump.2", b"d2")
    (work.path / "p.10").unlink()
    start, work, _ = lives.begin(made)
    assert start == Start("r.10", 10)
    assert {path.name: path.read_bytes() for path in work.path.iterdir() if path.is_file()} == {
        "log": b"1\n",
        "dump.1": b"d1",
        "p.10": b"p",
        "r.10": sound("r.10"),
    }
    assert aside(work) == ["dump.2", "log"]


def test_a_damaged_checkpoint_means_the_one_before_or_the_folder_s_own_file(
    lives: Lives,
) -> None:
    lives.attempt(10, 20, ended=True)
    lives.tier.delete(packs(lives.tier)[-1])
    with pytest.warns(UserWarning, match="was skipped"):
        start, _, _ = lives.begin()
    assert start == Start("r.20", 20)  # Its copy in the folder is sound.


@pytest.mark.filterwarnings("ignore::ckptflow.CheckpointWarning")
def test_when_nothing_can_be_restored_it_does_not_begin_at_zero(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives.attempt(10)
    for key in packs(lives.tier):
        lives.tier.delete(key)
    monkeypatch.setattr(folders, "this_node", lambda: "another one")
    for path in lives.place.glob("r.*"):
        path.unlink()
    with pytest.raises(RestoreError):
        lives.begin()


def test_restart_files_of_somebody_else_are_refused(lives: Lives) -> None:
    lives.place.mkdir()
    write(lives.place, "r.5000")
    write(lives.place, "deck")
    with pytest.raises(ConfigError, match=r"has restart files.*r\.5000"):
        lives.begin()


def test_the_stop_file_of_the_attempt_before_is_removed(lives: Lives) -> None:
    stopping = code(stop_file="EXIT")
    lives.attempt(10, made=stopping)
    write(lives.place, "EXIT")
    lives.begin(stopping)
    assert not (lives.place / "EXIT").exists()


def test_checkpoints_of_another_kind_of_app_are_refused(lives: Lives) -> None:
    with Checkpointer(lives.tier, rng=False) as other:
        other.save(1, {"x": np.zeros(3)}).wait()
    with pytest.raises(StateError, match="holds no files of a code"):
        lives.begin()


def test_checkpoints_of_another_pattern_are_refused(lives: Lives) -> None:
    lives.attempt(10)
    with pytest.raises(StateError, match=r"'r\.10', which watch='s\.\*' does not mean"):
        lives.begin(code(watch="s.*"))


def test_a_checkpoint_that_would_stop_the_code_is_refused(lives: Lives) -> None:
    lives.attempt(10, made=code(with_files=("EXIT*",)), ended=True)
    _, work, intake = lives.begin(code(with_files=("EXIT*",)))
    write(work.path, "EXIT", b"")
    write(work.path, "r.20")
    assert intake.look(Ending.RUNNING) is not None
    with pytest.raises(StateError, match="'EXIT' is no file of a code"):
        lives.begin(code(stop_file="EXIT"))
