"""Blocks from Slurm. ``tests/unit/test_slurm_provider.py``, ``tests/slurm/test_sites.py``."""

from __future__ import annotations

import re
import shlex

from parsl.jobs.states import JobState
from parsl.providers import SlurmProvider

from ckptflow.workflow.blocks.polled import Polled, in_batches

# All that Slurm can say of a job. One that waits counts as waiting, also if it ran before:
# blocks are limited in number, and it may come back.
STATES = {
    **dict.fromkeys(
        ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
         "SUSPENDED", "STOPPED", "POWER_UP_NODE", "EXPEDITING"),
        JobState.PENDING,
    ),
    **dict.fromkeys(
        ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"), JobState.RUNNING
    ),
    **dict.fromkeys(("CANCELLED", "REVOKED"), JobState.CANCELLED),
    **dict.fromkeys(("TIMEOUT", "DEADLINE", "PREEMPTED"), JobState.TIMEOUT),
    **dict.fromkeys(
        ("FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "SPECIAL_EXIT", "LAUNCH_FAILED",
         "RECONFIG_FAIL"),
        JobState.FAILED,
    ),
    "COMPLETED": JobState.COMPLETED,
}  # fmt: skip
LOST = frozenset({"NODE_FAIL", "BOOT_FAIL"})

_UNKNOWN_JOB = re.compile(r"invalid job id|already completing or completed", re.IGNORECASE)


class SlurmBlocks(Polled, SlurmProvider):  # type: ignore[misc]
    """Parsl's provider, whose jobs are asked for by ``squeue``, and then by ``sacct``.

    ``squeue`` tells how a job has ended for as long as Slurm remembers it; ``sacct`` is asked
    for jobs that it does not know any more, where there is accounting.
    """

    scheduler = "Slurm"

    @property
    def _clusters(self) -> str:
        return f" --clusters={self.clusters}" if self.clusters else ""

    def _status(self) -> None:
        for batch in in_batches(self._open_jobs()):
            ids = ",".join(batch)
            status, out, said = self.execute_wait(
                f"squeue{self._clusters} --noheader --states=all --format='%i %T' --job='{ids}'"
            )
            if status and not _UNKNOWN_JOB.search(said):
                self._not_answered(status, said)
                return
            self._answered()
            unseen = self._take(out, batch)
            if unseen and self._has_accounting:
                ids = ",".join(unseen)
                _, out, _ = self.execute_wait(
                    f"sacct{self._clusters} -X --noheader --format=jobid,state%20 --job='{ids}'"
                )
                unseen = self._take(out, unseen)
            self._unseen(unseen)

    @property
    def _has_accounting(self) -> bool:
        return str(self._cmd).startswith("sacct")  # Parsl has tried it.

    def _take(self, out: str, asked: list[str]) -> list[str]:
        """Note the states in an answer, and return the jobs that it says nothing of."""
        seen = set()
        for line in out.splitlines():
            job, _, rest = line.strip().partition(" ")
            word = rest.split()[0].rstrip("+") if rest.split() else ""
            if job not in asked:
                continue  # The name of a cluster, or a part of a job.
            seen.add(job)
            if word in STATES:
                self._update(job, STATES[word], word, lost=word in LOST)
            else:
                self._unknown_state(job, word)
        return [job for job in asked if job not in seen]

    def cancel(self, job_ids: list[str]) -> list[bool]:
        """Cancel jobs; tell of each whether it is gone or going."""
        failed: set[str] = set()
        open_jobs = [job for job in job_ids if not self.resources[job]["status"].terminal]
        for job in open_jobs:
            status, _, said = self.execute_wait(f"scancel{self._clusters} {job}")
            if status and not _UNKNOWN_JOB.search(said):
                self._not_answered(status, said)
                failed.add(job)
                break  # Each of the others would take as long to fail.
            self._update(job, JobState.CANCELLED, "CANCELLED")
        failed.update(job for job in open_jobs if not self.resources[job]["status"].terminal)
        return [job not in failed for job in job_ids]

    def _command_to_end(self, job_name: str) -> str:
        return f"scancel{self._clusters} --me --name={shlex.quote(job_name)}"
