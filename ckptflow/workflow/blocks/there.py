"""Get an allocation as a workflow would, and call one function on a node of it.

``tests/unit/test_site_check.py``, ``tests/slurm/test_sites.py``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ckptflow.errors import CheckpointError, WorkflowError
from ckptflow.site import Site
from ckptflow.site.allocations import Blocks
from ckptflow.site.executor import ExecutorModel
from ckptflow.units import format_seconds
from ckptflow.workflow.blocks.config import build_config

T = TypeVar("T")

_SHORT_S = 600.0  # Walltime of what is short.


def on_a_node(
    site: Site,
    call: Callable[..., T],
    arguments: Sequence[Any],
    *,
    name: str,
    takes_s: float,
    timeout_s: float,
) -> tuple[T, float]:
    """Call a function of this package on a node, and return what it returns.

    Args:
        site: with paths that are absolute; one block of it is asked for.
        call: is found by its name there.
        arguments: plain values.
        name: of the folder with the files of the allocation, which stays after a failure.
        takes_s: how long the call takes at most.
        timeout_s: how long to wait for the allocation and the answer.

    Returns:
        The result, and after how many seconds it came.

    Raises:
        WorkflowError: no allocation was to be had, nobody answered, or the call has failed.
    """
    import parsl

    folder = site.runs_folder / name
    executor = _one_short_block(site.executor, takes_s)
    began_s = time.monotonic()
    troubles: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        config = build_config(
            site.model_copy(update={"executor": executor}),
            run_dir=folder,
            retries=0,
            notice=troubles.append,
        )
        config.initialize_logging = False  # Parsl would leave its log file open.
        dfk = parsl.load(config)
    except (CheckpointError, OSError) as error:
        raise WorkflowError(str(error)) from error
    try:
        result: T = parsl.python_app(call)(*arguments).result(timeout_s)
    except TimeoutError as error:
        waited = format_seconds(timeout_s)
        text = "; ".join([f"no worker answered within {waited}", *troubles])
        raise WorkflowError(f"{text}. See {folder}.") from error
    except Exception as error:  # Whatever the node has raised is what there is to tell.
        raise WorkflowError(f"{type(error).__name__}: {error}") from error
    finally:
        dfk.cleanup()
        parsl.clear()
    shutil.rmtree(folder, ignore_errors=True)  # What is left there is of use after a failure.
    return result, time.monotonic() - began_s


def _one_short_block(model: ExecutorModel, takes_s: float) -> ExecutorModel:
    update: dict[str, Any] = {}
    if isinstance(model.allocation, Blocks):
        one = {"init_blocks": 1, "min_blocks": 0, "max_blocks": 1}
        update["allocation"] = model.allocation.model_copy(update=one)
    if model.walltime_s is not None:
        needed_s = 2 * model.margin_s + takes_s
        update["walltime_s"] = min(model.walltime_s, max(_SHORT_S, needed_s))
    return model.model_copy(update=update)
