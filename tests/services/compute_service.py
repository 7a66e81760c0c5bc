"""A stand-in for the hosted service of Globus Compute, between real clients and endpoints.

It answers the four requests that the SDK's executor makes and routes messages on a real broker:
tasks to the queue of their endpoint, results to the queue of their task group. Everything
else that the hosted service does is missing or made up here: who may do what, where an endpoint
is, how tasks and results are kept, high assurance, rate limits. Its limit on the size of
a request is what the documentation says, applied to the body of the request.

    with ComputeService(amqp) as service:      # in threads of this process
        client = service.client()              # or client_of(service.url), in any process
"""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import globus_sdk
import pika
from globus_compute_common.messagepack import pack, unpack
from globus_compute_common.messagepack.message_types import Result, Task
from globus_compute_sdk import Client
from globus_compute_sdk.sdk.client import _ComputeWebClient

REQUEST_BYTES_MAX = 10_000_000
PREFIX = "group."
KINDS = {"tasks": "direct", "results": "topic", "heartbeats": "topic"}


class ComputeService:
    """The service.

    Attributes:
        url: its address.
        requests: what was asked: method, path, and size of the body.
    """

    def __init__(self, amqp: str) -> None:
        self.amqp, self.requests = amqp, []
        self.functions: dict[str, str] = {}
        self.groups: dict[str, str] = {}  # By task.
        self.guard = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._router = self._connect()

    def __enter__(self) -> Self:
        channel = self._router.channel()
        for kind, type_ in KINDS.items():
            channel.exchange_declare(kind, exchange_type=type_, durable=True)
        for kind in ("results", "heartbeats"):
            channel.queue_declare(kind, durable=True)
            channel.queue_bind(kind, kind, f"*.{kind}")
        channel.basic_consume("results", self._route)
        self._consumer = channel
        self._threads = [
            threading.Thread(target=channel.start_consuming, daemon=True),
            threading.Thread(target=self._server.serve_forever, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._router.add_callback_threadsafe(self._consumer.stop_consuming)
        for thread in self._threads:
            thread.join(timeout=30)
        self._router.close()

    def add_endpoint(self, endpoint: str) -> None:
        """Make the queue from which an endpoint gets its tasks."""
        connection = self._connect()
        channel = connection.channel()
        channel.queue_declare(f"{endpoint}.tasks", durable=True)
        channel.queue_bind(f"{endpoint}.tasks", "tasks", f"{endpoint}.tasks")
        connection.close()

    def submissions(self) -> list[int]:
        """Return the sizes of the requests that submitted tasks."""
        return [size for _, path, size in self.requests if path.endswith("/submit")]

    def submit(self, endpoint: str, batch: dict[str, Any]) -> dict[str, Any]:
        """Queue a batch of tasks."""
        group = batch.get("task_group_id") or str(uuid.uuid4())
        connection = self._connect()
        channel = connection.channel()
        channel.queue_declare(PREFIX + group, durable=True)
        numbers: dict[str, list[str]] = {}
        for function, payloads in batch["tasks"].items():
            numbers[function] = [str(uuid.uuid4()) for _ in payloads]
            for number, payload in zip(numbers[function], payloads, strict=True):
                with self.guard:
                    self.groups[number] = group
                task = Task(task_id=number, task_buffer=self.functions[function] + payload)
                properties = _properties(function, number, batch)
                channel.basic_publish("tasks", f"{endpoint}.tasks", pack(task), properties)
        connection.close()
        return {
            "request_id": str(uuid.uuid4()),
            "task_group_id": group,
            "endpoint_id": endpoint,
            "tasks": numbers,
        }

    def _connect(self) -> Any:
        return pika.BlockingConnection(pika.URLParameters(self.amqp))

    def _route(self, channel: Any, method: Any, _: Any, body: bytes) -> None:
        message = unpack(body)
        if isinstance(message, Result):
            with self.guard:
                group = self.groups.get(str(message.task_id))
            if group is not None:
                channel.basic_publish("", PREFIX + group, body)
        channel.basic_ack(method.delivery_tag)

    def _handler(service) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.requests.append(("GET", self.path.split("?")[0], 0))
                if self.path.startswith("/v2/version"):
                    versions = {"api": "1.0.0", "min_ep_version": "2", "min_sdk_version": "2"}
                    self.answer(200, versions)
                elif self.path == "/v2/get_amqp_result_connection_url":
                    where = {"queue_prefix": PREFIX, "connection_url": service.amqp}
                    self.answer(200, where)
                else:
                    self.answer(404, {"reason": f"no {self.path}"})

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                text = self.rfile.read(size)
                service.requests.append(("POST", self.path, size))
                if size > REQUEST_BYTES_MAX:
                    self.answer(413, {"reason": "too large"})
                elif self.path == "/v3/functions":
                    number = str(uuid.uuid4())
                    service.functions[number] = json.loads(text)["function_code"]
                    self.answer(200, {"function_uuid": number})
                elif self.path.endswith("/submit"):
                    endpoint = self.path.split("/")[3]
                    self.answer(200, service.submit(endpoint, json.loads(text)))
                else:
                    self.answer(404, {"reason": f"no {self.path}"})

            def answer(self, status: int, fields: dict[str, Any]) -> None:
                text = json.dumps(fields).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Nothing is printed."""

        return Handler


def client_of(url: str) -> Client:
    """Return the SDK's client for the service at ``url``, without a login."""
    nobody = globus_sdk.NullAuthorizer()
    client = Client(do_version_check=False, local_compute_services=True, authorizer=nobody)
    client._compute_web_client = _ComputeWebClient(base_url=url, authorizer=nobody)
    client.version_check()
    return client


def credentials(amqp: str, endpoint: str) -> dict[str, Any]:
    """Return what the hosted service tells an endpoint of its queues."""

    def published(kind: str) -> dict[str, Any]:
        return {
            "exchange": kind,
            "routing_key": f"{endpoint}.{kind}",
            "mandatory": True,
            "properties": {"delivery_mode": 2},
        }

    def queue(kind: str, name: str) -> dict[str, Any]:
        return {"connection_url": amqp, "exchange": kind, "queue": name}

    return {
        "endpoint_id": endpoint,
        "task_queue_info": queue("tasks", f"{endpoint}.tasks"),
        **{
            f"{kind[:-1]}_queue_info": {
                **queue(kind, kind),
                "queue_publish_kwargs": published(kind),
            }
            for kind in ("results", "heartbeats")
        },
    }


def _properties(function: str, number: str, batch: dict[str, Any]) -> pika.BasicProperties:
    headers = {
        "function_uuid": function,
        "task_uuid": number,
        "resource_specification": json.dumps(batch.get("resource_specification")),
        "result_serializers": batch.get("result_serializers") or [],
    }
    return pika.BasicProperties(
        content_type="application/x-msgpack", delivery_mode=2, headers=headers
    )
