"""When a block ends: what the environment says, or else the batch system, or else the site.

In this order: ``SLURM_JOB_END_TIME``, which newer releases of Slurm set; one question to the
batch system, asked by the leader of a block's first node when the block starts, and again
every few minutes, since an administrator may move the end; the start of the block and the
walltime that the site asks for, which the start-up script writes down.

A controller that hangs would hold up the question for ten seconds and more, so it is asked by
a process of its own, this module's `main`, which the leader ends after `QUERY_S`. The answer
goes to the other nodes through a file in the run's folder, so that a block asks once, however
many nodes it has. ``tests/unit/test_time_left.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ckptflow.workflow.blocks.board import End

ENDS_AT = "CKPTFLOW_ENDS_AT"  # Exported by the block's start-up script.
SLURM_END = "SLURM_JOB_END_TIME"
RUN_FOLDER = "CKPTFLOW_RUN_FOLDER"
_SLURM_JOB, _PBS_JOB = "SLURM_JOB_ID", "PBS_JOBID"
_NODE_NUMBERS = ("SLURM_NODEID", "PALS_NODEID", "PMI_RANK", "PMIX_RANK")

QUERY_S = 3.0
REFRESH_S = 300.0
KILL_WAIT_S = 30.0  # Slurm's default; with PBS it is 10, with others unknown.
_PBS_KILL_DELAY_S = 10.0


def end_in(environment: Mapping[str, str]) -> End | None:
    """Return the end that the environment names, the batch system's own first.

    A value that is no number is passed over: the environment belongs to the site.
    """
    for name, source in ((SLURM_END, "Slurm's environment"), (ENDS_AT, "the site's walltime")):
        with contextlib.suppress(KeyError, ValueError):
            return End(float(environment[name]), source)
    return None


def can_be_asked(environment: Mapping[str, str]) -> bool:
    """Tell whether there is a batch system that knows more."""
    return any(environment.get(name) for name in (_SLURM_JOB, _PBS_JOB))


def asking_command() -> list[str]:
    """Return the command of a process that asks, and prints what `answer_of` reads."""
    return [sys.executable, "-m", "ckptflow.workflow.blocks.time_left"]


def answer_of(text: str) -> tuple[End | None, float | None]:
    """Return the end, and the seconds between TERM and KILL, from what the process printed."""
    try:
        fields = json.loads(text)
        end = fields.get("ends_at_s")
        wait = fields.get("kill_wait_s")
        return (
            End(float(end), str(fields.get("source", ""))) if end is not None else None,
            float(wait) if wait is not None else None,
        )
    except (ValueError, TypeError, AttributeError):
        return None, None


def seconds_of(clock: str) -> float | None:
    """Return the seconds in a time such as ``1-02:03:04``, ``2:03:04`` or ``5:00``."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", clock.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    if match[1] and match[3] is None:  # Days and hours: "1-02".
        return 86400.0 * days + 3600.0 * seconds
    return 86400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds


def ask_slurm(job: str) -> dict[str, object]:
    """Return what Slurm says of a job: when it ends, and how long KILL waits after TERM."""
    left_s = seconds_of(_output("squeue", "--noheader", f"--jobs={job}", "--format=%L"))
    answer: dict[str, object] = {"source": "squeue"}
    if left_s is not None:
        answer["ends_at_s"] = time.time() + left_s
    setting = re.search(
        r"^KillWait\s*=\s*(\d+)", _output("scontrol", "show", "config"), re.MULTILINE
    )
    answer["kill_wait_s"] = float(setting[1]) if setting else KILL_WAIT_S
    return answer


def ask_pbs(job: str) -> dict[str, object]:
    """Return what PBS says of a job."""
    text = _output("qstat", "-f", job)

    def field(name: str) -> str:
        found = re.search(rf"^\s*{re.escape(name)} = (.*)$", text, re.MULTILINE)
        return found[1].strip() if found else ""

    answer: dict[str, object] = {"source": "qstat", "kill_wait_s": _PBS_KILL_DELAY_S}
    walltime_s = seconds_of(field("Resource_List.walltime"))
    if walltime_s is None:
        return answer
    try:
        began_s = time.mktime(time.strptime(field("stime"), "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        used_s = seconds_of(field("resources_used.walltime"))
        if used_s is None:
            return answer
        began_s = time.time() - used_s
    answer["ends_at_s"] = began_s + walltime_s
    return answer


def _output(*command: str) -> str:
    """Return what a command prints, or nothing if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def main() -> None:
    """Ask, as the first node of the block, or read what that has heard; print it."""
    environment = os.environ
    slurm, pbs = environment.get(_SLURM_JOB), environment.get(_PBS_JOB)
    job = slurm or pbs
    if not job:
        return
    folder = environment.get(RUN_FOLDER)
    # A requeued job keeps its number, but not its end.
    name = re.sub(r"[^A-Za-z0-9]", "_", f"{job}-{environment.get('SLURM_RESTART_COUNT', '0')}")
    shared = Path(folder or ".") / "blocks" / f"ends-{name}.json"
    if folder and any(environment.get(name, "0") != "0" for name in _NODE_NUMBERS):
        with contextlib.suppress(OSError):
            sys.stdout.write(shared.read_text(encoding="utf-8"))
        return
    text = json.dumps(ask_slurm(job) if slurm else ask_pbs(job))
    sys.stdout.write(text)
    sys.stdout.flush()
    if folder:
        with contextlib.suppress(OSError):
            shared.parent.mkdir(mode=0o700, exist_ok=True)
            partial = shared.with_name(f".{shared.stem}.{os.getpid()}.partial")
            partial.write_text(text, encoding="utf-8")
            partial.replace(shared)


if __name__ == "__main__":
    main()
