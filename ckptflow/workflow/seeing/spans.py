"""A run as OpenTelemetry spans, for those who collect them: run, starts, tasks, attempts.

A checkpoint is an event of the attempt that took it. Trace and spans have the same ids each
time, so a run that is sent again, further on, is the same trace. Where they go and as whom is
what OpenTelemetry's own variables say (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``,
``OTEL_EXPORTER_OTLP_HEADERS``). It needs the extra ``otel``.
``tests/unit/test_seeing_spans.py`` sends some to a collector.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptflow.errors import ConfigError, TierUnavailable
from ckptflow.workflow.seeing.model import LOST_ENDINGS, Attempt, RunStory, Task

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

SERVICE = "ckptflow"

_DEFAULT_ENDPOINT = "http://localhost:4318"
_AT_ONCE = 512
_EVENTS_MAX = 1000  # Of one attempt: its newest checkpoints.


_Event = tuple[float, str, Mapping[str, str | int | float]]


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent, and where to."""

    spans: int
    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span, as plain values.

    Attributes:
        path: what it is: names from the run down, which make its id.
        name: its name.
        began_s: when it began.
        ended_s: when it ended.
        attributes: what else is known.
        events: what happened in it: when, what, with what attributes.
        error: why it failed, if it did.
    """

    path: tuple[str, ...]
    name: str
    began_s: float
    ended_s: float
    attributes: Mapping[str, str | int | float]
    events: tuple[_Event, ...] = ()
    error: str | None = None


def spans(story: RunStory) -> Iterator[Span]:
    """Yield the spans of a run, parents first."""
    times = [one.began_s for one in story.lives]
    times += [
        one.began_s for task in story.tasks for one in task.attempts if one.began_s is not None
    ]
    if not times:
        return
    over = story.lives[-1].ended_s if story.lives else None
    yield Span(
        path=(story.run,),
        name=f"run {story.run}",
        began_s=min(times),
        ended_s=over or story.now_s,
        attributes={"ckptflow.run": story.run, "ckptflow.state": story.state},
        error=None if story.exit_code in (0, None) else f"exit code {story.exit_code}",
    )
    for task in story.tasks:
        yield from _of_task(story, task)


def _of_task(story: RunStory, task: Task) -> Iterator[Span]:
    began = [one.began_s for one in task.attempts if one.began_s is not None]
    if not began:
        return
    ended = [one.ended_s or story.now_s for one in task.attempts]
    yield Span(
        path=(story.run, task.name),
        name=f"task {task.name}",
        began_s=min(began),
        ended_s=max(ended),
        attributes={
            "ckptflow.run": story.run,
            "ckptflow.task": task.name,
            "ckptflow.state": task.state,
            "ckptflow.attempts": task.executions,
            "ckptflow.lost_s": task.lost_s,
            **({"ckptflow.step": task.step} if task.step is not None else {}),
        },
        error=task.error,
    )
    for index, one in enumerate(task.attempts):
        if one.began_s is not None:
            yield _of_attempt(story, task, one, index)


def _of_attempt(story: RunStory, task: Task, one: Attempt, index: int) -> Span:
    number = index if one.number is None else one.number
    known = {
        "ckptflow.attempt": one.number,
        "ckptflow.ending": one.ending,
        "ckptflow.resumed_step": one.resumed_step,
        "ckptflow.reached_step": one.reached_step,
        "ckptflow.lost_s": one.lost_s,
        "ckptflow.blocked_s": one.blocked_s,
        "host.name": one.where.get("host"),
        "process.pid": one.where.get("pid"),
        "ckptflow.block": one.where.get("block"),
        "ckptflow.allocation": one.where.get("allocation"),
    }
    saves = [each for each in task.checkpoints if each.attempt == one.number and each.taken_s]
    events: tuple[_Event, ...] = tuple(
        (
            each.taken_s or 0.0,
            "checkpoint",
            {
                "ckptflow.step": each.step,
                "ckptflow.tiers": ",".join(copy.tier for copy in each.copies),
                "ckptflow.stored_bytes": each.stored_bytes or 0,
                "ckptflow.state_bytes": each.state_bytes or 0,
            },
        )
        for each in saves[-_EVENTS_MAX:]
    )
    kind = "try" if one.number is None else "attempt"
    return Span(
        path=(story.run, task.name, f"{kind} {number}"),
        name=f"{kind} {number} of {task.name}",
        began_s=one.began_s or 0.0,
        ended_s=one.ended_s or story.now_s,
        attributes={name: value for name, value in known.items() if value is not None},
        events=events,
        error=(one.reason or one.ending) if one.ending in LOST_ENDINGS else None,
    )


def send(story: RunStory) -> Sent:
    """Send the spans of a run to the collector that the environment names.

    Raises:
        ConfigError: OpenTelemetry's SDK and its OTLP exporter are not installed.
        TierUnavailable: the collector did not take them.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError as error:
        raise ConfigError(
            "Spans are sent by OpenTelemetry's SDK and its OTLP exporter, which are not "
            "installed here: pip install 'ckptflow[otel]'."
        ) from error
    endpoint = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or _DEFAULT_ENDPOINT
    )
    made = readable(story)
    exporter = OTLPSpanExporter()
    try:
        for begin in range(0, len(made), _AT_ONCE):
            result = exporter.export(made[begin : begin + _AT_ONCE])
            if result is not SpanExportResult.SUCCESS:
                raise TierUnavailable(
                    f"The collector at {endpoint} did not take the spans of run {story.run!r}; "
                    f"where they go is what OTEL_EXPORTER_OTLP_ENDPOINT says."
                )
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
    return Sent(len(made), endpoint)


def readable(story: RunStory) -> list[ReadableSpan]:
    """Return the spans of a run as OpenTelemetry has them."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    first = story.began_s or 0.0
    trace_id = _number(16, story.run, f"{first:.3f}")

    def context(path: tuple[str, ...]) -> SpanContext:
        return SpanContext(
            trace_id, _number(8, *path), is_remote=False, trace_flags=TraceFlags(1)
        )

    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", SERVICE)})
    return [
        ReadableSpan(
            name=one.name,
            context=context(one.path),
            parent=context(one.path[:-1]) if len(one.path) > 1 else None,
            resource=resource,
            attributes=dict(one.attributes),
            events=[
                Event(name, attributes=dict(attributes), timestamp=_ns(at_s))
                for at_s, name, attributes in one.events
            ],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, one.error) if one.error else Status(StatusCode.OK),
            start_time=_ns(one.began_s),
            end_time=_ns(max(one.began_s, one.ended_s)),
        )
        for one in spans(story)
    ]


def _number(size_bytes: int, *words: Any) -> int:
    """Return a number that is the same for the same words; never 0, which means none."""
    text = "\0".join(map(str, words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=size_bytes).digest(), "big") or 1


def _ns(at_s: float) -> int:
    return int(at_s * 1e9)
