"""The story of a run, from events and facts made by hand: who ended how, and what was lost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from ckptflow.store.catalog import AttemptRecord
from ckptflow.workflow.seeing import metrics
from ckptflow.workflow.seeing.facts import CheckpointFact, Facts, TaskFacts
from ckptflow.workflow.seeing.model import Attempt, RunStory, Task
from ckptflow.workflow.seeing.report.page import page
from ckptflow.workflow.seeing.spans import spans
from ckptflow.workflow.seeing.status import blocks_line, headline
from ckptflow.workflow.seeing.story import tell
from ckptflow.workflow.seeing.why import conclusion, moments

T0 = 1_796_000_000.0
TIERS = (("nvme", 1), ("pfs", 3))


def clock(at_s: float) -> str:
    return datetime.fromtimestamp(T0 + at_s, UTC).isoformat(timespec="milliseconds")


def ev(at_s: float, event: str, **fields: Any) -> dict[str, Any]:
    return {"event": event, "time": clock(at_s), **fields}


def started(at_s: float = 0.0, session: str = "s1") -> dict[str, Any]:
    return ev(at_s, "run-started", session=session, host="login", pid=7, argv=["flow.py"],
              folder="/scratch", site="delta")  # fmt: skip


def launched(at_s: float, tries: int = 1, task: str = "work") -> dict[str, Any]:
    return ev(at_s, "task-launched", task=task, id=0, tries=tries, hash="abc")


def told(at_s: float, event: str, attempt: int = 1, **fields: Any) -> dict[str, Any]:
    return ev(at_s, event, task="work", attempt=attempt, **fields)


def saved(at_s: float, step: int, attempt: int = 1, tier: str = "pfs") -> list[dict[str, Any]]:
    level = dict(TIERS)[tier]
    return [
        told(at_s, "checkpoint-taken", attempt, step=step, blocked_s=0.5),
        told(at_s + 0.2, "checkpoint-stored", attempt, step=step, tier=tier, level=level,
             state_bytes=1000, stored_bytes=100, duration_s=0.2),
    ]  # fmt: skip


def record(
    attempt: int,
    at_s: float,
    *,
    step: int | None = None,
    end: Mapping[str, Any] | None = None,
) -> AttemptRecord:
    claim = {"attempt": attempt, "host": "node1", "pid": 3, "started": clock(at_s)}
    resume = {"attempt": attempt, "step": step, "manifest": None}
    return AttemptRecord(attempt, claim, resume, end)


def fact(step: int, attempt: int, *tiers: str, status: str = "ok", at_s: float = 0.0) -> Any:
    return CheckpointFact(step=step, attempt=attempt, tiers=tiers or ("pfs",), status=status,
                          created_s=T0 + at_s)  # fmt: skip


def facts(*attempts: AttemptRecord, checkpoints: tuple[CheckpointFact, ...] = ()) -> Facts:
    return Facts({"work": TaskFacts(attempts, checkpoints)}, TIERS)


def story(events: list[dict[str, Any]], found: Facts | None = None, **options: Any) -> RunStory:
    given = {"now_s": T0 + 100, "is_alive": True} | options
    events = sorted(events, key=lambda event: event["time"])
    return tell("exp", events, found or Facts(tiers=TIERS), **given)


def only(run: RunStory) -> Task:
    (task,) = run.tasks
    return task


def endings(task: Task) -> list[str]:
    return [one.ending for one in task.attempts]


def numbered(task: Task, number: int) -> Attempt:
    return next(one for one in task.attempts if one.number == number)


# --- how attempts end ---


def lost_and_resumed() -> list[dict[str, Any]]:
    return [
        started(), launched(1),
        told(2, "attempt-began", host="node1", pid=3, block="0", try_began_s=T0 + 2),
        told(2, "attempt-resumed", step=None),
        told(3, "step-reached", step=1, total_steps=100), *saved(12, 10), *saved(22, 20),
        told(24, "step-reached", step=22),
        ev(60, "task-try-failed", task="work", id=0, error="WorkerLost: gone", cost=0.1,
           reason="WorkerLost: the machine failed, not the task"),
        launched(60.1, tries=2),
        told(62, "attempt-began", 2, host="node2", pid=9),
        told(62, "attempt-resumed", 2, step=20), *saved(72, 30, 2),
    ]  # fmt: skip


def test_a_lost_worker_costs_the_work_since_the_checkpoint_that_was_restored() -> None:
    task = only(story(lost_and_resumed()))
    assert endings(task) == ["lost", "running"]
    first, second = task.attempts
    assert first.reason == "WorkerLost: gone"
    assert first.launch is not None
    assert first.launch.reason == "WorkerLost: the machine failed, not the task"
    assert (first.resumed_step, second.resumed_step) == (None, 20)
    assert first.where == {"host": "node1", "pid": 3, "block": "0"}
    # It was silent for 10 s at the longest, so it was gone 15 s after its last word.
    assert first.ended_s == pytest.approx(T0 + 24 + 1.5 * 9.8, abs=0.5)
    assert first.lost_s == pytest.approx(first.ended_s - (T0 + 22), abs=0.01)
    assert first.lost_steps == 2
    assert first.blocked_s == 1.0
    assert second.lost_s is None


def test_a_loss_is_not_later_than_it_was_noticed() -> None:
    events = [e for e in lost_and_resumed() if e["event"] != "task-try-failed"]
    events.append(ev(26, "task-try-failed", task="work", id=0, error="WorkerLost: gone",
                     cost=0.1, reason="x"))  # fmt: skip
    first = only(story(events)).attempts[0]
    assert first.ended_s == T0 + 26
    assert first.lost_s == pytest.approx(4)


def test_without_a_trail_the_store_tells_as_much_as_it_can() -> None:
    events = [e for e in lost_and_resumed() if not e["event"].startswith(("att", "che", "st"))]
    found = facts(
        record(1, 2), record(2, 62, step=20),
        checkpoints=(fact(30, 2, at_s=72), fact(20, 1, at_s=22)),
    )  # fmt: skip
    task = only(story(events, found))
    assert endings(task) == ["lost", "running"]
    assert task.attempts[0].ended_s == T0 + 60  # When it was noticed.
    assert task.attempts[0].lost_s == pytest.approx(38)
    assert task.attempts[1].resumed_step == 20
    assert task.step == 30


def test_a_lost_node_takes_work_of_earlier_attempts_along() -> None:
    """Attempt 2 went on from step 20 on the node; attempt 3 found only step 10, further out."""
    events = [
        started(), launched(0), told(0, "attempt-resumed", step=None), *saved(10, 10),
        *saved(20, 20, tier="nvme"),
        ev(21, "task-try-failed", task="work", id=0, error="ValueError: x", cost=1, reason="r"),
        launched(21.1, 2), told(22, "attempt-resumed", 2, step=20),
        ev(30, "task-try-failed", task="work", id=0, error="ManagerLost: x", cost=0.1,
           reason="r"),
        launched(30.1, 3), told(40, "attempt-resumed", 3, step=10),
    ]  # fmt: skip
    end = {"outcome": "failed", "ended": clock(21), "step": 20}
    task = only(story(events, facts(record(1, 0, end=end), record(2, 22), record(3, 40))))
    assert endings(task) == ["failed", "lost", "running"]
    assert numbered(task, 1).lost_s == pytest.approx(1)  # Since step 20.
    # Its own 8 s, and the 10 s between steps 10 and 20 of attempt 1.
    assert numbered(task, 2).lost_s == pytest.approx(18)
    assert task.lost_s == pytest.approx(19)


def test_who_stopped_in_time_lost_nothing() -> None:
    end = {"outcome": "preempted", "ended": clock(30), "step": 20,
           "error": "ckptflow.errors.Preempted: exp/work stopped at step 20"}  # fmt: skip
    events = [started(), launched(0), *saved(20, 20)]
    failed = ev(30, "task-failed", task="work", id=0, error="Preempted: exp/work stopped")
    over = ev(31, "run-ended", exit_code=7, error=None)
    found = facts(record(1, 1, end=end), checkpoints=(fact(20, 1, at_s=20),))
    run = story([*events, failed, over], found, is_alive=False)
    task = only(run)
    assert (task.state, run.state, run.exit_code) == ("stopped", "ended", 7)
    assert endings(task) == ["stopped"]
    assert task.attempts[0].reason == "Preempted: exp/work stopped at step 20"
    assert task.lost_s == 0


def test_a_run_that_died_leaves_its_tasks_interrupted() -> None:
    events = [started(), launched(0), told(1, "attempt-resumed", step=None), *saved(10, 10),
              launched(1, task="other")]  # fmt: skip
    found = facts(record(1, 1), checkpoints=(fact(10, 1, at_s=10),))
    run = story(events, found, is_alive=False, heard_s=T0 + 15)
    assert run.state == "dead"
    assert run.lives[-1].died
    assert run.lives[-1].ended_s == T0 + 15
    states = {task.name: task.state for task in run.tasks}
    assert states == {"work": "interrupted", "other": "interrupted"}
    work, other = run.tasks
    assert endings(work) == ["died"]
    assert work.attempts[0].reason is not None
    assert "process 7 on login was gone" in work.attempts[0].reason
    assert work.lost_s > 0
    assert other.lost_s == 0  # Whether it had begun is not known.
    assert (work.executions, other.executions) == (1, 0)


def test_what_a_dead_run_left_is_waiting_until_the_next_start_comes_to_it() -> None:
    events = [started(), launched(0), started(50, "s2")]
    run = story(events, facts(record(1, 1)))
    assert run.state == "running"
    assert [life.died for life in run.lives] == [True, False]
    assert only(run).state == "waiting"
    again = story([*events, launched(51)], facts(record(1, 1), record(2, 52, step=10)))
    assert endings(only(again)) == ["died", "running"]
    assert only(again).state == "running"


def test_an_attempt_may_end_well_though_its_run_died_before() -> None:
    end = {"outcome": "finished", "ended": clock(40), "step": 99}
    events = [started(), launched(0), started(50, "s2"), launched(51)]
    task = only(story(events, facts(record(1, 1, end=end), record(2, 52, step=99))))
    assert endings(task) == ["finished", "running"]


def test_going_back_is_no_loss() -> None:
    events = [started(), launched(0), told(1, "attempt-resumed", step=None), *saved(10, 10),
              *saved(20, 20), told(21, "attempt-resumed", 2, step=10)]  # fmt: skip
    task = only(story(events, facts(record(1, 1), record(2, 21, step=10))))
    assert endings(task) == ["went back", "running"]
    assert task.lost_s == 0
    assert [one.launch for one in task.attempts] == [task.tries[0]] * 2


@pytest.mark.parametrize(
    ("event", "state", "ending"),
    [
        (ev(9, "task-finished", task="work", id=0, remembered=True), "finished", "finished"),
        (ev(9, "task-failed", task="work", id=0, error="TypeError: x"), "failed", "failed"),
        (ev(9, "task-try-failed", task="work", id=0, error="ValueError: x", cost=1,
            reason="r"), "waiting", "failed"),
    ],
)  # fmt: skip
def test_a_task_that_never_uses_its_checkpointer(
    event: dict[str, Any], state: str, ending: str
) -> None:
    task = only(story([started(), launched(1), event]))
    assert (task.state, endings(task)) == (state, [ending])
    assert task.attempts[0].number is None
    assert task.attempts[0].ended_s == T0 + 9


def test_a_task_with_parsl_is_launched_until_it_is_heard_of() -> None:
    assert only(story([started(), launched(1)])).state == "launched"
    heard = [started(), launched(1), told(2, "attempt-began", host="n")]
    assert only(story(heard)).state == "running"


def test_a_reused_result_is_no_execution() -> None:
    reused = ev(1, "task-reused", task="work", id=0, hash="abc")
    task = only(story([started(), reused], facts(record(1, -50))))
    assert (task.state, task.attempts[0].launch) == ("reused", None)


# --- how far, how fast ---


def test_the_end_is_expected_from_the_speed_and_the_total() -> None:
    events = [started(), launched(0), told(0, "attempt-resumed", step=None),
              told(10, "step-reached", step=10, total_steps=100),
              told(50, "step-reached", step=50, total_steps=100)]  # fmt: skip
    run = story(events, now_s=T0 + 60)
    task = only(run)
    assert (task.step, task.total_steps) == (50, 100)
    assert task.steps_per_s == pytest.approx(1)
    assert task.eta_s == pytest.approx(40)  # 50 steps, of which it has done 10 since.
    assert run.eta_s == task.eta_s


def test_without_a_total_nobody_knows() -> None:
    events = [started(), launched(0), *saved(10, 10), *saved(20, 20)]
    run = story(events)
    assert only(run).eta_s is None
    assert run.eta_s is None


def test_the_total_may_come_from_a_manifest() -> None:
    found = facts(
        record(1, 1),
        checkpoints=(
            CheckpointFact(step=20, attempt=1, tiers=("pfs",), status="ok", created_s=T0 + 20,
                           total_steps=80),
            fact(10, 1, at_s=10),
        ),
    )  # fmt: skip
    task = only(story([started(), launched(0)], found, now_s=T0 + 20))
    assert task.total_steps == 80
    assert task.eta_s == pytest.approx(60)


def test_an_interrupted_task_is_as_far_as_what_is_left_of_it() -> None:
    events = [e for e in lost_and_resumed() if e["event"] != "task-launched"]
    events += [launched(1)]
    found = facts(record(1, 2), checkpoints=(fact(20, 1),))
    assert only(story(events[:9], found, is_alive=False)).step == 20


# --- checkpoints ---


def test_a_checkpoint_has_the_tiers_it_was_on_and_those_it_is_on() -> None:
    events = [
        started(), launched(0), *saved(10, 10, tier="nvme"), *saved(20, 20, tier="nvme"),
        told(25, "checkpoint-stored", step=10, tier="pfs", level=3),
    ]  # fmt: skip
    found = facts(record(1, 1), checkpoints=(fact(20, 1, "nvme"), fact(10, 1, "pfs")))
    ten, twenty = only(story(events, found)).checkpoints
    assert [(c.tier, c.present, c.stored_s) for c in ten.copies] == [
        ("nvme", False, T0 + 10.2), ("pfs", True, T0 + 25)
    ]  # fmt: skip
    assert [(c.tier, c.present) for c in twenty.copies] == [("nvme", True)]
    assert (ten.state_bytes, ten.stored_bytes) == (1000, 100)
    newest = only(story(events, found)).newest
    assert newest is not None
    assert newest.step == 20


def test_what_was_pruned_is_still_part_of_the_story() -> None:
    events = [started(), launched(0), *saved(10, 10)]
    (gone,) = only(story(events, facts(record(1, 1)))).checkpoints
    assert (gone.status, gone.is_present) == ("pruned", False)
    (unknown,) = only(story(events)).checkpoints  # Nobody has looked at the store.
    assert (unknown.status, unknown.copies[0].present) == ("told", None)


def test_a_tier_that_did_not_answer_is_not_taken_for_empty() -> None:
    events = [started(), launched(0), *saved(10, 10, tier="nvme"), *saved(10, 10)]
    found = Facts({"work": TaskFacts((record(1, 1),), (fact(10, 1, "pfs"),))}, (("pfs", 3),))
    (one,) = only(story(events, found)).checkpoints
    assert [(c.tier, c.present) for c in one.copies] == [("nvme", None), ("pfs", True)]


# --- what else ---


def test_a_task_without_a_journal_is_told_from_the_store() -> None:
    end = {"outcome": "finished", "ended": clock(40), "step": 99}
    found = facts(record(1, 1), record(2, 20, step=10, end=end))
    run = story([], found, is_alive=None)
    assert run.state == "unknown"
    assert (only(run).state, endings(only(run))) == ("finished", ["died", "finished"])
    going = story([], facts(record(1, 1)), is_alive=None)
    assert (only(going).state, endings(only(going))) == ("running", ["open"])


def test_what_happened_beside_the_tasks_is_news() -> None:
    run = story([started(), ev(1, "holder-died", host="h", pid=4, session="x"),
                 ev(2, "from-a-newer-version", what=3)])  # fmt: skip
    assert [text for _, text in run.news] == [
        "process 4 on h, which held this run before, is gone",
        "from a newer version: what 3",
    ]


def test_blocks_are_told_with_their_allocations() -> None:
    events = [
        started(),
        ev(1, "block-submitted", executor="htex", block="0", job="4711", batch_system="slurm",
           session="s1"),
        ev(2, "block-held", executor="htex", block="0", reason="its time is over"),
        ev(9, "block-ended", executor="htex", block="0", job="4711", state="TIMEOUT",
           message=None),
        started(20, "s2"),
        ev(21, "block-submitted", executor="htex", block="0", job="4712", batch_system="slurm",
           session="s2"),
    ]  # fmt: skip
    run = story(events)
    first, second = run.blocks
    assert (first.life, first.allocation, first.state) == (0, "slurm:4711", "TIMEOUT")
    assert (first.submitted_s, first.ended_s) == (T0 + 1, T0 + 9)
    assert first.held == "its time is over"
    assert (second.life, second.allocation, second.ended_s) == (1, "slurm:4712", None)
    assert blocks_line(run) == "blocks asked for and not over: 0 (slurm:4712)"
    assert run.news == ()


def test_a_run_that_was_told_to_stop_says_by_what() -> None:
    run = story([started(), ev(3, "run-ended", exit_code=75, error=None, signal="SIGTERM")])
    assert (run.exit_code, run.lives[0].error) == (75, "stopped by signal SIGTERM")


@pytest.mark.parametrize("nonsense", [None, "x", -1, [], {}, True, 1e400, "9" * 5000])
def test_nonsense_in_events_and_records_stops_nobody(nonsense: Any) -> None:
    fields = ("step", "tries", "id", "cost", "level", "blocked_s", "total_steps", "skipped",
              "state_bytes", "tier", "attempt", "try_began_s", "argv", "pid", "error", "hash",
              "exit_code", "duration_s", "stored_bytes", "reason", "host",
              "session")  # fmt: skip
    for field in fields:
        events = [{**e, field: nonsense} if field in e else e for e in lost_and_resumed()]
        claim = {"attempt": 1, "started": nonsense, "host": nonsense}
        end = {"outcome": nonsense, "ended": nonsense, "step": nonsense, "failures": nonsense,
               "tiers": nonsense, "error": nonsense}  # fmt: skip
        broken = AttemptRecord(1, claim, {"step": nonsense}, end)
        run = story([*events, ev(90, "run-ended", exit_code=nonsense)], facts(broken))
        for task in run.tasks:
            assert moments(run, task)
            assert conclusion(run, task)
        assert "</html>" in page(run)
        assert headline(run)
        assert "ckptflow_tasks" in metrics.text(run)
        assert list(spans(run))
