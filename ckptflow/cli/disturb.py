"""Run the example workflow in processes of its own, and kill the ones that are busy.

Whom to kill, and what it cost, is read from the store: a claim names the process of an attempt,
a resume record the step that it went on from. Every process carries a token in its environment,
so that no other process is ever signalled, and none survives. No step waits by time alone.
``tests/process/test_disturb.py`` does it with a workflow of a few lines, and
``tests/process/test_demo.py`` with the real one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TypeVar

import psutil

from ckptflow.errors import NotFoundError, WorkflowError
from ckptflow.model import CheckpointId
from ckptflow.store.catalog import AttemptRecord, Lineage, lineages
from ckptflow.tiers.posix import PosixTier
from ckptflow.units import format_seconds

PATIENCE_S = 600.0
"""Limit of each wait, far beyond what a slow machine needs: it ends a demo that hangs."""
POLL_S = 0.05
TOKEN = "CKPTFLOW_DEMO"  # noqa: S105 - the name of an environment variable.
DONE_FRACTION_MAX = 0.8
"""A task that has done more than this part may end before the signal reaches it."""
STRIKE_WITHIN_S = 1.0
"""A kill strikes at a random moment between two checkpoints, but no later than this."""
LOG = "output.log"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How much work the workflow does, in the words of its options."""

    seeds: int = 2
    size: int = 256
    sim_steps: int = 8_000
    train_steps: int = 16_000

    @property
    def options(self) -> list[str]:
        """Command-line options of the workflow script."""
        return [
            f"--seeds={self.seeds}",
            f"--size={self.size}",
            f"--sim-steps={self.sim_steps}",
            f"--train-steps={self.train_steps}",
        ]

    def steps(self, task: str) -> int:
        """Return how many steps ``task`` takes."""
        return self.sim_steps if task.startswith("simulate") else self.train_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A task that a kill interrupted.

    Attributes:
        kill: number of the kill, from 1.
        attempt: the one that died.
        newest: the newest checkpoint when its process was gone.
        lost_s: age of that checkpoint then; the work done since is lost.
        resumed_step: where the next attempt went on from, once it has.
    """

    kill: int
    victim: str
    task: str
    attempt: int
    newest: CheckpointId
    lost_s: float
    resumed_step: int | None = None


class NoVictim(WorkflowError):
    """The workflow ended well before there was anything to kill."""


class Execution:
    """The workflow under one run name: its main process, and what it has committed.

    Args:
        script: the workflow script.
        run: name of the run; its results and its log go to ``out / run``.
        out: folder of all runs, with the store in it.
        work: how much work the workflow does.
        site: the TOML file of a site whose tasks run in worker processes of this machine.
    """

    def __init__(self, script: Path, run: str, out: Path, work: Workload, site: Path) -> None:
        self.run, self.work = run, work
        self.folder = out / run
        self.tier = PosixTier(out / "store", name="store")
        self.losses: list[Loss] = []
        self.kills = 0
        self._token = secrets.token_hex(8)
        self._main: subprocess.Popen[bytes] | None = None
        self._command = [
            *(sys.executable, str(script), f"--site={site}", f"--name={run}"),
            *(f"--out={self.folder}", f"--store={self.tier.root}", *work.options),
        ]

    # --- processes ---

    def start(self) -> None:
        """Start the script, with the same command each time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOG).open("ab") as log:
            self._main = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env={**os.environ, TOKEN: self._token},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is the demo's to handle.
            )

    def wait(self) -> None:
        """Wait until the script has ended well.

        Raises:
            WorkflowError: it ended otherwise, or not at all.
        """
        try:
            status = self._started.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not end within {format_seconds(PATIENCE_S)}") from None
        if status != 0:
            raise self._failure(f"ended with status {status}")

    def kill_all(self) -> None:
        """Kill the script and all that it started, until a look finds nothing left."""
        limit = time.monotonic() + PATIENCE_S
        while found := [pid for pid in psutil.pids() if self._owns(pid)]:
            for pid in found:
                _kill(pid)
            if time.monotonic() > limit:
                raise WorkflowError(f"processes {found} of the {self.run} run do not die")
            time.sleep(POLL_S)
        if self._main:
            self._main.wait()

    def forget(self) -> None:
        """Kill all of it, and delete what it left, as if it had never begun."""
        self.kill_all()
        for folder in (self.folder, self.tier.root / "lineages" / self.run):
            shutil.rmtree(folder, ignore_errors=True)
        self.losses.clear()
        self.kills = 0

    # --- kills ---

    def kill_worker(self, app: str, *, done: float) -> list[Loss]:
        """Kill the worker of a task of ``app``, and wait until the task has resumed.

        Args:
            app: name of the app.
            done: part of its steps that the task has to have done.

        Raises:
            NoVictim: there was nothing to kill any more.
            WorkflowError: the task did not resume.
        """
        task = self._victim(app, done)
        attempt = task.attempts()[-1]
        pid = _claimed_pid(attempt)
        _kill(pid)
        self._until(lambda: not self._owns(pid), f"process {pid} to be gone")
        losses = self._note_kill([task], f"worker {pid}")
        if not losses or losses[0].attempt != attempt.attempt:
            raise NoVictim(self._text(f"had ended {task.id} when the signal came"))
        self._until(
            lambda: any(
                later.attempt > attempt.attempt and later.resume for later in task.attempts()
            ),
            f"the next attempt of {task.id}",
        )
        return losses

    def kill_main(self, app: str, *, done: float) -> list[Loss]:
        """Kill the script and all that it started, as the end of an allocation does.

        Args:
            app: name of an app of which a task has to be interrupted.
            done: part of its steps that the task has to have done.

        Raises:
            NoVictim: there was nothing to kill any more.
        """
        self._victim(app, done)
        running = [task for task in self.tasks() if self._runs(task.attempts())]
        main = self._started
        main.kill()
        self.kill_all()
        losses = self._note_kill(running, f"main process {main.pid} and its workers")
        if not losses:
            raise NoVictim(self._text("had ended every task when the signal came"))
        return losses

    def interruptible(self, app: str, done: float = 0.0) -> list[Lineage]:
        """Return tasks of ``app`` whose attempt runs, has committed, and goes on a while.

        ``done`` is the part of its steps that a task has to have done.
        """
        return [
            task
            for task in self.tasks()
            if task.id.task.startswith(f"{app}-")
            and (newest := task.newest()) is not None
            and done <= newest.id.step / self.work.steps(task.id.task) <= DONE_FRACTION_MAX
            and self._runs(attempts := task.attempts())
            and newest.id.attempt == attempts[-1].attempt
        ]

    # --- the store ---

    def tasks(self) -> list[Lineage]:
        """Return the lineages of the run."""
        return [Lineage([self.tier], found) for found in lineages([self.tier], self.run)]

    def final_losses(self) -> list[Loss]:
        """Return what every kill cost, with the steps at which the tasks resumed."""
        attempts = {task.id.task: task.attempts() for task in self.tasks()}
        return [
            replace(
                loss,
                resumed_step=next(
                    (
                        resumed_step(later)
                        for later in attempts[loss.task]
                        if later.attempt > loss.attempt
                    ),
                    None,
                ),
            )
            for loss in self.losses
        ]

    # --- inside ---

    def _victim(self, app: str, done: float) -> Lineage:
        """Return a task to interrupt, at a random moment between two of its checkpoints."""
        what = f"a task {app!r} to interrupt"
        try:
            task = self._until(lambda: self.interruptible(app, done), what)[0]
            time.sleep(_pace_s(task) * secrets.randbelow(1000) / 1000)
            return self._until(lambda: self.interruptible(app, done), what)[0]
        except WorkflowError as error:
            if self._started.poll() == 0:
                raise NoVictim(str(error)) from error
            raise

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._main is not None, "the script was started"
        return self._main

    def _owns(self, pid: int) -> bool:
        """Return whether ``pid`` is alive and was started, at whatever remove, by us."""
        try:
            return bool(psutil.Process(pid).environ().get(TOKEN) == self._token)
        except (psutil.Error, ValueError, OSError):  # Gone, a zombie, or somebody else's.
            return False

    def _runs(self, attempts: list[AttemptRecord]) -> bool:
        """Return whether the last attempt has not ended, and its process lives."""
        return _is_open(attempts) and self._owns(_claimed_pid(attempts[-1]))

    def _note_kill(self, tasks: list[Lineage], victim: str) -> list[Loss]:
        """Note what open tasks lost. Their processes are gone: nothing commits any more."""
        now = datetime.now(UTC)
        self.kills += 1
        losses = [
            Loss(
                kill=self.kills,
                victim=victim,
                task=task.id.task,
                attempt=attempts[-1].attempt,
                newest=newest.id,
                lost_s=_age_s(task.manifest(newest).created, now),
            )
            for task in tasks
            if _is_open(attempts := task.attempts()) and (newest := task.newest()) is not None
        ]
        self.losses += losses
        return losses

    def _until(self, condition: Callable[[], T], what: str) -> T:
        """Wait until ``condition`` gives something true, while the script runs."""
        limit = time.monotonic() + PATIENCE_S
        while True:
            status = self._started.poll()
            with contextlib.suppress(NotFoundError):  # Deleted between listing and reading.
                if found := condition():
                    return found
            if status is not None:
                raise self._failure(f"ended with status {status} before there was {what}")
            if time.monotonic() > limit:
                raise self._failure(f"gave in {format_seconds(PATIENCE_S)} no sign of {what}")
            time.sleep(POLL_S)

    def _failure(self, what: str) -> WorkflowError:
        return WorkflowError(self._text(what))

    def _text(self, what: str) -> str:
        return f"the {self.run} run {what}; kills={self.kills}; see {self.folder / LOG}"


def resumed_step(record: AttemptRecord) -> int | None:
    """Return the step that an attempt went on from; ``None`` if it began anew."""
    step = record.resume["step"] if record.resume else None
    return None if step is None else int(step)


def _is_open(attempts: list[AttemptRecord]) -> bool:
    """Return whether the last attempt was claimed and has not said that it ended."""
    return bool(attempts) and attempts[-1].claim is not None and attempts[-1].end is None


def _claimed_pid(record: AttemptRecord) -> int:
    return int(record.claim["pid"]) if record.claim else -1


def _age_s(created: str, now: datetime) -> float:
    return max(0.0, (now - datetime.fromisoformat(created)).total_seconds())


def _pace_s(task: Lineage) -> float:
    """Return the time between the two newest checkpoints of ``task``."""
    newest = islice(task.valid_newest_first(), 2)
    created = [datetime.fromisoformat(task.manifest(one).created) for one in newest]
    pace_s = (created[0] - created[-1]).total_seconds() if created else 0.0
    return min(max(0.0, pace_s), STRIKE_WITHIN_S)


def _kill(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()
