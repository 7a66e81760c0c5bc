"""The leader of a node, with real processes: whom it tells, for whom it stays, when it goes.

The pools are small scripts. A worker says on the board that it is there, as tasks do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptflow.workflow.blocks.board import is_alive
from ckptflow.workflow.blocks.leader import IDLE_LOOK_S, QUEUES_GONE_S

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0

WORKER = """
    import os, pathlib, signal, sys, time
    from ckptflow.workflow.blocks.board import HEARS, RUNS, presence

    folder = pathlib.Path(sys.argv[1])

    def note(name, text=""):
        (folder / f".{name}").write_text(text)
        (folder / f".{name}").rename(folder / name)

    def wait_for(name):
        while not (folder / name).exists():
            time.sleep(0.01)

    heard = []
    def saves():
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, _: heard.append(signal.Signals(number).name))
        return presence().as_one_that(HEARS)
"""


class Started:
    """A leader and what its pool writes."""

    def __init__(self, folder: Path, pool: str, *options: str, shell: str = "") -> None:
        self.folder = folder
        script = folder / "pool.py"
        script.write_text(textwrap.dedent(WORKER) + textwrap.dedent(pool))
        words = [sys.executable, str(script), str(folder)]
        command = ["sh", "-c", shell.format(pool=" ".join(words))] if shell else words
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ckptflow.workflow.blocks.leader"),
                    *options,
                    "--",
                    *command,
                ],
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
                stderr=log,
            )

    def until(self, condition: Callable[[], object]) -> None:
        limit_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < limit_s, self.log.read_text()
            time.sleep(0.01)

    def read(self, name: str) -> str:
        path = self.folder / name
        self.until(path.exists)
        return path.read_text()

    def say(self, name: str) -> None:
        (self.folder / name).touch()

    def pid(self, name: str = "up") -> int:
        return int(self.read(name))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def status(self) -> int:
        found = self.process.wait(timeout=LIMIT_S)
        assert list(self.folder.glob("ckptflow-block-*")) == []
        return found


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Started] = []

    def run(pool: str = "", *options: str, shell: str = "") -> Started:
        started.append(Started(tmp_path, pool, *options, shell=shell))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize(("shell", "status"), [("exit 3", 3), ("kill -9 $$", 137), ("true", 0)])
def test_it_ends_as_its_pool_ends(start: Start, shell: str, status: int) -> None:
    assert start(shell=shell).status() == status


IDLE_POOL = """
    note("up", str(os.getpid()))
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_with_nothing_to_save_it_ends_at_once(start: Start, number: signal.Signals) -> None:
    leader = start(IDLE_POOL)
    pid = leader.pid()
    leader.send(number)
    assert leader.status() == 0
    assert not is_alive(pid)


SAVING = """
    with saves():
        note("up", str(os.getpid()))
        while not heard:
            time.sleep(0.01)
        wait_for("save")
        note("saved", ",".join(heard))
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_task_that_saves_hears_and_is_waited_for(
    start: Start, number: signal.Signals
) -> None:
    leader = start(SAVING, "--kill-wait-s=1000")
    pid = leader.pid()
    for _ in range(3):  # Twice is not more than once.
        leader.send(number)
    leader.until(lambda: "tasks are told" in leader.log.read_text())
    assert is_alive(pid)
    leader.say("save")
    assert leader.read("saved") == number.name
    assert leader.status() == 0
    assert not is_alive(pid)


def test_a_task_that_does_not_save_is_waited_for_after_a_warning_but_not_before_a_kill(
    start: Start,
) -> None:
    leader = start(
        """
        with presence().as_one_that(RUNS):
            note("up", str(os.getpid()))
            note("stop", "")
            while presence().board.stop() is None:
                time.sleep(0.01)
            note("warned", presence().board.stop())
            time.sleep(1000)
        """
    )
    pid = leader.pid()
    leader.send(signal.SIGUSR2)
    assert leader.read("warned") == "the block got SIGUSR2"
    assert is_alive(pid)
    leader.send(signal.SIGTERM)
    assert leader.status() == 0
    assert not is_alive(pid)


def test_a_signal_of_the_user_goes_to_who_handles_it_and_stops_nobody(start: Start) -> None:
    leader = start(
        """
        with saves():
            note("up", str(os.getpid()))
            while not heard:
                time.sleep(0.01)
            note("heard", f"{heard} {presence().board.stop()}")
            wait_for("go")
        """,
        "--stop-signals=TERM,USR2",
    )
    leader.pid()
    leader.send(signal.SIGUSR1)
    assert leader.read("heard") == "['SIGUSR1'] None"
    leader.say("go")
    assert leader.status() == 0
    assert "told" not in leader.log.read_text()


def test_the_pool_ignores_what_its_tasks_are_told(start: Start) -> None:
    """As where a batch system sends signals to every process of a step."""
    leader = start(
        """
        for name in ("TERM", "USR1", "USR2", "INT", "HUP"):
            os.kill(os.getpid(), signal.Signals[f"SIG{name}"])
        note("up", str(os.getpid()))
        """
    )
    assert leader.status() == 0
    assert leader.pid() > 0


ORPHAN = "{pool} & while [ ! -e saving ]; do sleep 0.05; done; kill -9 $$"


def test_tasks_that_survive_their_pool_save_and_end(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    leader = start(
        """
        with saves():
            note("up", str(os.getpid()))
            note("saving")
            while not heard:
                time.sleep(0.01)
            note("saved", ",".join(heard))
        time.sleep(1000)
        """,
        "--orphans-s=1000",
        shell=ORPHAN,
    )
    assert leader.read("saved") == "SIGTERM"
    assert leader.status() == 137
    assert not is_alive(leader.pid())


def test_tasks_that_survive_their_pool_may_not_go_on_for_ever(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    leader = start(
        """
        with saves():
            note("up", str(os.getpid()))
            note("saving")
            time.sleep(1000)
            time.sleep(1000)
        """,
        "--orphans-s=0.2",
        shell=ORPHAN,
    )
    assert leader.status() == 137
    assert not is_alive(leader.pid())


POOL_WITH_QUEUES = """
    import multiprocessing

    def work(number):
        with saves():
            note(f"worker{number}", str(os.getpid()))
            while not heard:
                time.sleep(0.01)
            note(f"saved{number}", ",".join(heard))

    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        manager = context.Manager()
        note("up", str(os.getpid()))
        note("queues", str(manager._process.pid))
        wait_for("go")
        workers = [context.Process(target=work, args=(number,)) for number in range(2)]
        for worker in workers:
            worker.start()
        wait_for("end")
        for worker in workers:
            worker.terminate()
            worker.join()
"""


def test_a_pool_without_its_queues_is_ended_and_its_tasks_save(start: Start) -> None:
    """It would go on saying that it is well, and its tasks would never come to an end."""
    leader = start(POOL_WITH_QUEUES, "--orphans-s=1000")
    queues, pool = leader.pid("queues"), leader.pid()
    leader.until(lambda: f"process {queues} keeps" in leader.log.read_text())
    leader.say("go")
    workers = [leader.pid(f"worker{number}") for number in range(2)]
    os.kill(queues, signal.SIGKILL)
    assert [leader.read(f"saved{number}") for number in range(2)] == ["SIGTERM"] * 2
    assert leader.status() == 1
    assert not any(is_alive(pid) for pid in (pool, *workers))


def test_a_worker_that_dies_is_no_loss_of_queues(start: Start) -> None:
    leader = start(POOL_WITH_QUEUES)
    queues = leader.pid("queues")
    leader.until(lambda: f"process {queues} keeps" in leader.log.read_text())
    leader.say("go")
    pid = leader.pid("worker0")
    os.kill(pid, signal.SIGKILL)
    time.sleep(2 * IDLE_LOOK_S + QUEUES_GONE_S)  # It must not do anything in that time.
    assert is_alive(leader.pid())
    leader.say("end")
    assert leader.status() == 0


def test_without_its_leader_a_pool_ends(start: Start) -> None:
    """Nobody would hear a warning, and the batch system believes that the block has ended."""
    leader = start(IDLE_POOL)
    pid = leader.pid()
    leader.process.kill()
    leader.until(lambda: not is_alive(pid))


def test_a_block_that_a_task_has_closed_ends_when_nothing_runs(start: Start) -> None:
    leader = start(
        """
        with presence().as_one_that(RUNS):
            presence().board.post_closed("a task has stopped")
            note("up", str(os.getpid()))
            wait_for("go")
        time.sleep(1000)
        """
    )
    pid = leader.pid()
    leader.say("go")
    assert leader.status() == 0
    assert not is_alive(pid)
    assert "a task has stopped; no task is running" in leader.log.read_text()


def test_it_closes_the_block_before_its_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTFLOW_ENDS_AT", str(time.time() + 1000))
    pool = """
        with presence().as_one_that(RUNS):
            note("up", str(os.getpid()))
        time.sleep(1000)
        """
    leader = start(pool, "--margin-s=600")
    assert leader.status() == 0
    assert "the block is about to end; no task is running" in leader.log.read_text()


def test_a_block_that_closes_before_any_task_could_run_has_failed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or blocks would follow each other for ever, when the walltime is too short."""
    monkeypatch.setenv("CKPTFLOW_ENDS_AT", str(time.time() + 1000))
    leader = start(IDLE_POOL, "--margin-s=600")
    assert leader.status() == 1
    assert "walltime has to be longer, or margin shorter" in leader.log.read_text()


def test_it_loads_nothing_big() -> None:
    """It starts on every node, before the pool."""
    code = (
        "import runpy, sys\nimport ckptflow.workflow.blocks.leader\n"
        "big = {'numpy', 'psutil', 'parsl', 'pydantic', 'typer', 'dill'} & set(sys.modules)\n"
        "sys.exit(repr(big) if big else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
