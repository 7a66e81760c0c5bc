"""Launches tasks on an executor, and again when they fail: what of Parsl's kernel a run needs.

Tasks do not wait for each other. What is remembered is looked up before each try, a failed try
costs what the retry handler says, and when the costs of a task exceed the budget its future has
the error of the last try. The records of tasks are Parsl's, so that the memo, the retry
handler and the bookkeeping of `Tasks` are those of any other run.

``tests/process/test_globus_compute.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future, InvalidStateError, wait
from typing import TYPE_CHECKING, Any

from parsl.dataflow.taskrecord import TaskRecord

from ckptflow.errors import CheckpointError, WorkflowError
from ckptflow.workflow.identity import CKPT
from ckptflow.workflow.memo import DurableMemoizer
from ckptflow.workflow.retry import RetryHandler

if TYPE_CHECKING:
    from ckptflow.workflow.apps import App


class TaskFuture(Future[Any]):
    """The future of a task, with what is known of it."""

    def __init__(self, task_record: TaskRecord) -> None:
        super().__init__()
        self.task_record = task_record


class Launcher:
    """Launches tasks; closing it closes the executor.

    Args:
        executor: runs the tries.
        memoizer: remembers results; started already.
        retry_handler: says what a failed try costs.
        retries: what the failed tries of a task may cost in all.
    """

    def __init__(
        self,
        executor: Executor,
        memoizer: DurableMemoizer,
        retry_handler: RetryHandler,
        *,
        retries: int,
    ) -> None:
        self._executor, self._memoizer = executor, memoizer
        self._handler, self._retries = retry_handler, retries
        self._numbers = itertools.count()
        self._open: set[TaskFuture] = set()
        self._guard = threading.Lock()
        self._closed = False
        self.executors: Mapping[str, Any] = {}  # None that a `Watch` has to look after.

    def launch(
        self, app: App, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, spec: bytes
    ) -> TaskFuture:
        """Launch a task of ``app``; ``spec`` is what its worker has to know."""
        record: TaskRecord = {
            "id": next(self._numbers),
            "func": app.function,
            "func_name": app.function.name,
            "args": list(args),
            "kwargs": {**app.parsl.kwargs, **kwargs, CKPT: spec},
            "memoize": app.parsl.cache,
            "ignore_for_cache": app.parsl.ignore_for_cache,
            "hashsum": None,
            "depends": [],
            "from_memo": None,
            "fail_cost": 0,
            "try_id": 0,
        }
        future = record["app_fu"] = TaskFuture(record)
        future.set_running_or_notify_cancel()
        with self._guard:
            self._open.add(future)
        return future

    def start(self, future: TaskFuture) -> None:
        """Begin the first try of a task; whoever follows its future does so by now.

        So a task is open until they have been told of its end, too.
        """
        future.add_done_callback(self._forget)
        self._try(future.task_record)

    def wait_for_current_tasks(self) -> None:
        """Wait until every task has ended, those too that come in meanwhile."""
        while self._open:
            with self._guard:
                current = set(self._open)
            wait(current)

    def cleanup(self) -> None:
        """Give up what is open, and close the executor and the memo."""
        with self._guard:
            self._closed, left = True, set(self._open)
        for future in left:
            self._fail(future.task_record, WorkflowError("The run ended before this task."))
        self._executor.shutdown(wait=not left, cancel_futures=True)
        self._memoizer.close()

    def _try(self, record: TaskRecord) -> None:
        remembered = self._memoizer.check_memo(record)
        if remembered is not None:
            record["from_memo"] = True
            _end(record["app_fu"], remembered)
            return
        record["from_memo"] = False
        try:
            running = self._executor.submit(record["func"], *record["args"], **record["kwargs"])
        except CheckpointError as error:
            self._try_failed(record, error)
            return
        running.add_done_callback(lambda done: self._tried(record, done))

    def _tried(self, record: TaskRecord, done: Future[Any]) -> None:
        if done.cancelled():
            self._fail(record, WorkflowError("The task was given up: the executor is closed."))
            return
        error = done.exception()
        if error is None:
            if not self._closed:
                self._memoizer.update_memo_result(record, done.result())
            _end(record["app_fu"], done)
        elif isinstance(error, Exception):
            self._try_failed(record, error)
        else:
            self._fail(record, error)

    def _try_failed(self, record: TaskRecord, error: Exception) -> None:
        try:
            record["fail_cost"] += self._handler(error, record)
        except Exception as mistaken:  # noqa: BLE001  The user's handler; the task ends with it.
            self._fail(record, mistaken)
            return
        if record["fail_cost"] > self._retries or self._closed:
            self._fail(record, error)
            return
        record["try_id"] += 1
        self._try(record)

    def _fail(self, record: TaskRecord, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):  # It was given up meanwhile.
            record["app_fu"].set_exception(error)

    def _forget(self, future: Future[Any]) -> None:
        with self._guard:
            self._open.discard(future)


def _end(future: Future[Any], source: Future[Any]) -> None:
    with contextlib.suppress(InvalidStateError):  # It was given up meanwhile.
        future.set_result(source.result())
