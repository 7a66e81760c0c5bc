"""The restart plan: each task once, with what happens to it and why."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptflow.workflow.restart import PlannedTask, plan

FINISHED = {"event": "task-finished", "task": "a", "remembered": True}


def event(kind: str, task: str, **fields: object) -> dict[str, object]:
    return {"event": f"task-{kind}", "task": task, **fields}


def test_every_kind_of_task() -> None:
    events = [
        {"event": "run-started"},
        event("launched", "sim"),
        event("launched", "train-seed=1"),
        event("launched", "train-seed=2"),
        event("launched", "plot"),
        event("finished", "sim", remembered=True),
        event("try-failed", "train-seed=1", error="WorkerLost"),
        event("failed", "plot", error="ValueError: no data"),
        event("launched", "odd"),
        event("finished", "odd", remembered=False),
    ]
    steps = {"sim": 90, "train-seed=1": 40, "train-seed=2": None, "old-seed=7": 3}
    assert plan(events, steps) == [
        PlannedTask("sim", "reuse", None, "finished; its result comes from the Parsl memo"),
        PlannedTask(
            "train-seed=1",
            "resume",
            40,
            "was not finished; its newest checkpoint is of step 40",
        ),
        PlannedTask(
            "train-seed=2",
            "begin",
            None,
            "was not finished; it has no checkpoint to go on from",
        ),
        PlannedTask(
            "plot",
            "begin",
            None,
            "failed with ValueError: no data; it has no checkpoint to go on from",
        ),
        PlannedTask(
            "odd",
            "begin",
            None,
            "finished, but its result was not remembered; it has no checkpoint to go on from",
        ),
        PlannedTask(
            "old-seed=7", "resume", 3, "not in the journal; its newest checkpoint is of step 3"
        ),
    ]


def test_a_task_that_failed_and_then_finished_is_finished() -> None:
    events = [event("failed", "a"), event("launched", "a"), FINISHED]
    assert [task.action for task in plan(events, {"a": 5})] == ["reuse"]


def test_a_reused_result_stays_reused() -> None:
    assert plan([FINISHED, event("reused", "a")], {})[0].action == "reuse"


def test_nothing_known_nothing_planned() -> None:
    assert plan([], {}) == []


kinds = st.sampled_from(["launched", "finished", "failed", "try-failed", "reused"])
names = st.sampled_from("abcd")


@given(st.lists(st.tuples(kinds, names)), st.dictionaries(names, st.none() | st.integers(0, 9)))
def test_each_task_once_and_steps_only_from_the_catalog(
    history: list[tuple[str, str]], steps: dict[str, int | None]
) -> None:
    planned = plan([event(kind, task) for kind, task in history], steps)
    assert sorted(one.task for one in planned) == sorted({t for _, t in history} | set(steps))
    for one in planned:
        assert (one.resume_step is not None) == (one.action == "resume")
        assert one.resume_step is None or one.resume_step == steps[one.task]
