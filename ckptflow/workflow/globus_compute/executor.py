"""An executor of the Globus Compute SDK whose calls are packed, measured and answered by ours.

It is used below Parsl's ``GlobusComputeExecutor``, by `run`, or by itself: `submit` takes any
function, and the future has the function's result, or its exception, not the text of one.

``tests/process/test_globus_compute.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any
from uuid import UUID

from globus_compute_sdk import Executor
from globus_compute_sdk.errors import TaskExecutionFailed

from ckptflow.errors import ConfigError, WorkflowError
from ckptflow.site.executor import EndpointAllocation
from ckptflow.workflow.globus_compute import calls, failures, outcomes
from ckptflow.workflow.globus_compute.sizes import (
    ENVELOPE_BYTES,
    SUBMISSION_BYTES_MAX,
    submitted_bytes,
)
from ckptflow.workflow.globus_compute.trampoline import run_task


class TaskExecutor(Executor):  # type: ignore[misc]
    """Runs functions on an endpoint; made with the arguments of the SDK's ``Executor``.

    It is closed as every executor is, by ``shutdown`` or as a context manager.
    """

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a call; the future has what the function returns or raises.

        Raises:
            ConfigError: something in the call cannot be sent.
            TooLarge: it is more than the service takes.
            WorkflowError: the connection has ended, after an error that earlier tasks show.
        """
        call = calls.pack(fn, args, kwargs)
        try:
            answer = super().submit(run_task, call.function, call.arguments, call.sender)
        except RuntimeError as error:
            raise WorkflowError(
                f"Nothing more can be sent to Globus Compute: {error}. Start the workflow "
                f"again; its tasks go on from their checkpoints."
            ) from error
        future: Future[Any] = Future()
        answer.add_done_callback(lambda done: _settle(done, future))
        return future

    def _submit_tasks(self, *arguments: Any) -> None:
        """Send calls that wait, in several requests if they are too large for one.

        The SDK counts the calls of a request and not their bytes. If it should call this by
        another name one day, they are sent as it sees fit.
        """
        *group, futures, tasks = arguments
        waiting = list(futures)
        try:
            for first, last in _requests([_bytes_of(task) for task in tasks]):
                super()._submit_tasks(*group, futures[first:last], tasks[first:last])
                del waiting[: last - first]
        except Exception as error:
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
            raise

    def _get_result_watcher(self) -> Any:
        """Return what listens for results; nothing does if no call was ever sent.

        Parsl asks for it at its end. A run whose results are all remembered would then connect
        to the broker only to leave it.
        """
        return super()._get_result_watcher() if self.task_count_submitted else _Nobody()


class _Nobody:
    """Listens to nothing."""

    def shutdown(self, **_: Any) -> None:
        """End."""


def executor_for(allocation: EndpointAllocation) -> TaskExecutor:
    """Return the executor for the endpoint of a site.

    Raises:
        ConfigError: the site names no endpoint.
    """
    if allocation.endpoint is None:
        raise ConfigError(
            "The site names no endpoint: set executor.allocation.endpoint to the id that "
            "`globus-compute-endpoint list` shows on its machine."
        )
    return TaskExecutor(
        endpoint_id=UUID(str(allocation.endpoint)),
        user_endpoint_config=dict(allocation.options) or None,
        resource_specification=dict(allocation.resources) or None,
        label="ckptflow",
    )


def _requests(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield which calls go together, as (first, last + 1)."""
    first, room = 0, SUBMISSION_BYTES_MAX - ENVELOPE_BYTES
    total = 0
    for number, size in enumerate(sizes):
        if number > first and total + size > room:
            yield first, number
            first, total = number, 0
        total += size
    if first < len(sizes):
        yield first, len(sizes)


def _bytes_of(task: Any) -> int:
    parts: list[Any] = [*task.args, *task.kwargs.values()]
    return submitted_bytes(sum(len(part) for part in parts if isinstance(part, bytes | str)))


def _settle(answer: Future[Mapping[str, Any]], future: Future[Any]) -> None:
    """Give ``future`` the result or the exception that an answer carries."""
    try:
        value = outcomes.opened(answer.result())
    except CancelledError:
        future.cancel()
        future.set_running_or_notify_cancel()
    except TaskExecutionFailed as error:
        future.set_exception(failures.of_text(error.remote_data))
    except Exception as error:  # noqa: BLE001  The user's own, or the connection's.
        broken = answer.exception() is error
        future.set_exception(failures.of_service(error) if broken else error)
    else:
        future.set_result(value)
