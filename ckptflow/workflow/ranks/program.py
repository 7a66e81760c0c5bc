"""What a launcher starts for a Python app with ranks: one rank that calls the function.

    srun --ntasks=8 … python -m ckptflow.workflow.ranks.program

The function and its arguments come from the steward. What the function returns on rank 0 is
the result; an exception of any rank is the task's. ``tests/process/test_ranked_tasks.py``.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import dill  # type: ignore[import-untyped]

from ckptflow.errors import CheckpointError, ConfigError, Preempted, RankLost
from ckptflow.workflow.outcomes import PREEMPTED_STATUS, outcome
from ckptflow.workflow.portable import sealed_error, sealed_result
from ckptflow.workflow.ranks.events import Kind
from ckptflow.workflow.ranks.member import Member, RankCheckpointer

_KEEPS_NOTHING = {"outcome": "finished"}


def main() -> int:
    """Be a rank; return the exit status."""
    try:
        member = Member.from_environment(os.environ)
    except (ConfigError, RankLost) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    task = str(member.welcome.get("app"))
    try:
        member.muster()
        packed, args, kwargs, options = dill.loads(member.data)  # noqa: S301  From home.
        function = dill.loads(packed)  # noqa: S301
        member.data = b""
        ckpt = RankCheckpointer(member, {}, **options) if "attempt" in member.welcome else None
    except BaseException as error:  # noqa: BLE001  It has to reach who waits.
        return _fail(member, error, {}, task)
    try:
        if ckpt is not None:
            kwargs[member.welcome["ckpt"]] = ckpt
        value = function(*args, **kwargs)
        record = ckpt.leave(None) if ckpt is not None else _KEEPS_NOTHING
        data = sealed_result(value, task=task) if member.place.rank == 0 else b""
    except BaseException as error:  # noqa: BLE001  It has to reach who waits.
        return _fail(member, error, _record(ckpt, error), task)
    member.end("finished", record, data)
    return 0


def _record(ckpt: RankCheckpointer | None, error: BaseException) -> dict[str, Any]:
    if ckpt is None:
        return {}
    try:
        return ckpt.leave(error)
    except CheckpointError as failure:
        return outcome(ckpt, failure)


def _fail(member: Member, error: BaseException, record: dict[str, Any], task: str) -> int:
    kind: Kind = "preempted" if isinstance(error, Preempted) else "raised"
    place = member.place
    if kind == "raised":
        error.add_note(f"It was raised on rank {place.rank} of {place.world}.")
        traceback.print_exception(error)
    member.end(kind, record, sealed_error(error, task=task))
    return PREEMPTED_STATUS if kind == "preempted" else 1


if __name__ == "__main__":
    raise SystemExit(main())
