"""What ranks do that their steward hears of, and what follows from it for the task.

Pure: what happened in, what to raise out. ``tests/unit/test_ranks_verdict.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ckptflow.errors import Preempted, RankLost

Kind = Literal["finished", "ended", "preempted", "raised", "lost"]

_FAILURES_MAX = 20


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rank ended.

    Attributes:
        rank: which.
        kind: finished; ended, where nothing is known but that it left by itself; preempted;
            raised; or lost: it said nothing.
        where: its process and node, for messages.
        step: the last step it is known to have reached.
        record: how its checkpointing went, as `ckptflow.workflow.attempt.outcome` has it.
        data: the result or the exception.
    """

    rank: int
    kind: Kind
    where: str
    step: int | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""


def first_failure(endings: Sequence[Ending]) -> Ending | None:
    """Return the rank that failed first; what others met is mostly a consequence."""
    return next((one for one in endings if one.kind in {"raised", "lost"}), None)


def lost(
    task: str, world: int, endings: Sequence[Ending], *, status: int | None, printed: str = ""
) -> RankLost | None:
    """Return the error of a launch in which a rank died or never came; ``None`` if none did.

    Args:
        task: name of the task.
        world: how many ranks there were to be.
        endings: of ranks, in the order in which they were heard of.
        status: exit status of what started the ranks, negative for a signal; ``None`` if it
            has not ended, or is none of our business.
        printed: the end of what was printed to stderr.
    """
    failed = first_failure(endings)
    if failed is not None and failed.kind == "raised":
        return None
    came = len({one.rank for one in endings})
    if failed is not None:
        at = "before its first step" if failed.step is None else f"after step {failed.step}"
        text = f"rank {failed.rank} of {world} ({failed.where}) died {at}"
    elif any(one.kind == "preempted" for one in endings):
        return None
    elif status:
        text = f"what started its {world} ranks {_ended(status)}"
        text += "" if came == world else f"; {came} of them came"
    elif status is not None and came < world:
        text = f"only {came} of {world} ranks came"
    else:
        return None
    message = f"{task}: {text}. All ranks were ended."
    if printed.strip():
        message += f"\nThe last that was printed:\n{printed.strip()}"
    return RankLost(message, rank=-1 if failed is None else failed.rank)


def _ended(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def stopped(task: str, world: int, endings: Sequence[Ending]) -> Preempted | None:
    """Return what a task raises whose ranks were asked to stop, and have."""
    told = [one.record["preempted"] for one in endings if "preempted" in one.record]
    if not told:
        return None
    steps = [int(one["step"]) for one in told]
    resumed = next((one["resumed_step"] for one in told), None)
    saved = min(steps)
    what = f"step {saved} is saved" if saved >= 0 else "nothing is saved"
    return Preempted(
        f"{task} stopped on {len(told)} of {world} ranks ({told[0]['reason']}); {what}.",
        task=task,
        step=saved,
        resumed_step=resumed,
    )


def record_of(endings: Sequence[Ending], error: BaseException | None) -> dict[str, Any]:
    """Return how an attempt ended, from how its ranks did; see `attempt.outcome`.

    The step is one that all ranks have reached; bytes are those of all.
    """
    records = [one.record for one in endings if one.record]
    steps = [one.get("step") for one in records]
    failures = [
        f"rank {one.rank}: {text}" for one in endings for text in one.record.get("failures", ())
    ]
    if len(failures) > _FAILURES_MAX:
        more = f"and {len(failures) - _FAILURES_MAX} more failures"
        failures = [*failures[:_FAILURES_MAX], more]
    whole = bool(steps) and None not in steps and error is None
    known = [step for step in steps if step is not None]
    return {
        "step": min(known) if known and (whole or isinstance(error, Preempted)) else None,
        "resumed_step": next((one.get("resumed_step") for one in records), None),
        "failures": failures,
        "tiers": [one for record in records[:1] for one in record.get("tiers", ())],
        "state_bytes": sum(int(one.get("state_bytes", 0)) for one in records),
        "stored_bytes": sum(int(one.get("stored_bytes", 0)) for one in records),
    }
