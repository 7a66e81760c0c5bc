"""What the service and the endpoint say when a task has no outcome, as errors of ours.

The SDK hands on text: the traceback of what happened in the engine of the endpoint. What
decides about retries is read from it: that the machine was lost, that workers lack ckptflow.

``tests/unit/test_globus_compute.py``, and, with texts of a real engine,
``tests/process/test_globus_compute.py``.
"""

from __future__ import annotations

import re

import ckptflow
from ckptflow.errors import ConfigError, RemoteTaskError, TaskLost, TooLarge, WorkflowError

_LOST = re.compile(r"\bparsl\.[\w.]+\.(?:WorkerLost|ManagerLost): *(.*)")
_LACKS_US = re.compile(r"No module named '(ckptflow[\w.]*)'")
_LARGE = re.compile(r"Task result of \d+B exceeded current limit of \d+B")
_LAST_LINE = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
_TEXT_MAX = 20_000


def of_text(text: str) -> Exception:
    """Return the error for what an endpoint said of a task that left no outcome."""
    if lost := _LOST.search(text):
        return TaskLost(f"The endpoint lost the task: {lost[1] or lost[0]}")
    if lacking := _LACKS_US.search(text):
        return ConfigError(
            f"The workers of the endpoint cannot import {lacking[1]}: install "
            f"ckptflow=={ckptflow.__version__} in the environment that the endpoint's "
            f"worker_init activates."
        )
    if large := _LARGE.search(text):
        return TooLarge(f"{large[0]}. Return a reference: ckpt.export(state).")
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    names = _LAST_LINE.findall("\n".join(lines))
    return RemoteTaskError(
        f"The endpoint could not run the task: {lines[-1] if lines else 'it does not say why'}",
        type_name=names[-1] if names else "",
        remote_traceback=text[-_TEXT_MAX:],
    )


def of_service(error: BaseException) -> WorkflowError:
    """Return the error for a request that did not get through, or a connection that broke."""
    return WorkflowError(
        f"Globus Compute did not take the task or did not bring its result: "
        f"{type(error).__name__}: {error}. The task may still run on the endpoint; a new "
        f"attempt fences it."
    )
