"""Codes that write restart files of their own, in real runs: died, cut, killed, restarted."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from external_tasks import CODE, WAYS, results, work
from parsl.app.errors import BashExitFailure

import ckptflow as cf
from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import ConfigError, FencedError
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow.external.processes import marked

LIVES = Path(__file__).with_name("external_tasks.py")
WHOLE_BYTES = 7 + 16 + 8 * 1024 + 32 + 8  # Of a restart file.
LONGEST_S = 200.0


def run(store: Path, **options: Any) -> Any:
    overrides = {"executor.workers": 8}
    return cf.run("exp", site="local_threads", store=store, overrides=overrides, **options)


def lineage(store: Path, task: str) -> Lineage:
    return Lineage([PosixTier(store, level=3)], LineageId("exp", task))


def calm(folder: Path, arguments: str) -> dict[str, str]:
    """Let the code run undisturbed, without us."""
    folder.mkdir()
    subprocess.run(f"{CODE} {arguments}", shell=True, cwd=folder, check=True, stdout=-3)
    return results(folder)


def wait_until(happened: Any) -> None:
    end_s = time.monotonic() + LONGEST_S
    while not happened():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.01)


PLAIN = "--steps 40 --every 10 --piece 1000"
# Where a code dies within a restart file: nothing, header, body, digest, all but the last byte.
TORN = (0, 3, 5000, WHOLE_BYTES - 20, WHOLE_BYTES - 1)


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run tasks whose code kills itself once, in the middle of a restart file."""
    store = tmp_path_factory.mktemp("died")
    tasks = {}
    with run(store, retries=1) as the_run:
        for way, app in WAYS.items():
            option = {"pieces": "", "renames": "", "one_file": "--in-place"}[way]
            for died_bytes in TORN if way == "pieces" else TORN[2:4]:
                name = f"{way}-name=b{died_bytes}"
                # The file of step 20 has to be taken in before: it is waited for.
                arguments = (
                    f"{PLAIN} {option} --die-at 30 --die-bytes {died_bytes} --wait-at 25"
                )
                tasks[name] = app(f"b{died_bytes}", arguments)
        for name in tasks:
            lives = lineage(store, name)
            wait_until(lambda lives=lives: lives.newest() is not None)
            (work(store, name) / "go").touch()
        errors = {name: future.exception() for name, future in tasks.items()}
    return store, {"errors": errors, "summary": the_run.summary(), "exit": the_run.exit_code}


def test_a_code_that_died_within_a_file_ends_with_the_same_bits(
    died: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    store, said = died
    assert set(said["errors"].values()) == {None}
    expected = calm(tmp_path / "calm", PLAIN)
    assert {name: results(work(store, name)) for name in said["errors"]} == dict.fromkeys(
        said["errors"], expected
    )


def test_it_went_on_from_a_whole_file_and_not_from_zero(
    died: tuple[Path, dict[str, Any]],
) -> None:
    store, said = died
    for name in said["errors"]:
        folder = work(store, name) / "ckptflow"
        first, second = (
            (folder / f"attempt-{number}" / "stdout").read_text().split() for number in (1, 2)
        )
        assert first == ["from", "0"]
        assert int(second[1]) >= 10
    resumed = [task.resumed_steps for task in said["summary"].tasks]
    assert all(one[0] is None and one[1] is not None for one in resumed)
    assert said["exit"] == 0


def test_a_torn_file_is_kept_aside_with_its_bytes(died: tuple[Path, dict[str, Any]]) -> None:
    store, _ = died
    for died_bytes in TORN:
        aside = work(store, f"pieces-name=b{died_bytes}") / "ckptflow" / "attempt-2" / "aside"
        assert (aside / "restart.30").stat().st_size == died_bytes


def test_a_failure_tells_where_the_output_is(tmp_path: Path) -> None:
    with run(tmp_path, retries=0) as the_run:
        error = WAYS["pieces"]("a", "--steps 3; echo the reason >&2; exit 9").exception()
    assert isinstance(error, BashExitFailure)
    assert error.exitcode == 9
    (note,) = error.__notes__
    assert "attempt-1" in note
    assert note.endswith("the reason")
    assert the_run.exit_code != 0


def test_what_the_command_leaves_running_is_ended(tmp_path: Path) -> None:
    background = "--steps 3; sleep 600 & disown; setsid sleep 601 & true"
    with run(tmp_path):
        assert WAYS["pieces"]("a", background).result() == 0
    assert list(marked(lambda mark: str(tmp_path) in mark)) == []


def test_a_wait_of_the_script_waits_for_its_own_only(tmp_path: Path) -> None:
    with run(tmp_path):
        assert WAYS["pieces"]("a", "--steps 3 & wait").result(LONGEST_S) == 0


def test_an_attempt_that_was_overtaken_ends_its_code(tmp_path: Path) -> None:
    task = "pieces-name=a"
    with run(tmp_path, retries=0):
        future = WAYS["pieces"]("a", "--steps 100000000 --step-s 0.001 --every 100")
        lives = lineage(tmp_path, task)
        wait_until(lambda: lives.newest() is not None)
        newer = Checkpointer(PosixTier(tmp_path, level=3), run="exp", task=task)
        assert newer.attempt == 2
        assert isinstance(future.exception(LONGEST_S), FencedError)
    assert list(marked(lambda mark: str(tmp_path) in mark)) == []


def test_a_command_that_would_start_from_zero_fails(tmp_path: Path) -> None:
    @cf.bash_app(key=(), watch="restart.*", stable_s=0.1, ends_with=b"the end\n")
    def forgetful(ckpt: Any) -> str:
        return f"{CODE} --steps 20; test -e once || (touch once; exit 9)"

    with run(tmp_path, retries=1):
        error = forgetful().exception()
    assert isinstance(error, ConfigError)
    assert "restart.20 of step 20" in str(error)
    assert "would start from zero" in str(error)


def test_a_last_file_that_is_refused_is_told_of(tmp_path: Path) -> None:
    @cf.bash_app(key=(), watch="restart.*", valid="false {path}", stable_s=0.1)
    def refused(ckpt: Any) -> str:
        return f"{CODE} --steps 20 {ckpt.restart_arg('-r {path}')}"

    with pytest.warns(cf.CheckpointWarning, match="was not taken in"), run(tmp_path) as the_run:
        assert refused().result() == 0
    assert the_run.exit_code == 5
    assert "restart.20 was not taken in: false" in str(the_run.summary())


def test_a_pattern_that_matches_nothing_is_warned_of(tmp_path: Path) -> None:
    @cf.bash_app(key=(), watch="retsart.*", stable_s=0.1)
    def misspelt(ckpt: Any) -> str:
        return f"{CODE} --steps 20"

    with (
        pytest.warns(cf.CheckpointWarning, match=r"no file matched watch='retsart\.\*'"),
        run(tmp_path),
    ):
        assert misspelt().result() == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_code_works_where_the_app_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH_OF_MINE", str(tmp_path / "scratch"))

    @cf.bash_app(
        key=("n",), watch="restart.*", folder="$SCRATCH_OF_MINE/{run}/{task}", stable_s=0.1
    )
    def elsewhere(n: int, ckpt: Any, stdout: str = str(tmp_path / "said")) -> str:
        return f"pwd; {CODE} --steps 20 >/dev/null {ckpt.restart_arg('-r {path}')}"

    with run(tmp_path / "store"):
        assert elsewhere(1).result() == 0
    folder = tmp_path / "scratch" / "exp" / "elsewhere-n=1"
    assert (tmp_path / "said").read_text().strip() == str(folder)
    assert (folder / "final").exists()


class Life:
    """One life of the workflow with all ways of writing, as a process."""

    def __init__(self, store: Path, steps: int) -> None:
        self.lineages = [lineage(store, f"{way}-name=a") for way in WAYS]
        self.store = store
        self.began = self.newest()
        self.process = subprocess.Popen(
            [sys.executable, str(LIVES), str(store), str(steps)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def newest(self) -> list[Any]:
        return [one.newest() if self.store.exists() else None for one in self.lineages]

    def has_got_further(self) -> bool:
        """Tell whether some task has, or all is over."""
        return self.process.poll() is not None or self.newest() != self.began

    def is_killed(self, after_s: float) -> bool:
        """Kill it at some time after it has got further; return whether it was not too late."""
        wait_until(self.has_got_further)
        time.sleep(after_s)
        if self.process.poll() is not None:
            return False
        self.process.kill()
        self.process.communicate()
        return True


def lives_until_done(store: Path, steps: int, kills: int) -> str:
    """Kill the whole workflow so many times at random moments; return what it says at last."""
    dice, killed = random.Random(kills), 0
    while True:
        life = Life(store, steps)
        if killed < kills and life.is_killed(dice.uniform(0, 0.5)):
            killed += 1
            continue
        said, _ = life.process.communicate(timeout=LONGEST_S)
        assert life.process.returncode == 0
        assert killed == kills, "it was over before it could be killed"
        return said


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_a_workflow_killed_at_any_time_ends_with_the_same_bits(
    tmp_path: Path, kills: int
) -> None:
    steps = 200 + 100 * kills
    expected = calm(tmp_path / "calm", f"--steps {steps} --every 5")
    made = json.loads(lives_until_done(tmp_path / "store", steps, kills))
    final = {way: one["log"] for way, one in made.items()}
    assert final == dict.fromkeys(WAYS, expected["log"])
    assert {one["final"] for one in made.values()} == {expected["final"]}
    assert list(marked(lambda mark: str(tmp_path) in mark)) == []
    begun = [
        one for one in lineage(tmp_path / "store", "pieces-name=a").attempts() if one.resume
    ]
    assert any(one.resume["step"] for one in begun), "none went on from a file"


def test_the_code_ends_with_its_worker(tmp_path: Path) -> None:
    """The worker is killed, and so nobody is there to tell the code."""
    store = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, str(LIVES), str(store), "100000000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    lives = lineage(store, "pieces-name=a")
    wait_until(lambda: store.exists() and lives.newest() is not None)
    assert list(marked(lambda mark: str(store) in mark)) != []
    process.kill()
    process.wait()
    wait_until(lambda: not list(marked(lambda mark: str(store) in mark)))
