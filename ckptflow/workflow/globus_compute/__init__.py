"""Tasks on endpoints of Globus Compute: through Parsl, or without it.

    with ckptflow.globus_compute.run("exp-12", endpoint="6c54...", store="s3://...") as run:
        print([future.result() for future in [run.submit(train, seed) for seed in range(4)]])

What travels is a call of one importable function, `trampoline.run_task`, with bytes for
arguments and an `outcomes` dictionary for an answer; `sizes` says how large both may be.
`executor.TaskExecutor` does that, as a ``globus_compute_sdk.Executor``, so it works below
Parsl's ``GlobusComputeExecutor`` (a site of kind ``globus_compute``) as it works alone.

The names below need the SDK and are imported when they are used: what workers import of this
package does not wait for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptflow.workflow.globus_compute.endpoint_run import GlobusRun, run
    from ckptflow.workflow.globus_compute.executor import TaskExecutor

_HOMES = {"GlobusRun": "endpoint_run", "TaskExecutor": "executor", "run": "endpoint_run"}

__all__ = ["GlobusRun", "TaskExecutor", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
