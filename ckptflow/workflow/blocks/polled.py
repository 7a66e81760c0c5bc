"""What asking a batch system has in common: how jobs are watched, and trouble is borne.

Parsl's providers ask about jobs that have ended, and then forget how; they take states that
they do not know for no state; they leave out a whole round when one job is unknown, and raise
when a command hangs. So the classes here ask themselves. What they leave to Parsl is the batch
script and its submission.

A scheduler that does not answer changes nothing: jobs stay what they were. That it does not
is told once, and that it does again. ``tests/unit/test_slurm_provider.py``,
``tests/unit/test_pbs_provider.py``.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from parsl.jobs.states import JobState
from parsl.providers.errors import SubmitException

from ckptflow.errors import WorkflowError
from ckptflow.workflow.blocks.commands import TIMED_OUT, run_command
from ckptflow.workflow.blocks.ends import BlockStatus

JOBS_A_QUESTION = 50
UNSEEN_MAX = 2  # So often in a row a scheduler may not know a job, before it is gone.

_log = logging.getLogger("ckptflow")


class Polled:
    """Goes before a Parsl provider whose jobs are asked for by commands.

    Attributes:
        poll_s: seconds between two questions.
        notice: told of trouble, and of its end.
        resources: Parsl's record of jobs, by their ids.
    """

    scheduler = "the scheduler"
    clock: Callable[[], float] = staticmethod(time.monotonic)

    poll_s: float
    notice: Callable[[str], None]
    resources: dict[str, dict[str, Any]]
    cmd_timeout: float

    def __init__(self, *, poll_s: float, notice: Callable[[str], None], **options: Any) -> None:
        self.poll_s, self.notice = poll_s, notice
        self._silent_since_s: float | None = None
        self._unanswered: list[str] = []  # Names of jobs of which it is unknown if they exist.
        super().__init__(**options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(poll_s={self.poll_s:g}, jobs={len(self.resources)})"

    @property
    def status_polling_interval(self) -> float:
        """Seconds between two questions to the scheduler."""
        return self.poll_s

    def execute_wait(self, cmd: str, timeout: float | None = None) -> tuple[int, str, str]:
        """Run a command of the scheduler; see `run_command`."""
        return run_command(cmd, timeout or self.cmd_timeout)

    def submit(self, command: str, tasks_per_node: int, job_name: str = "parsl") -> str:
        """Submit a block and return the id of its job.

        A submission that was not answered may have succeeded. Its job is looked for by its name
        and ended before the next one is sent, so that there are never more than there may be.

        Raises:
            WorkflowError: it was refused; the message is the scheduler's.
        """
        self._end_unanswered()
        try:
            submitted: str = super().submit(command, tasks_per_node, job_name)  # type: ignore[misc]
        except SubmitException as error:
            if error.retcode == TIMED_OUT or "did not answer" in str(error.stderr):
                self._unanswered.append(error.job_name)
            said = " ".join(str(error.stderr or error.stdout or error.message).split())
            raise WorkflowError(said or f"exit status {error.retcode}") from None
        return submitted

    def _end_unanswered(self) -> None:
        while self._unanswered:
            status, _, said = self.execute_wait(self._command_to_end(self._unanswered[0]))
            if status:
                raise WorkflowError(" ".join(said.split()) or f"exit status {status}")
            del self._unanswered[0]

    @abstractmethod
    def _command_to_end(self, job_name: str) -> str:
        """Return the command that ends the job of a name, and is content if there is none."""

    def _open_jobs(self) -> list[str]:
        return [job for job, one in self.resources.items() if not one["status"].terminal]

    def _update(self, job: str, state: JobState, said: str, *, lost: bool = False) -> None:
        """Note the state of a job, and for how long it has run if it has ended."""
        record, now_s = self.resources[job], self.clock()
        record["unseen"] = 0
        if state == JobState.RUNNING:
            record.setdefault("running_since_s", now_s)
        since_s = record.get("running_since_s")
        record["status"] = BlockStatus(
            state,
            f"{self.scheduler} says {said} of job {job}",
            lasted_s=None if since_s is None else now_s - since_s,
            lost=lost,
            stdout_path=record["job_stdout_path"],
            stderr_path=record["job_stderr_path"],
        )

    def _unseen(self, jobs: Iterable[str]) -> None:
        """Note that the scheduler does not know jobs; after some times they are gone."""
        for job in jobs:
            record = self.resources[job]
            record["unseen"] = record.get("unseen", 0) + 1
            if record["unseen"] >= UNSEEN_MAX:
                self._update(job, JobState.COMPLETED, "nothing any more")

    def _unknown_state(self, job: str, state: str) -> None:
        record = self.resources[job]
        if record.get("odd") != state:
            record["odd"] = state
            _log.warning("job %s has the state %r, which is unknown here", job, state)

    def _answered(self) -> None:
        if self._silent_since_s is not None:
            self.notice(f"{self.scheduler} answers again")
            _log.warning("%s answers again", self.scheduler)
        self._silent_since_s = None

    def _not_answered(self, status: int, said: str) -> None:
        if self._silent_since_s is None:
            self._silent_since_s = self.clock()
            text = " ".join(said.split()) or f"exit status {status}"
            text = f"{self.scheduler} does not tell how jobs are: {text}"
            _log.warning("%s", text)
            self.notice(text)


def in_batches(jobs: Sequence[str], size: int = JOBS_A_QUESTION) -> Iterator[list[str]]:
    """Yield the jobs, not too many at once."""
    rest = iter(jobs)
    while batch := list(islice(rest, size)):
        yield batch
