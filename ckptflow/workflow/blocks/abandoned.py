"""Blocks that a dead session of a run has left in the queue, or running: found, and cancelled.

They are not taken over: their workers know nothing but the address and the keys of an
interchange that is gone. Cancelling them is gentle, since their leaders have the tasks save.

A block is known by its name, which begins with the session (`workflow.blocks.following`), so
one is found even if the process that asked for it died before it could write its number down;
and a number that the batch system has given to somebody else meanwhile is not mistaken for
ours. Nobody is asked unless the journal says that a dead session used a batch system and did
not end in order. ``tests/unit/test_blocks.py``.
"""

from __future__ import annotations

import getpass
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ckptflow.errors import WorkflowError
from ckptflow.workflow.blocks.following import block_name

CLEARED = "blocks-cleared"  # In the journal: nothing of earlier sessions is left.
COMMAND_S = 20.0
GONE_S = 45.0  # For how long to wait until cancelled blocks are gone: Slurm's KillWait is 30.

_POLL_S = 0.5
_SLURM, _PBS = "slurm", ("pbspro", "torque")


@dataclass(frozen=True, slots=True)
class AbandonedBlock:
    """A block that a dead session has left.

    Attributes:
        batch_system: ``slurm``, ``pbspro`` or ``torque``.
        number: its number there.
        state: as the batch system calls it.
        session: the session.
        clusters: of Slurm, if the site names one.
    """

    batch_system: str
    number: str
    state: str
    session: str
    clusters: str = ""

    def as_event(self) -> dict[str, Any]:
        """Return it as the journal has it."""
        return {"job": self.number, "state": self.state, "session": self.session}


class Found(NamedTuple):
    """What there is of dead sessions.

    Attributes:
        blocks: their blocks.
        problems: a sentence for each batch system that could not be asked.
        asked: whether any had to be asked.
    """

    blocks: list[AbandonedBlock]
    problems: list[str]
    asked: bool


@dataclass(slots=True)
class _Session:
    """What the journal says of one session."""

    asked: set[tuple[str, str]] = field(default_factory=set)  # Batch systems and clusters.
    left: dict[str, str] = field(default_factory=dict)  # Jobs without an end: batch systems.
    ended: bool = False


def find_blocks(events: Iterable[Mapping[str, Any]], is_over: Callable[[str], bool]) -> Found:
    """Return the blocks of sessions that are over.

    Args:
        events: of the journal of the run.
        is_over: tells whether a session is.
    """
    sessions = {
        name: one
        for name, one in _sessions(events).items()
        if is_over(name) and one.asked and (one.left or not one.ended)
    }
    found: list[AbandonedBlock] = []
    problems: list[str] = []
    for batch_system, clusters in sorted(
        {place for one in sessions.values() for place in one.asked}
    ):
        try:
            queued = _queued(batch_system, clusters, sessions)
        except WorkflowError as error:
            problems.append(str(error))
            continue
        for job, state, name in queued:
            found += [
                AbandonedBlock(batch_system, job, state, session, clusters)
                for session in sessions
                if name.startswith(block_name(session))
            ]
    return Found(found, problems, bool(sessions))


def cancel_blocks(blocks: Iterable[AbandonedBlock], *, gone_s: float = GONE_S) -> list[str]:
    """Cancel blocks and wait until they are gone; return a sentence for each that is not."""
    left, problems = [], []
    for block in blocks:
        try:
            _run(*_command(block, "scancel", "qdel"), block.number)
            left.append(block)
        except WorkflowError as error:
            what = f"block {block.number} of a dead session was not cancelled"
            problems.append(f"{what}: {error}")
    limit_s = time.monotonic() + gone_s
    while left and time.monotonic() < limit_s:
        left = [block for block in left if _is_there(block)]
        if left:
            time.sleep(_POLL_S)
    problems += [f"block {one.number} was cancelled, but is still there" for one in left]
    return problems


def _sessions(events: Iterable[Mapping[str, Any]]) -> dict[str, _Session]:
    sessions: dict[str, _Session] = {}
    current = _Session()
    for event in events:
        match event["event"]:
            case "run-started":
                current = sessions.setdefault(str(event.get("session")), _Session())
            case "blocks-come-from":
                place = (str(event.get("batch_system")), str(event.get("clusters") or ""))
                if place[0] == _SLURM or place[0] in _PBS:
                    current.asked.add(place)
            case "block-submitted":
                current.left[str(event.get("job"))] = str(event.get("batch_system"))
            case "block-ended":
                current.left.pop(str(event.get("job")), None)
            case "run-ended":
                current.ended = True
            case "blocks-cleared":
                for one in sessions.values():
                    if one is not current:
                        one.left.clear()
                        one.ended = True
    return sessions


def _queued(
    batch_system: str, clusters: str, sessions: Mapping[str, _Session]
) -> list[tuple[str, str, str]]:
    """Return number, state and name of what a batch system has of this user."""
    if batch_system == _SLURM:
        where = [f"--clusters={clusters}"] if clusters else []
        user = getpass.getuser()
        text = _run("squeue", *where, "--noheader", f"--user={user}", "--format=%A|%T|%j")
        rows = [line.split("|", 2) for line in text.splitlines()]
        return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]
    jobs = [
        job
        for one in sessions.values()
        for job, asked in one.left.items()
        if asked == batch_system
    ]
    found = []
    for job in jobs:
        try:
            text = _run("qstat", "-f", job)
        except WorkflowError:
            continue  # It is gone: that is how PBS says so.
        name = re.search(r"^\s*Job_Name = (\S+)", text, re.MULTILINE)
        state = re.search(r"^\s*job_state = (\S+)", text, re.MULTILINE)
        if name and state:
            found.append((job, state[1], name[1]))
    return found


def _is_there(block: AbandonedBlock) -> bool:
    try:
        if block.batch_system == _SLURM:
            command = _command(block, "squeue", "")
            return bool(
                _run(*command, "--noheader", f"--jobs={block.number}", "--format=%A").strip()
            )
        return "job_state = C" not in _run("qstat", "-f", block.number)
    except WorkflowError:
        return False  # An invalid number: it is gone.


def _command(block: AbandonedBlock, of_slurm: str, of_pbs: str) -> list[str]:
    if block.batch_system != _SLURM:
        return [of_pbs]
    return [of_slurm, *([f"--clusters={block.clusters}"] if block.clusters else [])]


def _run(*command: str) -> str:
    """Return what a command prints.

    Raises:
        WorkflowError: it failed, or said nothing in time.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=COMMAND_S
        )
    except subprocess.TimeoutExpired:
        raise WorkflowError(f"{command[0]} did not answer within {COMMAND_S:.0f} s") from None
    except OSError as error:
        raise WorkflowError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or "nothing"
        raise WorkflowError(f"{command[0]} ended with {done.returncode} and said: {said}")
    return done.stdout
