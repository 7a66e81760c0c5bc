"""What comes back from an endpoint: how a task ended, as a dictionary of plain values.

Exceptions arrive through the service as text only, and whoever retries has to tell a task that
stopped in time from one that failed. So the worker never raises: it returns an outcome, with a
``status``, and this side makes a result or an exception of it again.

    finished    ``value``: the result, packed
    preempted   ``task``, ``step``, ``resumed_step``, ``started``, ``text``: its state is saved
    failed      ``text``, ``type_name``, ``traceback``, and ``error``, packed, if it could be
    too-large   ``text``: there is a result, but the service does not carry it
    refused     ``text``: the worker does not fit the call, and did not run it

On which block a task stopped is not told: blocks are the endpoint's, which looks after them.

``tests/unit/test_globus_compute.py``, ``tests/process/test_globus_compute.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parsl.app.errors import RemoteExceptionWrapper
from parsl.serialize import deserialize, serialize

from ckptflow.errors import ConfigError, Preempted, RemoteTaskError, TooLarge, WorkflowError
from ckptflow.units import format_bytes
from ckptflow.workflow.globus_compute.sizes import (
    ENVELOPE_BYTES,
    RESULT_BYTES_MAX,
    answered_bytes,
)
from ckptflow.workflow.portable import (
    ErrorParcel,
    ResultParcel,
    open_error,
    portable_error,
    portable_result,
)

FINISHED, PREEMPTED, FAILED = "finished", "preempted", "failed"
TOO_LARGE, REFUSED = "too-large", "refused"


def of_value(value: object, *, task: str) -> dict[str, Any]:
    """Return the outcome of a call that returned ``value``.

    Raises:
        RemoteTaskError: the value cannot be sent at all.
    """
    carried = value if type(value) is ResultParcel else portable_result(value, task=task)
    packed = serialize(carried)
    needed = answered_bytes(len(packed))
    if needed <= RESULT_BYTES_MAX - ENVELOPE_BYTES:
        return {"status": FINISHED, "value": packed}
    return {
        "status": TOO_LARGE,
        "text": (
            f"The result of {task} needs {format_bytes(needed)} of an answer, and Globus "
            f"Compute carries {format_bytes(RESULT_BYTES_MAX)}. Return a reference: "
            f"ckpt.export(state). What the task has saved is in the store."
        ),
    }


def of_error(error: BaseException, *, task: str) -> dict[str, Any]:
    """Return the outcome of a call that raised ``error``."""
    carried = error if isinstance(error, ErrorParcel) else portable_error(error, task=task)
    if not isinstance(carried, ErrorParcel):  # A TaskExited.
        carried = _parcel_of(carried, task)
    original = open_error(carried.blob, carried.summary)
    if isinstance(original, Preempted):
        return {
            "status": PREEMPTED,
            "task": original.task,
            "step": original.step,
            "resumed_step": original.resumed_step,
            "started": original.started,
            "text": str(original),
        }
    blob = carried.blob
    if blob is not None and answered_bytes(len(blob)) > RESULT_BYTES_MAX - ENVELOPE_BYTES:
        blob = None
    return {
        "status": FAILED,
        "text": str(carried.summary),
        "type_name": carried.summary.type_name,
        "traceback": carried.summary.remote_traceback,
        "error": blob,
    }


def refusal(text: str) -> dict[str, Any]:
    """Return the outcome of a call that was not run."""
    return {"status": REFUSED, "text": text}


def opened(outcome: Mapping[str, Any]) -> Any:
    """Return the result that an outcome carries.

    Raises:
        Preempted: the task stopped in time.
        TooLarge: its result is.
        ConfigError: the worker does not fit.
        RemoteTaskError: it failed with something that cannot be rebuilt here.
        WorkflowError: it is no outcome.
        BaseException: whatever the task raised.
    """
    match outcome:
        case {"status": "finished", "value": bytes(packed)}:
            value = deserialize(packed)
            if isinstance(value, RemoteExceptionWrapper):
                raise value.get_exception()
            return value
        case {"status": "preempted", "text": text, **fields}:
            raise Preempted(
                text,
                task=fields["task"],
                step=fields["step"],
                resumed_step=fields["resumed_step"],
                started=fields["started"],
            )
        case {"status": "failed", "text": text, **fields}:
            summary = RemoteTaskError(
                text,
                type_name=fields["type_name"],
                remote_traceback=fields["traceback"],
            )
            raise open_error(fields["error"], summary)
        case {"status": "too-large", "text": text}:
            raise TooLarge(text)
        case {"status": "refused", "text": text}:
            raise ConfigError(text)
    raise WorkflowError(
        f"What came back from the endpoint is no outcome of a task: {str(outcome)[:200]!r}. "
        f"Install the same version of ckptflow on both sides."
    )


def _parcel_of(error: Exception, task: str) -> ErrorParcel:
    carried = portable_error(error, task=task)
    assert isinstance(carried, ErrorParcel), "exceptions that cross travel in parcels"
    return carried
