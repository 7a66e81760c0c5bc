"""Spans, as OpenTelemetry's own exporter sends them to a collector that listens here."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ckptflow.errors import TierUnavailable
from ckptflow.workflow.seeing.model import Attempt, Checkpoint, Copy, Life, RunStory, Task
from ckptflow.workflow.seeing.spans import readable, send, spans

T0 = 1_796_000_000.0


def story() -> RunStory:
    copies = (Copy(tier="pfs", level=3, stored_s=T0 + 6, present=True),)
    saves = (
        Checkpoint(step=10, attempt=1, taken_s=T0 + 5, blocked_s=0.1, state_bytes=100,
                   stored_bytes=10, copies=copies, status="ok"),
    )  # fmt: skip
    attempts = (
        Attempt(number=1, life=0, began_s=T0 + 1, ended_s=T0 + 9, ending="lost",
                reason="WorkerLost: gone", reached_step=12, where={"host": "cn1", "pid": 4}),
        Attempt(number=2, life=0, began_s=T0 + 20, ended_s=T0 + 30, ending="finished",
                resumed=True, resumed_step=10, reached_step=40),
    )  # fmt: skip
    tasks = (
        Task(name="work", state="finished", attempts=attempts, checkpoints=saves, step=40),
        Task(name="never-began", state="waiting"),
    )
    lives = (Life(session="s", began_s=T0, ended_s=T0 + 31, exit_code=0),)
    return RunStory(run="exp", state="ended", now_s=T0 + 99, lives=lives, tasks=tasks)


class Collector(HTTPServer):
    """Keeps what it is sent."""

    received: list[ExportTraceServiceRequest]


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        self.server.received.append(request)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    server = Collector(("127.0.0.1", 0), Handler)
    server.received = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_run_is_a_trace(collector: Collector) -> None:
    sent = send(story())
    (request,) = collector.received
    found = {
        span.name: span
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    assert sent.spans == len(found) == 4
    run, task = found["run exp"], found["task work"]
    lost, second = found["attempt 1 of work"], found["attempt 2 of work"]
    assert run.parent_span_id == b""
    assert task.parent_span_id == run.span_id
    assert lost.parent_span_id == second.parent_span_id == task.span_id
    assert len({span.trace_id for span in found.values()}) == 1
    assert (lost.status.message, second.status.code) == ("WorkerLost: gone", 1)
    assert lost.start_time_unix_nano == pytest.approx((T0 + 1) * 1e9)
    attributes = {one.key: one.value for one in lost.attributes}
    assert attributes["host.name"].string_value == "cn1"
    (event,) = lost.events
    assert event.name == "checkpoint"
    assert {one.key: one.value.int_value for one in event.attributes}["ckptflow.step"] == 10


def test_sent_again_it_is_the_same_trace() -> None:
    first, second = (
        [(one.context.trace_id, one.context.span_id) for one in readable(story())]
        for _ in range(2)
    )
    assert first == second
    assert len(set(first)) == 4


def test_without_a_collector_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with pytest.raises(
        TierUnavailable, match=r"collector at http://127\.0\.0\.1:9 did not take"
    ):
        send(story())


def test_a_run_that_never_began_has_no_spans() -> None:
    assert list(spans(RunStory(run="exp", state="unknown", now_s=1.0))) == []
