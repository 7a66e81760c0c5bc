"""How an attempt ended, as the record beside its claim says it; and the tiers it used.

Without Parsl, whose import takes a second: every rank of a task needs this.
``tests/unit/test_task_function.py``, ``tests/process/test_attach.py``.
"""

from __future__ import annotations

import functools
import json
import traceback
from typing import Any

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import FencedError, Preempted
from ckptflow.site.tiers import TierModel, open_tiers, tier_model
from ckptflow.tiers.tier import Tier

PREEMPTED_STATUS = 75  # EX_TEMPFAIL: try again later.

_ERROR_TEXT_MAX = 2000
_FAILURES_MAX = 20  # Told one by one; the others are counted.


def tiers_as_text(models: tuple[TierModel, ...]) -> str:
    """Return tier models as text that `opened_tiers` reads on the worker."""
    return json.dumps(
        [model.model_dump(mode="json", by_alias=True, exclude_none=True) for model in models]
    )


@functools.lru_cache(maxsize=32)
def opened_tiers(text: str) -> tuple[Tier, ...]:
    """Return the tiers that `tiers_as_text` described; one call a process opens them."""
    return tuple(open_tiers([tier_model(fields) for fields in json.loads(text)]))


def finish(checkpointer: Checkpointer) -> FencedError | None:
    """Wait for what is being written; return the error if a newer attempt has taken over."""
    try:
        checkpointer.shut()
    except FencedError as error:
        return error
    fenced = [error for error in checkpointer.failures if isinstance(error, FencedError)]
    return fenced[0] if fenced else None


def outcome(checkpointer: Checkpointer, error: BaseException | None) -> dict[str, Any]:
    """Return how an attempt ended, as JSON-like values.

    ``outcome`` is finished, preempted, fenced or failed; ``failures`` tells of failed saves,
    ``tiers`` of tiers that were in trouble (see `ckptflow.checkpointer.health.Trouble`).
    """
    state_bytes, stored_bytes = checkpointer.written_bytes
    failures = [
        str(failure)
        for failure in checkpointer.failures
        if not isinstance(failure, FencedError)  # That is the outcome itself.
    ]
    if len(failures) > _FAILURES_MAX:
        more = f"and {len(failures) - _FAILURES_MAX} more failures"
        failures = [*failures[:_FAILURES_MAX], more]
    return {
        **outcome_of(error),
        "step": checkpointer.last_step,
        "resumed_step": checkpointer.restored_step,
        "failures": failures,
        "tiers": checkpointer.health.report(),
        "state_bytes": state_bytes,
        "stored_bytes": stored_bytes,
    }


def outcome_of(error: BaseException | None) -> dict[str, Any]:
    """Return what an error makes of an attempt."""
    if error is None:
        return {"outcome": "finished"}
    kinds = {Preempted: "preempted", FencedError: "fenced"}
    text = "".join(traceback.format_exception_only(error)).strip()
    return {"outcome": kinds.get(type(error), "failed"), "error": text[:_ERROR_TEXT_MAX]}
