"""A run shown: the line about it, the rows, the story of a task, the numbers for Prometheus."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ckptflow.workflow.seeing import metrics
from ckptflow.workflow.seeing.model import Attempt, Checkpoint, Copy, Life, RunStory, Task, Try
from ckptflow.workflow.seeing.status import advice, document, headline, rows
from ckptflow.workflow.seeing.why import conclusion, moments

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
T0 = 1_796_000_000.0


def saved(step: int, attempt: int, *tiers: str, status: str = "ok") -> Checkpoint:
    copies = tuple(
        Copy(tier=tier, level=3, stored_s=T0 + step, present=tier in tiers)
        for tier in ("nvme", "pfs")
    )
    return Checkpoint(step=step, attempt=attempt, taken_s=T0 + step, blocked_s=0.1,
                      state_bytes=2048, stored_bytes=512, copies=copies,
                      status=status)  # fmt: skip


def task(name: str = "work", state: str = "running", **options: object) -> Task:
    first = Attempt(
        number=1, life=0, began_s=T0, ended_s=T0 + 45, ending="lost", resumed=True,
        reached_step=42, saved_step=40, lost_s=5.0, lost_steps=2, blocked_s=0.2,
        reason="WorkerLost: gone", where={"host": "cn1", "pid": 9, "block": "0",
                                          "worker": "3", "allocation": "slurm:4711"},
        launch=Try(number=1, life=0, launched_s=T0 - 12, ended_s=T0 + 50, cost=0.1, task_id=5,
                   error="WorkerLost: gone", reason="WorkerLost: the machine failed"),
    )  # fmt: skip
    second = Attempt(
        number=2, life=0, began_s=T0 + 60, ended_s=None, ending="running", resumed=True,
        resumed_step=20, reached_step=60, where={"host": "cn2"},
        skipped=({"step": 40, "attempt": 1, "reason": "pack missing"},),
        launch=Try(number=2, life=0, launched_s=T0 + 51),
    )  # fmt: skip
    made = Task(
        name=name, state="running", attempts=(first, second), step=60, total_steps=100,
        eta_s=40.0, checkpoints=(saved(20, 1, "nvme", "pfs"),
                                 saved(40, 1, "nvme", status="void"), saved(60, 2, "nvme")),
        next="resume: was not finished; its newest checkpoint is of step 60",
    )  # fmt: skip
    return replace(made, state=state, **options)  # type: ignore[arg-type]


def story(*tasks: Task, state: str = "running", **life: object) -> RunStory:
    lives = (Life(session="s", began_s=T0 - 20, host="login", pid=7, site="delta", **life),)  # type: ignore[arg-type]
    return RunStory(run="exp", state=state, now_s=T0 + 100, lives=lives, tasks=tasks,  # type: ignore[arg-type]
                    tiers=(("nvme", 1), ("pfs", 3)))  # fmt: skip


# --- status ---


def test_a_line_says_how_the_run_is() -> None:
    running = story(task(), task("b", "finished"))
    assert headline(running) == (
        "run exp: running for 2min00s on login (process 7); 1 of 2 tasks done; 1 running; "
        "about 10.0 s of work lost; done with what runs now: in 40.0 s"
    )
    assert "done with what runs now: unknown" in headline(story(task(eta_s=None)))
    dead = story(task(state="interrupted"), state="dead", died=True, ended_s=T0 + 40)
    assert "dead; process 7 on login is gone, and was last heard of 1min00s ago" in headline(
        dead
    )
    ended = story(task(state="failed"), state="ended", ended_s=T0, exit_code=1)
    assert "ended with exit code 1 after 20.0 s; 0 of 1 task done; 1 failed" in headline(ended)


def test_a_row_says_where_a_task_is_and_what_each_tier_has_of_it() -> None:
    ((row,), left_out) = rows(story(task()))
    assert (row.task, row.state, row.attempts, row.where) == ("work", "running", 2, "cn2")
    assert {tier: found.step for tier, found in row.saved.items()} == {"nvme": 60, "pfs": 20}
    assert (row.lost_s, row.eta_s, left_out) == (5.0, 40.0, 0)


def test_of_very_many_tasks_those_without_news_are_left_out() -> None:
    quiet = [Task(name=f"t{n}", state="finished") for n in range(200)]
    run = story(*quiet, task("hit", "finished"), task("open"))
    shown, left_out = rows(run)
    assert [row.task for row in shown] == ["hit", "open"]
    assert left_out == 200
    assert len(rows(run, everything=True)[0]) == 202
    assert document(run, everything=False)["tasks_left_out"] == 200


def test_what_to_type_next_is_said_with_the_options_it_needs() -> None:
    dead = story(task(state="interrupted"), state="dead", ended_s=T0)
    assert advice(dead, ["--store", "my store"]) == [
        "It goes on where it was with: ckptflow restart exp --store 'my store'"
    ]
    failed = story(task(state="failed"), state="ended", ended_s=T0, exit_code=1)
    assert advice(failed) == [
        "What failed tells its story with: ckptflow why exp/work",
        "It goes on where it was with: ckptflow restart exp",
    ]
    done = story(task(state="finished"), state="ended", ended_s=T0, exit_code=0)
    assert advice(done) == []
    assert advice(story(task())) == []


# --- why ---


def test_the_story_of_a_task_is_told_in_order_with_reasons() -> None:
    run = story(task())
    told = moments(run, run.tasks[0])
    assert [text for _, text in ((one.at_s, one.text) for one in told)] == [
        "handed to Parsl as its task 5",
        "attempt 1 began on cn1 (process 9, worker 3, block 0, slurm:4711), 12.0 s after that; "
        "there was no checkpoint to go on from",
        "it has saved 2 checkpoints of steps 20 to 40, 1.00 KiB for 4.00 KiB of state; saves "
        "held it up for 200 ms",
        "attempt 1 was lost with its worker, at step 42 or later: WorkerLost: gone. About "
        "5.0 s of work was lost (2 steps or more)",
        "another try costs 0.1, WorkerLost: the machine failed",
        "handed to Parsl, for the second time",
        "attempt 2 began on cn2, 9.0 s after that, and went on from step 20",
        "it passed over step 40 of attempt 1: pack missing",
        "it has saved 1 checkpoint of step 60, 512 B for 2.00 KiB of state",
        "attempt 2 runs at step 60",
    ]  # fmt: skip
    times = [one.at_s for one in told if one.at_s is not None]
    assert times == sorted(times)


def test_the_end_says_how_it_stands_and_what_comes_next() -> None:
    run = story(task(state="interrupted", checkpoints=(saved(20, 1, "pfs"),
                saved(40, 1, "nvme", status="void"),
                saved(50, 1, "nvme", status="unreadable"))),
                state="dead")  # fmt: skip
    assert conclusion(run, run.tasks[0]) == [
        "It is not finished: the main process died before it was.",
        "Its newest checkpoint is of step 20, on pfs.",
        "Step 40 of attempt 1 does not count: the task went on without it.",
        "Step 50 of attempt 1 does not count: no copy of its manifest can be read.",
        "When the run is started again, it goes on: was not finished; its newest checkpoint is "
        "of step 60.",
    ]
    running = story(task())
    assert conclusion(running, running.tasks[0])[0] == "It runs, and is done in about 40.0 s."


def test_a_price_beyond_any_budget_is_said_in_words() -> None:
    one = task().attempts[0]
    assert one.launch is not None
    launch = replace(one.launch, cost=1e9, reason="TypeError is a mistake, not bad luck")
    run = story(task(attempts=(replace(one, launch=launch, ending="failed"),)))
    texts = [each.text for each in moments(run, run.tasks[0])]
    assert "no other try, TypeError is a mistake, not bad luck" in texts


# --- metrics ---


def families(run: RunStory) -> dict[str, dict[tuple[str, ...], float]]:
    """Return all samples as Prometheus's own parser reads them, by metric and label values."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics.text(run)):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_prometheus_reads_the_numbers() -> None:
    found = families(story(task(), task("b", "finished")))
    assert found["ckptflow_run_state"]["exp", "running"] == 1
    assert found["ckptflow_run_state"]["exp", "dead"] == 0
    assert found["ckptflow_tasks"]["exp", "finished"] == 1
    assert found["ckptflow_task_step"]["exp", "work"] == 60
    assert found["ckptflow_task_lost_seconds_total"]["exp", "work"] == 5
    assert found["ckptflow_attempts_ended_total"]["exp", "lost"] == 2
    assert found["ckptflow_checkpoints_total"]["exp", "work"] == 3
    assert found["ckptflow_checkpoint_stored_bytes_total"]["exp", "work"] == 3 * 512
    assert found["ckptflow_checkpoint_newest_step"]["exp", "work", "pfs", "3"] == 20
    newest = found["ckptflow_checkpoint_newest_time_seconds"]["exp", "work", "nvme", "1"]
    assert newest == pytest.approx(T0 + 60)


def test_names_with_quotes_and_line_ends_come_through() -> None:
    odd = 'a"b\\c\nd'
    assert families(story(task(odd)))["ckptflow_task_step"]["exp", odd] == 60


def test_each_metric_is_written_once_and_explained_on_the_page() -> None:
    run = story(task(steps_per_s=1.0), state="ended", ended_s=T0, exit_code=0)
    names = re.findall(r"^# TYPE (\S+)", metrics.text(run), re.MULTILINE)
    assert len(names) == len(set(names))
    page = (GUIDES / "watching.md").read_text()
    assert set(names) == set(re.findall(r"^\| `(ckptflow_\w+)`", page, re.MULTILINE))


def test_the_states_on_the_page_are_those_there_are() -> None:
    page = (GUIDES / "watching.md").read_text()
    states = next(line for line in page.splitlines() if line.startswith("| STATE"))
    assert {word for word in metrics.TASK_STATES if f"`{word}`" in states} == set(
        metrics.TASK_STATES
    )


def test_times_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptflow.workflow.seeing.report.scales import clock

    monkeypatch.setenv("TZ", "XYZ-5")
    time.tzset()
    try:
        assert clock(0) == "05:00:00"
    finally:
        monkeypatch.undo()
        time.tzset()
