"""Codes that are asked to end, or cannot be, or do not listen; each goes on afterwards.

Handlers for signals live in main threads. So each test is the worker, and a child sends it the
signal when the code has got far enough.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from external_tasks import CODE, results

import ckptflow as cf
from ckptflow.errors import Preempted
from ckptflow.flush import Flushing
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.tiers.posix import PosixTier
from ckptflow.workflow.attempt import TaskSpec, begin_attempt, tiers_as_text
from ckptflow.workflow.command import TaskCommand
from ckptflow.workflow.deadline import Deadline
from ckptflow.workflow.external import parse_code
from ckptflow.workflow.external.processes import marked
from ckptflow.workflow.identity import identity_of

LONG_S = 200.0


class Worker:
    """Runs attempts of one task in this process."""

    def __init__(self, folder: Path, **options: Any) -> None:
        site = cf.load_site("local_threads").with_store(folder / "store")
        code = parse_code(
            {"watch": "restart.*", "ends_with": b"the end\n", "with_files": ("log",), **options}
        )
        assert code is not None
        self.folder = folder / "work" / "command"
        self.store = folder / "store"
        self.spec = TaskSpec(
            run="exp", app="command", session="s", tiers=tiers_as_text(site.tiers), every=None,
            keep="all", packing=None, capture=None, flush_every={}, flushing=Flushing(),
            ends_at_s=None, margin_s=0, home=("elsewhere", 0), alone=True,
            code=replace(code, work=str(folder / "work")),
        )  # fmt: skip

    def attempt(self, arguments: str, spec: TaskSpec | None = None) -> Any:
        def command(ckpt: Any) -> str:
            return f"{CODE} {arguments} {ckpt.restart_arg('-r {path}')}"

        task = TaskCommand(command, identity_of(command, ()))
        with begin_attempt(spec or self.spec, lambda: "command") as attempt:
            return task._run(spec or self.spec, attempt, (), {})

    def stopped(self, arguments: str, when: str, number: str = "USR1") -> Preempted:
        """Run an attempt that gets a signal when a file is there; return what it raised."""
        there = self.folder / when
        sender = subprocess.Popen(
            [
                "bash",
                "-c",
                f"while ! test -e {there}; do sleep 0.05; done; kill -{number} $PPID",
            ]
        )
        try:
            with pytest.raises(Preempted) as caught:
                self.attempt(arguments)
        finally:
            sender.kill()
            sender.wait()
        return caught.value

    def steps(self) -> list[int]:
        lineage = Lineage([PosixTier(self.store, level=3)], LineageId("exp", "command"))
        return [found.id.step for found in reversed(lineage.valid())]

    def said(self, attempt: int) -> str:
        return (self.folder / "ckptflow" / f"attempt-{attempt}" / "stdout").read_text()


ENDLESS = "--steps 100000000 --every 10 --step-s 0.002"


def check_that_it_goes_on(worker: Worker, error: Preempted, tmp_path: Path) -> None:
    """Finish what was stopped, and compare with what was not."""
    assert list(marked(lambda mark: str(tmp_path) in mark)) == []
    steps = error.step + 30
    assert worker.attempt(f"--steps {steps} --every 10") == 0
    assert worker.said(2).split() == ["from", str(error.step)]
    calm = tmp_path / "calm"
    calm.mkdir()
    command = f"{CODE} --steps {steps} --every 10"
    subprocess.run(["bash", "-c", command], cwd=calm, check=True, stdout=subprocess.DEVNULL)
    assert results(worker.folder) == results(calm)


def test_a_code_is_asked_by_a_file(tmp_path: Path) -> None:
    worker = Worker(tmp_path, stop_file="EXIT", grace_s=LONG_S)
    error = worker.stopped(f"{ENDLESS} --stop-file EXIT", when="restart.20")
    stopped_at = int(worker.said(1).split()[-1])
    assert error.step == stopped_at  # It wrote one more, of the very step.
    assert worker.steps()[-1] == stopped_at
    assert "signal SIGUSR1 was received" in str(error)
    assert "has ended" in str(error)
    check_that_it_goes_on(worker, error, tmp_path)


@pytest.mark.slow
def test_a_code_is_asked_by_a_signal(tmp_path: Path) -> None:
    worker = Worker(tmp_path, stop_signal="USR1", grace_s=LONG_S)
    error = worker.stopped(f"{ENDLESS} --stop-signal", when="restart.20", number="TERM")
    assert error.step == int(worker.said(1).split()[-1])
    check_that_it_goes_on(worker, error, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"stop_file": "EXIT", "grace_s": 0.2},  # The code does not look for it.
        pytest.param(
            {"stop_signal": "USR1", "grace_s": LONG_S},  # Nobody handles it.
            marks=pytest.mark.slow,
        ),
        pytest.param({}, marks=pytest.mark.slow),
    ],
)
def test_a_code_that_does_not_listen_is_killed(tmp_path: Path, options: dict[str, Any]) -> None:
    worker = Worker(tmp_path, **options)
    error = worker.stopped(ENDLESS, when="restart.20")
    assert "was killed" in str(error)
    assert error.step >= 10
    assert error.step in worker.steps()
    check_that_it_goes_on(worker, error, tmp_path)


def test_a_code_that_heard_the_signal_by_itself_has_not_finished(tmp_path: Path) -> None:
    """It ends with 0 within the moment, before the watch is looked at."""
    worker = Worker(tmp_path, stop_signal="USR1")

    def command(ckpt: Any) -> str:
        return f"{CODE} --steps 20; kill -USR1 {os.getpid()}"

    task = TaskCommand(command, identity_of(command, ()))
    with (
        begin_attempt(worker.spec, lambda: "command") as attempt,
        pytest.raises(Preempted, match="SIGUSR1") as caught,
    ):
        task._run(worker.spec, attempt, (), {})
    assert caught.value.step == 20


def test_a_code_is_asked_early_enough_before_the_end(tmp_path: Path) -> None:
    """There are 1000 s left, and the code may take 2000 s to end."""
    worker = Worker(tmp_path, stop_file="EXIT", grace_s=2000.0)
    spec = replace(worker.spec, ends_at_s=time.time() + 1000)
    with pytest.raises(Preempted, match="the time of the run leaves") as caught:
        worker.attempt(f"{ENDLESS} --stop-file EXIT", spec)
    assert caught.value.step == int(worker.said(1).split()[-1])


def test_a_code_that_has_nothing_to_save_yet_is_killed_all_the_same(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    error = worker.stopped("--steps 100000000 --every 100000000 --step-s 0.01", when="log")
    assert error.step == -1
    assert "nothing is saved" in str(error)


class Clocked:
    """A watch for a stopper, in a time of its own."""

    def __init__(self, left_s: Callable[[], float]) -> None:
        self.left_s, self.deadline = left_s, Deadline(0.0, 0.0, "allocation")

    def __call__(self) -> str | None:
        return None

    def save_time_s(self) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("asked", "left_s", "stops"),
    [(True, 33.0, False), (True, 31.0, True), (False, 3.0, False), (False, 2.0, True)],
)
def test_only_who_can_be_asked_gets_time_for_it(
    tmp_path: Path, asked: bool, left_s: float, stops: bool
) -> None:
    from ckptflow.workflow.external.folder import take_over
    from ckptflow.workflow.external.stopping import Stopper

    code = parse_code({"watch": "r.*", **({"stop_file": "EXIT"} if asked else {})})
    assert code is not None
    watch: Any = Clocked(lambda: left_s)
    stopper = Stopper(code, watch, take_over(tmp_path / "work", "exp/a", 1))
    assert (stopper._why() is not None) is stops


@pytest.mark.slow
def test_the_signals_are_as_before_afterwards(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    Worker(tmp_path).stopped(ENDLESS, when="restart.20")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before
