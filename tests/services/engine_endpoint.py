"""An endpoint of Globus Compute in this process: the real engine, without service and broker.

`EngineExecutor` is ckptflow's executor, and so the SDK's, with the two methods replaced that
would ask the service: a function is kept here, and a task goes to the engine as the endpoint's
interchange would hand it over, packed as on the wire. Real are the SDK's serialization, the
messages, the engine, its interchange, manager and workers, and the limit on results, which the
engine enforces.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from globus_compute_common.messagepack import pack, unpack
from globus_compute_common.messagepack.message_types import Task
from globus_compute_endpoint.engines import GlobusComputeEngine
from globus_compute_endpoint.engines.base import GCFuture
from globus_compute_sdk.errors import TaskExecutionFailed
from globus_compute_sdk.sdk.asynchronous.compute_future import ComputeFuture
from globus_compute_sdk.serialize import ComputeSerializer
from parsl.providers import LocalProvider

from ckptflow.workflow.globus_compute.executor import TaskExecutor

ENDPOINT = uuid.UUID(int=0xC0DE)


@contextlib.contextmanager
def engine(folder: Path, *, workers: int, worker_init: str = "") -> Iterator[Any]:
    """Run an engine with worker processes; losses are noticed within seconds."""
    made = GlobusComputeEngine(
        address="127.0.0.1",
        max_workers_per_node=workers,
        cores_per_worker=0.001,
        heartbeat_period=1,
        heartbeat_threshold=5,
        provider=LocalProvider(
            init_blocks=1, min_blocks=1, max_blocks=1, worker_init=worker_init
        ),
    )
    made.start(endpoint_id=ENDPOINT, run_dir=str(folder))
    try:
        yield made
    finally:
        made.shutdown(block=True)


class NoService:
    """What stands where the SDK expects its client; it can only serialize."""

    def __init__(self) -> None:
        self.fx_serializer = ComputeSerializer()


class EngineExecutor(TaskExecutor):
    """ckptflow's executor on an engine in this process."""

    def __init__(self, engine: Any) -> None:
        super().__init__(endpoint_id=ENDPOINT, client=NoService())
        self._engine, self._codes = engine, {}

    def register_function(self, fn: Any, function_id: str | None = None, **_: Any) -> str:
        code = str(uuid.uuid4())
        self._codes[code] = self.client.fx_serializer.serialize(fn)
        self._function_registry[self._fn_cache_key(fn)] = code
        return code

    def submit_to_registered_function(
        self, function_id: str, args: Any = None, kwargs: Any = None
    ) -> ComputeFuture:
        serializer, task = self.client.fx_serializer, uuid.uuid4()
        parts = [self._codes[function_id], *map(serializer.serialize, (args, kwargs))]
        running, answer = GCFuture(gc_task_id=task), ComputeFuture(str(task))
        running.add_done_callback(lambda done: self._answer(done.result(), answer))
        message = pack(Task(task_id=task, task_buffer=serializer.pack_buffers(parts)))
        self._engine.submit(running, message, resource_specification={})
        return answer

    def _answer(self, message: bytes, answer: ComputeFuture) -> None:
        result = unpack(message)
        if result.is_error:
            answer.set_exception(TaskExecutionFailed(result.data))
        else:
            answer.set_result(self.client.fx_serializer.deserialize(result.data))
