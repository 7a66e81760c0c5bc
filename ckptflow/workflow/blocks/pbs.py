"""Blocks from PBS Professional or OpenPBS. ``tests/unit/test_pbs_provider.py``."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from parsl.jobs.states import JobState
from parsl.launchers import MpiExecLauncher
from parsl.providers import PBSProProvider

from ckptflow.workflow.blocks.polled import Polled, in_batches

# What qstat says of a job that has not ended. One that exits holds its nodes until it has.
STATES = {
    **dict.fromkeys("QHWTSUM", JobState.PENDING),
    **dict.fromkeys("RBE", JobState.RUNNING),
}
_ENDED = frozenset("FXC")
_SIGNALLED = 256  # PBS adds it to the number of the signal that ended a job.
_WALLTIME = -29
_UNKNOWN_JOB = re.compile(r"unknown job id|job has finished", re.IGNORECASE)


class PbsBlocks(Polled, PBSProProvider):  # type: ignore[misc]
    """Parsl's provider, whose jobs are asked for by ``qstat``, also after they have ended."""

    scheduler = "PBS"

    def _status(self) -> None:
        for batch in in_batches(self._open_jobs()):
            status, out, said = self.execute_wait(f"qstat -x -f -F json {' '.join(batch)}")
            jobs = _jobs_in(out)
            if jobs is None or (status and not _UNKNOWN_JOB.search(said)):
                self._not_answered(status, said or "qstat printed no JSON")
                return
            self._answered()
            seen = {job: fields for job in batch for fields in [_fields(jobs, job)] if fields}
            for job, fields in seen.items():
                self._take(job, fields)
            self._unseen(job for job in batch if job not in seen)

    def _take(self, job: str, fields: dict[str, Any]) -> None:
        word = str(fields.get("job_state", ""))
        if word in STATES:
            self._update(job, STATES[word], word)
        elif word in _ENDED:
            code = fields.get("Exit_status")
            said = f"{word}, exit status {code}"
            self._update(job, _ending(code), said)
        else:
            self._unknown_state(job, word)

    def cancel(self, job_ids: list[str]) -> list[bool]:
        """Delete jobs; tell of each whether it is gone or going."""
        open_jobs = [job for job in job_ids if not self.resources[job]["status"].terminal]
        for job in open_jobs:
            status, _, said = self.execute_wait(f"qdel {job}")
            if status and not _UNKNOWN_JOB.search(said):
                self._not_answered(status, said)
                break  # Each of the others would take as long to fail.
            self._update(job, JobState.CANCELLED, "deleted")
        return [bool(self.resources[job]["status"].terminal) for job in job_ids]

    def _command_to_end(self, job_name: str) -> str:
        return (
            f'jobs=$(qselect -N {shlex.quote(job_name)}) && {{ [ -z "$jobs" ] || qdel $jobs; }}'
        )


class PbsMpiExec(MpiExecLauncher):  # type: ignore[misc]
    """Parsl's launcher, with its list of nodes beside the batch script.

    Parsl writes it into the current folder, which is the user's.
    """

    def __call__(
        self, command: str, tasks_per_node: int, nodes_per_block: int, script_dir: str = ""
    ) -> str:
        """Return the lines of the batch script that start the workers."""
        text = super().__call__(command, tasks_per_node, nodes_per_block, script_dir)
        beside = 'HOSTFILE="${SCRIPT_DIR:+$SCRIPT_DIR/}$JOBNAME.nodes"'
        return str(text).replace('HOSTFILE="$JOBNAME.nodes"', beside)


def _jobs_in(out: str) -> dict[str, dict[str, Any]] | None:
    """Return the jobs in the answer of ``qstat``; ``None`` if it is none."""
    if not out.strip():
        return {}
    try:
        jobs = json.loads(out, strict=False).get("Jobs", {})
    except (ValueError, AttributeError):
        return None
    return jobs if isinstance(jobs, dict) else None


def _fields(jobs: dict[str, dict[str, Any]], job: str) -> dict[str, Any] | None:
    """Return what is said of a job, whose id may be written with or without its server."""
    number = job.partition(".")[0]
    return next((one for key, one in jobs.items() if key.partition(".")[0] == number), None)


def _ending(code: object) -> JobState:
    if code == 0:
        return JobState.COMPLETED
    if code == _WALLTIME or (isinstance(code, int) and code > _SIGNALLED):
        return (
            JobState.TIMEOUT
        )  # At its walltime, or by somebody who may: the nodes are taken back.
    return JobState.FAILED
