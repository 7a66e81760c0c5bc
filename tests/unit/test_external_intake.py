"""Taking files in: the newest complete one, whole, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import TierFull
from ckptflow.tiers.memory import MemoryTier
from ckptflow.workflow.external import parse_code
from ckptflow.workflow.external.folder import WorkFolder, take_over
from ckptflow.workflow.external.image import images_of_state
from ckptflow.workflow.external.intake import Intake
from ckptflow.workflow.external.judge import Ending
from ckptflow.workflow.external.notices import Happened

RUNNING, WELL, BADLY = Ending.RUNNING, Ending.WELL, Ending.BADLY
END = b"END!"


class Case:
    """A folder, a lineage, and an intake between them."""

    def __init__(self, folder: Path, **options: Any) -> None:
        every = options.pop("every", None)
        code = parse_code({"watch": "r.*", "stable_s": 0.0, **options}, every=every)
        assert code is not None
        self.tier = options.pop("tier", None) or MemoryTier("store", level=3)
        self.checkpointer = Checkpointer(
            self.tier, every=every, rng=False, budget_bytes=0, keep="all"
        )
        self.work: WorkFolder = take_over(folder, "default/main", self.checkpointer.attempt)
        self.intake = Intake(code, self.checkpointer, self.work)

    def write(self, name: str, data: bytes = b"data" + END) -> None:
        (self.work.path / name).write_bytes(data)

    def look(self, ending: Ending = RUNNING) -> int | None:
        found = self.intake.look(ending)
        return None if found is None else found.step

    def steps(self) -> list[int]:
        return [found.id.step for found in reversed(self.checkpointer.lineage.valid())]

    def files(self, step: int | None = None) -> dict[str, bytes]:
        with Checkpointer(self.tier, rng=False) as reader:
            images = images_of_state(reader.restore(None, step=step))
            return {image.name: image.data.tobytes() for image in images.all}


@pytest.fixture
def made() -> Iterator[list[Case]]:
    cases: list[Case] = []
    yield cases
    for case in cases:
        case.checkpointer.shut()


@pytest.fixture
def make(tmp_path: Path, made: list[Case]) -> Any:
    def make(**options: Any) -> Case:
        made.append(Case(tmp_path / f"work{len(made)}", **options))
        return made[-1]

    return make


def test_a_complete_file_becomes_a_checkpoint(make: Any) -> None:
    case = make()
    case.write("r.10")
    assert case.look() == 10
    assert case.look() is None  # Once.
    assert case.steps() == [10]
    assert case.files() == {"r.10": b"data" + END}
    assert case.work.record.newest == (1, 10)


def test_the_newest_is_taken_and_older_ones_are_passed_over(make: Any) -> None:
    case = make()
    for step in (10, 30, 20):
        case.write(f"r.{step}")
    assert case.look() == 30
    assert case.look() is None
    assert case.steps() == [30]


@pytest.mark.parametrize("cut", range(len(b"data" + END)))
@pytest.mark.parametrize("ending", list(Ending))
def test_a_file_torn_at_any_byte_is_never_taken(make: Any, cut: int, ending: Ending) -> None:
    case = make(ends_with=END)
    case.write("r.10")
    assert case.look() == 10
    case.write("r.20", (b"data" + END)[:cut])
    assert case.look(ending) is None
    assert case.steps() == [10]


def test_a_torn_file_that_is_completed_is_taken_then(make: Any) -> None:
    case = make(ends_with=END)
    case.write("r.20", b"dat")
    assert case.look() is None
    assert "does not end with" in case.intake.refused
    case.write("r.20")
    assert case.look() == 20
    assert case.intake.refused is None


def test_a_file_has_to_stay_as_it_is_for_a_while(make: Any) -> None:
    case = make(stable_s=3600)
    case.write("r.10")
    assert case.look() is None
    assert case.look(WELL) == 10  # Nobody is there to write to it.


def test_without_a_check_what_a_dead_code_left_is_not_taken(make: Any) -> None:
    case = make()
    case.write("r.10")
    assert case.look(BADLY) is None
    assert "nothing shows that it was complete" in case.intake.refused


def test_a_rename_is_enough_even_then(make: Any) -> None:
    case = make(stable_s=3600)
    case.write("tmp")
    (case.work.path / "tmp").rename(case.work.path / "r.10")
    case.intake.note(Happened(frozenset({"r.10", "other"})))
    assert case.look(BADLY) == 10


def test_a_file_that_was_written_to_after_its_rename_is_not(make: Any) -> None:
    case = make(stable_s=3600)
    case.write("r.10")
    case.intake.note(Happened(frozenset({"r.10"})))
    case.write("r.10", b"longer than it was")
    assert case.look(BADLY) is None


def test_a_file_that_was_closed_and_can_be_checked_is_taken_at_once(make: Any) -> None:
    case = make(stable_s=3600, ends_with=END)
    case.write("r.10")
    assert case.look() is None
    case.intake.note(Happened(closed=frozenset({"r.10"})))
    assert case.look() == 10


def test_the_command_decides(make: Any) -> None:
    case = make(valid="grep -q sound {path}")
    case.write("r.10", b"broken")
    assert case.look() is None
    assert "ended with status 1" in case.intake.refused
    case.write("r.20", b"sound")
    assert case.look() == 20


@pytest.mark.parametrize(
    ("valid", "message"),
    [
        ("no-such-command {path}", "was not found: .*no-such-command"),
        ("echo what it says; exit 3; : {path}", "status 3: what it says"),
        ("kill -SEGV $$; : {path}", "status -11"),
    ],
)
def test_a_command_that_fails_says_why(make: Any, valid: str, message: str) -> None:
    import re

    case = make(valid=valid)
    case.write("r.10")
    assert case.look() is None
    assert re.search(message, case.intake.refused)


def test_a_command_that_hangs_is_ended(make: Any) -> None:
    case = make(valid="sleep 600; : {path}", valid_s=0.05)
    case.write("r.10")
    began_s = time.monotonic()
    assert case.look() is None
    assert time.monotonic() - began_s < 300
    assert "did not end within" in case.intake.refused


def test_a_command_that_changes_the_file_has_spoilt_it(make: Any) -> None:
    case = make(valid="echo more >> {path}")
    case.write("r.10")
    assert case.look() is None
    assert "written to while" in case.intake.refused


def test_what_belongs_to_a_file_comes_along(make: Any) -> None:
    case = make(with_files=("log", "p.{step}", "traj.*"))
    case.write("r.010", b"restart")
    assert case.look() is None  # Not without the others.
    case.write("log", b"a line")
    case.write("p.010", b"part")
    for name in ("traj.1", "traj.2"):
        case.write(name, name.encode())
    assert case.look() == 10
    assert case.files() == {
        "r.010": b"restart",
        "log": b"a line",
        "p.010": b"part",
        "traj.1": b"traj.1",
        "traj.2": b"traj.2",
    }


def test_a_part_that_is_missing_at_the_end_is_told_of(make: Any) -> None:
    case = make(with_files=("p.{step}",))
    case.write("r.10")
    assert case.look(WELL) is None
    assert "p.10 belongs to it and is missing" in case.intake.refused


def test_one_file_written_again_and_again_is_counted(make: Any) -> None:
    case = make(watch="state.cpt")
    for number in (1, 2):
        case.write("state.cpt", b"state %d" % number)
        assert case.look() == number
        assert case.look() is None
    assert case.steps() == [1, 2]
    assert case.files(1) == {"state.cpt": b"state 1"}


def test_links_pipes_and_other_names_are_left_alone(make: Any, tmp_path: Path) -> None:
    case = make()
    (tmp_path / "secret").write_bytes(b"secret")
    (case.work.path / "r.10").symlink_to(tmp_path / "secret")
    os.mkfifo(case.work.path / "r.20")
    (case.work.path / "r.30").mkdir()
    case.write("r.equil")
    assert case.look(WELL) is None
    assert case.steps() == []


def test_only_as_many_stay_as_are_asked_for(make: Any) -> None:
    case = make(tidy=2, ends_with=END)
    for step in (10, 20, 30, 40):
        case.write(f"r.{step}")
        assert case.look() == step
    case.write("r.35")  # Passed over, so that only this folder has it.
    case.write("r.50")
    assert case.look() == 50
    names = sorted(path.name for path in case.work.path.glob("r.*"))
    assert names == ["r.35", "r.40", "r.50"]
    assert case.steps() == [10, 20, 30, 40, 50]


def test_every_thins_out_but_not_the_last(make: Any) -> None:
    case = make(every=100)
    taken = []
    for step in (10, 110, 120, 130):
        case.write(f"r.{step}")
        taken.append(case.look())
    assert taken[2:] == [None, None]
    assert case.look(WELL) == 130
    assert case.steps()[-1] == 130


class FullOnce(MemoryTier):
    """Has no space for the first pack."""

    left = 1

    def put(self, key: str, value: Any) -> None:
        if "packs" in key and self.left:
            self.left -= 1
            raise TierFull("the disk is full")
        super().put(key, value)


@pytest.mark.filterwarnings("ignore::ckptflow.CheckpointWarning")
def test_a_save_that_fails_is_among_the_failures_and_the_next_is_taken(make: Any) -> None:
    case = make(tier=FullOnce("store", level=3))
    case.write("r.10", os.urandom(100_000))
    assert case.look() is None
    assert [type(one) for one in case.checkpointer.failures] == [TierFull]
    assert case.work.record.newest is None
    case.write("r.20", os.urandom(100_000))
    assert case.look() == 20


def test_what_did_not_change_is_not_stored_again(make: Any) -> None:
    case = make()
    data = os.urandom(1 << 20)
    case.write("r.10", data)
    case.look()
    case.write("r.20", data[:-4096] + os.urandom(4096))
    case.look()
    state_bytes, stored_bytes = case.checkpointer.written_bytes
    assert state_bytes >= 2 << 20
    assert stored_bytes < (1 << 20) + 100_000


def test_a_file_that_the_code_has_open_is_not_taken(make: Any) -> None:
    """Quiet for longer than asked for, and yet not complete."""
    import subprocess

    from ckptflow.workflow.external.processes import MARK, mark_of

    case = make()
    path = case.work.path / "r.10"
    program = (
        "import sys\nf = open(sys.argv[1], 'wb', 0)\nf.write(b'1')\nprint(flush=True)\ninput()"
    )
    environment = {**os.environ, MARK: mark_of(case.work.path, case.work.attempt)}
    writer = subprocess.Popen(
        [sys.executable, "-S", "-c", program, str(path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        writer.stdout.readline()
        assert case.look() is None
        writer.stdin.close()
        writer.wait()
    assert case.look() == 10
