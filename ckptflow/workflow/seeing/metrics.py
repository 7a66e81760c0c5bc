"""A run as numbers that Prometheus reads: its text format, version 0.0.4. Pure.

``tests/unit/test_seeing_shown.py`` has Prometheus's own parser read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ckptflow.workflow.seeing.model import RunStory, Task
from ckptflow.workflow.seeing.status import newest_on

RUN_STATES = ("running", "dead", "ended", "unknown")
TASK_STATES = (
    "running", "launched", "waiting", "finished", "reused", "stopped", "failed", "interrupted"
)  # fmt: skip

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric with its samples.

    Attributes:
        name: its name.
        kind: what it is to Prometheus.
        help: what it means.
        samples: label values, and the number.
    """

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)


def text(story: RunStory) -> str:
    """Return all metrics of a run in the text format of Prometheus."""
    return "".join(_lines(metrics(story)))


def metrics(story: RunStory) -> list[Metric]:
    """Return all metrics of a run; one that has no samples is left out."""
    made = [*_of_run(story), *_of_tasks(story), *_of_checkpoints(story)]
    return [one for one in made if one.samples]


def _of_run(story: RunStory) -> Iterator[Metric]:
    run = {"run": story.run}
    state = Metric("ckptflow_run_state", "gauge", "1 for the state the run is in.")
    for name in RUN_STATES:
        state.samples.append(({**run, "state": name}, float(story.state == name)))
    yield state
    began = Metric(
        "ckptflow_run_start_time_seconds", "gauge", "When the script was last started."
    )
    starts = Metric("ckptflow_run_starts_total", "counter", "Starts of the script.")
    code = Metric("ckptflow_run_exit_code", "gauge", "Exit code of the run, once it has ended.")
    if story.lives:
        began.samples.append((run, story.lives[-1].began_s))
        starts.samples.append((run, len(story.lives)))
    if story.exit_code is not None:
        code.samples.append((run, story.exit_code))
    yield from (began, starts, code)
    tasks = Metric("ckptflow_tasks", "gauge", "Tasks in each state.")
    for name in TASK_STATES:
        tasks.samples.append(({**run, "state": name}, story.count(name)))
    yield tasks
    endings = Metric("ckptflow_attempts_ended_total", "counter", "Attempts by how they ended.")
    counted = Counter(
        one.ending
        for task in story.tasks
        for one in task.attempts
        if one.ending not in ("running", "open")
    )
    for ending, count in sorted(counted.items()):
        endings.samples.append(({**run, "ending": ending}, count))
    yield endings


def _of_tasks(story: RunStory) -> Iterator[Metric]:
    def of(
        name: str,
        kind: Literal["gauge", "counter"],
        help_: str,
        values: Sequence[tuple[Task, float | None]],
    ) -> Metric:
        labels = {one.name: {"run": story.run, "task": one.name} for one, _ in values}
        samples: list[tuple[Labels, float]] = [
            (labels[one.name], float(v)) for one, v in values if v is not None
        ]
        return Metric(f"ckptflow_task_{name}", kind, help_, samples)

    tasks = story.tasks
    yield of("step", "gauge", "How far the task is.", [(one, one.step) for one in tasks])
    yield of("total_steps", "gauge", "Step at which the task will be done, if it says so.",
             [(one, one.total_steps) for one in tasks])  # fmt: skip
    yield of("steps_per_second", "gauge", "How fast the task goes.",
             [(one, one.steps_per_s) for one in tasks])  # fmt: skip
    yield of("eta_seconds", "gauge", "Seconds until the task is done, if that is known.",
             [(one, one.eta_s) for one in tasks])  # fmt: skip
    yield of("attempts_total", "counter", "Executions of the task.",
             [(one, one.executions) for one in tasks])  # fmt: skip
    yield of("lost_seconds_total", "counter", "Work that was lost, about.",
             [(one, one.lost_s) for one in tasks])  # fmt: skip
    yield of("blocked_seconds_total", "counter", "Time for which saves held the task up.",
             [(one, one.blocked_s) for one in tasks])  # fmt: skip


def _of_checkpoints(story: RunStory) -> Iterator[Metric]:
    saved = Metric("ckptflow_checkpoints_total", "counter", "Checkpoints that were committed.")
    state = Metric("ckptflow_checkpoint_state_bytes_total", "counter",
                   "What full copies of them would have taken.")  # fmt: skip
    stored = Metric("ckptflow_checkpoint_stored_bytes_total", "counter",
                    "What was written for them.")  # fmt: skip
    step = Metric("ckptflow_checkpoint_newest_step", "gauge",
                  "Step of the newest checkpoint on each tier.")  # fmt: skip
    taken = Metric("ckptflow_checkpoint_newest_time_seconds", "gauge",
                   "When the newest checkpoint on each tier was taken.")  # fmt: skip
    for task in story.tasks:
        labels = {"run": story.run, "task": task.name}
        if task.checkpoints:
            saved.samples.append((labels, len(task.checkpoints)))
            for metric, values in (
                (state, [one.state_bytes for one in task.checkpoints]),
                (stored, [one.stored_bytes for one in task.checkpoints]),
            ):
                metric.samples.append((labels, sum(value or 0 for value in values)))
        for tier, level in story.tiers:
            newest = newest_on(task.checkpoints, tier)
            if newest is None:
                continue
            place = {**labels, "tier": tier, "level": str(level)}
            step.samples.append((place, newest.step))
            if newest.taken_s is not None:
                taken.samples.append((place, newest.taken_s))
    yield from (saved, state, stored, step, taken)


def _lines(found: Sequence[Metric]) -> Iterator[str]:
    for one in found:
        yield f"# HELP {one.name} {_escaped(one.help)}\n"
        yield f"# TYPE {one.name} {one.kind}\n"
        for labels, value in one.samples:
            inside = ",".join(f'{name}="{_quoted(text)}"' for name, text in labels.items())
            yield f"{one.name}{{{inside}}} {_number(value)}\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')
