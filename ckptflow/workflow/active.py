"""The run of this process: one at a time, as Parsl has one DataFlowKernel at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ckptflow.errors import ConfigError

if TYPE_CHECKING:
    from ckptflow.workflow.run import Run

_lock = threading.Lock()
_run: Run | None = None


def enter(run: Run) -> None:
    """Make ``run`` the current one.

    Raises:
        ConfigError: there is one already.
    """
    global _run  # noqa: PLW0603  This module exists for it.
    with _lock:
        if _run is not None:
            raise ConfigError(
                f"Run {_run.name!r} is active in this process; leave its `with` block before "
                f"run {run.name!r} begins."
            )
        _run = run


def leave(run: Run) -> None:
    """Say that ``run`` is over."""
    global _run  # noqa: PLW0603  This module exists for it.
    with _lock:
        if _run is run:
            _run = None


def current_run(app: str) -> Run:
    """Return the current run.

    Raises:
        ConfigError: there is none; ``app`` is who asked.
    """
    run = _run
    if run is None:
        raise ConfigError(
            f"{app}() was called outside of a run: use `with ckptflow.run(...):`."
        )
    return run
